"""The benchmark batches as it says, and runs from end to end on the demo corpus."""

import re
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.paddlenlp_competitor import example_batches
from tests.support import ROOT, run_benchmark

SCRIPT = ROOT / "scripts" / "benchmark_training.py"


# ---- The batches of PaddleNLP's example ----


def test_example_batches():
    random = np.random.default_rng(0)
    lengths = random.integers(2, 60, 3000)
    source_lengths = lengths
    target_lengths = np.maximum(2, lengths + random.integers(-5, 6, len(lengths)))
    longer_side = np.maximum(source_lengths, target_lengths)
    batches = example_batches(source_lengths, target_lengths, random)
    assert sorted(np.concatenate(batches)) == list(range(3000))
    assert all(longer_side[batch].max() * len(batch) <= 4096 for batch in batches)
    assert sum(len(batch) % 8 != 0 for batch in batches) <= 1  # the last
    key = [[(source_lengths[i], target_lengths[i]) for i in batch] for batch in batches]
    assert all(rows == sorted(rows) for rows in key)
    starts = [rows[0] for rows in key]
    assert starts != sorted(starts)  # shuffled
    # No batch has room for eight rows more.
    in_order = sorted(
        batches, key=lambda batch: (source_lengths[batch[0]], target_lengths[batch[0]])
    )
    for batch, following in pairwise(in_order):
        more = np.concatenate([batch, following[:8]])
        assert longer_side[more].max() * len(more) > 4096


# ---- The script ----


def run(*arguments):
    return run_benchmark(SCRIPT, *arguments)


def tables(text):
    """The Markdown tables of a text, as lists of lines, each a list of cells."""
    lines = re.findall(r"^\|.*\|$\n?|^$", text, re.MULTILINE)
    blocks = [
        block for block in "".join(line or "\n" for line in lines).split("\n\n") if block.strip()
    ]
    return [
        [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in block.split("\n")
            if line
        ]
        for block in blocks
    ]


def test_missing_data_is_said_without_a_traceback(tmp_path):
    done = run("--data", tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    problem = f"--data: {tmp_path / 'train.en'}: there is no such file, or it is empty\n"
    assert done.stderr.endswith(problem) and "Traceback" not in done.stderr


@pytest.mark.slow
def test_it_runs_on_the_demo_corpus():
    demo = ROOT / "data" / "demo"
    done = run("--data", demo, "--sizes", "tiny", "--rounds", 1, "--seconds", 0.1)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "Warning" not in done.stderr
    steps, training, memory = tables(done.stdout)
    assert steps[0] == ["", "target tokens/s", "times PaddleNLP", "utilisation"]
    names = [line[0] for line in steps[2:]]
    assert names == ["PaddleNLP", "transformer_mt", "transformer_mt, PaddleNLP's dropout"]
    assert training[0] == [*steps[0], "padding"]
    assert [line[0] for line in training[2:]] == [
        "PaddleNLP, as its example",
        "transformer_mt `train`",
    ]
    speed = r"[\d,]+ \([\d,]+–[\d,]+\)"
    ratio = r"1|\*\*[\d.]+ \([\d.]+–[\d.]+\)\*\*"
    share = r"[\d.]+% \([\d.]+%–[\d.]+%\)"
    for line in steps[2:] + training[2:]:
        for cell, form in zip(line[1:], (speed, ratio, share, r"[\d.]+%"), strict=False):
            assert re.fullmatch(form, cell), line
    assert memory[0] == ["", "MB"] and [line[0] for line in memory[2:]] == names[:2]
    assert all(re.fullmatch(r"[1-9][\d,]*", line[1]) for line in memory[2:])

"""The benchmark counts right, batches as it says, and runs from end to end on the demo corpus."""

import importlib.util
import re
import sys
from itertools import pairwise

import numpy as np
import paddle
import pytest

from tests.support import ROOT, run_benchmark

SCRIPT = ROOT / "scripts" / "benchmark_training.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("benchmark_training", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


# ---- The count of operations ----


def test_flops_by_hand(benchmark):
    size = benchmark.Size(num_layers=1, d_model=2, d_ff=3, num_heads=1)
    # 2 source tokens: 4 projections of 8, feed-forward 24; scores and weighted values 2 x 2 x 2.
    encoder = 2 * (4 * 8 + 24) + 2 * (2 * 2 * 2 * 2)
    # 3 target tokens: self-attention 4 x 8 and 3 x 3 x 2 twice, cross-attention's query and output
    # 2 x 8, its key and value 2 x 8 of each source token, 3 x 2 x 2 twice, feed-forward 24.
    decoder = 3 * 4 * 8 + 2 * (2 * 3 * 3 * 2) + 3 * 2 * 8 + 2 * 2 * 8 + 2 * (2 * 3 * 2 * 2) + 3 * 24
    output = 3 * (2 * 2 * 5)
    assert (encoder, decoder, output) == (144, 368, 60)
    assert benchmark.training_flops(size, 5, 2, 3) == 3 * (144 + 368 + 60)


def test_flops_are_those_of_paddles_own_layers(benchmark):
    """Every linear layer that a forward pass meets, by the shapes it meets; attention's products
    multiplication by multiplication."""
    size = benchmark.Size(num_layers=2, d_model=8, d_ff=12, num_heads=2)
    vocab_size, source_len, target_len = 11, 5, 7
    model = paddle.nn.Transformer(
        size.d_model,
        size.num_heads,
        num_encoder_layers=size.num_layers,
        num_decoder_layers=size.num_layers,
        dim_feedforward=size.d_ff,
    )
    generator = paddle.nn.Linear(size.d_model, vocab_size)
    multiplications = 0

    def linear(layer, inputs, _):
        nonlocal multiplications
        multiplications += int(inputs[0].size // inputs[0].shape[-1] * layer.weight.size)

    def attention(layer, inputs, _):
        nonlocal multiplications
        query_len, key_len = inputs[0].shape[1], inputs[1].shape[1]
        for _head in range(layer.num_heads):
            for _query in range(query_len):
                for _key in range(key_len):
                    multiplications += layer.head_dim  # the score
                    multiplications += layer.head_dim  # the value, weighted

    for layer in [*model.sublayers(), generator]:
        if isinstance(layer, paddle.nn.Linear):
            layer.register_forward_post_hook(linear)
        elif isinstance(layer, paddle.nn.MultiHeadAttention):
            layer.register_forward_post_hook(attention)
    shape = [1, source_len, size.d_model], [1, target_len, size.d_model]
    generator(model(*map(paddle.ones, shape)))
    forward = 2 * multiplications  # each with an addition
    assert benchmark.training_flops(size, vocab_size, source_len, target_len) == 3 * forward


# ---- The batches of PaddleNLP's example ----


def test_example_batches(benchmark):
    random = np.random.default_rng(0)
    lengths = random.integers(2, 60, 3000)
    source_lengths = lengths
    target_lengths = np.maximum(2, lengths + random.integers(-5, 6, len(lengths)))
    longer_side = np.maximum(source_lengths, target_lengths)
    batches = benchmark.example_batches(source_lengths, target_lengths, random)
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
    blocks = [block for block in "".join(line or "\n" for line in lines).split("\n\n") if block]
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
    assert done.stderr.endswith(f"--data: {tmp_path / 'train.en'}: there is no such file\n")


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
        assert float(line[3].split("%")[0]) < 100
    assert memory[0] == ["", "MB"] and [line[0] for line in memory[2:]] == names[:2]
    assert all(re.fullmatch(r"[1-9][\d,]*", line[1]) for line in memory[2:])

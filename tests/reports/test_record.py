"""What a run has recorded is read whatever state its files are in."""

import json
import re

import numpy as np
import pytest

from tests.fabricated_run import STEPS, fabricate, train, write_metrics
from tests.support import demo_pairs, make_config
from transformer_mt.config import file as config_file
from transformer_mt.reports import record as records
from transformer_mt.reports.record import number, read
from transformer_mt.scoring.metrics import score
from transformer_mt.utils.errors import UsageError
from transformer_mt.utils.folders import sealed

PAIRS = demo_pairs(30)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    config = make_config(tmp_path)
    (path / "config.yaml").write_text(sealed(config_file.dump(config)), encoding="utf-8")
    (path / "format_version").write_text("2\n")
    return path


@pytest.fixture
def run(folder):
    fabricate(folder, PAIRS)
    return folder


def test_a_whole_run(run):
    record = read(run, "name")
    assert record.problems == []
    assert record.step == STEPS and record.seconds == STEPS * 0.9
    assert record.languages == ("en", "de") and record.config.model.d_model == 16
    assert record.facts.pairs == 28944
    assert record.translations.split == "test" and record.translations.checkpoint == "step_6000"
    assert record.translations.sources == [source for source, _ in PAIRS]
    points = record.points("dev", "bleu", "seconds", 1 / 3600)
    assert len(points) == 16 and points[-1][0] == 2.0
    assert dict(record.points("train", "gradient_norm"))[1000] is None


def test_the_name_of_a_text_that_is_not_utf8(folder):
    (folder / "data.json").write_bytes(b'{"files": {"train": ["a\\udcff"]}, "pairs": 3}')
    record = read(folder, "name")
    assert record.facts.pairs == 3 and not any("data.json" in text for text in record.problems)


def test_a_line_that_is_being_written(folder):
    write_metrics(folder, [train(50, 1, np.random.default_rng(0))])
    with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"kind": "train", "step": 100, "lo')
    record = read(folder, "name")
    assert record.step == 50 and record.problems == []


def test_while_training_the_newest_translations_of_the_dev_set_are_read(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    write_metrics(run, [line for line in lines if line["kind"] not in ("test", "end")])
    translations = read(run, "name").translations
    assert translations.split == "dev" and translations.checkpoint == f"step_{STEPS}"
    assert translations.references == [target for _, target in PAIRS[:20]]


VALUES = [None, True, "text", [1], {"a": 1}, 10**400, float("nan"), -5, 1e300, "<b>"]


def test_values_of_wrong_types(folder):
    lines, usual = [], train(50, 1, np.random.default_rng(0))
    for value in VALUES:
        line = usual | dict.fromkeys(("loss", "seconds", "epoch", "time"), value)
        lines += [line, line | {"kind": value}, line | {"step": value}, value]
    write_metrics(folder, lines)
    record = read(folder, "name")
    assert record.seconds in (None, 0.0, 50 * 0.9, -5)
    assert {y for _, y in record.points("train", "loss")} <= {None, -5.0}


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, 1.0), (0.5, 0.5), (True, None), ("1", None), (None, None), (10**400, None), (1e300, None),
     (float("inf"), None), ([1], None)],
)  # fmt: skip
def test_numbers(value, expected):
    assert number(value) == expected


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("metrics.jsonl", b"", "has no measurements yet"),
        ("metrics.jsonl", b"\x9f\xff\x01" * 1000, "has no measurements yet"),
        ("metrics.jsonl", b"[" * 100_000, "has no measurements yet"),
        ("config.yaml", b"model: {}", "damaged, or edited"),
        ("format_version", b"1\n", "format version 1"),
        ("format_version", b"9\n", "format version 9"),
        ("data.json", b"[1, 2", "damaged: not a JSON object"),
        ("data.json", b"[" * 100_000, "damaged: not a JSON object"),
        ("test.hypothesis", b"one line\n", "different numbers of lines: 1, 30"),
        ("test.reference", b"\xff\n" * 30, "not UTF-8"),
    ],
)
def test_damage_is_told(run, file, content, problem):
    (run / file).write_bytes(content)
    (found,) = read(run, "name").problems
    assert problem in found and "Traceback" not in found


@pytest.mark.parametrize("file", ["data.json", "test.hypothesis", "metrics.jsonl", "config.yaml"])
def test_links_out_of_the_directory_are_not_followed(run, tmp_path, file):
    outside = (run / file).rename(tmp_path / "outside")
    (run / file).symlink_to(outside)
    record = read(run, "name")
    assert any("is a link to a place outside" in problem for problem in record.problems)


def test_no_model_directory(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(UsageError, match=re.escape(str(path))):
            read(path, "name")


# ---- The scores ----


def judged_of(record):
    records.judge(record)
    return record.quality


def test_scores_are_the_logged_ones_if_they_have_intervals(run):
    scores = judged_of(read(run, "name")).scores
    assert scores.values == {"bleu": 34.0, "chrf": 58.0}
    assert scores.intervals["bleu"] == (34.0 - 1.3, 34.0 + 1.3)


def test_scores_without_intervals_are_computed(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines[-1].pop("intervals")
    write_metrics(run, lines)
    record = read(run, "name")
    judged = judged_of(record)
    text = record.translations
    expected = score(text.hypotheses, [text.references], "13a", confidence=True)
    assert judged.scores.values == expected.values
    assert judged.scores.intervals == expected.intervals
    assert sum(count for _, count, *_ in judged.groups) == judged.total == 30
    # Each sentence is scored by itself.
    own = score(text.hypotheses[7:8], [text.references[7:8]], "13a", metrics=["chrf"])
    assert judged.chrf[7] == pytest.approx(own.values["chrf"])


def test_a_long_text_is_scored_in_part(run, monkeypatch):
    monkeypatch.setattr(records, "MOST_LINES", 7)
    judged = judged_of(read(run, "name"))
    assert list(judged.lines) == [0, 4, 8, 12, 17, 21, 25] and judged.total == 30
    assert judged.translations.sources == [PAIRS[line][0] for line in judged.lines]
    assert judged.scores.values == {"bleu": 34.0, "chrf": 58.0}

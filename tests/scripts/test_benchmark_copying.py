"""The benchmark of copying counts right, and trains and measures a model."""

import json
import re

import pytest

import benchmark_copying as benchmark
from benchmarks.harness import read_lines
from tests.support import ROOT, run_benchmark

SCRIPT = ROOT / "scripts" / "benchmark_copying.py"
TINY = [
    "training.max_steps=2",
    "training.devices=1",
    "model.d_model=8",
    "model.num_layers=1",
    "decoding.beam_size=1",
    "decoding.max_length_ratio=0.2",
    "decoding.max_length_extra=0",
]


def test_what_is_right():
    references = ["Frau Ada hat 12 Euro .", "Herr Bo hat 3 Euro .", "Wo ist Cy , bei 77 ?"]
    outputs = ["Frau Ada hat 121 Euro .", "Bo hat 3 3 Euro", "Wo ist Cyr ?"]
    seen = {"Frau", "Herr", "hat", "Euro", ".", "Wo", "ist", ",", "bei", "?"}
    names, numbers = benchmark.accuracies(outputs, references, seen)
    assert (names, numbers) == (pytest.approx(2 / 3), pytest.approx(1 / 3))


@pytest.mark.slow
def test_a_model_is_trained_and_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "TRIALS", 1)
    benchmark.train(tmp_path / "model", TINY)
    measured = benchmark.measured(tmp_path / "model")
    assert len(measured) == len(benchmark.HEADER) - 2
    assert [bool(re.fullmatch(r"[0-9,.]+%?", cell)) for cell in measured] == [True] * 5
    records = [json.loads(line) for line in read_lines(tmp_path / "model" / "metrics.jsonl")]
    assert records[-1]["kind"] == "test" and records[-1]["lines"] == 500


def test_a_wrong_setting_is_told():
    done = run_benchmark(SCRIPT, "model.zzz=1")
    assert done.returncode == 1 and done.stdout == ""
    assert "model.zzz: unknown key" in done.stderr and "Traceback" not in done.stderr

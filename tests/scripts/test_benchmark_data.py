"""The script that measures large corpora runs, on a small one."""

import os
from pathlib import Path

import pytest

from tests.support import ROOT, demo_pairs, run_python, write_pairs

SCRIPT = ROOT / "scripts" / "benchmark_data.py"


def run(*arguments, **environment):
    environment = os.environ | {"PYTHONPATH": str(ROOT), **environment}
    return run_python(SCRIPT, *arguments, env=environment)


@pytest.mark.slow
def test_it_measures_and_cleans_up(tmp_path: Path):
    write_pairs(tmp_path / "text", "train", demo_pairs(600))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = run("--data", tmp_path / "text", "--pairs", 1500, TMPDIR=str(temporary))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("1,500 pairs, ")
    titles = [line.split(" | ")[0] for line in lines if line.startswith("|")]
    assert titles[2:5] == ["| first start", "| second start", "| encoding"]
    assert any(line.startswith("Padding at 4,096 tokens a batch: ") for line in lines)
    assert not list(temporary.glob("benchmark_data-*"))


def test_a_wrong_folder_is_told(tmp_path: Path):
    done = run("--data", tmp_path)
    assert done.returncode == 2 and "train.de: there is no such file" in done.stderr
    assert "Traceback" not in done.stderr

"""What the tests of the commands share: a model, and commands that run in this process."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import demo_pairs, make_config, make_model_directory
from transformer_mt.cli import main


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    """A model directory for reading. Its model was never trained, which makes no difference."""
    folder = tmp_path_factory.mktemp("commands")
    return make_model_directory(folder / "model", demo_pairs(200), make_config(folder)).path


@pytest.fixture
def call(capsys, monkeypatch, tmp_path_factory):
    """Runs the program in this process. Returns its exit code and what it printed."""

    def run(*arguments, stdin: str | bytes = "") -> subprocess.CompletedProcess:
        path = tmp_path_factory.mktemp("stdin") / "text"
        path.write_bytes(stdin if isinstance(stdin, bytes) else stdin.encode())
        texts = list(map(str, arguments))
        with open(path) as file:
            monkeypatch.setattr(sys, "stdin", file)
            try:
                code = main(texts)
            except SystemExit as stop:  # argparse's way
                code = stop.code
        return subprocess.CompletedProcess(texts, code, *capsys.readouterr())

    return run

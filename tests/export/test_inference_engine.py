"""Exported programs translate as the model does, where the model's code is not at hand.

What they compute is compared with the model in tests/test_parity.py and, for searches of all kinds,
in tests/decoding/test_beam_sizes.py.
"""

import os
import shutil
import subprocess
import sys

import pytest

from tests.support import ROOT, demo_pairs, make_config, make_model_directory, run_command
from transformer_mt.export.paddle_inference import InferenceEngine
from transformer_mt.model_directory import ModelDirectory
from transformer_mt.translator import Translator
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.folders import CHECKSUMS, write_checksums

PAIRS = demo_pairs(300)
LINES = [source for source, _ in PAIRS[:40]]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    """A model directory with an export in it."""
    folder = tmp_path_factory.mktemp("exported")
    directory = make_model_directory(folder / "model", PAIRS, make_config(folder))
    run_command("export", directory.path, format="paddle")
    return directory.path


@pytest.fixture
def moved(model_dir, tmp_path):
    """An export in another folder."""
    return shutil.copytree(model_dir / "export" / "paddle_inference", tmp_path / "elsewhere")


def test_without_the_model(model_dir, moved, tmp_path):
    """In a process that cannot build it, from a folder that was moved; stdout is clean."""
    program = """
import sys
from transformer_mt.model.transformer import Transformer
del Transformer.__init__, Transformer.encode, Transformer.decode_step
from transformer_mt.translator import Translator
for line in Translator.load("elsewhere", device="cpu").translate(sys.stdin.read().splitlines()):
    print(line)
"""
    result = subprocess.run(
        [sys.executable, "-c", program],
        input="".join(f"{line}\n" for line in LINES),
        capture_output=True,
        encoding="utf-8",
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "LC_ALL": "C.UTF-8"},
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    expected = Translator.load(model_dir, device="cpu").translate(LINES)
    assert result.stdout == "".join(f"{line}\n" for line in expected)
    assert "WARNING" not in result.stderr


@pytest.mark.parametrize("name", ["encoder.json", "decoder.pdiparams"])
def test_a_damaged_program(moved, name):
    content = bytearray((moved / name).read_bytes())
    content[len(content) // 2] ^= 1
    (moved / name).write_bytes(content)
    subwords = ModelDirectory(moved).load_subwords()
    with pytest.raises(UserError, match=rf"elsewhere: damaged \({name} is not as it was written"):
        InferenceEngine(moved, subwords)
    for missing in (name, CHECKSUMS):
        (moved / missing).unlink()
        with pytest.raises(UserError, match=missing):
            InferenceEngine(moved, subwords)


@pytest.mark.parametrize("name", ["decoder.json", "encoder.pdiparams"])
def test_a_program_that_paddle_does_not_know(moved, name):
    (moved / name).write_text("{}")
    (moved / CHECKSUMS).unlink()
    write_checksums(moved)
    with pytest.raises(UserError, match=r"Paddle 3\.[\d.]+ can't load it \(.+\). Export the model"):
        InferenceEngine(moved, ModelDirectory(moved).load_subwords())


def test_a_folder_that_is_no_export_or_whose_name_is_not_utf8(model_dir, moved):
    with pytest.raises(UsageError, match="is not an export for --engine paddle_inference"):
        InferenceEngine(model_dir, ModelDirectory(model_dir).load_subwords())
    odd = moved.rename(os.fsdecode(os.fsencode(moved) + b"\xff"))
    with pytest.raises(UsageError, match="needs a folder with a name in UTF-8"):
        InferenceEngine(odd, ModelDirectory(odd).load_subwords())

"""The command `convert`: an older model directory keeps its weights, translations and training
state to the last bit, and a pickle of anything other than arrays is refused."""

import shutil
from pathlib import Path

import numpy as np
import paddle
import pytest

from tests.support import (
    demo_pairs,
    make_config,
    make_model_directory,
    run,
    run_command,
    run_python,
    train_subwords,
    write_pairs,
)
from transformer_mt import cli
from transformer_mt.assembly.translator import Translator
from transformer_mt.config.file import dump
from transformer_mt.model_directory import ModelDirectory
from transformer_mt.training import conversion
from transformer_mt.training.folder import RunDirectory
from transformer_mt.utils import tensors
from transformer_mt.utils.errors import UsageError
from transformer_mt.utils.folders import verify, write_checksums

PAIRS = demo_pairs(120)
LINES = [source for source, _ in PAIRS[:20]]
# The files of a checkpoint that were pickles, and those that take their place.
PICKLES = {
    "model.pdparams": "model.safetensors",
    "optimizer.pdopt": "optimizer.safetensors",
}


def as_before(directory: ModelDirectory) -> None:
    """Gives a model directory the format before, as that was written: by `paddle.save`."""
    best = directory.best()
    for path in directory.checkpoints.iterdir():
        for old, new in conversion.PICKLES.items():
            if (path / new).is_file():
                arrays = tensors.read(path / new)
                values = {name: paddle.to_tensor(array) for name, array in arrays.items()}
                paddle.save(values, str(path / old))
                (path / new).unlink()
        write_checksums(path)
    for folder in (directory.path, *(directory.path / "export").glob("*")):
        config = folder / "config.yaml"
        config.write_text(config.read_text().rpartition("# SHA-256")[0])
        (folder / "format_version").write_text("1\n")
        (folder / "SHA256SUMS").unlink()
        if folder != directory.path:
            (folder / "checkpoint").unlink()
            write_checksums(folder)
    (directory.path / "best").write_text(f"{best.name}\n")


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> tuple[Path, Path]:
    """A model directory of this format, and the same of the one before."""
    folder = tmp_path_factory.mktemp("formats")
    directory = make_model_directory(folder / "new", PAIRS, make_config(folder))
    run_command("export", directory.path, format="ctranslate2")
    directory.set_best(directory.checkpoints / "step_5")
    shutil.copytree(folder / "new", folder / "old")
    as_before(ModelDirectory(folder / "old"))
    return folder / "new", folder / "old"


@pytest.fixture
def old(both, tmp_path) -> Path:
    return Path(shutil.copytree(both[1], tmp_path / "model"))


def content(folder):
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_an_older_directory_says_how_to_convert_it(old):
    with pytest.raises(UsageError, match=r"format version 1.*python -m transformer_mt convert /"):
        Translator.load(old)


def test_what_is_converted_is_what_this_version_writes(both, old):
    conversion.convert(str(old))
    expected, found = content(both[0]), content(old)
    of_export = "export/ctranslate2"
    # Which checkpoint an older export was made of is not known.
    del expected[f"{of_export}/checkpoint"]
    for files in (expected, found):
        del files[f"{of_export}/SHA256SUMS"]
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        assert found[name] == value, name
    assert verify(old / of_export) is None
    translators = [Translator.load(folder) for folder in (both[0], old)]
    assert translators[0].translate(LINES) == translators[1].translate(LINES)
    assert Translator.load(old / of_export).translate(LINES[:3])
    conversion.convert(str(old))  # once more changes nothing
    assert content(old) == found | {
        f"{of_export}/SHA256SUMS": content(old)[f"{of_export}/SHA256SUMS"]
    }


@pytest.mark.parametrize("steps", range(4))
def test_a_conversion_that_was_killed_is_gone_on_with(both, old, steps):
    code = f"""
import os, signal
from transformer_mt.training import conversion
calls = []
def convert_folder(path, original=conversion._convert_folder):
    if len(calls) == {steps}:
        os.kill(os.getpid(), signal.SIGKILL)
    calls.append(original(path))
conversion._convert_folder = convert_folder
if {steps} == 3:
    conversion.write_checksums = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
conversion.convert({str(old)!r})
"""
    run_python("-c", code)
    conversion.convert(str(old))
    for name, value in content(both[0]).items():
        if not name.startswith("export"):
            assert content(old)[name] == value, name


def test_training_goes_on_from_what_was_converted(tmp_path):
    for name, pairs in (("train", PAIRS[:100]), ("dev", PAIRS[100:])):
        write_pairs(tmp_path / "text", name, pairs)
    recipe = tmp_path / "recipe.yaml"
    training = {"max_steps": 6, "validate_every": 3, "save_every": 3, "devices": 1}
    data = {"dev": "dev", "held_out": 0}
    recipe.write_text(dump(make_config(tmp_path, training=training, data=data)), encoding="utf-8")
    for name, steps in (("whole", 6), ("model", 3)):
        model_dir = tmp_path / name
        done = run("train", recipe, f"model_dir={model_dir}", f"training.max_steps={steps}")
        assert done.returncode == 0, done.stderr
    as_before(ModelDirectory(model_dir))
    done = run("train", recipe, f"model_dir={model_dir}")
    assert done.returncode == 2 and "convert" in done.stderr
    assert run("convert", model_dir).returncode == 0
    done = run("train", recipe, f"model_dir={model_dir}")
    assert done.returncode == 0 and "going on from" in done.stderr
    for name in ("model.safetensors", "optimizer.safetensors"):
        paths = (tmp_path / folder / "checkpoints/step_6" / name for folder in ("whole", "model"))
        first, second = (path.read_bytes() for path in paths)
        assert first == second, name


def test_restart_deletes_an_older_run_whole(old):
    directory = RunDirectory(old)
    config, subwords = make_config(old.parent), train_subwords(PAIRS)
    directory.claim(restart=True)
    directory.start(config, subwords, [])
    directory.release()
    names = {"SHA256SUMS", "config.yaml", "format_version", "subword.model"}
    assert content(old).keys() == names
    assert directory.load_config() == config


def test_a_damaged_checkpoint_is_left_out(old, capsys):
    (old / "checkpoints" / "step_10" / "model.pdparams").write_bytes(b"nothing")
    conversion.convert(str(old))
    assert "step_10 is damaged" in capsys.readouterr().err
    assert [path.name for path in ModelDirectory(old).saved_checkpoints()] == ["step_5"]
    assert (old / "checkpoints" / "step_10.damaged").is_dir()


def test_paddles_own_file_can_be_written(both, tmp_path, capsys):
    path = tmp_path / "step_10.pdparams"
    options = ["convert", str(both[0]), "--to", "pdparams", "--checkpoint", "step_10"]
    assert cli.main([*options, "--output", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    found = paddle.load(str(path))
    expected = tensors.read(both[0] / "checkpoints" / "step_10" / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        np.testing.assert_array_equal(tensor.numpy(), expected[name], err_msg=name)

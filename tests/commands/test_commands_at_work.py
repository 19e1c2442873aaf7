"""Commands at work: where they read and write, settings of translations, averages, and what a
non-autoregressive model can't do."""

import os
import shutil
import sys

import pytest

from tests.support import (
    assert_refused,
    demo_pairs,
    files,
    important,
    make_config,
    make_model_directory,
    write_lines,
)
from transformer_mt.utils import console

PAIRS = demo_pairs(200)
QUICK = ("--threads", "1", "--beam-size", "1", "--max-length-extra", "1")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with a text, in which the commands run."""
    write_lines(tmp_path / "source", [source for source, _ in PAIRS[:5]])
    write_lines(tmp_path / "reference", [target for _, target in PAIRS[:5]])
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ---- Where is read and written ----


def test_files_by_position_and_by_option_and_dashes(call, model, folder):
    command = ("translate", model, *QUICK)
    stdin = (folder / "source").read_bytes()
    for arguments in (
        ("source", "out"), ("source", "--output=out"), ("--input=source", "--output=out"),
        ("-", "out"), ("--input=-", "--output=out"),
    ):  # fmt: skip
        done = call(*command, *arguments, stdin=stdin)
        assert (done.returncode, done.stdout) == (0, "") and files(folder)[0] == "out"
        expected = (folder / "out").read_text()
        (folder / "out").unlink()
    assert expected.count("\n") == 5
    for arguments in (("source", "-"), ("source", "--output=-"), ("-",), ()):
        assert call(*command, *arguments, stdin=stdin).stdout == expected


def test_odd_text_from_stdin(call, model):
    text = "A dog runs.\r\n\r\n \nM\xe4rz\nTwo\x85men\nno newline at the end".encode("latin-1")
    done = call("translate", model, "--min-length-ratio", "0.5", stdin=text)
    lines = done.stdout.split("\n")
    assert done.returncode == 0 and len(lines) == 7 and lines[6] == ""
    assert lines[1] == lines[2] == "" and lines[0] and lines[5]
    assert "stdin, line 4: not UTF-8" in done.stderr and done.stderr.count("not UTF-8") == 2


def test_odd_names(call, model, folder):
    name = os.fsdecode(b"\xff\xe9")
    write_lines(folder / name, ["A dog runs."])
    assert call("translate", model, name, f"{name}.out", *QUICK).returncode == 0
    assert (folder / f"{name}.out").exists()
    # A device is read like a file.
    assert call("translate", model, os.devnull, "empty").returncode == 0
    assert (folder / "empty").read_text() == ""


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        ("source --input=source", 2, "source: give INPUT or --input, and only once"),
        ("- out --output=other", 2, "out: give OUTPUT or --output, and only once"),
        ("loop out", 2, "loop: can't be read: Too many levels"),
        ("source no/out", 1, "no/out: can't be written"),
    ],
)
def test_wrong_places(call, model, folder, arguments, code, word):
    (folder / "loop").symlink_to("loop")
    assert_refused(call("translate", model, *arguments.split()), code, word)
    assert files(folder) == ["loop", "reference", "source"]


def test_closed_streams(call, model, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert "stdout is closed" in call("translate", model).stderr


# ---- Settings ----


def test_settings_of_a_translation(call, model):
    """Each flag does what it says."""
    text = "A dog runs.\nTwo men are here.\n" * 3

    def translated(*arguments):
        done = call("translate", model, "--threads", "1", *arguments, stdin=text)
        assert done.returncode == 0 and important(done.stderr) == "", done.stderr
        console._counts.clear()  # as in a process of its own
        return done.stdout

    plain = translated()
    assert translated("--ensemble", f"{model}:step_5") == plain  # its checkpoints are equal
    drawn = translated("--sampling", "--seed", "3", "--temperature", "2")
    assert drawn != plain and drawn == translated("--sampling", "--seed", "3", "--temperature", "2")
    assert translated("--sampling", "--top-k", "1") == translated("--sampling", "--top-p", "1e-9")
    assert translated("--no-sampling", "--beam-size", "2") == plain
    longer = translated("--min-length-ratio", "1", "--max-length-extra", "30")
    assert len(longer) > len(plain)
    done = call("translate", model, "--top-k", "3")
    assert "--top-k makes no difference without --sampling" in done.stderr


@pytest.fixture(scope="module")
def non_autoregressive(tmp_path_factory):
    folder = tmp_path_factory.mktemp("non_autoregressive")
    config = make_config(folder, model={"non_autoregressive": "length"})
    return make_model_directory(folder / "model", PAIRS, config).path


@pytest.mark.parametrize(
    ("command", "options", "code", "words"),
    [
        ("translate", "--threads 1 --input source --sampling", 2, ["--sampling"]),
        ("score", "--source source --target reference", 2, ["no probability"]),
        ("align", "--source source --target reference", 2, ["attends from masks"]),
        ("attention", "--text dog", 2, ["attends from masks"]),
        ("attention", "--text dog --target Hund", 2, ["attends from masks"]),
        ("export", "--format paddle", 1, ["can't be exported to", "non_autoregressive: length"]),
        ("export", "--format ctranslate2", 1, ["can't be exported", "non_autoregressive: length"]),
    ],
)
def test_what_a_non_autoregressive_model_cannot_do(
    call, non_autoregressive, folder, command, options, code, words
):
    done = call(command, non_autoregressive, *options.split(), "--output", "out")
    assert_refused(done, code, *words)
    assert files(folder) == ["reference", "source"]


# ---- average ----


@pytest.fixture
def broken_model(model, tmp_path):
    """A copy of it, to break."""
    return shutil.copytree(model, tmp_path / "broken")


def test_average_makes_a_checkpoint_to_translate_with(call, broken_model):
    done = call("average", broken_model, "--last", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(broken_model / "checkpoints" / "average_last_2")
    assert "--checkpoint average_last_2" in done.stderr
    outputs = [
        call("translate", broken_model, *QUICK, "--checkpoint", name, stdin="A man is here.\n")
        for name in ("average_last_2", "step_10")
    ]
    # Both of its checkpoints have the same weights.
    assert outputs[0].stdout == outputs[1].stdout != ""


def test_what_cannot_be_averaged(call, broken_model):
    done = call("average", broken_model, "--best", "3")
    assert_refused(done, 2, "keep_best", "2 of the best", "not 3")
    path = broken_model / "checkpoints" / "step_5" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert_refused(call("average", broken_model, "--last", "2"), 1, "step_5", "checksum")

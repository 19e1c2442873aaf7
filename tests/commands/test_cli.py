"""The command line: its help, wrong arguments, configs, texts and models, and their exit codes."""

import os
import shutil
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest
import yaml

from tests.support import (
    TIMEOUT,
    assert_refused,
    demo_pairs,
    files,
    make_config,
    start,
    write_lines,
    write_pairs,
)
from transformer_mt import __version__, cli
from transformer_mt.cli import COMMANDS
from transformer_mt.config.decoding import SEARCH_KEYS
from transformer_mt.config.file import dump
from transformer_mt.training import run as training_run
from transformer_mt.training.loop import seconds_per_step
from transformer_mt.utils.folders import sealed

PAIRS = demo_pairs(200)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty folder, in which the commands run."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def broken_model(model, tmp_path):
    """A copy of the model, to break."""
    return shutil.copytree(model, tmp_path / "broken")


@pytest.fixture
def recipe(tmp_path):
    """A config file with its data; all that belongs to it is in the test's own folder."""
    for name, pairs in (("train", PAIRS[:150]), ("dev", PAIRS[150:170]), ("test", PAIRS[170:190])):
        write_pairs(tmp_path / "text", name, pairs)
    path = tmp_path / "recipe.yaml"
    path.write_text(dump(make_config(tmp_path, data={"dev": "dev", "test": "test"})), "utf-8")
    return path


# ---- Help ----


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help(call, command):
    done = call(*filter(None, [command]), "--help")
    assert done.returncode == 0 and done.stderr == "" and "exit codes:" in done.stdout
    assert max(map(len, done.stdout.split("\n"))) <= 100
    words = COMMANDS if command is None else ()
    if command == "translate":
        words = ["--" + name.replace("_", "-") for name in SEARCH_KEYS]
    assert all(word in done.stdout for word in words)


def test_version(call):
    assert call("--version").stdout == f"{__version__}\n"


# ---- Wrong arguments and configs: exit code 2, nothing written ----


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", ["COMMAND"]),
        ("trian x", ["'trian'", "did you mean train?"]),
        ("translate m", ["m is not a model directory"]),
        ("zzz", ["'zzz'", ", ".join(COMMANDS)]),
        ("translate m in out more", ["more"]),
        ("translate m --beam_size=4", ["--beam_size", "did you mean --beam-size?"]),
        ("translate m --beamsize 4", ["--beamsize", "did you mean --beam-size?"]),
        # What is misspelled here is required.
        ("score m --sorce s --target t", ["--sorce", "did you mean --source?"]),
        ("train my.yaml --Restart", ["--Restart", "did you mean --restart?"]),
        ("train my.yaml --max-steps 9", ["--max-steps", "training.max_steps=..."]),
        ("translate m --threads 0", ["--threads", "'0'", "from 1 on"]),
        (f"translate m --threads {'9' * 5000}", ["--threads: '999999999", "expected a"]),
        ("align m --source s --target t --beam-size 2", ["--beam-size"]),
        ("train nothing.yaml", ["nothing.yaml", "no such config"]),
        ("evaluate --reference r", ["MODEL_DIR", "--hypothesis"]),
        ("evaluate m --reference r", ["--source"]),
        ("evaluate m --source s --hypothesis h --reference r", ["either"]),
        ("average m --last 0", ["--last", "'0'"]),
        ("new my.yaml --minutes 1e300", ["--minutes", "'1e300'"]),
        ("new my.yaml --minutes nan", ["--minutes", "'nan'"]),
    ],
)
def test_wrong_arguments(call, folder, arguments, words):
    assert_refused(call(*arguments.split()), 2, *words)
    assert files(folder) == []


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (f"--beam-size {'9' * 5000}", ["--beam-size: inf"]),
        ("--beam-size 2.5", ["--beam-size: 2.5"]),
        ("--batch-tokens 0 --top-p 2", ["--top-p: 2", "--batch-tokens: 0"]),
        ("--n-best 3 --format tsv", ["--n-best: 3: is more than --beam-size (2)"]),
        ("--n-best 2", ["--n-best 2", "--format tsv"]),
        ("--alignment", ["--alignment", "--format tsv"]),
        ("--resume", ["--resume: --input and --output must be files"]),
        ("--device tpu", ["--device: 'tpu': expected cpu, gpu or gpu:N"]),
        ("--checkpoint step_7", ["'step_7'", "best, last, step_5, step_10"]),
        ("--input nothing.txt", ["nothing.txt: there is no such file"]),
        ("--prefix nothing.txt", ["nothing.txt: there is no such file"]),
        ("--ensemble elsewhere", ["elsewhere is not a model directory"]),
        ("--engine ctranslate2", ["export", "--format ctranslate2"]),
    ],
)
def test_wrong_settings_of_a_translation(call, model, folder, arguments, messages):
    assert_refused(call("translate", model, *arguments.split(), stdin="x\n"), 2, *messages)
    assert files(folder) == []


@pytest.mark.parametrize(
    ("text", "overrides", "words"),
    [
        ("model_dir: [", [], ["line 1", "not valid YAML"]),
        ("model_dir: run\nmodell: {}\n", [], ["modell", "did you mean model", "data: missing"]),
        (None, ["model.num_haeds=4"], ["model.num_haeds", "model.num_heads"]),
        (None, ["data.root=nothing"], ["data.root", "nothing"]),
        (None, ["data.train=nothing"], ["data.train", "nothing.en"]),
        (None, ["--device", "tpu"], ["--device", "tpu"]),
        (None, ["--device=cpu", "training.precision=float16"], ["training.precision: float16"]),
        (None, ["--verbose"], ["--verbose: give it together with --check"]),
        (None, ["model.d_ff=-1", "training.max_steps=x"], ["2 problems", "d_ff", "max_steps"]),
    ],
)
def test_a_wrong_config(call, tmp_path, recipe, text, overrides, words):
    if text is not None:
        recipe.write_text(text)
    assert_refused(call("train", recipe, *overrides), 2, *words)
    assert not (tmp_path / "model").exists()


# ---- Wrong data: exit code 1, no model directory left behind ----


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        (None, b"Hund\n" * 41 + b"M\xe4rz\n" * 109, ["train.de, line 42", "iconv"]),
        (None, b"Hund\n" * 149, ["150", "149", "train.en", "train.de"]),
        (b"", b"", ["train.en", "empty"]),
        (b"\ntext\n", b"text\n \n", ["no training pair"]),
    ],
)
def test_wrong_training_text(call, tmp_path, recipe, source, target, words):
    for side, content in (("en", source), ("de", target)):
        if content is not None:
            (tmp_path / "text" / f"train.{side}").write_bytes(content)
    before = files(tmp_path)
    assert_refused(call("train", recipe), 1, *words)
    left = [name for name in files(tmp_path) if name not in before]
    assert all(name.startswith("cache") and not name.endswith(".tmp") for name in left)


def test_a_run_is_not_overwritten(call, model, recipe):
    before = files(model)
    done = call("train", recipe, f"model_dir={model}")
    assert_refused(done, 2, "holds a run with other settings", "--restart", "model_dir=")
    assert files(model) == before


def test_check(call, tmp_path, recipe, monkeypatch):
    monkeypatch.setattr(training_run, "seconds_per_step", partial(seconds_per_step, seconds=0.2))
    done = call("train", recipe, "--check", "training.max_steps=1234")
    facts, settings, estimate = done.stdout.split("\n\n", 2)
    assert done.returncode == 0 and facts.startswith("training pairs  150\n")
    for words in ("source subwords", "unknown", "vocabulary", "dev pairs", "1,234 in all"):
        assert words in facts
    assert "estimated time" in estimate and "s per step" in estimate
    # Only what differs from the defaults is in the table.
    first, header, *rows = settings.split("\n")
    assert "--verbose" in first and header.split() == ["setting", "value", "default"]
    rows = dict(row.split()[:2] for row in rows)
    assert rows["training.max_steps"] == "1234" and rows["model.d_model"] == "16"
    assert "data.max_length" not in rows and not (tmp_path / "model").exists()
    done = call("train", recipe, "--check", "--verbose", "training.max_steps=1234")
    shown = yaml.safe_load(done.stdout.split("\n\n", 2)[1])
    assert shown["training"]["max_steps"] == 1234 and shown["data"]["max_length"] == 256


# ---- Models that can't be used ----


def cut(path):
    path.write_bytes(path.read_bytes()[:1000])


def replace(old, new, seal):
    def change(path):
        text = path.read_text().replace(old, new)
        path.write_text(sealed(text.rpartition("# SHA-256")[0]) if seal else text)

    return change


@pytest.mark.parametrize(
    ("name", "spoil", "code", "words"),
    [
        ("checkpoints/step_10/model.safetensors", cut, 1, ["step_10", "damaged"]),
        ("checkpoints/step_10/model.safetensors", os.remove, 1, ["step_10", "model.safetensors"]),
        ("config.yaml", replace("d_model: 16", "d_model: 32", True), 1, ["not fit the config"]),
        ("config.yaml", replace("size: 2", "size: 3", False), 1, ["config.yaml", "--beam-size"]),
        ("subword.model", cut, 1, ["subword.model", "its checksum differs"]),
        ("config.yaml", os.remove, 2, ["not a model directory"]),
        ("checkpoints", shutil.rmtree, 2, ["no checkpoint yet"]),
    ],
)
def test_a_model_that_cannot_be_used(call, broken_model, folder, name, spoil, code, words):
    spoil(broken_model / name)
    command = ("translate", broken_model, "--threads", "1", "--output", "out")
    assert_refused(call(*command, stdin="A dog.\n"), code, *words)
    assert files(folder) == []


# ---- Arguments ----


def test_options_and_names_in_any_order():
    options = cli.parse(
        ["translate", "--threads", "2", "m", "--format", "tsv", "in", "--n-best", "3", "out"]
    )
    names = options.model_dir, options.input, options.output
    assert names == ("m", Path("in"), Path("out"))
    assert (options.threads, options.format, options.n_best) == (2, "tsv", 3)
    options = cli.parse(["train", "a.b=1", "--check", "my.yaml", "c.d=-2"])
    assert [options.config, *options.overrides] == ["a.b=1", "my.yaml", "c.d=-2"]
    # Names after two dashes may begin with a dash, and values may look like options.
    options = cli.parse(["translate", "--threads", "1", "--", "m", "-in"])
    assert (options.model_dir, options.input) == ("m", Path("./-in"))
    options = cli.parse(["attention", "m", "--text", "-- a text", "--target", "-0.5"])
    assert (options.text, options.target) == ("-- a text", "-0.5")


# ---- Signals and pipes: processes ----


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_translation_leaves_the_old_file(model, tmp_path, number, code):
    source, output = tmp_path / "in.fifo", write_lines(tmp_path / "out.txt", ["older"])
    os.mkfifo(source)
    process = start("translate", model, "--input", source, "--output", output)
    with open(source, "w") as file:  # opens when the program reads
        file.write("A dog runs.\n")
        file.flush()
        process.send_signal(number)
        assert process.wait(timeout=TIMEOUT) == code
    assert process.stderr.read() == "interrupted\n"
    assert output.read_text() == "older\n"
    assert sorted(os.listdir(tmp_path)) == ["here", "in.fifo", "out.txt"]


def test_a_reader_that_has_had_enough(model):
    """As `head -1`: no error message, for the reader did not want to know more."""
    reader, writer = os.pipe()
    process = start("translate", model, stdin=subprocess.PIPE, stdout=writer)
    os.close(writer)
    os.close(reader)
    _, messages = process.communicate("A dog runs.\n" * 10, timeout=TIMEOUT)
    assert process.returncode == 1 and messages == ""

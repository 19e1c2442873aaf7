"""The command line, as a user types it: real processes, their output and their exit codes."""

import shutil
from functools import partial

import pytest
import yaml

from tests.support import (
    assert_refused,
    demo_pairs,
    files,
    make_config,
    make_model_directory,
    run,
    write_lines,
    write_pairs,
)
from transformer_mt import __version__, cli
from transformer_mt.cli import main
from transformer_mt.config.decoding import SEARCH_KEYS
from transformer_mt.config.file import dump
from transformer_mt.training import run as training_run
from transformer_mt.training.loop import seconds_per_step
from transformer_mt.utils.folders import sealed

PAIRS = demo_pairs(200)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model directory whose model was never trained, which makes no difference here."""
    folder = tmp_path_factory.mktemp("cli")
    config = make_config(folder)
    return make_model_directory(folder / "model", PAIRS, config).path


@pytest.fixture
def broken_model(model, tmp_path):
    """A copy of it, to break."""
    return shutil.copytree(model, tmp_path / "broken")


@pytest.fixture
def recipe(tmp_path):
    """A config file with its data; all that belongs to it is in the test's own folder."""
    write_pairs(tmp_path / "text", "train", PAIRS[:150])
    write_pairs(tmp_path / "text", "dev", PAIRS[150:170])
    write_pairs(tmp_path / "text", "test", PAIRS[170:190])
    config = make_config(tmp_path, data={"dev": "dev", "test": "test"})
    path = tmp_path / "recipe.yaml"
    path.write_text(dump(config), encoding="utf-8")
    return path


# ---- Help ----

SETTINGS = ["--" + name.replace("_", "-") for name in SEARCH_KEYS]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ([], ["train", "translate", "evaluate", "score", "attention", "average", "export", "info"]),
        (["train"], ["CONFIG", "key=value", "--check", "--verbose", "--restart", "--device"]),
        (["translate"], ["MODEL_DIR", "--input", "--output", "--resume", "--prefix", "--format",
                         "--alignment", "--engine", "--checkpoint", "--ensemble", "--threads",
                         "--device", *SETTINGS, "source_pieces"]),
        (["evaluate"], ["MODEL_DIR", "--source", "--reference", "--output", "--json", "--device",
                        "--hypothesis", "--engine", "--beam-size", "--metrics", "--confidence",
                        "--lowercase", "--tokenize", "--target-lang", "--groups", "--sentences",
                        "--training-text", "--metric-only", "--comet-model"]),
        (["score"], ["MODEL_DIR", "--source", "--target", "--ensemble", "--length-penalty"]),
        (["attention"], ["MODEL_DIR", "--text", "--target", "--output", "(default: attention.html)",
                         "--checkpoint", "--device"]),
        (["align"], ["MODEL_DIR", "--source", "--target", "--reference", "--output", "i?j",
                     "--engine", "--checkpoint", "--batch-tokens"]),
        (["average"], ["MODEL_DIR", "--last", "--best"]),
        (["export"], ["MODEL_DIR", "--format", "{paddle,ctranslate2,pdparams}", "--quantization",
                      "int8", "bfloat16", "--checkpoint", "--output"]),
        (["info"], ["CONFIG|MODEL_DIR", "key=value", "--length", "what is counted"]),
    ],
)  # fmt: skip
def test_help(command, words):
    done = run(*command, "--help")
    assert done.returncode == 0 and done.stderr == ""
    for word in [*words, "0 done    1 failed    2 wrong config or arguments    130 Ctrl-C    143"]:
        assert word in done.stdout
    assert max(map(len, done.stdout.split("\n"))) <= 100


def test_version():
    assert run("--version").stdout == f"{__version__}\n"


# ---- Wrong arguments and configs: exit code 2, nothing written ----


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["COMMAND"]),
        (["trian", "x"], ["'trian'"]),
        (["translate"], ["MODEL_DIR"]),
        (["translate", "m"], ["m is not a model directory"]),
        (["translate", "m", "--threads", "0"], ["--threads", "'0'", "from 1 on"]),
        (["translate", "m", "--engine", "onnx"], ["--engine", "'onnx'"]),
        (["translate", "m", "--format", "xml"], ["--format", "'xml'"]),
        (["translate", "m", "--prefix", "nothing.txt"], ["--prefix", "no such file"]),
        (["score", "m", "--source", "s"], ["--target"]),
        (["score", "m", "--source", "s", "--target", "t"], ["--source", "no such file"]),
        (["evaluate", "m", "--reference", "r", "--n-best", "2"], ["--n-best"]),
        (["align", "m", "--source", "s"], ["--target"]),
        (["align", "m", "--source", "s", "--target", "t"], ["--source", "no such file"]),
        (["align", "m", "--source", "s", "--target", "t", "--beam-size", "2"], ["--beam-size"]),
        (["translate", "m", "--beam", "3"], ["--beam"]),
        (["translate", "m", "--threads", "9" * 5000], ["--threads: '999999999...': expected a"]),
        (["translate", "m", "--input", "nothing.txt"], ["--input", "nothing.txt", "no such file"]),
        (["attention", "m"], ["--text"]),
        (["attention", "m", "--text", "A dog."], ["m is not a model directory"]),
        (["train"], ["CONFIG"]),
        (["train", "nothing.yaml"], ["nothing.yaml", "no such config"]),
        (["train", "nothing.yaml", "--frobnicate"], ["--frobnicate"]),
        (["evaluate"], ["--reference"]),
        (["evaluate", "--reference", "r"], ["MODEL_DIR", "--hypothesis"]),
        (["evaluate", "m", "--reference", "r"], ["--source"]),
        (["evaluate", "m", "--source", "s", "--hypothesis", "h", "--reference", "r"], ["either"]),
        (["evaluate", "--hypothesis", "h", "--reference", "r"], ["--hypothesis", "no such file"]),
    ],
)
def test_wrong_arguments(tmp_path, arguments, words):
    assert_refused(run(*arguments, cwd=tmp_path), 2, *words)
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["--beam-size", "0"], ["--beam-size: 0: expected greater than 0"]),
        (["--beam-size", "1001"], ["--beam-size: 1001: expected at most 1000"]),
        (["--beam-size", "9" * 5000], ["--beam-size: inf: expected a whole number\n"]),
        (["--beam-size", "five"], ["--beam-size: 'five': expected a whole number"]),
        (["--beam-size", "2.5"], ["--beam-size: 2.5: expected a whole number"]),
        (["--length-penalty", "-1"], ["--length-penalty: -1: expected at least 0"]),
        (["--length-penalty", "nan"], ["--length-penalty: nan: expected a finite number"]),
        (["--length-penalty-kind", "wu"], ["--length-penalty-kind: 'wu': expected 'gnmt' or"]),
        (["--batch-tokens", "0", "--top-p", "2"], ["--top-p: 2", "--batch-tokens: 0"]),
        (["--n-best", "3", "--format", "tsv"], ["--n-best: 3: is more than --beam-size (2)"]),
        (["--n-best", "2"], ["--n-best 2", "--format tsv"]),
        (["--alignment"], ["--alignment", "--format tsv"]),
        (["--resume"], ["--resume: --input and --output must be files"]),
        (["--device", "tpu"], ["--device: 'tpu': expected cpu, gpu or gpu:N"]),
        (["--checkpoint", "step_7"], ["no checkpoint 'step_7'"]),
        (["--ensemble", "elsewhere"], ["elsewhere is not a model directory"]),
        (["--engine", "ctranslate2"], ["export", "--format ctranslate2"]),
    ],
)
def test_wrong_settings_of_a_translation(model, tmp_path, arguments, messages):
    assert_refused(run("translate", model, *arguments, stdin="x\n", cwd=tmp_path), 2, *messages)
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "overrides", "words"),
    [
        ("", [], ["model_dir"]),
        ("just text", [], ["model_dir"]),
        ("model_dir: [", [], ["line 1", "not valid YAML"]),
        ("model_dir: run\nmodell: {}\n", [], ["modell", "did you mean model", "data: missing"]),
        (None, ["model.num_haeds=4"], ["model.num_haeds", "model.num_heads"]),
        (None, ["model.d_model=wide"], ["model.d_model", "'wide'", "whole number"]),
        (None, ["model.num_heads=3"], ["model.num_heads", "divide"]),
        (None, ["data.root=nothing"], ["data.root", "nothing"]),
        (None, ["data.train=nothing"], ["data.train", "nothing.en"]),
        (None, ["--device", "tpu"], ["--device", "tpu"]),
        # All problems at once.
        (
            None,
            ["model.d_ff=-1", "training.max_steps=x"],
            ["2 problems", "model.d_ff", "max_steps"],
        ),
    ],
)
def test_a_wrong_config(tmp_path, recipe, text, overrides, words):
    if text is not None:
        recipe.write_text(text)
    before = files(tmp_path)
    assert_refused(run("train", recipe, *overrides, cwd=tmp_path), 2, *words)
    assert files(tmp_path) == before


# ---- Wrong data: exit code 1, no model directory left behind ----


def spoil_utf8(folder):
    text = (folder / "train.de").read_bytes().split(b"\n")
    text[41] = "März".encode("latin-1")
    (folder / "train.de").write_bytes(b"\n".join(text))
    return ["train.de", "line 42", "UTF-8", "iconv"]


def spoil_count(folder):
    write_lines(folder / "train.de", [target for _, target in PAIRS[:149]])
    return ["150", "149", "train.en", "train.de"]


def spoil_empty(folder):
    for side in ("en", "de"):
        (folder / f"train.{side}").write_text("")
    return ["train.en", "empty"]


def spoil_blank(folder):
    write_pairs(folder, "train", [("", "text"), ("text", " ")])
    return ["no training pair"]


@pytest.mark.parametrize("spoil", [spoil_utf8, spoil_count, spoil_empty, spoil_blank])
def test_wrong_training_text(tmp_path, recipe, spoil):
    words = spoil(tmp_path / "text")
    before = files(tmp_path)
    done = run("train", recipe)
    # "training the subword model ..." may precede the error
    assert_refused(done, 1, *words)
    left = [name for name in files(tmp_path) if name not in before]
    assert not [name for name in left if not name.startswith("cache")], left
    assert not [name for name in left if name.endswith(".tmp")], left


def test_a_run_is_not_overwritten(model, recipe):
    before = files(model)
    done = run("train", recipe, f"model_dir={model}")
    assert_refused(done, 2, "holds a run with other settings", "--restart", "model_dir=")
    assert files(model) == before


def test_check(tmp_path, recipe, monkeypatch, capsys):
    monkeypatch.setattr(training_run, "seconds_per_step", partial(seconds_per_step, seconds=0.2))
    assert main(["train", str(recipe), "--check", "training.max_steps=1234"]) == 0
    facts, settings, estimate = capsys.readouterr().out.split("\n\n", 2)
    assert facts.startswith("training pairs  150\n")
    for words in ("source subwords", "target subwords", "per word", "unknown", "vocabulary",
                  "rare", "dev pairs", "test pairs", "parameters", "1,234 in all"):  # fmt: skip
        assert words in facts
    assert "estimated time" in estimate and "s per step" in estimate
    # Only what differs from the defaults is in the table.
    first, header, *rows = settings.split("\n")
    assert "--verbose" in first and header.split() == ["setting", "value", "default"]
    rows = dict(row.split()[:2] for row in rows)
    assert rows["training.max_steps"] == "1234" and rows["model.d_model"] == "16"
    assert "data.max_length" not in rows and "training.label_smoothing" not in rows
    assert not (tmp_path / "model").exists()
    assert {name.split("/")[0] for name in files(tmp_path)} == {"cache", "recipe.yaml", "text"}


def test_check_shows_all_settings_if_asked(tmp_path, recipe, monkeypatch, capsys):
    monkeypatch.setattr(training_run, "seconds_per_step", lambda trainer: 1.0)
    assert main(["train", str(recipe), "--check", "--verbose", "training.max_steps=1234"]) == 0
    _, settings, _ = capsys.readouterr().out.split("\n\n", 2)
    shown = yaml.safe_load(settings)
    assert shown["training"]["max_steps"] == 1234
    assert shown["model"]["d_model"] == 16 and shown["data"]["max_length"] == 256
    assert main(["train", str(recipe), "--verbose"]) == 2
    assert "--verbose: give it together with --check" in capsys.readouterr().err


# ---- Models that can't be used ----


def cut_weights(folder):
    path = folder / "checkpoints" / "step_10" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    return 1, ["step_10", "damaged", "another checkpoint"], []


def lose_weights(folder):
    (folder / "checkpoints" / "step_10" / "model.safetensors").unlink()
    return 1, ["step_10", "model.safetensors"], []


def change_size(folder):
    path = folder / "config.yaml"
    text = path.read_text().rpartition("# SHA-256")[0]
    path.write_text(sealed(text.replace("d_model: 16", "d_model: 32")))
    return 1, ["does not fit the config", "target_embedding.weight is ["], []


def edit_config(folder):
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace("beam_size: 2", "beam_size: 3"))
    return 1, ["config.yaml", "damaged, or edited", "--beam-size"], []


def spoil_subwords(folder):
    (folder / "subword.model").write_bytes(b"not a model")
    return 1, ["subword.model", "its checksum differs"], []


def lose_config(folder):
    (folder / "config.yaml").unlink()
    return 2, ["not a model directory"], []


def lose_checkpoints(folder):
    shutil.rmtree(folder / "checkpoints")
    return 2, ["no checkpoint yet"], []


def name_another(folder):
    return 2, ["'step_7'", "best, last, step_5, step_10"], ["--checkpoint", "step_7"]


@pytest.mark.parametrize(
    "spoil",
    [cut_weights, lose_weights, change_size, edit_config, spoil_subwords, lose_config,
     lose_checkpoints, name_another],
)  # fmt: skip
def test_a_model_that_cannot_be_used(broken_model, tmp_path, spoil):
    code, words, arguments = spoil(broken_model)
    output = tmp_path / "out.txt"
    done = run(
        *("translate", broken_model, "--threads", "1", "--output", output, *arguments),
        stdin="A dog.\n",
    )
    assert_refused(done, code, *words)
    assert not output.exists()


# ---- precision ----


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_on_a_cpu_is_refused_before_training(recipe, precision):
    done = run("train", recipe, "--device", "cpu", f"training.precision={precision}")
    assert_refused(done, 2, f"training.precision: {precision} needs a GPU")
    assert not (recipe.parent / "model").exists()


def test_the_home_folder_is_expanded_where_a_shell_leaves_it(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    options = cli.parse(["translate", "~/m", "~", "x~/y", "--output=~/out.de", "--prefix", "~/p"])
    assert options.model_dir == "/home/me/m" and options.input_by_position == "~"
    assert str(options.output) == "/home/me/out.de" and str(options.prefix) == "/home/me/p"
    assert options.output_by_position == "x~/y"


@pytest.mark.parametrize(
    "arguments",
    [
        "new my.yaml --minutes 1e300",
        "new my.yaml --minutes nan",
    ],
)
def test_numbers_that_nobody_means(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.parse(arguments.split())
    assert "above 0" in capsys.readouterr().err

"""The command line, as a user types it: real processes, their output and their exit codes."""

import json
import os
import shutil
import signal
import subprocess
from functools import partial

import pytest
import yaml

from tests.support import (
    TIMEOUT,
    demo_pairs,
    make_config,
    make_model_directory,
    run,
    start,
    write_lines,
    write_pairs,
)
from transformer_mt import __version__
from transformer_mt.assembly import run as training_run
from transformer_mt.cli import main
from transformer_mt.config.file import dump
from transformer_mt.config.schema import DecodingConfig
from transformer_mt.evaluation.metrics import DEFAULT_METRICS, METRICS
from transformer_mt.runtime.checksums import sealed
from transformer_mt.training.trainer import seconds_per_step

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


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def assert_refused(done, code, *words):
    """A clear message, and nothing but that."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr and "This should not happen" not in done.stderr
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr
    assert "error: " in done.stderr


# ---- Help ----

SETTINGS = ["--" + name.replace("_", "-") for name in DecodingConfig.model_fields]


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
        (["export"], ["MODEL_DIR", "--format", "{paddle,ctranslate2}", "--quantization", "int8",
                      "bfloat16", "--checkpoint", "--output"]),
        (["convert"], ["MODEL_DIR", "--to", "--checkpoint", "--output", "format_version 1"]),
        (["info"], ["CONFIG|MODEL_DIR", "key=value", "--tflops", "--utilisation", "--length",
                    "what is counted"]),
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


# ---- Translating ----

ODD_INPUT = "A dog runs.\r\n\r\n \nM\xe4rz\nTwo\x85men\nno newline at the end".encode("latin-1")


def test_translating_from_stdin_to_stdout(model):
    done = run("translate", model, "--min-length-ratio", "0.5", stdin=ODD_INPUT)
    assert done.returncode == 0
    lines = done.stdout.decode("utf-8").split("\n")
    assert len(lines) == 7 and lines[6] == ""
    assert lines[1] == lines[2] == "" and lines[0] and lines[5]
    messages = done.stderr.decode("utf-8")
    assert "stdin, line 4: not UTF-8" in messages and "line 5" in messages
    assert messages.count("warning") == 2


def test_translating_files(model, tmp_path):
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_bytes(ODD_INPUT)
    output.write_text("older")
    done = run("translate", model, "--input", source, "--output", output, "--beam-size", "1",
               "--length-penalty", "0", "--batch-tokens", "50", "--checkpoint", "last",
               "--threads", "1")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert output.read_bytes().count(b"\n") == 6
    assert f"{source}, line 4: not UTF-8" in done.stderr
    assert files(tmp_path) == ["in.txt", "out.txt"]


def test_a_folder_that_is_not_there(model, tmp_path):
    done = run("translate", model, "--output", tmp_path / "no" / "out.txt", stdin="A dog.\n")
    assert_refused(done, 1, "out.txt", "can't be written")


def test_settings_of_a_translation(model):
    """Each flag does what it says."""
    text = "A dog runs.\nTwo men are here.\n" * 3

    def translated(*arguments):
        done = run("translate", model, "--threads", "1", *arguments, stdin=text)
        assert done.returncode == 0 and done.stderr == "", done.stderr
        return done.stdout

    plain = translated()
    assert translated("--ensemble", f"{model}:step_5") == plain  # its checkpoints are equal
    drawn = translated("--sampling", "--seed", "3", "--temperature", "2")
    assert drawn != plain and drawn == translated("--sampling", "--seed", "3", "--temperature", "2")
    assert translated("--sampling", "--top-k", "1") == translated("--sampling", "--top-p", "1e-9")
    assert translated("--no-sampling", "--beam-size", "2") == plain
    longer = translated("--min-length-ratio", "1", "--max-length-extra", "30")
    assert len(longer) > len(plain)


def test_a_setting_without_effect_is_told(model):
    done = run("translate", model, "--top-k", "3", stdin="")
    assert done.returncode == 0 and "--top-k makes no difference without --sampling" in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_translation_leaves_the_old_file(model, tmp_path, number, code):
    source, output = tmp_path / "in.fifo", tmp_path / "out.txt"
    os.mkfifo(source)
    output.write_text("older")
    process = start("translate", model, "--input", source, "--output", output)
    with open(source, "w") as file:  # opens when the program reads
        file.write("A dog runs.\n")
        file.flush()
        process.send_signal(number)
        assert process.wait(timeout=TIMEOUT) == code
    assert process.stderr.read() == "interrupted\n"
    assert output.read_text() == "older"
    assert files(tmp_path) == ["in.fifo", "out.txt"]


def test_a_reader_that_has_had_enough(model):
    """As `head -1`: no error message, for the reader did not want to know more."""
    reader, writer = os.pipe()
    process = start("translate", model, stdin=subprocess.PIPE, stdout=writer)
    os.close(writer)
    os.close(reader)
    _, messages = process.communicate("A dog runs.\n" * 10, timeout=TIMEOUT)
    assert process.returncode == 1 and messages == ""


# ---- Evaluating ----


@pytest.fixture
def texts(tmp_path):
    sources, references = zip(*PAIRS[:10], strict=True)
    return (
        write_lines(tmp_path / "source", sources),
        write_lines(tmp_path / "reference", references),
    )


def test_evaluating_files(texts, tmp_path):
    _, reference = texts
    path = tmp_path / "scores.json"
    done = run("evaluate", "--hypothesis", reference, "--reference", reference, "--json", path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("BLEU 100.00") and "|tok:13a|" in done.stdout
    scores = json.loads(path.read_text())
    assert scores["bleu"] == pytest.approx(100) and scores["lines"] == 10


@pytest.fixture(scope="module")
def non_autoregressive(tmp_path_factory):
    folder = tmp_path_factory.mktemp("non_autoregressive")
    config = make_config(folder, model={"non_autoregressive": "length"})
    return make_model_directory(folder / "model", PAIRS, config).path


def test_evaluating_models_side_by_side(model, non_autoregressive, texts, tmp_path):
    source, reference = texts
    path, output = tmp_path / "scores.json", tmp_path / "out"
    done = run("evaluate", model, non_autoregressive, "--source", source, "--reference", reference,
               "--threads", "1", "--beam-size", "1", "--json", path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    effect, *untrained = done.stderr.splitlines()
    assert effect == "warning: --beam-size makes no difference to a non-autoregressive model"
    assert all("which is near 0" in line for line in untrained)
    header, *rows = done.stdout.splitlines()
    rows, signatures = rows[: -len(DEFAULT_METRICS)], rows[-len(DEFAULT_METRICS) :]
    labels = [METRICS[key].label for key in DEFAULT_METRICS]
    assert labels == ["BLEU", "chrF"]
    assert header.split() == [*labels, "length", "ratio", "lines/s"]
    assert signatures[0].startswith("  BLEU|nrefs:1")
    assert signatures[1].startswith("  chrF2|nrefs:1")
    scores = json.loads(path.read_text())
    assert [one["model"] for one in scores] == [str(model), str(non_autoregressive)]
    for row, one in zip(rows, scores, strict=True):
        assert row.startswith(one["model"] + " ") and len(row) == len(header)
        assert one["lines"] == 10
        assert one["lines_per_second"] == pytest.approx(10 / one["seconds"])
        assert row.split()[1:] == [
            *(f"{one[key]:.2f}" for key in DEFAULT_METRICS),
            f"{one['length_ratio']:.3f}",
            f"{one['lines_per_second']:,.1f}",
        ]

    # Each has the scores that it has by itself, and that its translations have.
    done = run("evaluate", non_autoregressive, "--source", source, "--reference", reference,
               "--threads", "1", "--output", output, "--json", path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    alone = json.loads(path.read_text())
    assert (alone["bleu"], alone["chrf"]) == (scores[1]["bleu"], scores[1]["chrf"])
    assert f"  {alone['lines_per_second']:,.1f} lines/s" in done.stdout
    of_file = run("evaluate", "--hypothesis", output, "--reference", reference).stdout
    assert of_file and done.stdout.startswith(of_file)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["translate", "--threads", "1", "--input", "source", "--sampling"], 2,
         ["a non-autoregressive model", "--sampling", "none after another"]),
        (["score", "--source", "source", "--target", "reference"], 2,
         ["a non-autoregressive model gives no probability to a whole translation"]),
        (["align", "--source", "source", "--target", "reference"], 2,
         ["a non-autoregressive model attends from masks"]),
        (["attention", "--text", "A dog."], 2, ["a non-autoregressive model attends from masks"]),
        (["attention", "--text", "A dog.", "--target", "Ein Hund."], 2,
         ["a non-autoregressive model attends from masks"]),
        (["export", "--format", "paddle"], 1,
         ["can't be exported to", "model.non_autoregressive: length", "one subword after another"]),
        (["export", "--format", "ctranslate2"], 1,
         ["can't be exported to", "model.non_autoregressive: length", "one subword after another"]),
    ],
)  # fmt: skip
def test_what_a_non_autoregressive_model_cannot_do(
    non_autoregressive, texts, tmp_path, arguments, code, words
):
    command, *options = arguments
    done = run(command, non_autoregressive, *options, "--output", "out", cwd=tmp_path)
    assert_refused(done, code, *words)
    assert files(tmp_path) == ["reference", "source"]


def test_unequal_files(texts, tmp_path):
    _, reference = texts
    shorter = write_lines(tmp_path / "shorter", ["x"] * 9)
    done = run("evaluate", "--hypothesis", shorter, "--reference", reference)
    assert_refused(done, 1, "9", "10")


def test_unequal_source_and_reference(model, texts, tmp_path):
    shorter = write_lines(tmp_path / "shorter", ["x"] * 9)
    output = tmp_path / "out"
    done = run("evaluate", model, "--source", shorter, "--reference", texts[1], "--output", output)
    assert_refused(done, 1, "shorter has 9 lines", "reference has 10")
    assert not output.exists()


def test_empty_files(tmp_path):
    empty = write_lines(tmp_path / "empty", [])
    assert_refused(run("evaluate", "--hypothesis", empty, "--reference", empty), 1, "empty")


# ---- attention ----


def test_attention(model, tmp_path):
    done = run("attention", model, "--text", "A dog runs.", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (done.stdout, done.stderr) == ("attention.html\n", "")
    assert files(tmp_path) == ["attention.html"]
    text = (tmp_path / "attention.html").read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and "A dog runs." in text


# ---- average ----


def test_average_makes_a_checkpoint_to_translate_with(broken_model):
    done = run("average", broken_model, "--last", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(broken_model / "checkpoints" / "average_last_2")
    assert "--checkpoint average_last_2" in done.stderr
    text = "A man is here.\n"
    outputs = [
        run("translate", broken_model, "--threads", "1", "--checkpoint", name, stdin=text).stdout
        for name in ("average_last_2", "step_10")
    ]
    # Both of its checkpoints have the same weights.
    assert outputs[0] == outputs[1] != ""


def test_average_of_too_many(model):
    assert_refused(run("average", model, "--best", "3"), 2, "keep_best", "2 of the best", "not 3")
    assert_refused(run("average", model, "--last", "0"), 2, "whole number from 1 on")


def test_average_of_a_damaged_checkpoint(broken_model):
    path = broken_model / "checkpoints" / "step_5" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert_refused(run("average", broken_model, "--last", "2"), 1, "step_5", "checksum")


# ---- precision ----


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_on_a_cpu_is_refused_before_training(recipe, precision):
    done = run("train", recipe, "--device", "cpu", f"training.precision={precision}")
    assert_refused(done, 2, f"training.precision: {precision} needs a GPU")
    assert not (recipe.parent / "model").exists()

"""Commands at work, as a user types them: real processes, what they write, and how they end."""

import json
import os
import shutil
import signal
import subprocess

import pytest

from tests.support import (
    TIMEOUT,
    assert_refused,
    demo_pairs,
    files,
    important,
    make_config,
    make_model_directory,
    run,
    start,
    write_lines,
)
from transformer_mt.scoring.metrics import DEFAULT_METRICS, METRICS

PAIRS = demo_pairs(200)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model directory whose model was never trained, which makes no difference here."""
    folder = tmp_path_factory.mktemp("commands")
    return make_model_directory(folder / "model", PAIRS, make_config(folder)).path


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
    assert messages.count("not UTF-8") == 2


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


def test_a_device_is_read_like_a_file(model, tmp_path):
    done = run("translate", model, os.devnull, tmp_path / "out.txt")
    assert done.returncode == 0 and (tmp_path / "out.txt").read_text() == "", done.stderr
    (tmp_path / "loop").symlink_to("loop")
    done = run("translate", model, tmp_path / "loop", tmp_path / "out.txt")
    assert_refused(done, 2, "loop: a link that leads to no file")


def test_names_that_are_not_utf8(model, tmp_path):
    name = os.fsdecode(b"\xff\xe9")
    (tmp_path / name).write_text("A dog runs.\n")
    done = run("translate", model, tmp_path / name, tmp_path / f"{name}.out", "--threads", "1")
    assert done.returncode == 0 and (tmp_path / f"{name}.out").exists(), done.stderr
    assert_refused(run("new", tmp_path / f"{name}.yaml"), 2, "is not UTF-8")


def test_a_folder_that_is_not_there(model, tmp_path):
    done = run("translate", model, "--output", tmp_path / "no" / "out.txt", stdin="A dog.\n")
    assert_refused(done, 1, "out.txt", "can't be written")


def test_settings_of_a_translation(model):
    """Each flag does what it says."""
    text = "A dog runs.\nTwo men are here.\n" * 3

    def translated(*arguments):
        done = run("translate", model, "--threads", "1", *arguments, stdin=text)
        assert done.returncode == 0 and important(done.stderr) == "", done.stderr
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
    effect = "warning: --beam-size makes no difference to a non-autoregressive model"
    assert done.stderr.splitlines()[0] == effect
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


@pytest.fixture
def broken_model(model, tmp_path):
    """A copy of it, to break."""
    return shutil.copytree(model, tmp_path / "broken")


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

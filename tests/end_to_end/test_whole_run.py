"""Whole runs on real lines, in real processes: train, interrupt, translate, evaluate, move.

The models are too small and trained too briefly to be any good. What is checked is that everything
fits together, and that the scores are those that sacreBLEU's own command gives.
"""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.support import (
    demo_pairs,
    make_config,
    run,
    run_here,
    sacrebleu,
    write_lines,
    write_pairs,
)
from transformer_mt.config.file import dump
from transformer_mt.translator import Translator

PAIRS = demo_pairs(360)
STEPS = 60
TRAINING = {
    **{"max_steps": STEPS, "batch_tokens": 1000, "device_tokens": 500, "devices": 1},
    **{"log_every": 10, "validate_every": 30, "save_every": 20, "keep_last": 2},
}
MODEL = {"d_model": 32, "num_heads": 4, "d_ff": 64, "dropout": 0.1}


def write_recipe(folder, **sections):
    config = make_config(folder, **{"model": MODEL, "training": TRAINING, **sections})
    path = folder / "recipe.yaml"
    path.write_text(dump(config), encoding="utf-8")
    return path


def metrics(model_dir):
    path = model_dir / "metrics.jsonl"
    # The last line may be half written while the run goes on.
    whole = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in whole]


def lines_of(path):
    return path.read_text(encoding="utf-8").split("\n")[:-1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("whole run")  # with a space, as users' folders have
    write_pairs(made / "text", "train", PAIRS[:300])
    write_pairs(made / "text", "dev", PAIRS[300:320])
    write_pairs(made / "text", "test", PAIRS[320:])
    write_recipe(made, data={"dev": "dev", "test": "test"}, subword={"vocab_size": 400})
    return made


@pytest.fixture(scope="module")
def trained(folder):
    """What `train` has said, once it has come to its end."""
    done = run("train", folder / "recipe.yaml")
    assert done.returncode == 0, done.stderr
    return done


def assert_scored_as_sacrebleu_does(model, reference, *options):
    (tested,) = [line for line in metrics(model) if line["kind"] == "test"]
    command = sacrebleu(model / "test.hypothesis", reference, *options, "-w", "10", "--confidence")
    assert tested["bleu"] == pytest.approx(command["score"], abs=1e-9)
    assert tested["signature"] == f"BLEU|{command['signature']}"
    return tested


def test_training_ends_with_the_score_of_the_test_set(folder, trained):
    model = folder / "model"
    wanted = {"config.yaml", "format_version", "subword.model", "checkpoints", "best",
              "metrics.jsonl", "train.log", "dev", "visualdl", "test.source", "test.reference",
              "test.hypothesis"}  # fmt: skip
    assert wanted <= {path.name for path in model.iterdir()}
    assert not list(model.rglob("*.tmp"))
    best = Path((model / "best").read_text().split()[1]).parent.name
    for name in (best, f"step_{STEPS}"):
        assert (model / "checkpoints" / name / "model.safetensors").is_file()

    tested = assert_scored_as_sacrebleu_does(model, folder / "text" / "test.de")
    assert tested["checkpoint"] == best and tested["lines"] == 40

    # The score, some translations beside their references, and what to type next.
    assert f"BLEU {tested['bleu']:.2f}" in trained.stdout and tested["signature"] in trained.stdout
    sources, references = (lines_of(folder / "text" / f"test.{lang}") for lang in ("en", "de"))
    shown = [i for i in range(40) if sources[i] in trained.stdout]
    assert len(shown) >= 3 and all(references[i] in trained.stdout for i in shown)
    assert f"scripts/translate.sh {model}" in trained.stdout.replace("'", "")


def test_what_is_reported_on_the_way(folder, trained):
    lines = metrics(folder / "model")
    logged = [line for line in lines if line["kind"] == "train"]
    assert [line["step"] for line in logged] == [10, 20, 30, 40, 50, 60]
    assert logged[-1]["nll"] < logged[0]["nll"] - 0.5  # it learns
    assert [line["step"] for line in lines if line["kind"] == "dev"] == [30, 60]
    # There is no terminal here: plain lines.
    for words in ("step 10/60", "loss", "ppl", "tokens/s", " s left", "dev smoothed loss"):
        assert words in trained.stderr
    assert "\r" not in trained.stderr and "Traceback" not in trained.stderr
    assert "Warning" not in trained.stderr


def test_translating_and_evaluating(folder, trained, tmp_path):
    source, reference = (folder / "text" / f"test.{lang}" for lang in ("en", "de"))
    output, scores = tmp_path / "out.de", tmp_path / "scores.json"
    done = run_here("translate", folder / "model", "--input", source, "--output", output)
    assert done.returncode == 0 and done.stdout == "", done.stderr
    # The same model, the same search, the same words: there is one way to translate.
    assert output.read_bytes() == (folder / "model" / "test.hypothesis").read_bytes()

    done = run_here("evaluate", folder / "model", "--source", source, "--reference", reference,
                    "--output", output, "--json", scores)  # fmt: skip
    assert done.returncode == 0, done.stderr
    command = sacrebleu(output, reference, "-w", "10")
    found = json.loads(scores.read_text())
    assert found["bleu"] == pytest.approx(command["score"], abs=1e-9)
    assert f"BLEU {command['score']:.2f}" in done.stdout and command["signature"] in done.stdout


def test_a_moved_model_translates_as_before(folder, trained, tmp_path):
    """On its own: without the recipe, the text and the cache it was trained from."""
    moved = shutil.copytree(folder / "model", tmp_path / "else where")
    sources = lines_of(folder / "text" / "test.en")
    hidden = folder.rename(folder.with_name("gone"))
    try:
        done = run("translate", moved, stdin="\n".join(sources), cwd=tmp_path)
    finally:
        hidden.rename(folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (moved / "test.hypothesis").read_text(encoding="utf-8")


# ---- WMT14's layout: BPE'd text with its vocabulary ----

TEXT, BPE = "wmt14_ende_data", "wmt14_ende_data_bpe"


@pytest.fixture
def wmt_root(shared_data, tmp_path):
    """The first lines of the corpus in the same layout, with another number after `.bpe.`."""
    root = tmp_path / "wmt"
    parts = [(BPE, "train.tok.clean.bpe.8000", "train.tok.clean.bpe.123", 300)]
    for stem in ("newstest2013.tok", "newstest2014.tok"):
        parts.append((BPE, f"{stem}.bpe.8000", f"{stem}.bpe.123", 25))
        parts.append((TEXT, stem, stem, 25))
    for place, old, new, count in parts:
        for lang in ("en", "de"):
            text = (shared_data / "wmt14_layout" / place / f"{old}.{lang}").read_text("utf-8")
            write_lines(root / place / f"{new}.{lang}", text.split("\n")[:count])
    shutil.copy(
        shared_data / "wmt14_layout" / BPE / "vocab_all.bpe.8000", root / BPE / "vocab_all.bpe.123"
    )
    return root


def test_bpe_is_removed_and_the_tokenised_text_scored(wmt_root, tmp_path):
    data = {"dataset": "wmt14ende", "root": str(wmt_root), "dev": "dev", "test": "test"}
    training = {**TRAINING, "max_steps": 30, "validate_every": 15}
    recipe = write_recipe(tmp_path, data=data, subword={"type": "vocabulary"}, training=training)
    recipe.write_text(recipe.read_text().replace("  vocab_size: 200\n", ""))
    done = run_here("train", recipe)
    assert done.returncode == 0, done.stderr
    hypotheses = tmp_path / "model" / "test.hypothesis"
    assert len(lines_of(hypotheses)) == 25 and "@@" not in hypotheses.read_text("utf-8")

    reference = wmt_root / TEXT / "newstest2014.tok.de"
    options = ("--tokenize", "none", "--force")
    assert_scored_as_sacrebleu_does(tmp_path / "model", reference, *options)
    assert "tok:none" in done.stdout
    assert "BPE removed" in done.stdout and "tokenised reference" in done.stdout

    # It reads text with its BPE applied, and without the layout: its vocabulary is its own.
    shutil.move(wmt_root, tmp_path / "gone")
    source = tmp_path / "gone" / BPE / "newstest2014.tok.bpe.123.en"
    translations = list(Translator.load(tmp_path / "model").translate(lines_of(source)))
    assert translations == lines_of(hypotheses)


# ---- Chinese ----


def test_chinese_is_scored_as_chinese(shared_data, tmp_path):
    corpus = shared_data / "tatoeba_zh-en"
    for name, count in (("train", 250), ("test", 20)):
        for lang in ("en", "zh"):
            text = (corpus / f"{name}.{lang}").read_text("utf-8")
            write_lines(tmp_path / "text" / f"{name}.{lang}", text.split("\n")[:count])
    recipe = write_recipe(
        tmp_path,
        data={"source_lang": "en", "target_lang": "zh", "test": "test", "held_out": 10},
        subword={"vocab_size": 1500, "joint": False, "type": "unigram"},
        training={**TRAINING, "max_steps": 20, "validate_every": 20},
    )
    done = run_here("train", recipe)
    assert done.returncode == 0, done.stderr
    model = tmp_path / "model"
    assert "tok:zh" in done.stdout
    assert_scored_as_sacrebleu_does(model, tmp_path / "text" / "test.zh", "--tokenize", "zh")
    # No dev set is named: pairs are held out of the training text, and kept beside the model.
    held_out = {path.name for path in (model / "held_out").iterdir()}
    assert held_out == {"dev.en", "dev.zh", "SHA256SUMS"}
    assert len(lines_of(model / "held_out" / "dev.zh")) == 10
    assert os.path.isfile(model / "subword.source.model")

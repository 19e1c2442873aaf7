"""The command `evaluate`: its flags, its tables and files, and its warnings."""

import csv
import importlib.machinery
import importlib.util
import json
import sys
import types

import pytest
import sacrebleu
from sacremoses import MosesPunctNormalizer, MosesTokenizer

from tests.support import demo_pairs, make_config, make_model_directory, run_command, write_lines
from transformer_mt.scoring.groups import by_length, by_rare_words, word_counts
from transformer_mt.scoring.metrics import METRICS, score
from transformer_mt.utils.errors import UserError

PAIRS = demo_pairs(120)
SOURCES, TARGETS = map(list, zip(*PAIRS, strict=True))
# Every second line is right, and the others lack their last word.
WORSE = [line if i % 2 else line.rpartition(" ")[0] for i, line in enumerate(TARGETS)]
OTHER = [line.replace("Der", "Dieser") for line in TARGETS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluate")
    names = ("source", SOURCES), ("reference", TARGETS), ("worse", WORSE), ("other", OTHER)
    for name, lines in names:
        write_lines(folder / name, lines)
    write_lines(folder / "few.source", SOURCES[:6])
    write_lines(folder / "few.reference", TARGETS[:6])
    make_model_directory(folder / "model", PAIRS, make_config(folder))
    return folder


@pytest.fixture
def evaluate(folder, capsys, tmp_path):
    """Runs the command; gives what it printed, its warnings, and the JSON."""

    def run(*arguments, **flags):
        path = tmp_path / "scores.json"
        run_command("evaluate", *arguments, json=path, **flags)
        output, messages = capsys.readouterr()
        return output, messages, json.loads(path.read_text())

    return run


def test_every_option_of_the_scores(evaluate, folder):
    output, messages, scores = evaluate(
        *("--hypothesis", folder / "worse", "--lowercase", "--confidence"),
        *("--reference", folder / "reference", "--reference", folder / "other"),
        *("--metrics", "ter", "bleu", "chrf++", "ter"),
    )
    expected = score(WORSE, [TARGETS, OTHER], "13a", metrics=["ter", "bleu", "chrf++"],
                     lowercase=True, confidence=True)  # fmt: skip
    assert output == f"{expected}\n" and messages == ""
    assert scores == {"hypothesis": str(folder / "worse"), **expected.as_dict()}
    assert output.startswith("TER ") and " ± " in output and "nrefs:2|bs:1000" in output


@pytest.mark.parametrize(
    ("flags", "tokenize"),
    [
        ({}, "13a"),
        ({"tokenize": "intl"}, "intl"),
        ({"target_lang": "cn"}, "zh"),
        ({"target_lang": "th"}, "char"),
        ({"target_lang": "th", "tokenize": "none"}, "none"),
    ],
)
def test_the_tokeniser(evaluate, folder, flags, tokenize):
    files = {"hypothesis": folder / "worse", "reference": folder / "reference"}
    _, messages, scores = evaluate(**files, **flags)
    assert f"|tok:{tokenize}|" in scores["signature"]
    assert ("cn is taken for zh" in messages) == (flags.get("target_lang") == "cn")


@pytest.mark.parametrize("training_text", [None, "other"])
def test_groups_and_sentences(evaluate, folder, training_text):
    path = folder / "sentences.tsv"
    output, _, scores = evaluate(
        "--groups", hypothesis=folder / "worse", reference=folder / "reference", sentences=path,
        source=folder / "source", training_text=training_text and folder / training_text,
    )  # fmt: skip
    counts = word_counts(OTHER if training_text else TARGETS)
    expected = by_length(SOURCES), by_rare_words(TARGETS, counts)
    assert ("in the training text" in [*scores["groups"]][1]) == (training_text is not None)
    for (title, shown), groups in zip(scores["groups"].items(), expected, strict=True):
        assert f"\n{title}\n" in output and len(groups) > 1
        for one, group in zip(shown, groups, strict=True):
            own = score(group.of(WORSE), [group.of(TARGETS)], "13a")
            assert one == {"name": group.name, **own.as_dict()}
            row = next(line for line in output.splitlines() if line.startswith(f"  {group.name} "))
            assert row.split()[-4:-2] == [own.shown("bleu"), own.shown("chrf")]
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, dialect="excel-tab"))
    for number, (row, pair) in enumerate(zip(rows, PAIRS, strict=True)):
        texts = str(number + 1), pair[0], WORSE[number], pair[1]
        names = ("line", "source", "hypothesis", "reference")
        assert tuple(row[name] for name in names) == texts
        assert (float(row["chrf"]) == 100) == (WORSE[number] == pair[1])


# ---- Models ----


@pytest.fixture
def few(folder):
    files = {"source": folder / "few.source", "reference": folder / "few.reference"}
    return {**files, "threads": 1, "beam_size": 1}


def test_checkpoints_of_a_model(evaluate, folder, few, tmp_path):
    model, output = folder / "model", tmp_path / "out"
    models = [f"{model}:step_5", str(model), f"{model}:step_5"]
    printed, _, scores = evaluate(*models, **few, output=output, metric_only=True)
    assert [one["model"] for one in scores] == models and len(printed.splitlines()) == 3
    assert len(list(output.glob("*.hypothesis"))) == 3
    # Each file has the translations that were scored.
    (best,) = output.glob("*model.hypothesis")
    _, _, of_file = evaluate(hypothesis=best, reference=few["reference"])
    assert (of_file["bleu"], of_file["chrf"]) == (scores[1]["bleu"], scores[1]["chrf"])
    # A checkpoint in the name is that of --checkpoint.
    _, _, alone = evaluate(model, **few, checkpoint="step_5")
    assert alone["chrf"] == scores[0]["chrf"] == scores[2]["chrf"]
    assert alone["lines_per_second"] == pytest.approx(6 / alone["seconds"])


def test_a_model_by_position(evaluate, folder, few, tmp_path):
    """The files behind it are source and reference; the translations go into the folder."""
    model = folder / "model"
    flags = {"threads": 1, "beam_size": 1, "tokenize": "char", "output": tmp_path}
    _, _, scores = evaluate(model, few["source"], few["reference"], **flags)
    assert "|tok:char|" in scores["signature"]
    assert len(list(tmp_path.glob("*model.hypothesis"))) == 1
    del few["beam_size"]  # as in the model's config
    _, messages, scores = evaluate(model, **few)
    assert scores["bleu"] < 1
    assert "warning: BLEU is" in messages and "source and target are swapped" in messages


# ---- Errors ----


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("model model --source few.source --ensemble model", "--ensemble goes together with one"),
        ("model model --source few.source --sentences x", "--sentences is for one MODEL_DIR"),
        ("model model --source few.source --output reference", "reference is a file"),
        ("model --source few.source --target-lang de", "--target-lang is for --hypothesis"),
        ("model:step_7 --source few.source", "step_7"),
        ("model few.source reference", "source is a file, not a model"),
        ("model few.source reference --source few.source", "source is a file, not a model"),
        ("--hypothesis worse --training-text other", "--training-text is for --groups"),
        ("--hypothesis few.reference --groups --training-text no", "no: there is no such file"),
        ("--hypothesis worse --hypothesis no", "no: there is no such file"),
        ("--hypothesis worse --sentences worse", "are the same file"),
        ("--hypothesis worse --metrics comet", "--metrics comet needs --comet-model"),
        ("--hypothesis worse --metrics comet --comet-model m", "--comet-model, .* and --source"),
        ("--hypothesis worse --source source --metrics comet --comet-model m", "m/checkpoints"),
        ("--protocol lc.norm.tok --hypothesis worse --lowercase", "includes lower-casing"),
        ("--protocol lc.norm.tok --hypothesis worse", "needs --target-lang"),
        ("--protocol lc.norm.tok --hypothesis worse --target-lang de --groups", "for raw text"),
        ("--protocol lc.norm.tok --hypothesis few.reference --target-lang zh", "with spaces"),
        # Files that do not belong together.
        ("--hypothesis worse", "few.reference has 6"),
        ("--hypothesis few.reference --source source", "source has 120"),
        ("--hypothesis empty", "empty is empty. Give a file with one sentence per line"),
        ("--hypothesis few.reference --reference empty", "empty is empty"),
        ("--hypothesis latin --reference latin", "latin, line 2: not UTF-8"),
    ],
)
def test_arguments_that_do_not_fit(folder, monkeypatch, arguments, words):
    monkeypatch.chdir(folder)
    (folder / "empty").write_bytes(b"")
    (folder / "latin").write_bytes(b"a\nM\xe4rz\n")
    before = sorted(folder.iterdir())
    with pytest.raises(UserError, match=words):
        run_command("evaluate", *arguments.split(), "--reference", "few.reference")
    assert sorted(folder.iterdir()) == before


def test_a_missing_tokeniser_is_reported_before_a_model_translates(few, tmp_path, monkeypatch):
    from sacrebleu.tokenizers import tokenizer_ja_mecab

    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    config = make_config(tmp_path, data={"target_lang": "ja"})
    model = make_model_directory(tmp_path / "model", PAIRS, config).path
    with pytest.raises(UserError, match="ja-mecab cannot be used"):
        run_command("evaluate", model, **few, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ---- COMET ----


def test_comet(evaluate, folder, monkeypatch, tmp_path):
    """In the place of the package is one with its interface (version 2.2.7), whose score is the
    share of characters that the translation has of the reference."""
    model = tmp_path / "wmt-model"
    write_lines(model / "hparams.yaml", [])
    write_lines(model / "checkpoints" / "model.ckpt", [])
    arguments = (
        *("--hypothesis", folder / "worse", "--reference", folder / "reference", "--groups"),
        *("--source", folder / "source", "--metrics", "chrf", "comet", "--comet-model", model),
        *("--sentences", tmp_path / "sentences"),
    )
    if not importlib.util.find_spec("comet"):
        with pytest.raises(UserError, match="needs the package unbabel-comet"):
            evaluate(*arguments)

    def predict(samples, batch_size=16, gpus=1, progress_bar=True):
        assert gpus == 0 and [sample["src"] for sample in samples] == SOURCES
        scores = [len(sample["mt"]) / len(sample["ref"]) for sample in samples]
        return types.SimpleNamespace(scores=scores, system_score=sum(scores) / len(scores))

    def load_from_checkpoint(checkpoint_path, local_files_only=False):
        assert checkpoint_path == str(model / "checkpoints" / "model.ckpt") and local_files_only
        return types.SimpleNamespace(predict=predict)

    module = types.ModuleType("comet")
    module.__spec__ = importlib.machinery.ModuleSpec("comet", None)
    module.load_from_checkpoint, module.__version__ = load_from_checkpoint, "2.2.7"
    monkeypatch.setitem(sys.modules, "comet", module)
    output, _, scores = evaluate(*arguments)
    shares = [len(own) / len(other) for own, other in zip(WORSE, TARGETS, strict=True)]
    assert scores["comet"] == pytest.approx(sum(shares) / len(shares))
    assert scores["comet_signature"] == "COMET|model:wmt-model|version:2.2.7"
    assert f"COMET {scores['comet']:.4f}" in output
    groups = scores["groups"]["by length of the source"]
    weighted = sum(one["comet"] * one["lines"] for one in groups) / len(shares)
    assert weighted == pytest.approx(scores["comet"])
    header, first = (tmp_path / "sentences").read_text("utf-8").splitlines()[:2]
    assert header.split("\t")[2:4] == ["chrf", "comet"]
    assert float(first.split("\t")[3]) == pytest.approx(shares[0], abs=1e-4)
    assert "comet" not in METRICS  # it cannot be training.best_metric


# ------------------------------------------------------------------------ --protocol lc.norm.tok


def moses(lines, language="de"):
    """The form of the protocol, as the scripts of Moses are called on a command line."""
    normalizer = MosesPunctNormalizer(language)
    tokenizer = MosesTokenizer(language)
    normalized = (normalizer.normalize(line.lower()) for line in lines)
    return [tokenizer.tokenize(line, return_str=True, escape=True) for line in normalized]


def test_the_protocol_of_papers(evaluate, folder):
    output, messages, scores = evaluate(
        *("--protocol", "lc.norm.tok", "--target-lang", "de", "--confidence"),
        *("--hypothesis", folder / "worse", "--reference", folder / "reference"),
    )
    # As the literature computes it: multi-bleu on the tokens.
    expected = sacrebleu.corpus_bleu(
        moses(WORSE), [moses(TARGETS)], tokenize="none", smooth_method="none", force=True
    )
    assert scores["bleu"] == expected.score
    assert "|tok:none|" in scores["signature"] and messages == ""
    tokenized = write_lines(folder / "tokenized", moses(WORSE))
    _, messages, _ = evaluate(
        *("--protocol", "lc.norm.tok", "--target-lang", "de"),
        *("--hypothesis", tokenized, "--reference", folder / "reference"),
    )
    assert "seems to be tokenised already" in messages
    assert "(lc.norm.tok): not comparable with scores of raw text" in output


def test_the_protocol_with_a_model_of_such_text(evaluate, folder):
    """Raw text is brought into the form for the model, and what it writes is scored as it is."""
    settings = {"dataset": "multi30k_lc_norm_tok", "source_lang": "en", "target_lang": "de"}
    config = make_config(folder)
    data = config.data.model_copy(update=settings)
    model = folder / "tokens"
    make_model_directory(model, PAIRS, config.model_copy(update={"data": data}))
    raw = ['A "Man" sleeps.', "The dog isn't here."]
    source = write_lines(folder / "raw.source", raw)
    reference = write_lines(folder / "raw.reference", TARGETS[:2])
    outputs = folder / "raw.hypothesis", folder / "form.hypothesis"
    flags = {"protocol": "lc.norm.tok", "threads": 1, "output": outputs[0]}
    _, _, scores = evaluate(model, source, reference, **flags)
    form = write_lines(folder / "form.source", moses(raw, "en"))
    run_command("translate", model, form, outputs[1], threads=1)
    hypotheses = outputs[0].read_text("utf-8")
    assert hypotheses == outputs[1].read_text("utf-8")
    texts = hypotheses.splitlines(), [moses(TARGETS[:2])]
    assert scores["bleu"] == sacrebleu.corpus_bleu(*texts, tokenize="none", force=True).score

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
from transformer_mt.utils.errors import UsageError, UserError

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
        ({"target_lang": "zh-CN"}, "zh"),
        ({"target_lang": "th"}, "char"),
        ({"target_lang": "th", "tokenize": "none"}, "none"),
    ],
)
def test_the_tokeniser(evaluate, folder, flags, tokenize):
    _, _, scores = evaluate(hypothesis=folder / "worse", reference=folder / "reference", **flags)
    assert f"|tok:{tokenize}|" in scores["signature"]


def test_a_wrong_code_of_the_language(evaluate, folder):
    files = {"hypothesis": folder / "worse", "reference": folder / "reference"}
    _, messages, scores = evaluate(**files, target_lang="cn")
    assert "|tok:zh|" in scores["signature"] and "cn is taken for zh" in messages


def test_files_side_by_side(evaluate, folder):
    output, _, scores = evaluate(
        *("--hypothesis", folder / "worse", "--hypothesis", folder / "other"),
        *("--reference", folder / "reference", "--confidence"),
    )
    header, *rows, bleu, chrf = output.splitlines()
    assert header.split() == ["BLEU", "chrF", "length", "ratio"]
    assert bleu.startswith("  BLEU|") and chrf.startswith("  chrF2|")
    for row, one, lines in zip(rows, scores, (WORSE, OTHER), strict=True):
        expected = score(lines, [TARGETS], "13a", confidence=True)
        assert one == {"hypothesis": one["hypothesis"], **expected.as_dict()}
        assert row.startswith(one["hypothesis"] + " ") and expected.shown("bleu") in row


def test_numbers_for_scripts(evaluate, folder):
    output, _, scores = evaluate(
        *("--hypothesis", folder / "worse", "--hypothesis", folder / "other", "--metric-only"),
        *("--reference", folder / "reference", "--metrics", "chrf", "ter", "--groups"),
    )
    assert output == "".join(f"{one['chrf']:.4f}\t{one['ter']:.4f}\n" for one in scores)
    assert scores[0]["length_ratio"] is None


@pytest.mark.parametrize("training_text", [None, "other"])
def test_groups(evaluate, folder, training_text):
    output, _, scores = evaluate(
        "--groups", hypothesis=folder / "worse", reference=folder / "reference",
        source=folder / "source", training_text=training_text and folder / training_text,
    )  # fmt: skip
    counts = word_counts(OTHER) if training_text else None
    where = "the training text" if training_text else "the whole reference"
    expected = {
        "by length of the source": by_length(SOURCES),
        f"by how often the rarest word of a line of the reference occurs in {where}": by_rare_words(
            TARGETS, counts
        ),
    }
    assert list(scores["groups"]) == list(expected)
    for title, groups in expected.items():
        assert f"\n{title}\n" in output and len(groups) > 1
        assert [one["name"] for one in scores["groups"][title]] == [group.name for group in groups]
        for one, group in zip(scores["groups"][title], groups, strict=True):
            own = score(group.of(WORSE), [group.of(TARGETS)], "13a")
            assert one == {"name": group.name, **own.as_dict()}
            row = next(line for line in output.splitlines() if line.startswith(f"  {group.name} "))
            assert row.split()[-4:-2] == [own.shown("bleu"), own.shown("chrf")]
            assert row.split()[-1] == str(len(group.lines))


def test_the_scores_of_sentences(evaluate, folder, tmp_path):
    path = tmp_path / "sentences.tsv"
    evaluate(
        *("--hypothesis", folder / "worse", "--reference", folder / "reference"),
        *("--source", folder / "source", "--sentences", path, "--metrics", "bleu", "ter"),
    )
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, dialect="excel-tab"))
    assert [row["line"] for row in rows] == [str(i + 1) for i in range(len(PAIRS))]
    for row, (source, target), hypothesis in zip(rows, PAIRS, WORSE, strict=True):
        texts = source, hypothesis, target
        assert (row["source"], row["hypothesis"], row["reference"]) == texts
        assert row["source_length"] == str(len(source.split()))
        assert (float(row["ter"]) == 0) == (hypothesis == target)


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
    names = sorted(path.name for path in output.iterdir())
    assert len(names) == 3 and all(name.endswith(".hypothesis") for name in names)
    assert any("model_step_5.hypothesis" in name for name in names)
    # Each file has the translations that were scored.
    best = next(path for path in output.iterdir() if path.name.endswith("model.hypothesis"))
    _, _, of_file = evaluate(hypothesis=best, reference=few["reference"])
    assert (of_file["bleu"], of_file["chrf"]) == (scores[1]["bleu"], scores[1]["chrf"])
    # A checkpoint in the name is that of --checkpoint.
    _, _, alone = evaluate(model, **few, checkpoint="step_5")
    assert alone["chrf"] == scores[0]["chrf"] == scores[2]["chrf"]
    assert alone["lines_per_second"] == pytest.approx(6 / alone["seconds"])


def test_a_model_with_another_tokeniser_and_a_file_in_a_folder(evaluate, folder, few, tmp_path):
    _, messages, scores = evaluate(folder / "model", **few, tokenize="char", output=tmp_path)
    assert "|tok:char|" in scores["signature"]
    assert len(list(tmp_path.glob("*model.hypothesis"))) == 1
    assert "BLEU is" not in messages or scores["bleu"] < 1


def test_a_bleu_near_zero_is_explained(evaluate, folder, few):
    _, messages, scores = evaluate(folder / "model", **few)
    assert scores["bleu"] < 1
    assert "warning: BLEU is" in messages and "source and target are swapped" in messages


def test_warnings_name_their_system(evaluate, folder, tmp_path):
    marked = write_lines(tmp_path / "marked", ["▁" + line for line in WORSE])
    _, messages, _ = evaluate(
        *("--hypothesis", folder / "worse", "--hypothesis", marked),
        *("--source", folder / "reference", "--reference", folder / "reference"),
    )
    same, subwords = messages.splitlines()
    assert same.startswith("warning: 120 of 120 lines of the reference are identical")
    assert subwords.startswith(f"warning: {marked}: 120 of 120 translations contain")


# ---- Errors ----


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("model model --source few.source --ensemble model", "--ensemble goes together with one"),
        ("model model --source few.source --sentences x", "--sentences is for one MODEL_DIR"),
        ("model model --source few.source --output reference", "reference is a file"),
        ("model --source few.source --target-lang de", "--target-lang is for --hypothesis"),
        ("model:step_7 --source few.source", "step_7"),
        ("--hypothesis worse --training-text other", "--training-text is for --groups"),
        ("--hypothesis worse --groups --training-text no", "--training-text: no: there is no such"),
        ("--hypothesis worse --hypothesis no", "--hypothesis: no: there is no such file"),
        ("--hypothesis worse --sentences worse", "are the same file"),
        ("--hypothesis worse --json few.reference", "are the same file"),
        ("--hypothesis worse --metrics comet", "--metrics comet needs --comet-model"),
        ("--hypothesis worse --metrics comet --comet-model m", "--metrics comet needs --source"),
        ("--hypothesis worse --source source --metrics comet --comet-model m", "m/checkpoints"),
    ],
)
def test_arguments_that_do_not_fit(folder, monkeypatch, arguments, words):
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    with pytest.raises(UsageError) as caught:
        run_command("evaluate", *arguments.split(), "--reference", "few.reference")
    assert words in str(caught.value) and sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--hypothesis", "few.reference"], "few.reference has 6 lines, .*reference has 120"),
        (["--hypothesis", "worse", "--reference", "few.reference"], "few.reference has 6 lines"),
        (["--hypothesis", "worse", "--source", "few.source"], "few.source has 6 lines"),
        (["--hypothesis", "empty"], "empty is empty. Give a file with one sentence per line"),
        (["--hypothesis", "worse", "--reference", "empty"], "empty is empty"),
    ],
)
def test_files_that_do_not_belong_together(folder, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(folder)
    (folder / "empty").write_bytes(b"")
    with pytest.raises(UserError, match=words):
        run_command("evaluate", "--reference", "reference", *arguments)


def test_a_missing_tokeniser_is_reported_before_a_model_translates(few, tmp_path, monkeypatch):
    from sacrebleu.tokenizers import tokenizer_ja_mecab

    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    config = make_config(tmp_path, data={"target_lang": "ja"})
    model = make_model_directory(tmp_path / "model", PAIRS, config).path
    output = tmp_path / "out"
    with pytest.raises(UserError, match="ja-mecab cannot be used"):
        run_command("evaluate", model, **few, output=output)
    assert not output.exists()
    run_command("evaluate", model, "--metrics", "chrf", **few, output=output)
    assert output.exists()


def test_files_are_read_line_by_line(evaluate, tmp_path):
    """U+2028 and U+0085 are text, CRLF and a byte order mark are not, the last newline may lack."""
    odd = ["one\u2028two \x85 three four", "five six seven eight"]
    (tmp_path / "hypothesis").write_bytes("\ufeff{}\r\n{}".format(*odd).encode())
    reference = write_lines(tmp_path / "reference", odd)
    _, _, scores = evaluate(hypothesis=tmp_path / "hypothesis", reference=reference)
    assert scores["lines"] == 2 and scores["bleu"] == pytest.approx(100)


def test_a_bad_reference_is_named(tmp_path):
    write_lines(tmp_path / "hypothesis", ["a", "b"])
    (tmp_path / "reference").write_bytes(b"a\nM\xe4rz\n")
    with pytest.raises(UserError, match="reference, line 2: not UTF-8"):
        run_command("evaluate", hypothesis=tmp_path / "hypothesis",
                    reference=tmp_path / "reference")  # fmt: skip


# ---- COMET ----


@pytest.fixture
def comet_model(tmp_path):
    """The files of a COMET model, without their content."""
    folder = tmp_path / "wmt-model"
    write_lines(folder / "hparams.yaml", [])
    write_lines(folder / "checkpoints" / "model.ckpt", [])
    return folder


def test_comet_without_its_package(folder, comet_model):
    if importlib.util.find_spec("comet"):
        pytest.skip("the package is installed")
    with pytest.raises(UserError, match="needs the package unbabel-comet"):
        run_command("evaluate", "--hypothesis", folder / "worse", "--reference",
                    folder / "reference", "--source", folder / "source", "--metrics", "comet",
                    "--comet-model", comet_model)  # fmt: skip


def test_comet(evaluate, folder, comet_model, monkeypatch, tmp_path):
    """In the place of the package is one with its interface (version 2.2.7), whose score is the
    share of characters that the translation has of the reference."""

    class Model:
        def predict(self, samples, batch_size=16, gpus=1, progress_bar=True):
            assert gpus == 0 and [sample["src"] for sample in samples] == SOURCES
            scores = [len(sample["mt"]) / len(sample["ref"]) for sample in samples]
            return types.SimpleNamespace(scores=scores, system_score=sum(scores) / len(scores))

    def load_from_checkpoint(checkpoint_path, local_files_only=False):
        assert checkpoint_path == str(comet_model / "checkpoints" / "model.ckpt")
        assert local_files_only
        return Model()

    module = types.ModuleType("comet")
    module.__spec__ = importlib.machinery.ModuleSpec("comet", None)
    module.load_from_checkpoint, module.__version__ = load_from_checkpoint, "2.2.7"
    monkeypatch.setitem(sys.modules, "comet", module)
    output, _, scores = evaluate(
        *("--hypothesis", folder / "worse", "--reference", folder / "reference"),
        *("--source", folder / "source", "--metrics", "chrf", "comet", "--groups"),
        *("--comet-model", comet_model, "--sentences", tmp_path / "sentences"),
    )
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
    assert "(lc.norm.tok): not comparable with scores of raw text" in output


def test_the_protocol_with_a_model(evaluate, folder):
    _, _, scores = evaluate(
        *(folder / "model", folder / "few.source", folder / "few.reference"),
        *("--protocol", "lc.norm.tok"),
        output=folder / "protocol.hypothesis",
    )
    hypotheses = (folder / "protocol.hypothesis").read_text("utf-8").splitlines()
    form = moses(hypotheses), [moses(TARGETS[:6])]
    assert scores["bleu"] == sacrebleu.corpus_bleu(*form, tokenize="none", force=True).score


def test_the_protocol_with_a_model_of_such_text(evaluate, folder):
    """Raw text is brought into the form for the model, and what it writes is scored as it is."""
    settings = {"dataset": "multi30k_lc_norm_tok", "source_lang": "en", "target_lang": "de"}
    config = make_config(folder)
    data = config.data.model_copy(update=settings)
    make_model_directory(folder / "tokens", PAIRS, config.model_copy(update={"data": data}))
    raw = ['A "Man" sleeps.', "The dog isn't here."]
    write_lines(folder / "raw.source", raw)
    write_lines(folder / "raw.reference", TARGETS[:2])
    write_lines(folder / "form.source", moses(raw, "en"))
    _, _, scores = evaluate(
        *(folder / "tokens", folder / "raw.source", folder / "raw.reference"),
        *("--protocol", "lc.norm.tok"),
        output=folder / "raw.hypothesis",
    )
    run_command(
        "translate", folder / "tokens", "--input", folder / "form.source",
        "--output", folder / "form.hypothesis",
    )  # fmt: skip
    hypotheses = (folder / "raw.hypothesis").read_text("utf-8")
    assert hypotheses == (folder / "form.hypothesis").read_text("utf-8")
    form = hypotheses.splitlines(), [moses(TARGETS[:2])]
    assert scores["bleu"] == sacrebleu.corpus_bleu(*form, tokenize="none", force=True).score


def test_text_that_is_tokenised_already(evaluate, folder):
    write_lines(folder / "tokenized", moses(WORSE))
    _, messages, _ = evaluate(
        *("--protocol", "lc.norm.tok", "--target-lang", "de"),
        *("--hypothesis", folder / "tokenized", "--reference", folder / "reference"),
    )
    assert "seems to be tokenised already" in messages and "--tokenize none" in messages


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokenize", "13a", "--target-lang", "de"], "a tokeniser of its own"),
        (["--lowercase", "--target-lang", "de"], "includes lower-casing"),
        ([], "needs --target-lang"),
        (["--target-lang", "de", "--groups"], "are for raw text"),
        (["--target-lang", "zh"], "languages with spaces between words"),
    ],
)
def test_the_protocol_with_wrong_arguments(evaluate, folder, arguments, message):
    files = ["--hypothesis", folder / "worse", "--reference", folder / "reference"]
    with pytest.raises(UsageError, match=message):
        evaluate("--protocol", "lc.norm.tok", *files, *arguments)

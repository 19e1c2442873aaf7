"""Scores against sacreBLEU's own command, on the same text: they are the same numbers."""

import json

import pytest

from tests.support import demo_pairs, make_config, sacrebleu, write_lines
from transformer_mt.commands.evaluate import score_file
from transformer_mt.evaluation.metrics import METRICS, Metric, score
from transformer_mt.evaluation.scoring import tokenizer_for, tokenizer_for_text
from transformer_mt.runtime.errors import UserError
from transformer_mt.training.validation import DevScores


def worsen(lines):
    """Translations with something right and something wrong: words swapped, lost, repeated."""
    for number, line in enumerate(lines):
        words = line.split(" ")
        if number % 3 == 0 and len(words) > 3:
            words[1], words[2] = words[2], words[1]
        if number % 4 == 1:
            words = words[:-1]
        if number % 7 == 2:
            words += words[-1:]
        yield " ".join(words) if number % 11 else ""


def worsen_chinese(lines):
    for number, line in enumerate(lines):
        yield line[1:] + line[:1] if number % 2 else line[: len(line) // 2 + 1]


def compare(tmp_path, hypotheses, references, tokenize):
    paths = [
        write_lines(tmp_path / name, lines)
        for name, lines in (("hypothesis", hypotheses), ("reference", references))
    ]
    scores = score(list(hypotheses), [list(references)], tokenize)
    options = ["-w", "10", "--force"]
    bleu = sacrebleu(*paths, "-m", "bleu", "--tokenize", tokenize, *options)
    chrf = sacrebleu(*paths, "-m", "chrf", *options)
    # The command prints ten digits after the point.
    assert scores.values["bleu"] == pytest.approx(bleu["score"], abs=1e-9)
    assert scores.signatures["bleu"] == f"BLEU|{bleu['signature']}"
    assert scores.values["chrf"] == pytest.approx(chrf["score"], abs=1e-9)
    assert scores.signatures["chrf"] == f"chrF2|{chrf['signature']}"
    assert f"ratio = {scores.length_ratio:.3f} " in bleu["verbose_score"]
    assert scores.lines == len(references)
    assert 5 < scores.values["bleu"] < 95
    return scores


@pytest.mark.parametrize("tokenize", ["13a", "none"])
def test_german(tmp_path, tokenize):
    references = [target for _, target in demo_pairs(300)]
    scores = compare(tmp_path, list(worsen(references)), references, tokenize)
    assert (
        f"|tok:{tokenize}|" in scores.signatures["bleu"]
        and "case:mixed" in scores.signatures["bleu"]
    )


def test_chinese(tmp_path, shared_data):
    text = (shared_data / "tatoeba_zh-en" / "test.zh").read_text(encoding="utf-8")
    references = text.split("\n")[:300]
    scores = compare(tmp_path, list(worsen_chinese(references)), references, "zh")
    assert "|tok:zh|" in scores.signatures["bleu"]
    assert tokenizer_for_text(references) == "zh"


def test_the_same_text_is_a_hundred():
    lines = [target for _, target in demo_pairs(20)]
    scores = score(lines, [lines], "13a")
    assert scores.values["bleu"] == pytest.approx(100) and scores.values["chrf"] == pytest.approx(
        100
    )
    assert scores.length_ratio == 1


def test_what_it_says():
    scores = score(["a b c d e f"] * 3, [["a b c d e g"] * 3], "13a")
    text = str(scores)
    assert (
        f"BLEU {scores.values['bleu']:.2f}" in text and f"chrF {scores.values['chrf']:.2f}" in text
    )
    assert (
        scores.signatures["bleu"] in text
        and scores.signatures["chrf"] in text
        and "3 lines" in text
    )
    assert json.loads(json.dumps(scores.as_dict()))["bleu"] == scores.values["bleu"]


def test_a_metric_is_one_entry(monkeypatch):
    """A new metric is computed, shown, logged and compared."""
    monkeypatch.setitem(
        METRICS,
        "edits",
        Metric("Edits", "edits_signature", lambda library, *_: library.TER(normalized=True), False),
    )
    references = [target for _, target in demo_pairs(50)]
    worse, better = (
        score(hypotheses, [references], "13a", metrics=["edits"])
        for hypotheses in (list(worsen(references)), references)
    )
    shown = worse.as_dict()
    assert f"Edits {shown['edits']:.2f}" in str(worse) and shown["edits_signature"] in str(worse)
    assert "norm:yes" in shown["edits_signature"]
    worse, better = (DevScores(1.0, 1.0, 2.7, one, []) for one in (worse, better))
    assert better.ranks("edits") > worse.ranks("edits") and better.as_dict()["edits"] == 0


def test_numbers_of_lines_must_match():
    with pytest.raises(UserError, match="2 translations, but 3 references"):
        score(["a", "b"], [["a", "b", "c"]], "13a")
    with pytest.raises(UserError, match="empty"):
        score([], [[]], "13a")


def test_nothing_translated_is_a_score_of_zero():
    scores = score(["", ""], [["a b c d", "e f g h"]], "13a")
    assert scores.values["bleu"] == 0 and scores.length_ratio == 0


@pytest.mark.parametrize(
    ("target_lang", "subword", "evaluation", "expected"),
    [
        ("de", {}, {}, "13a"),
        ("zh", {}, {}, "zh"),
        ("zh-CN", {}, {}, "zh"),
        ("ZH", {}, {}, "zh"),
        ("de", {"type": "vocabulary", "vocabulary": "v"}, {}, "none"),
        ("zh", {}, {"tokenize": "char"}, "char"),
        ("de", {"type": "vocabulary", "vocabulary": "v"}, {"tokenize": "13a"}, "13a"),
    ],
)
def test_the_tokeniser_of_a_config(tmp_path, target_lang, subword, evaluation, expected):
    values = {"data": {"target_lang": target_lang}, "subword": subword}
    config = make_config(tmp_path, **values).model_copy()
    config = type(config).model_validate(config.model_dump() | {"evaluation": evaluation})
    assert tokenizer_for(config) == expected


@pytest.mark.parametrize(
    ("references", "expected"),
    [
        (["鲜花盛开。", "我们很快就追上了他们。", "OK"], "zh"),
        (["Where is 北京?", "In China."], "13a"),
        (["今日は東京に行きます。", "漢字仮名交じり文"], "ja-mecab"),
        (["1 2 3", "..."], "13a"),
        ([""], "13a"),
        ([], "13a"),
    ],
)
def test_the_tokeniser_of_a_text(references, expected):
    assert tokenizer_for_text(references) == expected


def test_files_are_read_line_by_line(tmp_path):
    """U+2028 and U+0085 are text, CRLF and a byte order mark are not, the last newline may lack."""
    odd = ["one\u2028two \x85 three four", "five six seven eight"]
    (tmp_path / "hypothesis").write_bytes("\ufeff{}\r\n{}".format(*odd).encode())
    reference = write_lines(tmp_path / "reference", odd)
    scores = score_file(tmp_path / "hypothesis", reference)
    assert scores.lines == 2 and scores.values["bleu"] == pytest.approx(100)


def test_a_bad_reference_is_named(tmp_path):
    write_lines(tmp_path / "hypothesis", ["a", "b"])
    (tmp_path / "reference").write_bytes(b"a\nM\xe4rz\n")
    with pytest.raises(UserError, match="reference, line 2: not UTF-8"):
        score_file(tmp_path / "hypothesis", tmp_path / "reference")

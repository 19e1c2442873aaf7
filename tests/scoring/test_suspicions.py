"""Warnings of input that is not what it seems, and none of input that is right."""

import html
import unicodedata

import pytest

from tests.support import demo_pairs
from transformer_mt.scoring.metrics import Scores
from transformer_mt.scoring.suspicions import suspicions

SOURCES, TARGETS = map(list, zip(*demo_pairs(200), strict=True))


def scores_with(bleu: float, tokenize: str = "13a", **others: float) -> Scores:
    signature = f"BLEU|nrefs:1|case:mixed|eff:no|tok:{tokenize}|smooth:exp|version:2.6.0"
    return Scores({"bleu": bleu, **others}, {"bleu": signature}, 1.0, 200)


def test_nothing_is_wrong():
    assert suspicions(SOURCES, TARGETS, [TARGETS], scores_with(30.0)) == []
    assert suspicions(None, TARGETS, [TARGETS, TARGETS]) == []


def test_a_reference_that_is_the_source():
    (message,) = suspicions(SOURCES, TARGETS, [SOURCES])
    assert message.startswith("200 of 200 lines of the reference are identical to the source")
    few = [*SOURCES[:2], *TARGETS[2:]]
    (message,) = suspicions(SOURCES, TARGETS, [TARGETS, few])
    assert message.startswith("2 of 200 lines of reference 2 are identical")
    # One name or number, and empty lines, are no sign of a mistake.
    assert suspicions(["2012", *SOURCES[1:]], TARGETS, [["2012", *TARGETS[1:]]]) == []
    assert suspicions([""] * 3, ["a"] * 3, [[""] * 3]) == []


@pytest.mark.parametrize(
    ("bad", "mark"), [("Ein Hun@@ d .", "@@ "), ("Ein Hun@@", "@@ "), ("▁Ein ▁Hund", "▁")]
)
def test_subwords_that_were_not_joined(bad, mark):
    hypotheses = [bad, bad, *TARGETS[2:]]
    (message,) = suspicions(SOURCES, hypotheses, [TARGETS])
    assert message.startswith(f"2 of 200 translations contain {mark!r}, a mark of")
    # They are meant if the reference has them.
    assert suspicions(SOURCES, hypotheses, [[bad, *TARGETS[1:]]]) == []


def test_an_address_is_no_subword():
    assert suspicions(None, ["a@@b", "x @@y"], [["a", "b"]]) == []


FORMS = {
    "decomposed": lambda line: unicodedata.normalize("NFD", line),
    "entities": lambda line: html.escape(f'"{line}"').replace("\u00fc", "&uuml;"),
    "invisible": lambda line: line.replace("en ", "\u00aden "),
    "tokenised": lambda line: line.replace(",", " ,").replace(".", " ."),
    "lower case": str.lower,
}


@pytest.mark.parametrize("form", FORMS)
def test_one_side_in_another_form(form):
    changed = list(map(FORMS[form], TARGETS))
    plain = [f'"{line}"' for line in TARGETS] if form == "entities" else TARGETS
    (message,) = suspicions(SOURCES, changed, [plain], scores_with(70.0))
    assert form in message and " of 200 translations, but 0 of the reference," in message
    (message,) = suspicions(SOURCES, plain, [plain, changed], scores_with(70.0))
    assert form in message and message.startswith("0 of 200 translations, but ")
    assert "of reference 2" in message
    # Both sides are in it on purpose.
    assert suspicions(SOURCES, changed, [changed], scores_with(70.0, "none")) == []


def test_other_writing_is_no_other_form():
    french = [
        "Bonjour !",
        "\u00c7a va ?",
        "AT&T dit : \u00ab Oui \u00bb ; elle, non ...",
        "Non.",
    ] * 50
    narrow = [line.replace(" ", "\u202f") for line in french]
    assert suspicions(None, french, [narrow]) == suspicions(None, narrow, [french]) == []
    # One line of a text may well have an entity, or a space before a full stop.
    assert suspicions(None, ["R&amp;D .", *TARGETS[1:]], [TARGETS]) == []
    lowercase = scores_with(70.0)
    lowercase.signatures["bleu"] = lowercase.signatures["bleu"].replace("mixed", "lc")
    assert suspicions(None, list(map(str.lower, TARGETS)), [TARGETS], lowercase) == []


def test_two_tokenised_sides_for_a_tokeniser_of_raw_text():
    tokenised = list(map(FORMS["tokenised"], TARGETS))
    (message,) = suspicions(None, tokenised, [tokenised], scores_with(70.0, "13a"))
    assert "tokenised" in message and "--tokenize none" in message


def test_a_tokeniser_that_takes_a_sentence_for_a_word():
    chinese = ["\u6211\u4eec\u5f88\u5feb\u5c31\u8ffd\u4e0a\u4e86\u4ed6\u4eec\u3002"] * 3
    (message,) = suspicions(None, chinese, [chinese], scores_with(98.4, "13a"))
    assert "the tokeniser 13a does not suit the language; zh does" in message
    assert suspicions(None, chinese, [chinese], scores_with(98.4, "zh")) == []


def test_bleu_near_zero():
    (message,) = suspicions(SOURCES, TARGETS, [TARGETS], scores_with(0.31, chrf=20.5))
    assert message.startswith("BLEU is 0.31, which is near 0 (chrF is 20.50)")
    assert "swapped" in message and "another language" in message and "tokeniser" not in message
    assert suspicions(SOURCES, TARGETS, [TARGETS], scores_with(1.0)) == []


@pytest.mark.parametrize(
    ("reference", "used", "better"),
    [
        ("今日は東京に行きます。", "13a", "ja-mecab"),
        ("今日は東京に行きます。", "ja-mecab-0.996-IPA", None),
        ("今日は東京に行きます。", "zh", "ja-mecab"),
        ("今日は東京に行きます。", "char", None),
        ("ภาษาไทยไม่มีช่องว่าง", "13a", "char"),
        ("我们很快就追上了他们。", "none", "zh"),
        ("Ein Hund.", "char", None),
    ],
)
def test_the_tokeniser_as_the_reason(reference, used, better):
    (message,) = suspicions(None, ["x"], [[reference]], scores_with(0.0, used))
    if better is None:
        assert "tokeniser" not in message
    else:
        assert f"(1) the tokeniser {used} does not suit the language; {better} does" in message

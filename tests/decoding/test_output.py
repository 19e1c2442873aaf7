"""What is written for a line."""

import csv
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_mt.decoding.output import FORMATS, Output, Translation, best_in, formatter

PARTS = {"words": None, "parts": [(0, 9)]}
FIRST = Output("Ein Hund.", -0.25, -0.5, ["▁Ein", "▁Hund", "."], [(0, 0), (1, 1)], **PARTS)
SECOND = Output("Der Hund.", -1.5, -3.0, ["▁Der", "▁Hund", "."], [(1, 1)], **PARTS)
BOTH = Translation("A dog.", ["▁A", "▁dog", "."], [FIRST, SECOND], source_parts=[(0, 6)])
NOTHING = Translation("", [], [Output("", 0.0, 0.0, [])])


def test_plain_is_the_best():
    assert FORMATS["plain"](BOTH) == "Ein Hund." and FORMATS["plain"](NOTHING) == ""


def test_columns():
    assert FORMATS["tsv"](BOTH) == (
        "A dog.\tEin Hund.\t-0.250000\t0-0 1-1\tDer Hund.\t-1.500000\t1-1"
    )
    assert FORMATS["tsv"](NOTHING) == "\t\t0.000000"


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_row_has_as_many_columns(count):
    """An empty line has one output, and so may have another one, where two were alike."""
    aligned = Translation("", [], [Output("", 0.0, 0.0, [], [])])
    for translation, each in ((BOTH, 3), (aligned, 3), (NOTHING, 2)):
        row = formatter("tsv", count)(translation).split("\t")
        given = 1 + each * len(translation.outputs)
        assert len(row) == max(given, 1 + each * count)
        assert "\t".join(row[:given]) == FORMATS["tsv"](translation)
        assert set(row[given:]) <= {""}
    for name in ("plain", "jsonl"):
        assert formatter(name, count)(BOTH) == FORMATS[name](BOTH)


def test_json():
    assert json.loads(FORMATS["jsonl"](BOTH)) == {
        "source": "A dog.",
        "source_pieces": ["▁A", "▁dog", "."],
        "source_parts": ["A dog."],
        "outputs": [
            {"text": "Ein Hund.", "score": -0.25, "log_prob": -0.5, "parts": ["Ein Hund."],
             "pieces": ["▁Ein", "▁Hund", "."], "alignment": "0-0 1-1"},
            {"text": "Der Hund.", "score": -1.5, "log_prob": -3.0, "parts": ["Der Hund."],
             "pieces": ["▁Der", "▁Hund", "."], "alignment": "1-1"},
        ],
    }  # fmt: skip
    (output,) = json.loads(FORMATS["jsonl"](NOTHING))["outputs"]
    assert "alignment" not in output  # it was not asked for
    assert "▁Ein" in FORMATS["jsonl"](BOTH)  # for people too


TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(source=TEXT, text=TEXT)
def test_any_text_stays_one_line_and_in_its_column(source, text):
    translation = Translation(source, [source], [Output(text, -1.0, -2.0, [text])])
    line = FORMATS["jsonl"](translation)
    assert len(line.splitlines()) == 1  # by any reader's notion of a line
    values = json.loads(line)
    assert values["source"] == source and values["outputs"][0]["text"] == text
    line = FORMATS["tsv"](translation)
    assert "\n" not in line and "\r" not in line
    (columns,) = csv.reader([line], delimiter="\t", quoting=csv.QUOTE_NONE)
    assert len(columns) == 3 and columns[2] == "-1.000000"


@given(st.text(st.characters(exclude_characters="\r\n\t", exclude_categories=["Cs"])))
def test_the_best_translation_is_read_again(text):
    translation = Translation("a\tb", ["a"], [Output(text, -1.0, -2.0, [text]), SECOND])
    for name in FORMATS:
        assert best_in(formatter(name, 2)(translation), name) == text

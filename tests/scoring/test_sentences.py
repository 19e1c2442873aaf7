"""Scores of sentences against sacreBLEU's own command, and the table of them."""

import csv
import io

import pytest

from tests.scoring.test_metrics import german
from tests.support import sacrebleu, write_lines
from transformer_mt.scoring.metrics import sentence_scores
from transformer_mt.scoring.systems import sentence_table
from transformer_mt.utils.errors import UserError


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("bleu", ["-m", "bleu", "-lc"]),
        ("chrf++", ["-m", "chrf", "--chrf-word-order", "2", "--chrf-lowercase"]),
    ],
)
def test_the_scores_of_the_command(tmp_path, key, options):
    hypotheses, references = (lines[:40] for lines in german())
    references = [lines[:40] for lines in references]
    files = [write_lines(tmp_path / f"ref{i}", lines) for i, lines in enumerate(references)]
    path = write_lines(tmp_path / "hypothesis", hypotheses)
    said = sacrebleu(path, files, *options, "-sl", "-b", "-w", "8")
    scores = sentence_scores(hypotheses, references, "13a", [key], lowercase=True)
    assert scores == {key: [pytest.approx(float(one), abs=1e-7) for one in said.split()]}
    assert len(set(scores[key])) > 5


def test_short_sentences_and_edits():
    scores = sentence_scores(["a b", "", "a"], [["a b", "c", "b"]], "13a", ["bleu", "ter"])
    assert scores["bleu"] == pytest.approx([100, 0, 0]) and scores["ter"] == [0, 100, 100]
    with pytest.raises(UserError, match="2 translations, but 1 references"):
        sentence_scores(["a", "b"], [["a"]], "13a", ["bleu"])


def test_no_text_breaks_the_table():
    odd = ["a\tb", "new\x85line\u2028and\rothers", 'say "yes"', '"', "", "= 1 + 1", "后来 呢"]
    scores = {"bleu": [12.345678 * i for i in range(len(odd))]}
    text = sentence_table(scores, odd, odd, [odd, odd], spaces=True)
    assert text.count("\n") == len(odd) + 1
    rows = list(csv.reader(io.StringIO(text), "excel-tab"))
    assert rows[0] == ["line", "source_length", "bleu", "source", "hypothesis", "reference_1",
                       "reference_2"]  # fmt: skip
    plain = ["a b", "new line and others", *odd[2:]]
    for number, (row, text) in enumerate(zip(rows[1:], plain, strict=True)):
        assert row[0] == str(number + 1) and row[1] == str(len(text.split()))
        assert float(row[2]) == pytest.approx(scores["bleu"][number], abs=1e-4)
        assert row[3:] == [text] * 4


def test_a_table_without_a_source():
    text = sentence_table({}, None, ["x y"], [["z"]], spaces=True)
    assert text == "line\tsource_length\tsource\thypothesis\treference\n1\t\t\tx y\tz\n"
    assert "\n1\t3\t" in sentence_table({}, ["你好 吗"], ["x"], [["z"]], spaces=False)

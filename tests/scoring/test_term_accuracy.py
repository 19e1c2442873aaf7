"""How well translations follow a list of terms: counts by hand, and statistics done by hand."""

import itertools
import sys

import numpy as np
import pytest
import snowballstemmer
from hypothesis import given
from hypothesis import strategies as st

from transformer_mt.data.terms import Term, parse
from transformer_mt.scoring.significance import paired_tests
from transformer_mt.scoring.terms import STEMMERS, Counts, TermChecker
from transformer_mt.utils.errors import UsageError, UserError

LIST = [
    "main window|Hauptfenster",
    "file|Datei|Akte",
    "new|neu",
    "cell|Zelle",
    "cell|Gefängnis|forbidden",
    "C++|C++",
]


def checker(entries=LIST, languages=("en", "de")):
    return TermChecker([parse(entry.split("|")) for entry in entries], languages)


@pytest.mark.parametrize(
    ("source", "hypothesis", "expected"),
    [
        ("Open the main window", "Öffne das Hauptfenster", (1, 1, 1, 0)),
        ("The file's size", "Die Größe der DATEIEN", (1, 0, 1, 0)),
        ("MAIN WINDOW", "HAUPTFENSTER!", (1, 1, 1, 0)),
        ("the window", "das Hauptfenster", (0, 0, 0, 0)),
        ("a file", "eine Akte", (1, 1, 1, 0)),
        ("a new file", "mit neuen Dateien", (2, 0, 2, 0)),
        ("a file", "eine Dateiliste", (1, 0, 0, 0)),  # no word, and no ending
        ("a file or file", "eine Datei", (1, 1, 1, 0)),  # once a line
        ("the cell", "das Gefängnis der Zellen", (1, 0, 1, 1)),
        ("the cell", "die Gefängnisse", (1, 0, 0, 0)),  # forbidden only as it is written
        ("in C++", "mit C++", (1, 1, 1, 0)),
        ("a file", "", (1, 0, 0, 0)),
    ],
)
def test_lines(source, hypothesis, expected):
    assert checker().counts(source, hypothesis) == Counts(*expected)


def test_several_words_must_come_together():
    own = checker(["hard disk|feste Platte"])
    assert own.counts("a hard disk", "auf festen Platten").by_stem == 1
    assert own.counts("a hard disk", "auf Platten, festen").by_stem == 0


@pytest.mark.parametrize(
    ("language", "form", "hypothesis"), [("zh", "窗口", "打开主窗口"), ("xh", "ifayile", "ifayile")]
)
def test_languages_without_stems(language, form, hypothesis):
    own = checker([f"file|{form}"], ("en", language))
    assert own.counts("a file", hypothesis) == (1, 1, 1, 0)
    assert list(own.metrics()) == ["terms"]
    scores = own.scores(["a file", "no"], [hypothesis, ""])
    assert "stem" not in str(scores) and "by_stem" not in scores.as_dict()
    assert list(scores.columns()) == ["terms", "terms_exact", "terms_forbidden"]


def test_snowball_has_all_stemmers():
    assert set(STEMMERS.values()) <= set(snowballstemmer.algorithms())


WORDS = ["Haus", "Häuser", "Hauses", "große", "großes", "Tür", "Türen", "und", "x"]


@given(
    st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=3), min_size=1, max_size=4),
    st.lists(st.sampled_from(WORDS), max_size=8),
)
def test_against_lists_of_words(forms, words):
    """By the definition, for texts whose words are separated by spaces."""

    def has(words, form):
        return any(words[i : i + len(form)] == form for i in range(len(words)))

    stem = snowballstemmer.stemmer("german").stemWord
    stems = [stem(word.lower()) for word in words]
    exact = any(has(words, form) for form in forms)
    by_stem = any(has(stems, [stem(word.lower()) for word in form]) for form in forms)
    own = TermChecker([Term("it", tuple(map(" ".join, forms)))], ("en", "de"))
    assert own.counts("it", " ".join(words)) == (1, exact, exact or by_stem, 0)


def test_the_scores_of_a_text():
    sources = ["the main window", "a new file", "nothing", "the cell"] * 30
    hypotheses = ["das Hauptfenster", "neue Dateien", "nichts", "das Gefängnis"] * 30
    found = checker().scores(sources, hypotheses)
    assert found.total == (120, 30, 90, 30) and found.lines == 90
    assert found.accuracies.values == {"terms": 25, "terms_by_stem": 75}
    shown = str(found)
    assert shown.startswith("terms: 25.0 ± ") and " % exact, 75.0 ± " in shown
    assert shown.endswith(" % by stem (30 of 120 in 90 lines; 30 forbidden)")
    # The bootstrap by hand, with other random numbers.
    statistics = np.array([(1, 1), (0, 2), (0, 0), (0, 1)] * 30)
    chosen = np.random.default_rng(3).integers(120, size=(4000, 120))
    right, terms = statistics[chosen].sum(1).T
    lower, upper = np.quantile(100 * right / terms, (0.025, 0.975))
    assert found.accuracies.intervals["terms"] == pytest.approx((lower, upper), abs=1.5)
    kept = found.as_dict()
    assert [kept[key] for key in ("terms", "exact", "by_stem", "forbidden")] == [120, 30, 90, 30]
    assert found.columns()["terms_by_stem"][:4] == (1, 2, 0, 0)
    assert "seed:12345|match:exact|" in kept["accuracies"]["terms_signature"]


def test_the_paired_test_against_all_exchanges():
    """The p-value of randomisation is the share of all exchanges of lines with a larger
    difference."""
    sources = ["a new file", "the cell", "the main window", "a file", "new cell"] * 2
    systems = [
        ["neue Dateien", "Zelle", "Fenster", "x", "neu", "neu Datei", "Zelle", "x", "x", "Zelle"],
        ["neu, Datei", "Zelle", "Hauptfenster", "Akte", "neu", "neu", "x", "x", "Datei", "neu"],
    ]
    own = checker()
    others = {key: (metric, [sources]) for key, metric in own.metrics().items()}
    exact, by_stem = paired_tests(systems, [sources], "13a", metrics=[], others=others)
    assert (exact.key, by_stem.key) == ("terms", "terms_by_stem")
    counts = [
        [own.counts(*pair) for pair in zip(sources, system, strict=True)] for system in systems
    ]
    right = np.array([[line.exact for line in system] for system in counts])
    terms = sum(line.terms for line in counts[0])
    observed = right[1].sum() - right[0].sum()
    assert exact.scores[1].difference.value == pytest.approx(100 * observed / terms)
    signs = np.array(list(itertools.product((1, -1), repeat=len(sources))))
    share = (abs(signs @ (right[1] - right[0])) > observed).mean()
    assert exact.scores[1].difference.randomisation_p == pytest.approx(share, abs=0.02)
    assert exact.scores[1].difference.changed == (right[0] != right[1]).sum()


def test_a_list_for_another_text():
    own = checker()
    own.require_terms(["the cell"])
    for sources in (["nothing"], ["die Zelle"]):
        with pytest.raises(UserError, match="none of the terms is in the source"):
            own.require_terms(sources)
    with pytest.raises(UserError, match="none of the terms"):
        checker(["cell|Gefängnis|forbidden"]).require_terms(["the cell"])


def test_stems_need_their_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "snowballstemmer", None)
    with pytest.raises(UsageError, match=r"snowballstemmer is needed.*transformer-mt\[formats\]"):
        checker()
    assert checker(["file|文件"], ("en", "zh")).counts("a file", "文件") == (1, 1, 1, 0)

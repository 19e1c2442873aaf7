"""Translations of terms beside them in the source, as training makes them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import train_subwords
from transformer_mt.data.annotation import Annotations, annotated, outside_annotations
from transformer_mt.data.spans import ANNOTATION
from transformer_mt.data.terms import Term, Terms

WORDS = (
    ("cell", "Zelle"),
    ("main window", "Hauptfenster"),
    ("write", "schreiben"),
    ("box", "Feld"),
    ("news", "Nachrichten"),
    ("box", "Kasten"),
)
ANNOTATED = re.compile("\u27e6=\u27e7([^\u27e6]*)\u27e6/\u27e7")


def of(source, target, share=1.0, ignored=("<news>",)):
    return Annotations(share, WORDS, ("en", "de"), ignored).applied(source, target)


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("The cell is empty.", "Die Zelle ist leer.", "The cell⟦=⟧ Zelle⟦/⟧ is empty."),
        # Other forms: the model learns to inflect.
        ("the cell", "den Zellen", "the cell⟦=⟧ Zelle⟦/⟧"),
        ("I write", "Ich schreibe", "I write⟦=⟧ schreiben⟦/⟧"),
        ("Main window:", "Hauptfensters:", "Main window⟦=⟧ Hauptfenster⟦/⟧:"),
        # Of several translations, the one that is there.
        ("the box", "der Kasten", "the box⟦=⟧ Kasten⟦/⟧"),
        ("the box", "Kasten und Feld", "the box⟦=⟧ Feld⟦/⟧"),
        # Nothing is in the target, or only a longer word.
        ("the cell", "die Kachel", "the cell"),
        ("the box", "die Felder der Feldmaus", "the box⟦=⟧ Feld⟦/⟧"),
        ("the box", "die Feldmaus", "the box"),
        # Tags and symbols stay whole.
        ("<news> hello", "Nachrichten", "<news> hello"),
        ("⟦0⟧ news", "⟦0⟧ Nachrichten", "⟦0⟧ news⟦=⟧ Nachrichten⟦/⟧"),
    ],
)
def test_what_is_annotated(source, target, expected):
    assert of(source, target) == expected


def test_the_share_of_pairs_and_of_terms():
    pairs = [(f"The cell {i} of the box {i}.", f"Die Zelle {i} im Feld {i}.") for i in range(2000)]
    changed = [of(*pair, share=0.3) for pair in pairs]
    assert changed == [of(*pair, share=0.3) for pair in pairs]
    counts = [len(ANNOTATED.findall(text)) for text in changed]
    # Of the pairs, 30 %; of these, the less certain term is sure and the other one is drawn. The
    # tolerance is four standard deviations.
    some = [count for count in counts if count]
    assert len(some) == pytest.approx(600, abs=4 * (2000 * 0.3 * 0.7) ** 0.5)
    assert some.count(2) == pytest.approx(len(some) / 2, abs=4 * (len(some) / 4) ** 0.5)
    assert all("⟦=⟧ Feld" in text for text in changed if "⟦=⟧" in text)
    assert [ANNOTATED.sub("", text) for text in changed] == [source for source, _ in pairs]
    assert of("The cell", "Die Zelle", share=0.0) == "The cell"


@given(st.text(), st.text())
def test_any_pair(source, target):
    """Without what was added, the source is as before, and what was added is in the target."""
    changed = of(f"{source} cell {target}", f"{target} Zelle {source}")
    assert ANNOTATED.sub("", changed) == ANNOTATED.sub("", f"{source} cell {target}")


def test_languages_without_spaces():
    found = Annotations(1.0, (("单元格", "cell"),), ("zh", "en"))
    assert found.applied("空单元格。", "An empty cell.") == "空单元格⟦=⟧ cell⟦/⟧。"
    found = Annotations(1.0, (("cell", "单元格"),), ("en", "zh"))
    assert found.applied("An empty cell.", "空单元格。") == "An empty cell⟦=⟧单元格⟦/⟧."


def test_places_outside_of_annotations():
    texts = ["A dog runs on the grass.", "Ein Hund läuft auf dem Gras."]
    subwords = train_subwords([tuple(texts)] * 5, 70, ANNOTATION)
    terms = Terms([Term("dog", ("Hund",)), Term("grass", ("Gras",))], "en")
    found = [(end, term.forms[0]) for _, end, term in terms.find(texts[0])]
    text = annotated(texts[0], found, "de")
    assert text == "A dog⟦=⟧ Hund⟦/⟧ runs on the grass⟦=⟧ Gras⟦/⟧."
    ids = subwords.source.encode(text)
    own = [ids[place] for place in outside_annotations(ids, subwords)]
    assert own == subwords.source.encode(texts[0])
    # What is between the symbols is spelled as in the target, so that it can be copied.
    begin, end = (subwords.source.user_symbols[symbol] for symbol in ANNOTATION)
    hund = ids[ids.index(begin) + 1 : ids.index(end)]
    assert hund == subwords.target.encode("Hund")
    # A model without the symbols has no annotations.
    plain = train_subwords([tuple(texts)] * 5, 70, [])
    assert outside_annotations(ids, plain) == list(range(len(ids)))

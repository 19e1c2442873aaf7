"""Terms of a text in invented languages, in which it is known what belongs together."""

import random

from benchmarks import term_extraction
from benchmarks.term_extraction import extracted

TERMS = {"main window": "Fenstrom", "cell": "Zellum", "print preview": "Sicht Vorab", "key": "Tast"}


def text(lines, seed=5):
    """Lines of words that mean nothing, with two of the terms in each."""
    generator = random.Random(seed)
    for _ in range(lines):
        chosen = generator.sample(sorted(TERMS), 2)
        fillers = [generator.choices("abcdefgh", k=3) for _ in range(2)]
        source, target = (
            " ".join(word * 3 for word in words[:1])
            + f" {first} "
            + " ".join(word * 3 for word in words[1:])
            + f" {second}."
            for words, (first, second) in zip(
                fillers, [chosen, [TERMS[term] for term in reversed(chosen)]], strict=True
            )
        )
        yield source, target


def test_what_belongs_together_is_found(monkeypatch):
    monkeypatch.setattr(term_extraction, "FREQUENT", 0)
    pairs = list(text(400))
    found = extracted(pairs)
    assert dict(found) == TERMS and len(found) == len(TERMS)
    # The same of the same text, and of a part of it that is drawn.
    assert extracted(pairs) == found
    monkeypatch.setattr(term_extraction, "MOST_LINES", 200)
    assert dict(extracted(pairs, seed=3)) == TERMS


def test_rare_words_and_frequent_ones_are_no_terms(monkeypatch):
    assert extracted(list(text(8))) == []
    monkeypatch.setattr(term_extraction, "FREQUENT", 100)
    assert extracted(list(text(400))) == []

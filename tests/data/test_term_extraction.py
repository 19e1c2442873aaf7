"""Terms of a text in invented languages, in which it is known what belongs together."""

import random

from transformer_mt.data import term_extraction

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


def extracted(pairs, languages=("en", "de"), **options):
    return term_extraction.extracted(pairs, languages, least_lines=10, least_dice=0.75, **options)


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


def test_a_language_without_spaces(monkeypatch):
    """The terms of its side are found among groups of characters."""
    monkeypatch.setattr(term_extraction, "FREQUENT", 0)
    chinese = {"Fenstrom": "主视窗", "Zellum": "单元", "Sicht Vorab": "预览", "Tast": "按键"}
    pairs = []
    generator = random.Random(1)
    for source, target in text(400):
        words = [word for word in chinese if word in target]
        others = generator.choices("天地玄黄宇宙洪荒", k=3)
        pairs.append((source, others[0] + others[1].join(map(chinese.get, words)) + others[2]))
    found = dict(extracted(pairs, ("en", "zh")))
    assert found == {term: chinese[TERMS[term]] for term in TERMS}

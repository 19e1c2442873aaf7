"""What a recipe says of a text: its subwords, what is protected, and how long pairs may be."""

from __future__ import annotations

import math
from collections import Counter
from itertools import accumulate, islice

from transformer_mt.config.text import PROTECTED_IN_DOCUMENTS
from transformer_mt.data.corpus import Split
from transformer_mt.data.facts import RARE
from transformer_mt.data.prepare import PreparedData
from transformer_mt.data.spans import SYMBOLS, SpanFinder
from transformer_mt.training.recipes.draft import LARGEST_VOCABULARY, USUAL_LENGTH, Draft
from transformer_mt.training.run import prepare_for
from transformer_mt.utils.console import progress, say

# The size of a joint vocabulary for texts of fewer pairs than this.
VOCABULARIES = [(10_000, 4000), (1_000_000, 8000), (5_000_000, 16_000)]
# The size of each of two vocabularies, as a share of that of a joint one.
SEPARATE_VOCABULARY = 0.75
# Languages share their subwords if this share of their letters is the same.
SHARED_LETTERS = 0.5
# Above this number of different characters, the rarest are left out.
MANY_CHARACTERS = 500
# Tags, placeholders and the like are protected if this share of the pairs has some, of about so
# many pairs that are looked at.
PROTECTED_SHARE = 0.005
SPAN_PAIRS = 20_000
# Longer pairs are read if at least this share of them is longer than usual, in subwords.
LONG_SHARE = 0.01
GREAT_LENGTH = 512


def choose_subwords(draft: Draft, split: Split) -> tuple[tuple[str, str, list[str]], list[int]]:
    """Counts the characters and the protected spans of a text, and sets what follows from them.
    Returns the reasons, and the smallest size of each vocabulary."""
    sides: tuple[Counter[str], Counter[str]] = Counter(), Counter()
    total = split.line_count
    with progress(total=total, title="reading", unit="pairs", unit_scale=True) as bar:
        for source, target in split.pairs():
            sides[0].update(source)
            sides[1].update(target)
            bar.update()
    spans = choose_protected(draft, split)
    shared, different = _shared_letters(*sides), len(sides[0] | sides[1])
    joint, coverage = shared >= SHARED_LETTERS, 1.0 if different <= MANY_CHARACTERS else 0.9995
    draft.values |= {"joint": joint, "character_coverage": coverage}
    symbols = len(SYMBOLS) if spans else 0
    smallest = [
        _needed(side, coverage) + symbols for side in ([sides[0] + sides[1]] if joint else sides)
    ]
    # Beside its characters, a script with thousands of them needs room for words.
    usual = next((size for most, size in VOCABULARIES if total < most), LARGEST_VOCABULARY)
    usual = usual if joint else round(SEPARATE_VOCABULARY * usual)
    sizes = [max(usual, math.ceil(1.5 * size / 500) * 500) for size in smallest]
    keys = ["vocab_size"] if joint else ["source_vocab_size", "target_vocab_size"]
    draft.vocabulary = dict(zip(keys, sizes, strict=True))
    why = "shared, because" if joint else "for each language, because"
    kept = "all are kept" if coverage == 1 else f"the rarest are left out ({coverage:.2%} are kept)"
    letters = f"{why} {shared:.0%} of the letters are the same"
    return (letters, f"characters   {different:,} different ones; {kept}", spans), smallest


def choose_protected(draft: Draft, split: Split) -> list[str]:
    """Sets what is protected, if enough pairs of a text have such spans. Returns lines that say
    why."""
    finder = SpanFinder(PROTECTED_IN_DOCUMENTS)
    looked_at = islice(split.pairs(), 0, None, 1 + split.line_count // SPAN_PAIRS)
    found = [bool(finder.find(source) and finder.find(target)) for source, target in looked_at]
    share = sum(found) / max(1, len(found))
    if share < PROTECTED_SHARE:
        return []
    draft.values["protect"] = list(PROTECTED_IN_DOCUMENTS)
    return [
        f"protected    tags, placeholders, addresses and the like, which {share:.1%} of the pairs "
        "have"
    ]


def _shared_letters(*sides: Counter[str]) -> float:
    """Returns the share of the letters that both sides have in common, from 0 to 1: the
    intersection of the two histograms."""
    letters = [Counter({c: n for c, n in side.items() if c.isalpha()}) for side in sides]
    source, target = letters
    totals = [max(1, side.total()) for side in letters]
    return sum(min(source[c] / totals[0], target[c] / totals[1]) for c in source)


def _needed(characters: Counter[str], coverage: float) -> int:
    """Returns the size of the smallest vocabulary that covers this share of the characters. It is a
    little larger than SentencePiece's own."""
    enough = coverage * characters.total()
    covered = accumulate(count for _, count in characters.most_common())
    return 20 + sum(count < enough for count in covered) + 1


def fit_vocabulary(draft: Draft, smallest: list[int]) -> PreparedData:
    """Prepares the data. Shrinks a vocabulary as long as most of its subwords are rare, and has
    longer pairs read if there are many."""
    while True:
        _, data = prepare_for(draft.config())
        before = dict(draft.vocabulary)
        # A joint vocabulary has the same facts on both sides.
        for key, side, least in zip(before, ("source", "target"), smallest, strict=False):
            facts = data.facts[side]
            # A small text has fewer subwords than it was asked for.
            size = min(before[key], facts["vocabulary"])
            if facts["rare"] > 0.5 and size > least:
                say(
                    f"{facts['rare']:.0%} of the {size:,} subwords occur less than {RARE} times; "
                    "trying a smaller vocabulary"
                )
                size = max(least, min(size // 2, 2 * round(size * (1 - facts["rare"]))))
            draft.vocabulary[key] = size
        too_long = data.facts["dropped"].get(f"longer than {USUAL_LENGTH} subwords", {"count": 0})
        if too_long["count"] >= LONG_SHARE * data.facts["pairs"]:
            draft.values["max_length"] = GREAT_LENGTH
        elif draft.vocabulary == before:
            return data

"""The text of the golden models: a small language and its translation, written by a grammar.

Every sentence has exactly one translation, most words have exactly one too, and the time of a
sentence changes its place. A tiny model therefore becomes sure of its translations within some
hundred updates. A copying model has something to copy: the numbers.
"""

from __future__ import annotations

import random
from pathlib import Path

NAMES = ["Anna", "Boris", "Clara", "David", "Emil", "Frida"]
VERBS = {"sees": "sieht", "takes": "nimmt", "buys": "kauft", "finds": "findet", "has": "hat"}
ADJECTIVES = {"red": "rote", "old": "alte", "small": "kleine", "green": "grüne", "new": "neue"}
NOUNS = {"house": "Haus", "book": "Buch", "car": "Auto", "bed": "Bett", "picture": "Bild"}
NUMBERS = ["3", "7", "12", "15", "28", "34", "51", "60", "77", "89"]
TIMES = {"today": "heute", "tomorrow": "morgen", "often": "oft", "never": "nie"}

# How many pairs are in each part of the corpus.
SIZES = {"train": 400, "dev": 12, "test": 8}
# Longest sentence of the golden models in subwords, so that a long line is translated in parts.
MAX_LENGTH = 14


def pairs() -> list[tuple[list[str], list[str], str]]:
    """All sentences: source words, target words, and their links in Pharaoh's format."""
    draw = random.Random(14)
    found = []
    for _ in range(sum(SIZES.values())):
        name, time = draw.choice(NAMES), draw.choice([*TIMES])
        verb, adjective, noun = (draw.choice([*words]) for words in (VERBS, ADJECTIVES, NOUNS))
        number = draw.choice(NUMBERS)
        thing = draw.choice([[adjective, noun], [noun, number], [noun]])
        source = [name, verb, "the", *thing, time, "."]
        known = {"the": "das", **VERBS, **ADJECTIVES, **NOUNS, **TIMES}
        rest = [3 + i for i in range(len(thing))]
        order = [0, 1, len(source) - 2, 2, *rest, len(source) - 1]
        if draw.random() < 0.3:  # the time comes first in the translation
            source = [time, *source[:-2], "."]
            order = [0, 2, 1, *range(3, len(source))]
        target = [known.get(source[i], source[i]) for i in order]
        found.append((source, target, " ".join(f"{i}-{j}" for j, i in enumerate(order))))
    return found


def write(folder: Path) -> None:
    """Writes `text/`, `links`, and the files that the golden models read, into an empty folder."""
    all_pairs = pairs()
    (folder / "text").mkdir()
    first = 0
    for name, count in SIZES.items():
        part = all_pairs[first : first + count]
        first += count
        for side, lang in enumerate(("en", "de")):
            _write(folder / "text" / f"{name}.{lang}", [" ".join(pair[side]) for pair in part])
    _write(folder / "links", [links for _, _, links in all_pairs[: SIZES["train"]]])

    test = [[" ".join(side) for side in pair[:2]] for pair in all_pairs[-SIZES["test"] :]]
    # Besides the test set: an empty line, an unknown character, and translations that are wrong.
    odd = [("", ""), ("Anna sees the ‖ book today .", "Anna sieht heute das ‖ Buch .")]
    wrong = [(test[i][0], test[i - 1][1]) for i in range(3)] + [("", "Haus"), ("Emil", "")]
    files = {
        # and a line that is translated in parts.
        "source": [*(source for source, _ in (*test, *odd)), " ".join(line for line, _ in test)],
        "pairs.source": [source for source, _ in (*test, *odd, *wrong)],
        "pairs.target": [target for _, target in (*test, *odd, *wrong)],
    }
    for name, lines in files.items():
        _write(folder / name, lines)
    # Some translations are to begin with this word, which may be wrong.
    _write(folder / "prefix", ["heute" if i % 2 else "" for i in range(len(files["source"]))])


def _write(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")

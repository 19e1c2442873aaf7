"""Terms that are found in a text and its translation: pairs of groups of words that nearly always
come together.

Neither Paddle nor transformer_mt is imported here.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain

# At most so many pairs of lines are read. They are drawn at random.
MOST_LINES = 100_000
# Both sides of a term have up to so many words, and are in at least so many lines.
MOST_WORDS = 3
LEAST_LINES = 10
# The words of a term have at least so many letters, and are none of the most frequent ones, most of
# which only hold a sentence together.
LEAST_LETTERS = 3
FREQUENT = 50
# A group has so many different neighbours, both before and after it, or else it is a part of a
# longer one. The ends of lines are all different (accessor variety: Feng et al. 2004, J04-1004).
LEAST_NEIGHBOURS = 4
# Dice's coefficient of the lines of the two sides: 1 if each always comes with the other.
LEAST_DICE = 0.75
# The share of the lines of a test set with a term whose references must have its translation.
LEAST_SHARE = 0.5
_TAG = re.compile(r"<[^>]*>")
_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")


def extracted(pairs: Iterable[tuple[str, str]], seed: int = 1) -> list[tuple[str, str]]:
    """Returns terms and their translations, the most certain ones first. No two have the same term
    or the same translation, and nothing is translated by itself."""
    different = list(dict.fromkeys(pairs))
    if len(different) > MOST_LINES:
        different = random.Random(seed).sample(different, MOST_LINES)
    sides = [_Side(texts) for texts in zip(*different, strict=True)]
    both: Counter[tuple[str, str]] = Counter()
    for source, target in zip(*(side.groups for side in sides), strict=True):
        both.update((one, other) for one in source for other in target)
    found = []
    for (source, target), count in both.items():
        dice = 2 * count / (sides[0].counts[source] + sides[1].counts[target])
        if dice >= LEAST_DICE and source != target:
            # Of equal ones, the longer and the more frequent come first.
            words = len(source.split()) + len(target.split())
            found.append((-dice, -words, -count, source, target))
    terms: dict[str, str] = {}
    taken = set()
    for *_, source, target in sorted(found):
        if source not in terms and target not in taken:
            terms[source] = target
            taken.add(target)
    return [(sides[0].as_found(one), sides[1].usual(other)) for one, other in terms.items()]


class _Side:
    """One side of a text. Groups of words are in lower case.

    Attributes:
        groups: the frequent groups of content words of each line.
        counts: the number of lines of each group.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        lines = [_TAG.sub(" | ", text) for text in texts]
        words = Counter(
            chain.from_iterable({word[0].casefold() for word in _WORD.finditer(x)} for x in lines)
        )
        excluded = {word for word, _ in words.most_common(FREQUENT)}
        excluded |= {word for word in words if len(word) < LEAST_LETTERS}
        self._spellings: dict[str, Counter[str]] = defaultdict(Counter)
        self._neighbours: dict[str, tuple[set, set]] = defaultdict(lambda: (set(), set()))
        all_groups = [set(self._groups(n, line, excluded)) for n, line in enumerate(lines)]
        counts = Counter(chain.from_iterable(all_groups))
        self.counts = {
            group: count
            for group, count in counts.items()
            if count >= LEAST_LINES and min(map(len, self._neighbours[group])) >= LEAST_NEIGHBOURS
        }
        self.groups = [sorted(own & self.counts.keys()) for own in all_groups]

    def _groups(self, number: int, line: str, excluded: set[str]) -> Iterator[str]:
        words = list(_WORD.finditer(line))
        texts = [number, *(word[0].casefold() for word in words), number]
        for first, start in enumerate(words):
            for end in range(first, min(first + MOST_WORDS, len(words))):
                is_next = end == first or line[words[end - 1].end() : words[end].start()] == " "
                if not is_next or words[end][0].casefold() in excluded:
                    break
                text = line[start.start() : words[end].end()]
                group = text.casefold()
                # At the start of a line, a capital letter means little.
                self._spellings[group][text] += 100 if first else 1
                before, after = self._neighbours[group]
                before.add(texts[first])
                after.add(texts[end + 2])
                yield group

    def usual(self, group: str) -> str:
        """How a group is spelled mostly."""
        return self._spellings[group].most_common(1)[0][0]

    def as_found(self, group: str) -> str:
        """In lower case if it is ever so, because then it is found in any case."""
        return group if group in self._spellings[group] else self.usual(group)

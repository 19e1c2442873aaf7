"""Terms that are found in a text and its translation: pairs of groups of words that nearly always
come together."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

from transformer_mt.utils.languages import has_spaces

# At most so many pairs of lines are read. They are drawn at random.
MOST_LINES = 100_000
# None of the most frequent words belongs to a term. Most of them only hold a sentence together.
FREQUENT = 50
# A group has so many different neighbours, both before and after it, or else it is a part of a
# longer one. The ends of lines are all different (accessor variety: Feng et al. 2004, J04-1004).
LEAST_NEIGHBOURS = 4
_TAG = re.compile(r"<[^>]*>")


@dataclass(frozen=True)
class _Script:
    """How the groups of words of a language are found.

    Attributes:
        word: matches a word; a character, where no spaces are between words.
        most_words: of a group.
        least_letters: of each word.
        least_words: of a group.
        between: what is between the words of a group.
    """

    word: re.Pattern[str]
    most_words: int
    least_letters: int
    least_words: int
    between: str


_WITH_SPACES = _Script(re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*"), 3, 3, 1, " ")
_WITHOUT_SPACES = _Script(re.compile(r"[A-Za-z]+|[^\W\d_]"), 4, 1, 2, "")


def extracted(
    pairs: Iterable[tuple[str, str]],
    languages: tuple[str, str],
    *,
    least_lines: int,
    least_dice: float,
    seed: int = 1,
    are_unique: bool = True,
) -> list[tuple[str, str]]:
    """Returns terms and their translations, the most certain ones first. Nothing is translated by
    itself.

    Args:
        pairs: the lines of the text with their translations.
        languages: the source language and the target language.
        least_lines: the number of lines that each side of a term is in.
        least_dice: Dice's coefficient of the lines of the two sides, which is 1 if each always
            comes with the other.
        seed: of the lines that are drawn.
        are_unique: whether no two have the same term or the same translation.
    """
    different = dict.fromkeys(_drawn(pairs, seed))
    texts = zip(*different, strict=True) if different else ((), ())
    sides = [
        _Side(own, _WITH_SPACES if has_spaces(language) else _WITHOUT_SPACES, least_lines)
        for own, language in zip(texts, languages, strict=True)
    ]
    both: Counter[tuple[str, str]] = Counter()
    for source, target in zip(*(side.groups for side in sides), strict=True):
        both.update((one, other) for one in source for other in target)
    found = []
    for (source, target), count in both.items():
        dice = 2 * count / (sides[0].counts[source] + sides[1].counts[target])
        if dice >= least_dice and source != target:
            # Of equal ones, the longer and the more frequent come first.
            words = len(source.split()) + len(target.split())
            found.append((-dice, -words, -count, source, target))
    terms: list[tuple[str, str]] = []
    taken: tuple[set[str], set[str]] = set(), set()
    for *_, source, target in sorted(found):
        if not are_unique or (source not in taken[0] and target not in taken[1]):
            terms.append((source, target))
            taken[0].add(source)
            taken[1].add(target)
    return [(sides[0].as_found(one), sides[1].usual(other)) for one, other in terms]


def _drawn(pairs: Iterable[tuple[str, str]], seed: int) -> list[tuple[str, str]]:
    """All pairs, or MOST_LINES of them, each with the same chance (reservoir sampling: Vitter 1985,
    algorithm R)."""
    rest = iter(pairs)
    drawn = list(islice(rest, MOST_LINES))
    generator = random.Random(seed)
    for number, pair in enumerate(rest, MOST_LINES + 1):
        place = generator.randrange(number)
        if place < MOST_LINES:
            drawn[place] = pair
    return drawn


class _Side:
    """One side of a text. Groups of words are in lower case.

    Attributes:
        groups: the frequent groups of content words of each line.
        counts: the number of lines of each group.
    """

    def __init__(self, texts: Iterable[str], script: _Script, least_lines: int) -> None:
        self._script = script
        lines = [_TAG.sub(" | ", text) for text in texts]
        words = Counter(
            chain.from_iterable(
                {word[0].casefold() for word in script.word.finditer(line)} for line in lines
            )
        )
        excluded = {word for word, _ in words.most_common(FREQUENT)}
        excluded |= {word for word in words if len(word) < script.least_letters}
        self._spellings: dict[str, Counter[str]] = defaultdict(Counter)
        self._neighbours: dict[str, tuple[set, set]] = defaultdict(lambda: (set(), set()))
        all_groups = [set(self._groups(n, line, excluded)) for n, line in enumerate(lines)]
        counts = Counter(chain.from_iterable(all_groups))
        self.counts = {
            group: count
            for group, count in counts.items()
            if count >= least_lines and min(map(len, self._neighbours[group])) >= LEAST_NEIGHBOURS
        }
        self.groups = [sorted(own & self.counts.keys()) for own in all_groups]

    def _groups(self, number: int, line: str, excluded: set[str]) -> Iterator[str]:
        script = self._script
        words = list(script.word.finditer(line))
        texts = [number, *(word[0].casefold() for word in words), number]
        for first, start in enumerate(words):
            for end in range(first, min(first + script.most_words, len(words))):
                between = line[words[end - 1].end() : words[end].start()]
                is_next = end == first or between == script.between
                if not is_next or words[end][0].casefold() in excluded:
                    break
                if end - first + 1 < script.least_words:
                    continue
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

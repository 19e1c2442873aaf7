"""Groups of the lines of a test set, whose scores show where a model is good and where it is not:
by length, and by how rare the words are."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar
from unicodedata import category

from transformer_mt.utils.files import lines
from transformer_mt.utils.languages import has_spaces_in

Item = TypeVar("Item")

# The largest length of each group but the last, in words, and in characters without spaces.
WORD_LENGTHS = (10, 20, 30, 40, 50)
CHARACTER_LENGTHS = (15, 30, 45, 60, 75)
# The largest number of occurrences of each group but the last.
OCCURRENCES = (0, 2, 9, 99)


class Group(NamedTuple):
    """Some lines of a test set.

    Attributes:
        name: what they have in common, such as "1–10 words".
        lines: their indices, from 0, in ascending order.
    """

    name: str
    lines: list[int]

    def of(self, texts: Sequence[Item]) -> list[Item]:
        """Returns what belongs to the lines of this group."""
        return [texts[line] for line in self.lines]


def spread(count: int, most: int) -> list[int]:
    """Returns the indices of at most `most` of `count` lines. They are spread evenly over all of
    them, because lines may be sorted."""
    chosen = min(most, count)
    return [count * i // chosen for i in range(chosen)]


def by_length(texts: list[str], spaces: bool = True) -> list[Group]:
    """Groups lines by the length of their text. Empty groups are left out.

    Args:
        spaces: whether spaces separate the words. Without them, the length is in characters.
    """
    bounds, unit = (WORD_LENGTHS, "words") if spaces else (CHARACTER_LENGTHS, "characters")
    lengths = [length_of(text, spaces) for text in texts]
    names = [f"0 {unit}", *(f"{name} {unit}" for name in _ranges((0, *bounds)))]
    return _groups(names, [bisect_left((0, *bounds), length) for length in lengths])


def length_of(text: str, spaces: bool = True) -> int:
    """Returns the number of words of a text, or of its characters without spaces."""
    words = text.split()
    return len(words) if spaces else sum(map(len, words))


def by_rare_words(references: list[str], counts: Counter[str], spaces: bool = True) -> list[Group]:
    """Groups lines by the rarest word of their reference. Empty groups are left out.

    Args:
        counts: how often each word occurs, from `word_counts`.
        spaces: whether spaces separate the words. Without them, each character counts as a word.
    """
    names = ["never", *(f"{name} times" for name in _ranges(OCCURRENCES)), "no words"]
    chosen = []
    for reference in references:
        rarest = min((counts[word] for word in _words(reference, spaces)), default=None)
        chosen.append(len(names) - 1 if rarest is None else bisect_left(OCCURRENCES, rarest))
    return _groups(names, chosen)


def groupings(
    sources: list[str] | None, reference: list[str], training_text: Path | None = None
) -> dict[str, list[Group]]:
    """Groups lines by length and by rare words.

    Args:
        sources: None takes the length of the reference instead.
        training_text: the target side of the training text, in which words are counted. None
            counts them in the reference.

    Returns: the groups, by what the lines are grouped by.

    Raises:
        UsageError, UserError: the training text cannot be read.
    """
    spaces = has_spaces_in(reference)
    counts = word_counts(lines(training_text) if training_text else reference, spaces)
    where = "training text" if training_text else "whole reference"
    rarest = f"by how often the rarest word of a line of the reference occurs in the {where}"
    name, texts = ("reference", reference) if sources is None else ("source", sources)
    return {
        f"by length of the {name}": by_length(texts, has_spaces_in(texts)),
        rarest: by_rare_words(reference, counts, spaces),
    }


def word_counts(texts: Iterable[str], spaces: bool = True) -> Counter[str]:
    """Counts the words of a text, without punctuation. Upper and lower case are the same."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_words(text, spaces))
    return counts


def _words(text: str, spaces: bool) -> list[str]:
    words = text.lower().split()
    parts = words if spaces else "".join(words)
    return list(filter(None, (part.strip(_punctuation()) for part in parts)))


@cache
def _punctuation() -> str:
    """All punctuation and symbols of Unicode's basic plane."""
    return "".join(chr(code) for code in range(0x10000) if category(chr(code))[0] in "PS")


def _ranges(bounds: Sequence[int]) -> list[str]:
    """Names of the ranges between bounds: (0, 2, 9) gives "1–2", "3–9", "10 or more"."""
    names = [f"{before + 1}–{last}" for before, last in pairwise(bounds)]
    return [*names, f"{bounds[-1] + 1} or more"]


def _groups(names: list[str], chosen: list[int]) -> list[Group]:
    """The groups that have lines, given the index of the name of each line."""
    members: list[list[int]] = [[] for _ in names]
    for line, name in enumerate(chosen):
        members[name].append(line)
    return [Group(name, own) for name, own in zip(names, members, strict=True) if own]

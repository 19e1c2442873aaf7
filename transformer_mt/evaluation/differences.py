"""Where two systems differ: the words of two texts, and the lines whose scores changed most."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import NamedTuple

# Texts in which the same words occur more often than in this number of pairs, such as the endless
# repetitions of a model at the beginning of its training, would take seconds to compare.
MOST_PAIRS = 5000


class Piece(NamedTuple):
    """A part of a text: some words (or characters) in a row.

    Attributes:
        differs: whether the other text has something else at this place.
    """

    text: str
    differs: bool


def differences(first: str, second: str, spaces: bool = True) -> tuple[list[Piece], list[Piece]]:
    """Compares two texts word by word.

    Args:
        spaces: whether spaces separate the words. Without them, characters are compared.

    Returns: the pieces of each of the two texts. Joined with a space (or, without spaces, with
        nothing), they give the text back. Texts that repeat the same words very often are one
        piece that differs.
    """
    words, others = (text.split(" ") if spaces else list(text) for text in (first, second))
    glue = " " if spaces else ""
    counts, other_counts = Counter(words), Counter(others)
    if sum(counts[word] * other_counts[word] for word in counts) > MOST_PAIRS:
        return [Piece(first, first != second)], [Piece(second, first != second)]
    result: tuple[list[Piece], list[Piece]] = ([], [])
    matcher = SequenceMatcher(None, words, others, autojunk=False)
    for kind, start, end, other_start, other_end in matcher.get_opcodes():
        spans = words[start:end], others[other_start:other_end]
        for pieces, span in zip(result, spans, strict=True):
            if span:
                pieces.append(Piece(glue.join(span), kind != "equal"))
    return result


@dataclass(frozen=True)
class Shares:
    """How many lines got better, worse, or kept their score."""

    better: int
    worse: int
    unchanged: int

    @property
    def total(self) -> int:
        return self.better + self.worse + self.unchanged


def shares(before: Sequence[float], after: Sequence[float]) -> Shares:
    """Counts the lines whose score (higher is better) rose, fell or stayed."""
    pairs = list(zip(before, after, strict=True))
    better = sum(new > old for old, new in pairs)
    worse = sum(new < old for old, new in pairs)
    return Shares(better, worse, len(pairs) - better - worse)


def most_changed(
    before: Sequence[float], after: Sequence[float], count: int
) -> tuple[list[int], list[int]]:
    """Returns the lines whose score (higher is better) rose most, and those whose score fell most.

    Returns: at most `count` indices of each, the largest change first. Equal changes are in the
        order of the lines.
    """
    changes = [new - old for old, new in zip(before, after, strict=True)]
    order = sorted(range(len(changes)), key=lambda line: -abs(changes[line]))
    risen = [line for line in order if changes[line] > 0]
    fallen = [line for line in order if changes[line] < 0]
    return risen[:count], fallen[:count]

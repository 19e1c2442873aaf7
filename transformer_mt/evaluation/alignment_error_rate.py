"""The alignment error rate: what `align` prints with a reference."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformer_mt.data import pharaoh
from transformer_mt.data.pharaoh import Link
from transformer_mt.runtime.errors import UserError
from transformer_mt.runtime.files import lines

Gold = tuple[set[Link], set[Link]]


@dataclass(frozen=True)
class AlignmentScores:
    """Scores of word alignments, 0 to 100, of which 0 is the best error rate; nan is what would be
    a share of nothing. The counts are of links: those that were found, and the sure and possible
    ones of the reference (the sure ones are possible too)."""

    error_rate: float
    precision: float
    recall: float
    lines: int
    links: int
    sure: int
    possible: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"AER {self.error_rate:.2f}   precision {self.precision:.2f}   "
            f"recall {self.recall:.2f}   ({self.lines:,} lines, {self.links:,} links; the "
            f"reference has {self.sure:,} sure and {self.possible:,} possible ones)"
        )


def score(found: Iterable[set[Link]], gold: Iterable[Gold]) -> AlignmentScores:
    """Scores the links of lines, A, by those that people made, sure S and possible P (Och and Ney
    2003, "A Systematic Comparison of Various Statistical Alignment Models", section 5): precision
    |A and P| / |A|, recall |A and S| / |S|, AER = 1 - (|A and S| + |A and P|) / (|A| + |S|), with
    counts of all lines together.

    Args:
        gold: for each line its sure links, and the possible ones, which hold the sure ones.

    Raises:
        UserError: there is no link at all.
    """
    count = links = sure = possible = right = not_wrong = 0
    for own, (own_sure, own_possible) in zip(found, gold, strict=True):
        count += 1
        links += len(own)
        sure += len(own_sure)
        possible += len(own_possible)
        right += len(own & own_sure)
        not_wrong += len(own & own_possible)
    if not links + sure:
        raise UserError("there is nothing to score: neither side has a link")
    return AlignmentScores(
        error_rate=100 * (1 - (right + not_wrong) / (links + sure)),
        precision=100 * not_wrong / links if links else float("nan"),
        recall=100 * right / sure if sure else float("nan"),
        lines=count,
        links=links,
        sure=sure,
        possible=possible,
    )


def read_gold(path: Path) -> list[Gold]:
    """The links of a file, see `pharaoh.read_gold`.

    Raises:
        UserError: naming the line that is not in the format.
    """
    gold = []
    for number, line in enumerate(lines(path), 1):
        try:
            gold.append(pharaoh.read_gold(line))
        except ValueError as error:
            raise UserError(f"{path}, line {number}: {error}") from None
    return gold

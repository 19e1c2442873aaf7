"""The alignment error rate, which the command `align` prints if it is given a reference."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from transformer_mt.data import pharaoh
from transformer_mt.data.pharaoh import Link
from transformer_mt.utils.errors import UserError
from transformer_mt.utils.files import lines

Gold = tuple[set[Link], set[Link]]


@dataclass(frozen=True)
class AlignmentScores:
    """Scores of word alignments.

    Attributes:
        error_rate: from 0 to 100; 0 is the best.
        precision, recall: from 0 to 100; nan if they would be a share of 0 links.
        lines: the number of lines.
        links: the number of links that were found.
        sure, possible: the number of sure links in the reference, and of possible links, which
            include the sure ones.
    """

    error_rate: float
    precision: float
    recall: float
    lines: int
    links: int
    sure: int
    possible: int

    def __str__(self) -> str:
        return (
            f"AER {self.error_rate:.2f}   precision {self.precision:.2f}   "
            f"recall {self.recall:.2f}   ({self.lines:,} lines, {self.links:,} links; the "
            f"reference has {self.sure:,} sure and {self.possible:,} possible ones)"
        )


def score(found: Iterable[set[Link]], gold: Iterable[Gold]) -> AlignmentScores:
    """Scores the links of lines against a reference that people have made.

    For the links that were found, A, and the sure and possible links of the reference, S and P
    (Och and Ney 2003, "A Systematic Comparison of Various Statistical Alignment Models", section
    5): precision = |A and P| / |A|, recall = |A and S| / |S|,
    AER = 1 - (|A and S| + |A and P|) / (|A| + |S|). Links are counted over all lines together.

    Args:
        gold: the sure links, and the possible links including the sure ones, per line.

    Raises:
        UserError: neither side has a link.
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
    """Reads the links of a file; `pharaoh.read_gold` describes the format.

    Raises:
        UserError: a line has another format. The message names it.
    """
    gold = []
    for number, line in enumerate(lines(path), 1):
        try:
            gold.append(pharaoh.read_gold(line))
        except ValueError as error:
            raise UserError(f"{path}, line {number}: {error}") from None
    return gold

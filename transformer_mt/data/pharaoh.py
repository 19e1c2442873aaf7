"""Word alignments as text: a line of pairs i-j, of word i of the source and word j of the target,
from 0, as the decoder Pharaoh wrote them."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

Link = tuple[int, int]

_LINE = re.compile(r"[ \t]*(?:[0-9]{1,9}-[0-9]{1,9}(?:[ \t]+|$))*")
_GOLD = re.compile(r"([0-9]{1,9})([-?p])([0-9]{1,9})")


def read(lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """The links of all lines, int64 (links, 2), and how many belong to each: int64 (lines,).

    Raises:
        FormatError: for the first line that is not in the format.
    """
    for index, line in enumerate(lines):
        if not _LINE.fullmatch(line):
            wrong = next(item for item in _items(line) if not _LINE.fullmatch(item))
            raise FormatError(index, f"{wrong!r} is no link; a line is as in 0-0 1-2 2-1, or empty")
    # Millions of lines are read; this way takes a tenth of the time of one by one.
    text = " ".join(lines).replace("-", " ").strip()  # of spaces alone it would make a 0
    numbers = np.fromstring(text, np.int64, sep=" ")
    return numbers.reshape(-1, 2), np.array([line.count("-") for line in lines], np.int64)


def read_gold(line: str) -> tuple[set[Link], set[Link]]:
    """The sure links of a line that people have aligned, i-j, and the possible ones: those, and
    i?j (or ipj).

    Raises:
        ValueError: naming what is no link.
    """
    sure, possible = set(), set()
    for item in _items(line):
        match = _GOLD.fullmatch(item)
        if not match:
            raise ValueError(
                f"{item!r} is no link; a line is as in 0-0 1-2 2?1 (- sure, ? or p possible), or "
                "empty"
            )
        link = int(match[1]), int(match[3])
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return sure, possible


def write(links: Iterable[Link]) -> str:
    """The line that `read` reads."""
    return " ".join(f"{source}-{target}" for source, target in links)


def _items(line: str) -> list[str]:
    # Not at U+2003 and the like, which NumPy would stop at.
    return re.findall(r"[^ \t]+", line)


class FormatError(ValueError):
    """What is wrong with a line, which is number `index` of those that were given."""

    def __init__(self, index: int, message: str) -> None:
        super().__init__(message)
        self.index = index

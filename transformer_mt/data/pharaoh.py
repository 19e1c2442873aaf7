"""Word alignments as text, in the format of the decoder Pharaoh. A line has links i-j from word i
of the source to word j of the target, counted from 0."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

Link = tuple[int, int]

_LINE = re.compile(r"[ \t]*(?:[0-9]{1,9}-[0-9]{1,9}(?:[ \t]+|$))*")
_GOLD = re.compile(r"([0-9]{1,9})([-?p])([0-9]{1,9})")


def read(lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the links of all lines, int64 (links, 2), and the number of links of each line, int64
    (lines,).

    Raises:
        FormatError: a line is not in the format. The error describes the first such line.
    """
    import numpy as np  # `translate` writes links, and its help does without NumPy

    for index, line in enumerate(lines):
        if not _LINE.fullmatch(line):
            wrong = next(item for item in _items(line) if not _LINE.fullmatch(item))
            raise FormatError(index, f"{wrong!r} is no link; a line is as in 0-0 1-2 2-1, or empty")
    # There may be millions of lines. Parsing them together takes a tenth of the time.
    text = " ".join(lines).replace("-", " ").strip()  # NumPy would read spaces alone as a 0
    numbers = np.fromstring(text, np.int64, sep=" ")
    return numbers.reshape(-1, 2), np.array([line.count("-") for line in lines], np.int64)


def read_gold(line: str) -> tuple[set[Link], set[Link]]:
    """Reads a line that people have aligned. Sure links are i-j, and possible links are i?j or ipj.

    Returns: the sure links, and the possible links, which include the sure ones.

    Raises:
        ValueError: an item is no link.
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
    """Returns a line that `read` can read."""
    return " ".join(f"{source}-{target}" for source, target in links)


def _items(line: str) -> list[str]:
    # str.split would also split at U+2003 and the like, where NumPy stops reading.
    return re.findall(r"[^ \t]+", line)


class FormatError(ValueError):
    """An error in the line number `index`, from 0, of the lines that were read."""

    def __init__(self, index: int, message: str) -> None:
        super().__init__(message)
        self.index = index

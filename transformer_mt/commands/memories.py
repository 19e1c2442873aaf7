"""The translation memory of the command `translate`, and the report of what it had."""

from __future__ import annotations

import argparse
import contextlib
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from transformer_mt.commands import arguments
from transformer_mt.decoding.memory import FUZZY, Found, Memory
from transformer_mt.decoding.output import Line
from transformer_mt.utils.errors import UsageError
from transformer_mt.utils.files import atomic

COLUMNS = ("place", "kind", "score", "source", "target")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("options for a translation memory")
    group.add_argument(
        "--memory",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="finished translations, which are taken where the source is the same: TMX, XLIFF, PO, "
        "Qt's .ts, CSV, TSV, JSON Lines or Parquet. May be repeated; what comes last counts",
    )
    arguments.add_values(
        group,
        "N",
        arguments.percent,
        fuzzy="report the most similar entry of the memory too, if N percent of it are equal. It "
        "is not used as a translation",
    )
    arguments.add_files(
        group, memory_report="the file for what the memory has: a table with tabs between columns"
    )


def read(options: argparse.Namespace, languages: tuple[str, str]) -> Memory | None:
    """The memory that the arguments ask for.

    Raises:
        UsageError: the arguments don't fit together, or a file is not one of pairs.
        UserError: a file breaks a rule of its format.
    """
    if not options.memory:
        for name in ("fuzzy", "memory_report"):
            if getattr(options, name) is not None:
                raise UsageError(f"{arguments.flag(name)}: there is no memory; add --memory FILE")
        return None
    if options.fuzzy is not None and options.memory_report is None:
        raise UsageError("--fuzzy: add --memory-report FILE, where similar entries are listed")
    return Memory.read(options.memory, languages, options.fuzzy)


class Report:
    """What a memory had: counts and, if asked for, a file with a row for each entry.

    Attributes:
        counts: of the kinds of entries.
    """

    def __init__(self, file: IO[str] | None) -> None:
        self._file = file
        self.counts: Counter[str] = Counter()
        if file is not None:
            file.write("\t".join(COLUMNS) + "\n")

    @property
    def similar(self) -> str:
        """The number of similar entries, for the end of a message."""
        count = self.counts[FUZZY]
        return f". Lines with similar entries in the memory: {count:,}" if count else ""

    def add(self, place: str, found: Found) -> None:
        """
        Args:
            place: where the text is that the entry was found for.
        """
        self.counts[found.kind] += 1
        if self._file is not None:
            # Rounded down, because only what is equal has 100.
            score = f"{int(10 * found.score) / 10:g}"
            row = place, found.kind, score, found.source, found.target
            self._file.write("\t".join(re.sub(r"[\t\r\n]", " ", one) for one in row) + "\n")


@contextlib.contextmanager
def reporting(path: Path | None) -> Iterator[Report]:
    """A report, whose file is there when the block ends."""
    if path is None:
        yield Report(None)
        return
    with atomic(path) as file:
        yield Report(file)


class Recall:
    """Takes lines out of a stream of lines, and puts their translations into that of translations.

    Args:
        first: the number of the first line.
    """

    def __init__(self, memory: Memory, report: Report, first: int) -> None:
        self._memory, self._report, self._number = memory, report, first
        self._taken: deque[str | None] = deque()

    def without_known(self, windows: Iterable[list[Line]]) -> Iterator[list[Line]]:
        """The windows, with an empty line in place of each one that the memory has, so that lines
        keep their numbers."""
        for window in windows:
            yield [Line("") if self._is_known(line.text) else line for line in window]

    def _is_known(self, text: str) -> bool:
        found = self._memory.find(text)
        taken = found.target if found is not None and found.is_exact else None
        self._taken.append(taken)
        if found is not None:
            self._report.add(f"line {self._number}", found)
        self._number += 1
        return taken is not None

    def next(self) -> str | None:
        """The translation of the next line; None if the memory lacks it."""
        return self._taken.popleft()

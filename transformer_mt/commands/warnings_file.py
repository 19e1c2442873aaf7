"""The warnings about the translations of a command: their file, their number, and the exit code."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO

from transformer_mt.decoding.checks import KINDS, LOSSES, Warning, is_loss
from transformer_mt.utils.console import say
from transformer_mt.utils.errors import Lost
from transformer_mt.utils.files import atomic

COLUMNS = "line", "kind", "what"


class WarningsFile:
    """Writes a row for each warning, and counts what has some.

    Args:
        file: None if only the numbers are needed.
    """

    def __init__(self, file: IO[bytes] | None) -> None:
        self._file = file
        self._lines = self.losses = 0
        self._kinds: Counter[str] = Counter()
        self._write(*COLUMNS)

    def add(self, name: int | str, warnings: list[Warning]) -> None:
        """
        Args:
            name: the number of a line, or what a part of a document is called.
        """
        for kind, what in warnings:
            self._write(str(name), kind, what)
        self._lines += bool(warnings)
        self.losses += is_loss(warnings)
        self._kinds.update({warning.kind for warning in warnings})

    def summary(self, unit: str) -> str:
        """How many have warnings, and how many of each kind."""
        kinds = ", ".join(f"{self._kinds[kind]:,} {kind}" for kind in KINDS if self._kinds[kind])
        return f"{_count(self._lines, unit)}: {kinds}" if self._lines else "none"

    def _write(self, *columns: str) -> None:
        if self._file is not None:
            row = "\t".join(re.sub(r"[\t\r\n]", " ", column) for column in columns)
            self._file.write(f"{row}\n".encode("utf-8", "replace"))


@contextmanager
def warnings_file(
    path: Path | None, is_strict: bool, unit: str = "line"
) -> Iterator[WarningsFile | None]:
    """What takes the warnings; None if neither the file nor `is_strict` is asked for. The file gets
    its name when the block ends. Then the number of warnings is printed.

    Args:
        unit: what has the warnings.

    Raises:
        Lost: `is_strict`, and something was lost.
    """
    if path is None and not is_strict:
        yield None
        return
    with nullcontext() if path is None else atomic(path, "wb") as file:
        found = WarningsFile(file)
        yield found
    say(f"warnings: {found.summary(unit)}{f'; see {path}' if path else ''}")
    if is_strict and found.losses:
        advice = f"see {path}" if path else "--warnings FILE lists what"
        raise Lost(
            f"--strict: {_count(found.losses, unit)} lost something ({' or '.join(LOSSES)}); "
            f"{advice}. All translations were written"
        )


def _count(number: int, unit: str) -> str:
    return f"{number:,} {unit}{'' if number == 1 else 's'}"

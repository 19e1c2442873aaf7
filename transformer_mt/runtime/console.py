"""Messages and progress bars for the person at the terminal. They go to stderr.

Results (scores, translations, the resolved config) are printed to stdout, so that they can be
piped to other programs.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

# Characters that a terminal may obey instead of showing: control characters except newline and tab,
# characters that change the direction of the text after them, and two line separators.
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]")


def say(message: str) -> None:
    """Prints a message, above the progress bar if there is one.

    If it cannot be written (the terminal is lost, or the reader of a pipe has ended), the program
    continues, because it may be about to save its work.
    """
    with contextlib.suppress(OSError):
        tqdm.write(visible(message), file=sys.stderr)
        sys.stderr.flush()


def warn(message: str) -> None:
    """Prints a warning, as `say` does."""
    say(f"warning: {message}")


def visible(text: str) -> str:
    """Replaces control characters in a text by escapes such as \\x1b, so that text from any source
    can be shown: it cannot clear the screen or hide what is there."""
    return _INVISIBLE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def quoted(path: str | Path) -> str:
    """Returns a path as it is typed at a shell. A leading dash is not taken for an option."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def on_terminal() -> bool:
    """Returns whether stderr is a terminal."""
    return sys.stderr.isatty()


def progress(*, total: int | None, title: str, unit: str, **options: Any) -> tqdm:
    """Returns a progress bar, which is not shown unless stderr is a terminal.

    Args:
        options: further arguments of `tqdm`.
    """
    return tqdm(
        total=total,
        desc=title,
        unit=f" {unit}",
        disable=not on_terminal(),
        dynamic_ncols=True,
        leave=False,
        file=sys.stderr,
        **options,
    )


def duration(seconds: float) -> str:
    """Formats a duration: 12 s, 3 min 5 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def table(rows: Sequence[Sequence[str]], sides: str = "<", indent: str = "") -> Iterator[str]:
    """Yields the lines of a table.

    Args:
        sides: the alignment of each column, < (left) or > (right); columns beyond are to the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = sides.ljust(len(widths), ">")
    for row in rows:
        cells = zip(row, sides, widths, strict=True)
        yield (indent + "  ".join(f"{cell:{side}{width}}" for cell, side, width in cells)).rstrip()

"""Messages and progress bars for the person at the terminal. They go to stderr.

Results (scores, translations, the resolved config) are printed to stdout, so that they can be
piped to other programs. A training run also keeps all of this in a file (see `keep_log`).
"""

import atexit
import contextlib
import os
import re
import shlex
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

# Characters that a terminal may obey instead of showing: control characters except newline and tab,
# characters that change the direction of the text after them, and two line separators. Halves of
# surrogate pairs are in no encoding; Python has them in place of the bytes of a name that is not
# UTF-8, and JSON may hold them.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029\ud800-\udfff]"
)


# Warnings of one kind are counted after this many.
SHOWN_WARNINGS = 3
_counts: Counter[str] = Counter()


# The file that keeps what is printed, and the lines that wait for it while there is none. What a
# program prints that keeps no log is forgotten.
_log_path: Path | None = None
_waiting: deque[str] = deque(maxlen=1000)


def say(message: str) -> None:
    """Prints a message, above the progress bar if there is one.

    If it cannot be written (the terminal is lost, or the reader of a pipe has ended), the program
    continues, because it may be about to save its work.
    """
    log(message)
    with contextlib.suppress(OSError):
        tqdm.write(visible(message), file=sys.stderr)
        sys.stderr.flush()


def show(result: str) -> None:
    """Prints a result to stdout."""
    log(result)
    print(visible(result))


def discard(stream: TextIO) -> None:
    """Drops what is left to write to a stream that nobody can read any longer (a pipe without a
    reader, a lost terminal), because Python would complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def warn(message: str, kind: str = "") -> None:
    """Prints a warning, as `say` does.

    Args:
        kind: what is counted, such as "lines were translated in parts". After the third warning of
            a kind, warnings are only counted; `say_counts` prints the numbers.
    """
    if kind:
        _counts[kind] += 1
        if _counts[kind] > SHOWN_WARNINGS:
            return
    say(f"warning: {message}")


def say_counts() -> None:
    """Prints how many warnings of each kind were only counted, and starts counting again."""
    for kind, count in _counts.items():
        if count > SHOWN_WARNINGS:
            say(f"... and {count - SHOWN_WARNINGS:,} more {kind}")
    _counts.clear()


# A Python program that uses the package does not call this itself.
atexit.register(say_counts)


def keep_log(path: Path) -> None:
    """From now on, appends everything that is printed to this file, with the local time, and also
    what was printed before."""
    global _log_path
    _log_path = path
    _append(_waiting)
    _waiting.clear()


def end_log() -> None:
    """Stops appending to the file of `keep_log`."""
    global _log_path
    _log_path = None
    _waiting.clear()


def log(message: str) -> None:
    """Appends a message to the file of `keep_log` without printing it. Before there is a file, the
    message waits for it."""
    now = f"{datetime.now():%Y-%m-%d %H:%M:%S}"
    lines = [f"{now}  {line}".rstrip() for line in visible(message).split("\n")]
    if _log_path is None:
        _waiting.extend(lines)
    else:
        _append(lines)


def _append(lines: Iterable[str]) -> None:
    # A full disk is reported by what the run has to save.
    with contextlib.suppress(OSError), open(_log_path, "a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


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


class TrainingBar:
    """Two lines on the terminal: how much of the training is done and the time left, and below it
    the newest figures. Nothing is shown unless stderr is a terminal."""

    def __init__(self, total: int, done: int) -> None:
        bar = "training {percentage:3.0f}% {bar} {n:,}/{total:,} steps, {remaining} left"
        self._bar = progress(
            total=total, initial=done, title="training", unit="steps", bar_format=bar
        )
        self._figures = progress(total=0, title="", unit="", bar_format="{desc}")

    def __enter__(self) -> "TrainingBar":
        return self

    def __exit__(self, *exception: object) -> None:
        self._figures.close()
        self._bar.close()

    def update(self) -> None:
        """Counts a step."""
        self._bar.update()

    def figures(self, text: str) -> None:
        """Replaces the second line."""
        self._figures.set_description_str(text)


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

"""What a person sees while something runs: messages and progress, on stderr.

Results (scores, translations, the resolved config) go to stdout with `print`, so that they can be
piped on.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tqdm import tqdm

# What a terminal may obey instead of showing it: control characters, but for a newline and a tab;
# the characters that turn the direction of what follows; and two that end a line.
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]")


def say(message: str) -> None:
    """A message for the person at the terminal; it does not tear a progress bar apart.

    If nobody can read it any longer (the terminal is lost, the reader of a pipe has ended), work
    goes on nevertheless: it may be about to save what was done.
    """
    with contextlib.suppress(OSError):
        tqdm.write(visible(message), file=sys.stderr)
        sys.stderr.flush()


def warn(message: str) -> None:
    say(f"warning: {message}")


def visible(text: str) -> str:
    """Text to be read by people, wherever it comes from: control characters become escapes such as
    \\x1b, so that no file can clear the screen, or make it show something else than there is."""
    return _INVISIBLE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def quoted(path: str | Path) -> str:
    """A path as it is typed at a shell; one with a dash in front is not taken for an option."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def on_terminal() -> bool:
    return sys.stderr.isatty()


def progress(
    iterable: Iterable | None = None, *, total: int | None, title: str, unit: str, **options: Any
) -> tqdm:
    """A progress bar where there is a terminal, silence where there is none."""
    return tqdm(
        iterable,
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
    """12 s, 3 min 5 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"

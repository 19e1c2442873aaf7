"""What a person sees while something runs: messages and progress, on stderr.

Results (scores, translations, the resolved config) go to stdout with `print`, so that they can be
piped on.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm


def say(message: str) -> None:
    """A message for the person at the terminal; it does not tear a progress bar apart.

    If nobody can read it any longer (the terminal is lost, the reader of a pipe has ended), work
    goes on nevertheless: it may be about to save what was done.
    """
    with contextlib.suppress(OSError):
        tqdm.write(message, file=sys.stderr)
        sys.stderr.flush()


def warn(message: str) -> None:
    say(f"warning: {message}")


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

"""Ctrl-C and SIGTERM as one exception, held back where work must not be torn apart."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from transformer_mt.errors import Interrupted

_depth = 0
_pending: int | None = None


def install() -> None:
    """From here on, SIGINT and SIGTERM raise Interrupted in the main thread."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _handle)
        signal.signal(signal.SIGTERM, _handle)


@contextmanager
def held_back() -> Iterator[None]:
    """A signal that arrives inside is raised when the block is done."""
    global _depth, _pending
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
    if _depth == 0 and _pending is not None:
        number, _pending = _pending, None
        raise Interrupted(number)


def _handle(number: int, frame: object) -> None:
    global _pending
    if _depth:
        _pending = number
    else:
        raise Interrupted(number)

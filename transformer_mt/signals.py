"""Ctrl-C and SIGTERM: raised as one exception, or held back where work must not be torn apart."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from transformer_mt.errors import Interrupted

# Of Linux' prctl.h.
PR_SET_PDEATHSIG = 1

_depth = 0
_pending: int | None = None
_installed = False


def install() -> None:
    """From here on, SIGINT and SIGTERM raise Interrupted in the main thread."""
    global _installed
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _handle)
        signal.signal(signal.SIGTERM, _handle)
        _installed = True


def reinstall() -> None:
    """Installs the handlers again, if they were: importing Paddle or PaddleNLP undoes them."""
    if _installed:
        install()


@contextmanager
def held_back() -> Iterator[None]:
    """A signal that arrives inside is raised when the block is done; `pending` tells of it.

    A second Ctrl-C is not held back: somebody means it.
    """
    global _depth, _pending
    _depth += 1
    try:
        yield
    finally:
        # A block that fails has its own error to raise; nothing waits any longer then.
        _depth -= 1
        number = _pending
        if _depth == 0:
            _pending = None
    if _depth == 0 and number is not None:
        raise Interrupted(number)


def pending() -> int | None:
    """The signal that waits for the end of a `held_back` block, if there is one."""
    return _pending


def _handle(number: int, frame: object) -> None:
    global _pending
    if _depth and not (_pending is not None and number == signal.SIGINT):
        _pending = number
        return
    _pending = None
    raise Interrupted(number)


def end_with_parent(parent: int) -> None:
    """From here on, this process is killed when the one that started it, number `parent`, is gone,
    however that ended: nothing trains on unseen. Elsewhere than on Linux this does nothing."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was gone before we could ask
            os.kill(os.getpid(), signal.SIGKILL)

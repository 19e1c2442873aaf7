"""What asks a process to stop: raised as one exception, or held back while work must go on."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from transformer_mt.runtime.errors import Interrupted

# Ctrl-C, kill, and the loss of the terminal.
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Of Linux' prctl.h.
PR_SET_PDEATHSIG = 1

_depth = 0
_pending: int | None = None


def install() -> None:
    """From here on, SIGINT, SIGTERM and SIGHUP raise Interrupted in the main thread. Libraries are
    imported undisturbed by them (see `_Finder`). An ignored SIGHUP (nohup) stays ignored."""
    if threading.current_thread() is threading.main_thread():
        for number in STOPPING:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, _handle)
        _guard_imports()


@contextmanager
def raised() -> Iterator[None]:
    """As `install`, for the length of a block."""
    before = _handlers()
    try:
        install()
        yield
    finally:
        _put_back(before)


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


@contextmanager
def blocked() -> Iterator[None]:
    """Signals that arrive inside are delivered at the end, whatever handlers there are then.
    Processes that are started inside have them blocked until they unblock them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _handle(number: int, frame: object) -> None:
    global _pending
    if number in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        # Another thread has received it. Here it waits until it is no longer blocked.
        signal.pthread_kill(threading.get_ident(), number)
        return
    if _depth and not (_pending is not None and number == signal.SIGINT):
        _pending = number
        return
    _pending = None
    raise Interrupted(number)


# --------------------------------------------------------------------------- importing libraries


class _Finder:
    """Finds modules that are not this package's as Python does, and has them imported with signals
    blocked.

    An exception that a handler raises into the initialisation of a C++ library becomes an
    ImportError or a hang. Paddle puts a handler of its own in place when it is imported, which
    prints a trace, and PaddleNLP takes all handlers of SIGTERM away. After an import, Paddle's is
    switched off and those that were there before are in place again.
    """

    def __init__(self) -> None:
        self._importing = False

    def find_spec(self, name: str, path=None, target=None) -> ModuleSpec | None:
        if (
            self._importing
            or name.partition(".")[0] == __package__.partition(".")[0]
            or threading.current_thread() is not threading.main_thread()
        ):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec

    @contextmanager
    def importing(self) -> Iterator[None]:
        handlers = _handlers()
        had_paddle = "paddle" in sys.modules
        with blocked():
            self._importing = True
            try:
                yield
            finally:
                self._importing = False
                paddle = sys.modules.get("paddle")
                if not had_paddle and hasattr(paddle, "disable_signal_handler"):
                    paddle.disable_signal_handler()
                _put_back(handlers)


class _Loader:
    """A module's own loader, which works with signals blocked."""

    def __init__(self, loader, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str):
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        with self._finder.importing():
            return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = module.__spec__.loader = self._loader
        with self._finder.importing():
            self._loader.exec_module(module)


def _guard_imports() -> None:
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(sys.meta_path.index(PathFinder), _Finder())


def _handlers() -> dict[int, object]:
    return {number: signal.getsignal(number) for number in STOPPING}


def _put_back(handlers: dict[int, object]) -> None:
    """Also in place of a handler that C++ code has installed, of which Python does not know."""
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            if handler is not None:  # C++ code's, which Python can't put back
                signal.signal(number, handler)


# ------------------------------------------------------------------------------ other processes


def serve(parent: int) -> None:
    """Makes this process one that works for process number `parent` and has nothing to lose.

    SIGTERM ends it at once and in silence, and so does the end of its parent. Ctrl-C and the loss
    of the terminal, which the parent notices too, are left to the parent.
    """
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _guard_imports()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


def end_with_parent(parent: int) -> None:
    """From here on, this process is killed when the one that started it, number `parent`, is gone,
    however that ended: nothing trains on unseen. Elsewhere than on Linux this does nothing."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was gone before we could ask
            os.kill(os.getpid(), signal.SIGKILL)

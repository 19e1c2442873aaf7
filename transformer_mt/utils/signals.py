"""Signals that ask a process to stop, and worker processes that end with it.

The signals raise one exception, at once or after a block.
"""

import ctypes
import gc
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType
from typing import Any, TypeVar

from transformer_mt.utils.errors import Interrupted, UserError

# Ctrl-C, kill, and the loss of the terminal.
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# A constant of Linux's prctl.h.
PR_SET_PDEATHSIG = 1
# After this time, a signal that could not be handled is sent again.
AGAIN_SECONDS = 0.01

Item = TypeVar("Item")
Result = TypeVar("Result")
Run = Callable[[Iterator[Item | None]], Iterator[Result | None]]

_depth = 0
_pending: int | None = None
# The signal for which Interrupted was raised last, since the start of the last `undisguised` block.
_raised: int | None = None


@contextmanager
def raised() -> Iterator[None]:
    """Makes SIGINT, SIGTERM and SIGHUP raise Interrupted in the main thread, during a block.

    While a library is imported, they wait (see `_Finder`). If SIGHUP is ignored, as under nohup, it
    stays ignored.
    """
    before = _handlers()
    try:
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING:
                if number != signal.SIGHUP or before[number] != signal.SIG_IGN:
                    signal.signal(number, _handle)
            _guard_imports()
        with undisguised():
            yield
    finally:
        _put_back(before)


@contextmanager
def undisguised() -> Iterator[None]:
    """Raises Interrupted in place of an error of the block that hides it: C++ code that calls
    Python, such as Paddle's, replaces any exception with one of its own.

    A UserError is not replaced, because it says what the user has to know.
    """
    global _raised
    is_main = threading.current_thread() is threading.main_thread()
    if is_main:
        _raised = None
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if not is_main or _raised is None:
            raise
        raise Interrupted(_raised) from error


@contextmanager
def held_back() -> Iterator[None]:
    """Delays signals: Interrupted is raised at the end of the block, if it ends without an error.

    A second Ctrl-C is not delayed, because the user insists. Blocks can be nested; the end of the
    outermost one counts.
    """
    global _depth, _pending
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        number = _pending
        if _depth == 0:
            _pending = None
    if _depth == 0 and number is not None:
        raise Interrupted(number)


def pending() -> int | None:
    """Returns the signal that waits for the end of a `held_back` block, or None."""
    return _pending


@contextmanager
def blocked() -> Iterator[None]:
    """Blocks signals: they are delivered after the block, to the handlers installed then.

    A process that is started inside inherits the block, and has to remove it itself.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _handle(number: int, frame: FrameType | None) -> None:
    global _pending, _raised
    if frame is not None and frame.f_code.co_name == "__del__":
        # Python ignores an exception there, so the signal is sent again a moment later.
        main = threading.main_thread().ident
        threading.Timer(AGAIN_SECONDS, signal.pthread_kill, (main, number)).start()
        return
    if number in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        # The kernel delivered it to another thread, while this thread, in which Python runs
        # handlers, has it blocked. It is sent to this thread again, where it waits.
        signal.pthread_kill(threading.get_ident(), number)
        return
    if _depth and not (_pending is not None and number == signal.SIGINT):
        _pending = number
        return
    _pending = None
    _raised = number
    raise Interrupted(number)


# --------------------------------------------------------------------------- importing libraries


class _Finder:
    """Finds modules outside this package as Python does, and blocks signals during their import.

    If a handler raised an exception while a C++ library is initialised, the import would fail or
    hang. Importing Paddle installs a handler that prints a trace, and importing PaddleNLP removes
    all handlers of SIGTERM. So Paddle's handler is disabled after an import, and the handlers that
    were installed before are installed again.

    Python's garbage collector pauses during the import, because nearly all of what is made then
    lives until the process ends.
    """

    _importing = False

    def find_spec(self, name: str, path=None, target=None) -> ModuleSpec | None:
        if (
            self._importing
            or name.partition(".")[0] == __package__.partition(".")[0]
            or threading.current_thread() is not threading.main_thread()
        ):
            return None
        spec = PathFinder.find_spec(name, path, target)
        loader = spec and spec.loader
        # A loader belongs to one module, except for that of a zip file, which is met again.
        if loader is not None and "exec_module" not in vars(loader):
            for method in ("create_module", "exec_module"):
                setattr(loader, method, self._undisturbed()(getattr(loader, method)))
        return spec

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        handlers = _handlers()
        had_paddle = _paddle_is_imported()
        collects = gc.isenabled()
        with blocked():
            self._importing = True
            gc.disable()
            try:
                yield
            finally:
                self._importing = False
                if not had_paddle and _paddle_is_imported():
                    sys.modules["paddle"].disable_signal_handler()
                if collects:
                    gc.enable()
                _put_back(handlers)


def _paddle_is_imported() -> bool:
    """Whether Paddle is imported to its end; it is in `sys.modules` from the start."""
    return hasattr(sys.modules.get("paddle"), "disable_signal_handler")


def _guard_imports() -> None:
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(sys.meta_path.index(PathFinder), _Finder())


def _handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in STOPPING}


def _put_back(handlers: dict[int, Any]) -> None:
    """Installs handlers again, even if C++ code has replaced them without Python's knowledge."""
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            if handler is not None:  # None stands for a handler of C++ code
                signal.signal(number, handler)


# ------------------------------------------------------------------------------ other processes


def serve(parent: int) -> None:
    """Makes this process a worker of process number `parent`, which can be killed at any time.

    SIGTERM and the end of the parent kill it at once, without a message. It ignores Ctrl-C and the
    loss of the terminal, because the parent receives them too and decides.
    """
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _guard_imports()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


def end_with_parent(parent: int) -> None:
    """Makes the kernel kill this process as soon as its parent, process number `parent`, ends in
    whatever way. On systems other than Linux this does nothing."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before the call
            os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def process_pool(processes: int, function: Callable[[Item], Result]) -> Iterator[Run]:
    """Yields a function `run(items)`, which yields function(item) per item, in order.

    Processes are started when there is work for them, and each gets one copy of `function`, by
    pickling. An item None is a pause: all results before it are yielded, then None, and only then
    the next item is read. The processes are killed at the end of the block, however it ends, so
    their work must have no effect other than its results.

    Raises:
        BrokenProcessPool: a process was killed. Errors of `function` are passed on.
    """
    import multiprocessing  # every command imports this module, but few need processes
    from concurrent.futures import Future, ProcessPoolExecutor

    before = multiprocessing.active_children()
    executor = ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start,
        initargs=(function,),
    )

    def run(items: Iterator[Item | None]) -> Iterator[Result | None]:
        waiting: deque[Future] = deque()
        for item in items:
            if item is not None:
                # `submit` may start a process. A signal in the middle of that could leave a process
                # behind that nobody knows of, or reach it before it handles signals.
                with blocked():
                    waiting.append(executor.submit(_call, item))
            # The number of waiting items is limited, so that memory does not grow with the items.
            while waiting and (item is None or len(waiting) > 2 * processes or waiting[0].done()):
                yield waiting.popleft().result()
            if item is None:
                yield None
        while waiting:
            yield waiting.popleft().result()

    try:
        yield run
    finally:
        for process in multiprocessing.active_children():
            if process not in before:
                process.kill()
        executor.shutdown(wait=True, cancel_futures=True)


# The function of a worker process of `process_pool`.
_function: Callable | None = None


def _start(function: Callable) -> None:
    import multiprocessing

    global _function
    serve(multiprocessing.parent_process().pid)
    _function = function


def _call(item: Any) -> Any:
    return _function(item)

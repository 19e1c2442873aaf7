"""A pool of worker processes on this machine."""

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from transformer_mt.utils import signals

Item = TypeVar("Item")
Result = TypeVar("Result")
Run = Callable[[Iterator[Item | None]], Iterator[Result | None]]


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
                with signals.blocked():
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


# The function of a worker process.
_function: Callable | None = None


def _start(function: Callable) -> None:
    global _function
    signals.serve(multiprocessing.parent_process().pid)
    _function = function


def _call(item: Any) -> Any:
    return _function(item)

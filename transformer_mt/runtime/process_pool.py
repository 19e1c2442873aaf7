"""Several processes of this machine that work for this one."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from transformer_mt.runtime import signals

Item = TypeVar("Item")
Result = TypeVar("Result")
Run = Callable[[Callable[[Item], Result], Iterator[Item | None]], Iterator[Result | None]]


@contextmanager
def process_pool(processes: int, prepare: Callable[..., None], *arguments: object) -> Iterator[Run]:
    """Yields a function `run(function, items)`, which yields function(item) of each item in order.

    No more processes are started than there is work for; each calls prepare(*arguments) first. An
    item None waits until all results before it were taken, and yields None. When the block ends, in
    whatever way, the processes are killed: they have nothing to lose.

    Raises:
        BrokenProcessPool: a process was killed. Errors of `function` are passed on.
    """
    before = multiprocessing.active_children()
    executor = ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start,
        initargs=(prepare, arguments),
    )

    def run(function: Callable[[Item], Result], items: Iterator[Item | None]):
        # A bounded number waits, so that memory does not grow with the items.
        waiting: deque[Future] = deque()
        for item in items:
            if item is None:
                while waiting:
                    yield waiting.popleft().result()
                yield None
                continue
            # A process that is being born must neither be left behind nor receive a signal before
            # it is ready for it.
            with signals.blocked():
                waiting.append(executor.submit(function, item))
            while len(waiting) > 2 * processes or (waiting and waiting[0].done()):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    try:
        yield run
    finally:
        for process in multiprocessing.active_children():
            if process not in before:
                process.kill()
        executor.shutdown(wait=True, cancel_futures=True)


def _start(prepare: Callable[..., None], arguments: tuple) -> None:
    signals.serve(multiprocessing.parent_process().pid)
    prepare(*arguments)

"""Several processes of a CPU that translate one text together."""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from transformer_mt import signals
from transformer_mt.decoding.engine import Engine
from transformer_mt.decoding.engines import EngineSpec
from transformer_mt.decoding.translator import Result, Runner, Work
from transformer_mt.errors import UserError


@contextmanager
def pool(spec: EngineSpec, processes: int) -> Iterator[Runner]:
    """What runs batches in processes that each load the engine; no more are started than there is
    work for. Results do not depend on their number, for each batch is computed as it is.

    Raises:
        UserError: one of the processes was killed. Errors of their engines are passed on.
    """
    before = multiprocessing.active_children()
    with ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(spec,),
    ) as executor:

        def run(batches: Iterator[Work | None]) -> Iterator[Result | None]:
            # A bounded number waits, so that memory does not grow with the text.
            waiting: deque[Future] = deque()
            for batch in batches:
                if batch is None:
                    while waiting:
                        yield waiting.popleft().result()
                    yield None
                    continue
                # A new process is born with Ctrl-C blocked: the parent, which gets it too, ends it,
                # but not while it is being born.
                with signals.held_back(), _blocked(signal.SIGINT):
                    waiting.append(executor.submit(_run, batch))
                while len(waiting) > 2 * processes or (waiting and waiting[0].done()):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

        try:
            yield run
        except BrokenProcessPool:
            raise UserError(
                "a process that translates was killed, perhaps because memory ran out. Lower "
                "decoding.batch_tokens (--batch-tokens) or --threads"
            ) from None
        finally:
            # They have nothing to lose, and what they are at is not waited for.
            for process in multiprocessing.active_children():
                if process not in before:
                    process.kill()
            executor.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _blocked(number: int) -> Iterator[None]:
    """Blocks a signal in this thread, and in processes that it starts, for these for ever."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# Of a worker: what to load, and what was loaded.
_spec: EngineSpec | None = None
_engine: Engine | None = None


def _start_worker(spec: EngineSpec) -> None:
    global _spec
    _spec = spec
    signals.end_with_parent(multiprocessing.parent_process().pid)


def _run(batch: Work) -> Result:
    global _engine
    if _engine is None:  # here and not at the start, so that its errors reach the parent
        _engine = _spec.load()
    return batch.run(_engine)

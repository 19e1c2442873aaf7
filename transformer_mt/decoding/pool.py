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
    work for. Results do not depend on their number, for each batch is computed as it is."""
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
            executor.shutdown(wait=True, cancel_futures=True)


# Of a worker: what to load, and what was loaded.
_spec: EngineSpec | None = None
_engine: Engine | None = None


def _start_worker(spec: EngineSpec) -> None:
    global _spec
    _spec = spec
    signals.end_with_parent(multiprocessing.parent_process().pid)
    # Ctrl-C reaches the whole group; the parent ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run(batch: Work) -> Result:
    global _engine
    if _engine is None:  # here and not at the start, so that its errors reach the parent
        _engine = _spec.load()
    return batch.run(_engine)

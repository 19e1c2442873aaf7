"""Several processes of a CPU that translate one text together."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial

from transformer_mt.assembly.backends import EngineSpec
from transformer_mt.decoding.engine import Engine
from transformer_mt.decoding.translator import Result, Runner, Work
from transformer_mt.runtime.errors import UserError
from transformer_mt.runtime.process_pool import process_pool


@contextmanager
def pool(spec: EngineSpec, processes: int) -> Iterator[Runner]:
    """What runs batches in processes that each load the engine; no more are started than there is
    work for. Results do not depend on their number, for each batch is computed as it is.

    Raises:
        UserError: one of the processes was killed. Errors of their engines are passed on.
    """
    try:
        with process_pool(processes, _start_worker, spec) as run:
            yield partial(run, _run)
    except BrokenProcessPool:
        raise UserError(
            "a process that translates was killed, perhaps because memory ran out. Lower "
            "decoding.batch_tokens (--batch-tokens) or --threads"
        ) from None


# Of a worker: what to load, and what was loaded.
_spec: EngineSpec | None = None
_engine: Engine | None = None


def _start_worker(spec: EngineSpec) -> None:
    global _spec
    _spec = spec


def _run(batch: Work) -> Result:
    global _engine
    if _engine is None:  # here and not at the start, so that its errors reach the parent
        _engine = _spec.load()
    return batch.run(_engine)

"""The processes that compute for the service. Each has loaded the model.

A process that dies, or that does not answer, is started again, unless other weights lie in the
model's folder by then: the same question must not have two answers. The sentences that it had are
then computed one by one, so that a sentence that kills a process takes no other sentence with it.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, as_completed
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from transformer_mt.decoding.engine import Engine, Search
from transformer_mt.decoding.line_translator import Result, Work
from transformer_mt.export.registry import EngineSpec
from transformer_mt.serving.batching import Queue, Waiting, WorkerLost
from transformer_mt.utils import signals
from transformer_mt.utils.console import say
from transformer_mt.utils.errors import UserError, describe

# The seconds between two attempts to start a process.
PAUSE = 3.0
# The seconds between liveness checks of an idle process.
ALIVE_EVERY = 1.0


class OtherWeights(WorkerLost):
    """The model's folder holds other weights than when the service was started."""


class Workers:
    """The worker processes of a model, and a thread of this process for each of them.

    Args:
        name: what messages call the model.
        hang: the seconds after which a process that does not answer is killed.

    Attributes:
        computed: is called with the number of sentences of each batch that was computed.
        crashes: the number of processes that ended unasked.
    """

    def __init__(self, name: str, spec: EngineSpec, queue: Queue, hang: float) -> None:
        # Each process has one core of a CPU, and a batch of its own. So a sentence that comes alone
        # need not wait for a batch that is being computed.
        self._name, self._spec = name, replace(spec, threads=1)
        self._queue, self._hang = queue, hang
        self._checksums = spec.checksums()
        self._closed = threading.Event()
        self._loaded: set[_Process] = set()
        self._threads: list[threading.Thread] = []
        self.computed: Callable[[int], object] = lambda count: None
        self.crashes = 0

    @property
    def is_ready(self) -> bool:
        """Whether a process has loaded the model."""
        return bool(self._loaded)

    def start(self) -> None:
        """Starts all processes, and waits until they have loaded the model.

        Raises:
            UserError: it can't be loaded.
        """
        loaded: list[Future[None]] = [Future() for _ in range(self._queue.workers)]
        for number, first in enumerate(loaded):
            name = f"worker {number} of {self._name}"
            thread = threading.Thread(target=self._keep_serving, args=(first,), name=name)
            self._threads.append(thread)
            thread.start()
        for first in as_completed(loaded):
            first.result()

    def close(self) -> None:
        """Kills the processes. What they compute is lost; what waits gets an error."""
        self._closed.set()
        self._queue.close()
        for thread in self._threads:
            thread.join()

    # ---- In a thread ----

    def _keep_serving(self, first: Future[None]) -> None:
        """Serves with one process after another.

        Args:
            first: is done when the first process has loaded the model, or can't.
        """
        while not self._closed.is_set():
            with contextlib.closing(_Process(self._spec, self._closed)) as process:
                try:
                    process.call(_is_alive)
                    self._require_same_weights()
                except UserError as error:
                    if not first.done():
                        return first.set_exception(error)
                    if not self._closed.is_set():
                        say(f"warning: {self._name}: {error}")
                    if isinstance(error, OtherWeights):
                        if not self._loaded:  # Processes with the first weights may still answer.
                            self._queue.close(str(error))
                        return
                    self._closed.wait(PAUSE)
                    continue
                self._loaded.add(process)
                if not first.done():
                    first.set_result(None)
                try:
                    self._serve(process)
                finally:
                    self._loaded.discard(process)

    def _require_same_weights(self) -> None:
        """
        Raises:
            OtherWeights: the folder holds other weights than when the service was started.
        """
        if self._spec.checksums() != self._checksums:
            raise OtherWeights(
                "the model's folder holds other weights than when the service was started. "
                "Start the service again"
            )

    def _serve(self, process: _Process) -> None:
        """Computes batches until the process is lost or the queue is closed."""
        while (batch := self._queue.take(ALIVE_EVERY)) is not None:
            try:
                if batch:
                    self._compute(process, batch)
                else:
                    process.call(_is_alive, self._hang)
            except WorkerLost as error:
                if not self._closed.is_set():
                    self.crashes += 1
                    say(f"warning: {self._name}: {error}. The process is started again")
                return

    def _compute(self, process: _Process, batch: list[Waiting]) -> None:
        """
        Raises:
            WorkerLost: the process is gone, or had to be given up.
        """
        work = batch[0].work
        if isinstance(work, Search):
            work = replace(work, sentences=[s for waiting in batch for s in waiting.sentences])
        try:
            result = process.call(work, self._hang)
        except Exception as error:
            # Who is to blame shows when each is computed alone. Nobody is, if the process was
            # killed.
            if not self._closed.is_set() and not batch[0].is_alone:
                self._queue.again(batch)
            else:
                for waiting in batch:
                    waiting.future.set_exception(error)
            if isinstance(error, WorkerLost):
                raise
        else:
            self.computed(len(batch))
            results = [[own] for own in result] if isinstance(work, Search) else [result]
            for waiting, own in zip(batch, results, strict=True):
                waiting.future.set_result(own)
        finally:
            self._queue.done(batch)


class _Process:
    """A process that has loaded an engine, and calls works with it.

    Args:
        stopped: ends the waiting for an answer.
    """

    def __init__(self, spec: EngineSpec, stopped: threading.Event) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._stopped = stopped
        self._process = context.Process(
            target=_work, args=(spec, theirs), name="translate", daemon=True
        )
        with signals.blocked():
            self._process.start()
        theirs.close()  # so that the end of the process ends the connection

    def call(self, work: Work[Result], seconds: float = math.inf) -> Result:
        """Computes a work, after the engine was loaded.

        Raises:
            WorkerLost: the process is gone, or does not answer in this time.
            Exception: the error of the work, or of loading the engine.
        """
        deadline = time.monotonic() + seconds
        try:
            self._connection.send(work)
            while not self._connection.poll(0.2):
                if self._stopped.is_set():
                    raise WorkerLost("the service is stopping")
                if time.monotonic() > deadline:
                    raise WorkerLost(f"a translation did not end within {seconds:.0f} s")
            answer = self._connection.recv()
        except (EOFError, OSError):
            self._process.join(1)
            raise WorkerLost(
                f"a process that translates has died (exit code {self._process.exitcode}), perhaps "
                "because memory ran out"
            ) from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()
        self._connection.close()


def _is_alive(engine: Engine) -> None:
    """A work that only shows whether a process answers."""


def _work(spec: EngineSpec, connection: Connection) -> None:
    """The worker process: loads the engine, and answers each work that it receives."""
    signals.serve(multiprocessing.parent_process().pid)
    try:
        engine = spec.load()
    except Exception as error:
        connection.send(_told(error))
        return
    with contextlib.suppress(EOFError):
        while True:
            work = connection.recv()
            try:
                answer: Any = work(engine)
            except Exception as error:
                answer = _told(error)
            connection.send(answer)


def _told(error: Exception) -> UserError:
    """An error that the parent can read, without the libraries that have raised it."""
    return error if isinstance(error, UserError) else UserError(describe(error))

"""The processes that compute for the service. Each has loaded the model.

A process that dies, or that does not answer, is started again, unless other weights lie in the
model's folder by then: the same question must not have two answers. The sentences that it had are
then computed one by one, so that a sentence that kills a process takes no other sentence with it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from transformer_mt.export.registry import EngineSpec
from transformer_mt.serving.batching import Queue, Waiting, WorkerLost, joined, separated
from transformer_mt.utils import signals
from transformer_mt.utils.console import say
from transformer_mt.utils.errors import UserError, describe

# The seconds between two attempts to start a process.
PAUSE = 3.0
# The number of seconds after which it is looked whether an idle process is still there.
ALIVE_EVERY = 1.0


class Failed(NamedTuple):
    """What a process answers if its work raised an error."""

    error: Exception


class Workers:
    """The worker processes of a model, and a thread of this process for each of them.

    Args:
        name: what messages call the model.
        hang: the seconds after which a process that does not answer is killed.
        computed: is called with the number of sentences of each batch that was computed.
    """

    def __init__(
        self,
        name: str,
        spec: EngineSpec,
        queue: Queue,
        hang: float,
        computed: Callable[[int], object] = lambda count: None,
    ) -> None:
        # Each process has one core of a CPU, and a batch of its own. So a sentence that comes alone
        # need not wait for a batch that is being computed.
        count = spec.threads if spec.device == "cpu" else 1
        self._name, self._spec = name, replace(spec, threads=1)
        self._queue, self._hang = queue, hang
        self._checksums = spec.checksums()
        self._computed = computed
        self._closed = threading.Event()
        self._changed = threading.Condition()
        self._ready = 0
        self._error: Exception | None = None
        self.crashes = 0
        self._threads = [
            threading.Thread(target=self._keep_serving, name=f"worker {number} of {name}")
            for number in range(count)
        ]

    @property
    def ready(self) -> int:
        """The number of processes that have loaded the model."""
        return self._ready

    @property
    def count(self) -> int:
        return len(self._threads)

    def start(self) -> None:
        """Starts all processes, and waits until they have loaded the model.

        Raises:
            UserError: it can't be loaded.
        """
        for thread in self._threads:
            thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._ready == self.count or self._error)
            if self._error:
                raise self._error

    def close(self) -> None:
        """Kills the processes. What they compute is lost; what waits gets an error."""
        self._closed.set()
        self._queue.close()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    # ---- In a thread ----

    def _keep_serving(self) -> None:
        while not self._closed.is_set():
            with contextlib.closing(_Process(self._spec, self._closed)) as process:
                try:
                    process.receive(None)
                except (WorkerLost, UserError) as error:
                    with self._changed:
                        self._error = error
                        self._changed.notify_all()
                    if self._closed.is_set():
                        return
                    say(f"warning: {self._name}: can't be loaded: {describe(error)}")
                    self._closed.wait(PAUSE)
                    continue
                if self._spec.checksums() != self._checksums:
                    return self._end_as_changed()
                self._count_ready(1)
                try:
                    self._serve(process)
                finally:
                    self._count_ready(-1)

    def _end_as_changed(self) -> None:
        error = WorkerLost(
            f"{self._name}: its folder holds other weights than when the service was started. "
            "Start the service again"
        )
        say(f"warning: {error}")
        with self._changed:
            self._error = error
            self._changed.notify_all()
            if not self._ready:  # Processes with the weights of the start may still answer.
                self._queue.close(str(error))

    def _count_ready(self, change: int) -> None:
        with self._changed:
            self._ready += change
            self._changed.notify_all()

    def _serve(self, process: _Process) -> None:
        """Computes batches until the process is lost or the queue is closed."""
        while (batch := self._queue.take(ALIVE_EVERY)) is not None:
            try:
                if batch:
                    self._compute(process, batch)
                else:
                    process.require_alive()
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
        try:
            process.send(joined(batch))
            results = separated(batch, process.receive(self._hang))
        except Exception as error:
            self._fail(batch, error)
            if isinstance(error, WorkerLost):
                raise
        else:
            self._computed(len(batch))
            for waiting, result in zip(batch, results, strict=True):
                waiting.future.set_result(result)
        finally:
            self._queue.done(batch)

    def _fail(self, batch: list[Waiting], error: Exception) -> None:
        # Who is to blame shows when each is computed alone. Nobody is, if the process was killed.
        if not self._closed.is_set() and not batch[0].is_alone:
            self._queue.again(batch)
            return
        for waiting in batch:
            waiting.future.set_exception(error)


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
        with signals.blocked():  # as in utils.processes
            self._process.start()
        theirs.close()  # so that the end of the process ends the connection

    def require_alive(self) -> None:
        """
        Raises:
            WorkerLost: the process is gone.
        """
        with _losses(self._process):
            if not self._process.is_alive():
                raise EOFError

    def send(self, work: Any) -> None:
        """
        Raises:
            WorkerLost: the process is gone.
        """
        with _losses(self._process):
            self._connection.send(work)

    def receive(self, seconds: float | None) -> Any:
        """The next answer. The first one says that the engine is loaded.

        Raises:
            WorkerLost: the process is gone, or does not answer in this time.
            Exception: the error of the work.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        with _losses(self._process):
            while not self._connection.poll(0.2):
                if self._stopped.is_set():
                    raise WorkerLost("the service is stopping")
                if deadline is not None and time.monotonic() > deadline:
                    raise WorkerLost(f"a translation did not end within {seconds:.0f} s")
            answer = self._connection.recv()
        if isinstance(answer, Failed):
            raise answer.error
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()
        self._connection.close()


@contextlib.contextmanager
def _losses(process: multiprocessing.process.BaseProcess):
    try:
        yield
    except (EOFError, OSError):
        process.join(1)
        raise WorkerLost(
            f"a process that translates has died (exit code {process.exitcode}), perhaps because "
            "memory ran out"
        ) from None


def _work(spec: EngineSpec, connection: Connection) -> None:
    """The worker process: loads the engine, and answers each work that it receives."""
    signals.serve(multiprocessing.parent_process().pid)
    try:
        engine = spec.load()
    except Exception as error:
        connection.send(_failure(error))
        return
    connection.send(None)
    while True:
        try:
            work = connection.recv()
        except EOFError:
            return
        try:
            answer = work(engine)
        except Exception as error:
            answer = _failure(error)
        connection.send(answer)


def _failure(error: Exception) -> Failed:
    """An answer that the parent can read, without the libraries that have raised the error."""
    return Failed(error if isinstance(error, UserError) else UserError(describe(error)))

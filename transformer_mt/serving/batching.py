"""The queue of a model: sentences of all requests wait in it, and leave it in batches.

This is dynamic batching. A batch is made at the moment when a worker is free, of what waits then.
What is in a batch changes no translation (tests/serving compares), so that an answer does not
depend on who else asks.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from transformer_mt.decoding.engine import Search, Sentence
from transformer_mt.decoding.line_translator import Work
from transformer_mt.utils.errors import UsageError, UserError

# If several requests came together lately, a free worker waits this many seconds for more.
PATIENCE = 0.003
LATELY = 1.0


@dataclass(frozen=True)
class Limits:
    """The limits of the service, so that no client can take all of it.

    Attributes:
        max_body: the bytes of a request.
        max_lines: the lines of a request.
        max_subwords: the subwords of a request, of all its lines together.
        max_waiting: the sentences, of all requests together, that may wait for a model.
        max_batch: the sentences that are translated together. 1 translates each alone.
        timeout: the seconds that a request may take, from its last byte to its answer.
    """

    max_body: int = 1 << 20
    max_lines: int = 1_000
    max_subwords: int = 50_000
    max_waiting: int = 2_000
    max_batch: int = 64
    timeout: float = 60.0


class Unavailable(UserError):
    """The service can't answer now.

    Attributes:
        status: of the answer, in HTTP.
        retry_after: the whole number of seconds after which another try makes sense.
    """

    status = 503
    retry_after = 1


class Overloaded(Unavailable):
    """Too much waits already."""

    status = 429
    retry_after = 5


class WorkerLost(Unavailable):
    """The process that computed something died, or had to be killed. It is started again."""


class Ticket:
    """A request on its way through a queue."""

    def __init__(self) -> None:
        self.is_cancelled = False
        self.queue: Queue | None = None

    def cancel(self) -> None:
        """Drops what waits, because nobody wants it any longer. Any thread may call this."""
        self.is_cancelled = True
        if self.queue is not None:
            self.queue.drop(self)


@dataclass(eq=False)
class Waiting:
    """A work that waits for a worker, or that a worker has.

    Attributes:
        is_alone: whether it must be computed without company, because a batch failed that it was
            in.
    """

    ticket: Ticket
    work: Work
    future: Future = field(default_factory=Future, repr=False)
    is_alone: bool = False

    @property
    def sentences(self) -> list[Sentence]:
        """The sentence of a search; empty for what is not a search."""
        return self.work.sentences if isinstance(self.work, Search) else []

    @property
    def length(self) -> int:
        """In subwords with eos, of all segmentations together; 0 for what is not a search."""
        return sum(s.length * len(s.segmentations) for s in self.sentences)

    def goes_with(self, other: Waiting) -> bool:
        """Whether both can be in one batch: searches with equal settings."""
        mine, its = self.work, other.work
        return (
            not (self.is_alone or other.is_alone)
            and isinstance(mine, Search)
            and isinstance(its, Search)
            and replace(mine, sentences=[]) == replace(its, sentences=[])
        )


class Queue:
    """Works of all requests for one model.

    Requests take turns: each batch takes one sentence of each request in turn, so that a long
    request does not hold up a short one.

    Args:
        batch_tokens: the most subwords that a batch may have with its padding, unless it is a
            single sentence.
        workers: the number of workers that take batches.
    """

    def __init__(self, limits: Limits, batch_tokens: int, workers: int = 1) -> None:
        self._limits = limits
        self._batch_tokens = batch_tokens
        self.workers = workers
        self._changed = threading.Condition()
        # The waiting works of each request. The next batch begins with the first request.
        self._turns: deque[deque[Waiting]] = deque()
        self._count = 0
        self._computing = 0  # the sentences that workers compute
        self._company = -math.inf  # when two requests were there together
        self._closed_because: str | None = None

    @property
    def waiting(self) -> int:
        """The number of sentences that wait."""
        return self._count

    # ---- The side of the requests ----

    def run(self, ticket: Ticket, works: Iterator[Work | None]) -> Iterator[Any]:
        """The results of the works of a request, each of which is a sentence of its own or a hole:
        a Runner of decoding.line_translator, when the ticket is given.

        Raises:
            UsageError: there are too many subwords.
            Overloaded: too much waits already.
            WorkerLost: the queue was closed, or the ticket was cancelled.
        """
        asked = list(works)
        searches = [work for work in asked if isinstance(work, Search)]
        subwords = sum(len(s.source) for search in searches for s in search.sentences)
        if subwords > self._limits.max_subwords:
            raise UsageError(
                f"the text has {subwords:,} subwords; a request may have "
                f"{self._limits.max_subwords:,}. Send it in several requests"
            )
        futures = iter(self.put(ticket, [work for work in asked if work is not None]))
        for work in asked:
            yield None if work is None else next(futures).result()

    def put(self, ticket: Ticket, works: list[Work]) -> list[Future]:
        """Adds works of a request; all of them or none. Returns the places of their results.

        Raises: as `run`.
        """
        own = deque(Waiting(ticket, work) for work in works)
        with self._changed:
            ticket.queue = self
            if ticket.is_cancelled or self._closed_because:
                raise self._lost()
            # A request that is larger than the whole queue must have its turn too.
            if self._count and self._count + len(own) > self._limits.max_waiting:
                raise Overloaded(f"{self._count:,} sentences are waiting already. Try again later")
            if own:
                self._turns.append(own)
                self._count += len(own)
                if len(self._turns) > 1:
                    self._company = time.monotonic()
                self._changed.notify_all()
        return [waiting.future for waiting in own]

    def drop(self, ticket: Ticket | None = None) -> None:
        """Ends the waiting of a request, or of all, with an error that tells the reason."""
        with self._changed:
            turns, self._turns = self._turns, deque()
            for own in turns:
                if ticket not in (None, own[0].ticket):
                    self._turns.append(own)
                    continue
                self._count -= len(own)
                for waiting in own:
                    waiting.future.set_exception(self._lost())

    # ---- The side of the workers ----

    def take(self, seconds: float | None = None) -> list[Waiting] | None:
        """The next batch, for which this waits; an empty one if none comes in this time. None if
        the queue was closed."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._count or self._closed_because, seconds):
                return []
            if time.monotonic() - self._company < LATELY:
                self._changed.wait_for(self._is_full, PATIENCE)
            if self._closed_because:
                return None
            batch = self._next_batch()
            self._computing += len(batch)
            return batch

    def done(self, batch: list[Waiting]) -> None:
        """Reports that a worker has ended its work on a batch."""
        with self._changed:
            self._computing -= len(batch)

    def again(self, batch: list[Waiting]) -> None:
        """Puts works back, each to be computed alone, before all others."""
        with self._changed:
            for waiting in batch:
                waiting.is_alone = True
                self._turns.appendleft(deque([waiting]))
                self._count += 1
                if waiting.ticket.is_cancelled:
                    self.drop(waiting.ticket)
            self._changed.notify_all()

    def close(self, reason: str = "the service is stopping") -> None:
        """Ends the waiting of everybody, with an error that tells the reason."""
        with self._changed:
            self._closed_because = reason
            self._changed.notify_all()
        self.drop()

    # ---- With the lock held ----

    def _lost(self) -> WorkerLost:
        return WorkerLost(self._closed_because or "the request was given up")

    def _is_full(self) -> bool:
        return self._closed_because is not None or self._count >= self._limits.max_batch

    def _next_batch(self) -> list[Waiting]:
        """Takes works from the requests in turn."""
        # The workers share what is there, so that none has a long batch while another has nothing.
        share = math.ceil((self._count + self._computing) / self.workers)
        most = min(self._limits.max_batch, share)
        batch: list[Waiting] = []
        longest = 0
        refused: list[deque[Waiting]] = []
        while self._turns and len(batch) < most:
            own = self._turns.popleft()
            width = max(longest, own[0].length)
            if batch and not (
                own[0].goes_with(batch[0]) and (len(batch) + 1) * width <= self._batch_tokens
            ):
                refused.append(own)
                continue
            batch.append(own.popleft())
            longest = width
            if own:
                self._turns.append(own)
        self._count -= len(batch)
        # Requests that did not fit go first in the next batch.
        self._turns.extendleft(reversed(refused))
        return batch

"""The queue of a model: sentences of all requests wait in it, and leave it in batches.

This is dynamic batching. A batch is made at the moment when a worker is free, of what waits then.
What is in a batch changes no translation (tests/serving compares), so that an answer does not
depend on who else asks.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from transformer_mt.decoding.engine import Search, Sentence
from transformer_mt.decoding.line_translator import Work
from transformer_mt.utils.errors import UsageError, UserError

if TYPE_CHECKING:
    from starlette.types import Receive

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
        retry_after: the whole number of seconds after which another try makes sense.
    """

    retry_after = 1


class Overloaded(Unavailable):
    """Too much waits already."""

    retry_after = 5


class Late(Unavailable):
    """The time of a request is over."""


class WorkerLost(Unavailable):
    """The process that computed something died, or had to be killed. It is started again."""


class Cancelled(Exception):
    """Nobody waits for the answer of a request any longer."""


class Ticket:
    """A request on its way through the queue.

    Args:
        seconds: the time that it may take from now on.
    """

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self._futures: list[Future] = []
        self._lock = threading.Lock()
        self.is_cancelled = False

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def cancel(self) -> None:
        """Drops what waits, because nobody wants it any longer. Any thread may call this."""
        with self._lock:
            self.is_cancelled = True
            futures, self._futures = self._futures, []
        for future in futures:
            future.cancel()

    def future(self) -> Future:
        """A place for a result. It is cancelled with the ticket."""
        future: Future = Future()
        with self._lock:
            self._futures.append(future)
            if self.is_cancelled:
                future.cancel()
        return future

    def result(self, future: Future) -> Any:
        """The result in a place, for which this waits.

        Raises:
            Late: the time of the ticket is over.
            Cancelled: the ticket was cancelled.
        """
        try:
            return future.result(self.seconds_left)
        except CancelledError:
            raise Cancelled from None
        except FutureTimeout:
            self.cancel()
            late = Late("the translation took too long. Send less text, or try again later")
            raise late from None


@dataclass(eq=False)
class Waiting:
    """A work that waits for a worker, or that a worker has.

    Attributes:
        is_alone: whether it must be computed without company, because a batch failed that it was
            in.
        has_begun: whether a worker has had it.
    """

    ticket: Ticket
    work: Work
    future: Future = field(repr=False)
    is_alone: bool = False
    has_begun: bool = False

    def begin(self) -> bool:
        """Whether somebody still wants the result. From now on it can't be cancelled."""
        if not self.has_begun:
            self.has_begun = self.future.set_running_or_notify_cancel()
        elif self.ticket.is_cancelled:
            self.future.set_exception(Cancelled())
            return False
        return self.has_begun

    @property
    def length(self) -> int:
        """In subwords with eos, of all segmentations together; 0 for what is not a search."""
        if not isinstance(self.work, Search):
            return 0
        sentence = self.work.sentences[0]
        return sentence.length * len(sentence.segmentations)

    def goes_with(self, other: Waiting) -> bool:
        """Whether both can be in one batch: searches with equal settings."""
        mine, its = self.work, other.work
        return (
            not (self.is_alone or other.is_alone)
            and isinstance(mine, Search)
            and isinstance(its, Search)
            and mine.need_attention == its.need_attention
            and (mine.settings is its.settings or mine.settings == its.settings)
        )


class Queue:
    """Works of all requests for one model.

    Requests take turns: each batch takes one sentence of each request in turn, so that a long
    request does not hold up a short one.

    Args:
        batch_tokens: the most subwords that a batch may have with its padding, unless it is a
            single sentence.
    """

    def __init__(self, limits: Limits, batch_tokens: int) -> None:
        self._limits = limits
        self._batch_tokens = batch_tokens
        self._changed = threading.Condition()
        # The waiting works of each request. The next batch begins with the first request.
        self._turns: deque[deque[Waiting]] = deque()
        self._count = 0
        self._free = 0  # workers that wait for a batch
        self._busy = 0  # workers that compute one
        self._computing = 0  # the sentences that they compute
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
        """
        asked = list(works)
        real = [work for work in asked if work is not None]
        searches = [work for work in real if isinstance(work, Search)]
        subwords = sum(len(s.source) for search in searches for s in search.sentences)
        if subwords > self._limits.max_subwords:
            raise UsageError(
                f"the text has {subwords:,} subwords; a request may have "
                f"{self._limits.max_subwords:,}. Send it in several requests"
            )
        futures = iter(self.put(ticket, real))
        for work in asked:
            yield None if work is None else ticket.result(next(futures))

    def put(self, ticket: Ticket, works: list[Work]) -> list[Future]:
        """Adds works of a request; all of them or none. Returns the places of their results.

        Raises:
            Overloaded: too much waits already.
            WorkerLost: the queue was closed.
        """
        own = deque(Waiting(ticket, work, ticket.future()) for work in works)
        with self._changed:
            if self._closed_because:
                raise WorkerLost(self._closed_because)
            # A request that is larger than the whole queue must have its turn too.
            if self._count and self._count + len(own) > self._limits.max_waiting:
                self._drop_cancelled()
            if self._count and self._count + len(own) > self._limits.max_waiting:
                raise Overloaded(f"{self._count:,} sentences are waiting already. Try again later")
            if own:
                self._turns.append(own)
                self._count += len(own)
                if len(self._turns) > 1:
                    self._company = time.monotonic()
                self._changed.notify_all()
        return [waiting.future for waiting in own]

    # ---- The side of the workers ----

    def take(self, seconds: float | None = None) -> list[Waiting] | None:
        """The next batch, for which this waits; an empty one if none comes in this time. None if
        the queue was closed."""
        with self._changed:
            self._free += 1
            try:
                if not self._changed.wait_for(lambda: self._count or self._closed_because, seconds):
                    return []
                if time.monotonic() - self._company < LATELY:
                    self._changed.wait_for(self._is_full, PATIENCE)
                if self._closed_because:
                    return None
                batch = self._next_batch()
                if batch:
                    self._busy += 1
                    self._computing += len(batch)
                return batch
            finally:
                self._free -= 1

    def done(self, batch: list[Waiting]) -> None:
        """Reports that a worker has ended its work on a batch."""
        with self._changed:
            self._busy -= 1
            self._computing -= len(batch)

    def again(self, batch: list[Waiting]) -> None:
        """Puts works back, each to be computed alone, before all others."""
        with self._changed:
            for waiting in batch:
                waiting.is_alone = True
                self._turns.appendleft(deque([waiting]))
            self._count += len(batch)
            self._changed.notify_all()

    def close(self, reason: str = "the service is stopping") -> None:
        """Ends the waiting of everybody, with an error that tells the reason."""
        with self._changed:
            self._closed_because = reason
            left = [*chain.from_iterable(self._turns)]
            self._turns.clear()
            self._count = 0
            self._changed.notify_all()
        for waiting in left:
            if waiting.begin():
                waiting.future.set_exception(WorkerLost(reason))

    # ---- With the lock held ----

    def _is_full(self) -> bool:
        return self._closed_because is not None or self._count >= self._limits.max_batch

    def _next_batch(self) -> list[Waiting]:
        """Takes works from the requests in turn. It is empty if all that waited was cancelled."""
        # The workers share what is there, so that none has a long batch while another has nothing.
        share = math.ceil((self._count + self._computing) / (self._free + self._busy))
        most = min(self._limits.max_batch, share)
        batch: list[Waiting] = []
        longest = 0
        refused: list[deque[Waiting]] = []
        while self._turns and len(batch) < most:
            own = self._turns.popleft()
            first = own[0]
            width = max(longest, first.length)
            fits = not batch or (
                first.goes_with(batch[0]) and (len(batch) + 1) * width <= self._batch_tokens
            )
            if not fits:
                refused.append(own)
                continue
            own.popleft()
            self._count -= 1
            if own:
                self._turns.append(own)
            if first.begin():
                batch.append(first)
                longest = width
        # Who could not come along is first in the next batch.
        self._turns.extendleft(reversed(refused))
        return batch

    def _drop_cancelled(self) -> None:
        kept = (deque(w for w in own if not w.future.cancelled()) for own in self._turns)
        self._turns = deque(own for own in kept if own)
        self._count = sum(map(len, self._turns))


def joined(batch: list[Waiting]) -> Work:
    """The works of a batch as one work. Its result is a list of theirs, one after the other, if
    they are searches."""
    works = [waiting.work for waiting in batch]
    if len(works) == 1 or not isinstance(works[0], Search):
        return works[0]
    return replace(works[0], sentences=[s for work in works for s in _sentences(work)])


def separated(batch: list[Waiting], result: Any) -> list[Any]:
    """The result of each work of a batch, given that of `joined`."""
    if len(batch) == 1:
        return [result]
    results = iter(result)
    return [[next(results) for _ in _sentences(waiting.work)] for waiting in batch]


def _sentences(work: Work) -> list[Sentence]:
    return work.sentences if isinstance(work, Search) else []


# The requests that are answered at the same time. Their threads wait for a model most of the time.
MOST = 256
# The seconds after the end of its time in which a request must have noticed it.
GRACE = 5.0

Result = TypeVar("Result")


class ClientGone(Exception):
    """The client has closed the connection, so that nobody reads an answer."""


class Threads:
    """Runs the work of requests.

    Args:
        seconds: the time that a request may take.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._pool = ThreadPoolExecutor(MOST, thread_name_prefix="request")
        self._tickets: set[Ticket] = set()  # of the work that has not ended

    async def run(self, receive: Receive, work: Callable[[Ticket], Result]) -> Result:
        """Runs the work of a request whose body was received, and returns its result.

        Raises:
            ClientGone: the client has closed the connection. Its work is dropped.
            Overloaded: too many requests are being answered.
            Late: the time is over.
        """
        if len(self._tickets) >= MOST:
            raise Overloaded(f"{MOST} requests are being answered already. Try again later")
        ticket = Ticket(self._seconds)
        self._tickets.add(ticket)
        future = asyncio.get_running_loop().run_in_executor(self._pool, work, ticket)
        future.add_done_callback(lambda done: self._end(ticket, done))
        gone = asyncio.ensure_future(_disconnection(receive))
        try:
            await asyncio.wait(
                {future, gone},
                timeout=self._seconds + GRACE,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if future.done():
                return future.result()
            if gone.done():
                raise ClientGone
            raise Late("the translation took too long. Send less text, or try again later")
        finally:
            gone.cancel()
            ticket.cancel()

    def cancel(self) -> None:
        """Drops all work."""
        for ticket in list(self._tickets):
            ticket.cancel()

    def _end(self, ticket: Ticket, future: asyncio.Future) -> None:
        self._tickets.discard(ticket)
        if not future.cancelled():
            future.exception()  # Nobody is left to whom it could be told.


async def _disconnection(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

"""Blocking work for requests, in threads, while the event loop watches whether the client is still
there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.types import Receive

from transformer_mt.serving.batching import Late, Overloaded, Ticket

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

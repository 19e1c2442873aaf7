"""What the service answers if it can't do what a request asks for.

Every such answer is JSON, `{"detail": TEXT}`. The text says what is wrong, where, and what to do.
"""

from __future__ import annotations

import os
import sys
import traceback

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from transformer_mt.serving.batching import Cancelled, Overloaded, Unavailable
from transformer_mt.utils.console import say
from transformer_mt.utils.errors import UsageError, UserError

# The status of requests whose client has gone, in the log and the metrics. Nobody receives it.
CLIENT_GONE = 499
STOPPING = "the service is stopping. Try again later"
_ADDRESSES = "/docs lists the addresses of the service and what they take"


class Refusal(Exception):
    """A request that is refused, with the status code of the answer and headers for it."""

    def __init__(self, status: int, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class ClientGone(Exception):
    """The client has closed the connection, so that nobody reads an answer."""


def answer_to(error: BaseException) -> Response:
    """The answer to a request that raised an error.

    An error that nobody expected is reported on stderr, and answered with 503, because another try
    may succeed.
    """
    if isinstance(error, ClientGone):
        return Response(status_code=CLIENT_GONE)
    if isinstance(error, Refusal):
        return _answer(error.status, str(error), error.headers)
    if isinstance(error, HTTPException):
        return _answer(error.status_code, _explained(error), dict(error.headers or {}))
    if isinstance(error, Unavailable):
        status = 429 if isinstance(error, Overloaded) else 503
        return _answer(status, str(error), {"Retry-After": str(error.retry_after)})
    if isinstance(error, UsageError):
        return _answer(422, str(error))
    if isinstance(error, Cancelled):
        return _answer(503, STOPPING, {"Retry-After": "5"})
    if not isinstance(error, UserError):
        _report(error)
    detail = str(error) if isinstance(error, UserError) else "an internal error; the log names it"
    return _answer(503, detail, {"Retry-After": "5"})


def _answer(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"detail": detail}, status, headers)


def _explained(error: HTTPException) -> str:
    """What Starlette says in two words ("Not Found"), in a sentence."""
    if error.status_code == 404:
        return f"there is nothing at this address. {_ADDRESSES}"
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another one")
        return f"this address does not take this method, but {allowed}. {_ADDRESSES}"
    return str(error.detail)


def _report(error: BaseException) -> None:
    """Prints where an error happened. Its message may hold text of a request, so that it is only
    printed for debugging."""
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" in {os.path.basename(p.filename)}, line {p.lineno}" for p in place)
    say(f"internal error: {type(error).__name__}{where}. TRANSFORMER_MT_DEBUG=1 shows more")
    if os.environ.get("TRANSFORMER_MT_DEBUG"):
        traceback.print_exception(type(error), error, error.__traceback__, file=sys.stderr)

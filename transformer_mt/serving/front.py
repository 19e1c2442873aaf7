"""The front of the service: every request passes it, and every answer.

It checks who asks, gives answers the headers that make them safe in a browser, answers whatever
goes wrong, and writes one line per request to stderr.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transformer_mt.serving.guards import Access
from transformer_mt.serving.metrics import Metrics
from transformer_mt.serving.refusals import STOPPING, Refusal, answer_to
from transformer_mt.utils.console import say

# An answer that has one of these headers already keeps it.
SAFE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
PREFLIGHT_HEADERS = {
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Allow-Headers": "Authorization, Content-Type",
    "Access-Control-Max-Age": "600",
}
LONGEST = 100  # characters of a path or a method, in the log


@dataclass(frozen=True)
class Endpoint:
    """What a path belongs to.

    Attributes:
        name: in the metrics and the log, where a path may not appear that has a secret in it.
        is_open: whether it needs no token.
    """

    name: str
    is_open: bool = False


class Front:
    """An ASGI application in front of another one.

    Args:
        endpoint_of: the endpoint of a path.
        log_text: whether the text of requests is printed too.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        metrics: Metrics,
        endpoint_of: Callable[[str], Endpoint],
        *,
        log_text: bool = False,
    ) -> None:
        self._app = app
        self._access = access
        self._metrics = metrics
        self._endpoint_of = endpoint_of
        self._log_text = log_text

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = time.monotonic()
        endpoint = self._endpoint_of(scope["path"])
        facts = scope.setdefault("state", {})
        exchange = _Exchange(self._access, Headers(scope=scope), receive, send)
        try:
            with self._metrics.in_progress.track_inprogress():
                await self._answer(scope, endpoint, exchange)
        except asyncio.CancelledError:
            # The service is stopping, and has waited long enough.
            await exchange.fail(scope, Refusal(503, STOPPING, Retry_After="5"))
        except Exception as error:
            await exchange.fail(scope, error)
        seconds = time.monotonic() - start
        self._metrics.request(endpoint.name, exchange.status, seconds)
        self._log(scope, endpoint, exchange.status, seconds, facts)

    async def _answer(self, scope: Scope, endpoint: Endpoint, exchange: _Exchange) -> None:
        self._access.check_sender(exchange.headers)
        if scope["method"] == "OPTIONS" and self._access.allows(exchange.headers.get("origin")):
            response = Response(status_code=204, headers=PREFLIGHT_HEADERS)
            return await response(scope, exchange.receive, exchange.send)
        if not endpoint.is_open:
            self._access.check_token(exchange.headers)
        if scope["method"] == "HEAD":  # The server leaves out the body.
            scope = {**scope, "method": "GET"}
        await self._app(scope, exchange.receive, exchange.send)

    def _log(
        self, scope: Scope, endpoint: Endpoint, status: int, seconds: float, facts: dict
    ) -> None:
        client = (scope.get("client") or ("-",))[0]
        path = scope["raw_path"].decode("ascii", "replace")  # %0A stays as it is
        shown = endpoint.name if "{" in endpoint.name else path
        method, shown = (
            text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
            for text in (scope["method"], shown)
        )
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {client} {method} {shown} {status}"
        line += f" {1000 * seconds:.0f} ms"
        if (count := facts.get("lines")) is not None:
            line += f" {count} line{'' if count == 1 else 's'}"
        if self._log_text and "text" in facts:
            line += f" {json.dumps(facts['text'], ensure_ascii=False)}"
        say(line)


class _Exchange:
    """A request and its answer, on their way."""

    def __init__(self, access: Access, headers: Headers, receive: Receive, send: Send) -> None:
        self.headers = headers
        self.status = 0  # of the answer; 0 before there is one
        self._access = access
        self._receive = receive
        self._send = send
        # Whether more of the request's body may come.
        self._is_open = (
            "transfer-encoding" in headers or headers.get("content-length", "0").strip("0") != ""
        )

    async def receive(self) -> Message:
        message = await self._receive()
        self._is_open = self._is_open and message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._add_headers(MutableHeaders(scope=message))
        await self._send(message)

    async def fail(self, scope: Scope, error: BaseException) -> None:
        """Answers with an error, unless an answer has begun already."""
        if not self.status:
            await answer_to(error)(scope, self.receive, self.send)

    def _add_headers(self, headers: MutableHeaders) -> None:
        for name, value in SAFE_HEADERS.items():
            headers.setdefault(name, value)
        if self._access.origins:
            headers.add_vary_header("Origin")
        origin = self.headers.get("origin")
        if origin is not None and self._access.allows(origin):
            headers["Access-Control-Allow-Origin"] = origin
            headers["Access-Control-Expose-Headers"] = "Retry-After"
        has_two_lengths = "transfer-encoding" in self.headers and "content-length" in self.headers
        if self._is_open or has_two_lengths:
            # The rest of the body will not be read; or a proxy in front may see another end of it,
            # and so another request after it (RFC 9112, section 6.1).
            headers["Connection"] = "close"

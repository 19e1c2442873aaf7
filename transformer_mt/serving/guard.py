"""What stands in front of the endpoints: who may ask, and how requests have to arrive."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transformer_mt.serving import forms
from transformer_mt.serving.requests import LIBRE, answer_to, dialect_of
from transformer_mt.serving.tokens import Tokens

JSON = "application/json"
# What the endpoints take.
KINDS = {
    "/translate": (JSON, *forms.KINDS),
    "/translate_file": (forms.MULTIPART,),
    "/detect": (JSON, *forms.KINDS),
    "/parts": (JSON,),
    "/attention": (JSON,),
}
# These have LibreTranslate's form only; of /translate, the request decides.
LIBRE_ONLY = ("/translate_file", "/detect")
# The status of requests whose client has gone, in the log and the metrics. Nobody receives it.
CLIENT_GONE = 499


@dataclass(frozen=True)
class Access:
    """Who may ask.

    Attributes:
        hosts: the names that a request may give the service in its Host header; "*" stands for all.
            A site can give its own name the address of this machine, and its pages then count as
            the service's (DNS rebinding), unless the names are limited.
        origins: the origins of other pages that may ask, such as https://example.com.
        tokens: those that requests must have, or None if everybody may ask.
    """

    hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "[::1]")
    origins: tuple[str, ...] = ()
    tokens: Tokens | None = None


class Guard:
    """Refuses a request without a token (401), one that is of no kind that its path takes (415), a
    form of a page that may not ask (403), or one that is too large (413).

    The state of a request gets its `user`, if it has a token, and its `form`, if it is one. A form
    for /translate is passed on as JSON.

    Args:
        is_open: tells whether a path needs no token.
    """

    def __init__(
        self, app: ASGIApp, access: Access, max_body: int, is_open: Callable[[str], bool]
    ) -> None:
        self._app, self._access = app, access
        self._max_body, self._is_open = max_body, is_open
        self._too_large = f"the request is larger than {max_body:,} bytes. Send the text in "
        self._too_large += "several requests"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, self._limited(receive))
        try:
            admitted = await self._admit(request)
        except HTTPException as error:
            return await answer_to(request, error)(scope, receive, send)
        await self._app(*admitted, send)

    def _limited(self, receive: Receive) -> Receive:
        left = self._max_body

        async def receive_limited() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, self._too_large)
            return message

        return receive_limited

    async def _admit(self, request: Request) -> tuple[Scope, Receive]:
        """The request as it is passed on.

        Raises:
            HTTPException: it is refused.
        """
        path, state = request.scope["path"], request.state
        kinds = KINDS.get(path, ()) if request.method == "POST" else ()
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_form = kind in forms.KINDS and kind in kinds
        state.is_libre = is_form or path in LIBRE_ONLY

        # A token is in a header, or in the body of what has LibreTranslate's form.
        needs_token = self._access.tokens is not None and not self._is_open(path)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if needs_token and (scheme.lower() == "bearer" or forms.MULTIPART not in kinds):
            self._require_token(request, token.strip() if scheme.lower() == "bearer" else None)
            needs_token = False
        if kinds:
            self._require_fit(request, kind, kinds)
        if not (is_form or needs_token) or self._is_open(path):
            return request.scope, request.receive

        try:
            body = await request.body()
        except ClientDisconnect:
            raise HTTPException(CLIENT_GONE, "the client has closed the connection") from None
        if is_form:
            values = state.form = forms.read(request.headers["content-type"], body)
        else:
            values = _json_object(body)
            state.is_libre = dialect_of(values) == LIBRE
        if needs_token:
            self._require_token(request, values.get("api_key"))
        scope = request.scope
        if is_form and path == "/translate":
            body = json.dumps(values, default=_refuse_file).encode()
            scope = {**scope, "headers": [*scope["headers"]]}
            MutableHeaders(scope=scope)["Content-Type"] = JSON
        return scope, _again(body, request.receive)

    def _require_token(self, request: Request, token: Any) -> None:
        """
        Raises:
            HTTPException: it is the token of no user.
        """
        user = self._access.tokens.user_of(token) if isinstance(token, str) else None
        if user is None:
            raise HTTPException(
                401,
                "this service needs a token: send the header `Authorization: Bearer TOKEN`, or in "
                "LibreTranslate's form the key api_key",
                {"WWW-Authenticate": "Bearer"},
            )
        request.state.user = user

    def _require_fit(self, request: Request, kind: str, kinds: Iterable[str]) -> None:
        """
        Raises:
            HTTPException: the request is of another kind, too large, or a form of a foreign page.
        """
        if kind not in kinds:
            if JSON in kinds:
                raise HTTPException(415, f"expected JSON: send the header `Content-Type: {JSON}`")
            raise HTTPException(415, f"expected a form with a file: {forms.MULTIPART}")
        if int(request.headers.get("content-length", "0")) > self._max_body:
            raise HTTPException(413, self._too_large)
        # A browser asks for permission before a page sends JSON, but not before it sends a form.
        origin = request.headers.get("origin")
        if kind == JSON or origin is None or origin in self._access.origins:
            return
        if origin.partition("://")[2] != request.headers.get("host"):
            raise HTTPException(403, "pages of other sites may not use this service")


def _json_object(body: bytes) -> dict[str, Any]:
    """The object that a body is, or an empty one if it is something else. What is wrong with it is
    told later, to those who have a token."""
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _refuse_file(value: object) -> NoReturn:
    raise HTTPException(400, "this address translates text. For files, there is /translate_file")


def _again(body: bytes, receive: Receive) -> Receive:
    """Receives a body that was received already, and then what comes after it."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again

"""Who may ask, and how a request has to arrive: what is decided before anything is computed.

Browsers are the danger. A page of any site can make the browser of whoever looks at it send
requests to this service. So a request that comes from a page of another site is refused (its Origin
header), and so is one for a name that is not this service's (its Host header): a site can give its
own name the address of this machine (DNS rebinding), and its pages then count as the service's.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Receive

from transformer_mt.config.problems import printable
from transformer_mt.serving.refusals import ClientGone, Refusal
from transformer_mt.utils.errors import UsageError

# The seconds in which the whole body of a request must arrive.
BODY_SECONDS = 20.0
# All bodies in memory together have at most this many times the size of the largest one that is
# allowed. The first bytes of each are not counted, so that large ones do not keep small ones out.
BODIES = 64
NOT_COUNTED = 1 << 16
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:/?#@\s]+)(:[0-9]+)?")


@dataclass(frozen=True)
class Access:
    """Who may ask.

    Attributes:
        hosts: the names of this service in lower case, besides localhost and IP addresses.
        origins: the other origins whose pages may ask, such as https://example.com.
        token: the secret that requests must have, or None.
    """

    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    token: str | None = None

    def check_sender(self, headers: Headers) -> None:
        """
        Raises:
            Refusal: the Host or the Origin header is not one of this service (403).
        """
        host, origin = headers.get("host", "").lower(), headers.get("origin", "").lower()
        # A request without a Host header does not come from a browser.
        if "host" in headers and not self._is_own(host):
            raise Refusal(
                403,
                f"{printable(host)} is not a name of this service. If it is meant to be one, start "
                f"the service with --allow-origin http://{printable(host)}",
            )
        # A proxy may add TLS, so that the pages of the service itself can have both schemes.
        own = (f"http://{host}", f"https://{host}")
        if "origin" in headers and origin not in own and not self.allows(origin):
            raise Refusal(
                403,
                f"pages of {printable(origin)} may not use this service. To let them, start it "
                f"with --allow-origin {printable(origin)}",
            )

    def check_token(self, headers: Headers) -> None:
        """
        Raises:
            Refusal: there is a token, and the request does not have it (401).
        """
        if self.token is None:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        is_right = hmac.compare_digest(given.strip().encode(), self.token.encode())
        if not is_right or scheme.lower() != "bearer":
            raise Refusal(
                401,
                "this service needs a token: send the header `Authorization: Bearer TOKEN`",
                WWW_Authenticate="Bearer",
            )

    def allows(self, origin: str | None) -> bool:
        """Whether an origin is one of the others whose pages may ask."""
        return origin is not None and origin.lower() in self.origins

    def _is_own(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(match[1].strip("[]"))
            return True
        return match[1] == "localhost" or match[1] in self.hosts


def read_origin(text: str) -> str:
    """Returns an origin in the form in which browsers send it.

    Raises:
        UsageError: it is not one.
    """
    with contextlib.suppress(ValueError):  # a bracket that is not closed, or a port above 65535
        parts = urlsplit(text.lower())
        is_bare = parts.path in ("", "/") and not parts.query and not parts.fragment
        # A browser writes a name with other letters as xn--..., and sends no wildcard.
        is_plain = text.isascii() and text.isprintable() and "*" not in text
        if (
            is_plain
            and parts.port != 0
            and parts.scheme in ("http", "https")
            and _HOST.fullmatch(parts.netloc)
            and is_bare
        ):
            default = {"http": ":80", "https": ":443"}[parts.scheme]
            return f"{parts.scheme}://{parts.netloc.removesuffix(default)}"
    raise UsageError(
        f"--allow-origin {text}: expected the beginning of an address, as in https://example.com "
        "or http://example.com:8080"
    )


def host_of(origin: str) -> str:
    """The name in an origin, without its port."""
    match = _HOST.fullmatch(urlsplit(origin).netloc)
    assert match is not None
    return match[1]


class Bodies:
    """Reads the bodies of requests, so that none is too large, too slow, or one too many.

    Args:
        largest: the greatest number of bytes of a body.
    """

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._room = BODIES * largest  # counted bytes that may still be read

    @contextlib.asynccontextmanager
    async def read(self, headers: Headers, receive: Receive) -> AsyncIterator[bytes]:
        """Reads the body of a request, which counts as in memory until the end of the block.

        Raises:
            Refusal: it is not JSON (415), too large (413), too slow (408), or too many are in
                memory (503).
            ClientGone: the client has closed the connection.
        """
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refusal(415, "expected JSON: send the header `Content-Type: application/json`")
        length = headers.get("content-length", "0")
        if len(length) > 18 or int(length) > self._largest:
            raise self._too_large()
        body = bytearray()
        try:
            try:
                await asyncio.wait_for(self._read_into(body, receive), BODY_SECONDS)
            except asyncio.TimeoutError:
                detail = f"the request did not arrive within {BODY_SECONDS:g} s. Send less at once"
                raise Refusal(408, detail) from None
            yield bytes(body)
        finally:
            self._room += _counted(body)

    async def _read_into(self, body: bytearray, receive: Receive) -> None:
        is_whole = False
        while not is_whole:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            before = _counted(body)
            body += message.get("body", b"")
            self._room -= _counted(body) - before
            if len(body) > self._largest:
                raise self._too_large()
            if self._room < 0:
                detail = "too many large requests arrive at once. Try again later"
                raise Refusal(503, detail, Retry_After="2")
            is_whole = not message.get("more_body", False)

    def _too_large(self) -> Refusal:
        return Refusal(
            413,
            f"the request is larger than {self._largest:,} bytes. Send the text in several "
            "requests",
        )


def _counted(body: bytearray) -> int:
    return max(0, len(body) - NOT_COUNTED)

"""Who may use the service, and how much a request may ask for."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from urllib.parse import urlsplit

from transformer_mt.utils.errors import UsageError


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


@dataclass(frozen=True)
class Access:
    """Who may ask.

    Attributes:
        hosts: the names that a request may give the service in its Host header; "*" stands for all.
            A site can give its own name the address of this machine, and its pages then count as
            the service's (DNS rebinding), unless the names are limited.
        origins: the origins of other pages that may ask, such as https://example.com.
        token: the secret that requests must have, or None.
    """

    hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "[::1]")
    origins: tuple[str, ...] = ()
    token: str | None = None


def read_origin(text: str) -> str:
    """Returns an origin in the form in which browsers send it.

    Raises:
        UsageError: it is not one.
    """
    with contextlib.suppress(ValueError):  # a bracket that is not closed, or a port above 65535
        parts = urlsplit(text.lower())
        is_bare = parts.path in ("", "/") and not parts.query and not parts.fragment
        # A browser writes a name with other letters as xn--..., and sends no wildcard.
        is_plain = text.isascii() and text.isprintable() and not set(text) & set("*@ ")
        is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        if is_bare and is_plain and is_address and not parts.netloc.endswith(":"):
            default = {"http": ":80", "https": ":443"}[parts.scheme]
            return f"{parts.scheme}://{parts.netloc.removesuffix(default)}"
    raise UsageError(
        f"--allow-origin {text}: expected the beginning of an address, as in https://example.com "
        "or http://example.com:8080"
    )


def host_of(origin: str) -> str:
    """The name in an origin, without its port."""
    name = urlsplit(origin).hostname or ""
    return f"[{name}]" if ":" in name else name

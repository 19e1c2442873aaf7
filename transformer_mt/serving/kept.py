"""What the service has made and keeps for a while, under names that nobody can guess."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass

from starlette.exceptions import HTTPException

# The bytes of all that is kept in one place, and for how many seconds.
KEPT_BYTES = 1 << 26
KEPT_SECONDS = 600


@dataclass(frozen=True)
class File:
    """A file that was made, or that a client has sent."""

    name: str
    content: bytes


class Kept:
    """Files by their random names. Whoever has a name needs no token for the file.

    Args:
        what: what a file is called in messages.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._files: dict[str, File] = {}  # the oldest first

    def add(self, file: File) -> str:
        """Keeps a file, and drops the oldest ones if there is no room. Returns its random name."""
        name = secrets.token_urlsafe(16)
        self._files[name] = file
        while sum(len(one.content) for one in self._files.values()) > KEPT_BYTES:
            del self._files[next(iter(self._files))]
        asyncio.get_running_loop().call_later(KEPT_SECONDS, self._files.pop, name, None)
        return name

    def get(self, name: str) -> File:
        """
        Raises:
            HTTPException: there is no such file, or no longer.
        """
        if name not in self._files:
            minutes = KEPT_SECONDS // 60
            raise HTTPException(
                404,
                f"this {self._what} is gone: {self._what}s are kept for {minutes} minutes. Ask for "
                "it again",
            )
        return self._files[name]

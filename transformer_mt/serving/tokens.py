"""The tokens that requests must have, and the users whom they belong to."""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Mapping
from pathlib import Path

from transformer_mt.utils.console import say
from transformer_mt.utils.errors import UsageError

_NAME = re.compile(r"[\w.@+-]{1,64}")
_TOKEN = re.compile("[!-~]+")


class Tokens:
    """The tokens of the users.

    A file of tokens is read again when it has changed, so that users come and go without a restart.
    If it can't be read then, the tokens stay as they were, and the log says why.

    Args:
        users: the token of each user. The name "" stands for whoever has the only token there is.
        file: where they come from, as `read` reads it.
    """

    def __init__(self, users: Mapping[str, str], file: Path | None = None) -> None:
        self._users, self._file = users, file
        self._seen = _version(file) if file else None

    @classmethod
    def read(cls, file: Path) -> Tokens:
        """The tokens of a file, which has one user per line: NAME:TOKEN.

        Raises:
            UsageError: the file can't be read, or a line is wrong.
        """
        tokens = cls({}, file)  # It has looked at the version before the file is read.
        tokens._users = _users_of(file)
        return tokens

    def user_of(self, token: str) -> str | None:
        """The user whom a token belongs to, or None. The time that this takes tells nothing about
        the tokens."""
        self._read_again()
        given, found = token.encode("utf-8", "surrogatepass"), None
        for name, known in self._users.items():
            if hmac.compare_digest(given, known.encode()):
                found = name
        return found

    def _read_again(self) -> None:
        if self._file is None or (version := _version(self._file)) == self._seen:
            return
        self._seen = version
        try:
            self._users = _users_of(self._file)
        except UsageError as error:
            say(f"warning: {error}. The tokens stay as they were")
        else:
            say(f"{self._file} has changed: tokens of {', '.join(self._users)}")


def require_token(token: str, where: str) -> str:
    """Returns a token that fits into a header.

    Raises:
        UsageError: it does not. The message names its place, and does not show the secret.
    """
    if not _TOKEN.fullmatch(token):
        raise UsageError(
            f"{where}: a token consists of ASCII letters, digits and signs, without spaces. "
            "`openssl rand -hex 16` prints a good one"
        )
    return token


def _version(file: Path) -> tuple[int, ...] | None:
    """What differs after the file was changed or replaced; None if there is no such file."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _users_of(file: Path) -> dict[str, str]:
    """
    Raises:
        UsageError: the file can't be read, or a line is wrong.
    """
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
        mode = file.stat().st_mode
    except (OSError, UnicodeError):
        raise UsageError(f"--tokens {file}: the file can't be read") from None
    users: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        where = f"--tokens {file}, line {number}"
        name, colon, token = line.partition(":")
        if not colon or not _NAME.fullmatch(name):
            raise UsageError(
                f"{where}: expected NAME:TOKEN. A name has at most 64 letters, digits, and the "
                "signs . @ + - _"
            )
        if name in users:
            raise UsageError(f"{where}: {name} has a token already. Give each user one line")
        token = require_token(token, where)
        if token in users.values():
            raise UsageError(f"{where}: another user has this token already. Make a new one")
        users[name] = token
    if not users:
        raise UsageError(f"--tokens {file}: there is no user. Add a line NAME:TOKEN")
    if mode & 0o044:
        say(f"warning: --tokens {file}: other users of this machine can read it. `chmod 600` it")
    return users

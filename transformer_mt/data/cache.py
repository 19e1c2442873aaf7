"""The cache folder (data.cache). Every entry is made once, completely or not at all.

Several processes may need the same entry at the same time, even on several machines that share a
file system. The first one makes it, and the others wait and then find it.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from transformer_mt.utils.console import say
from transformer_mt.utils.errors import UserError
from transformer_mt.utils.files import clear_leftovers, open_locked
from transformer_mt.utils.folders import published, verify


def entry_name(*made_from: object) -> str:
    """Returns the name of an entry: a hash of everything that the entry is made from."""
    return hashlib.sha256(repr(made_from).encode()).hexdigest()[:32]


def entry(folder: Path, make: Callable[[Path], None]) -> Path:
    """Returns a folder of the cache. If it is missing or damaged, `make` writes it anew.

    A complete entry is neither locked nor written to, so a cache can be read-only.

    Raises:
        UserError: the cache cannot be written or locked. Errors of `make` are passed on.
    """
    if verify(folder) is None:
        return folder
    with _locked(folder.parent):
        # Another process may have made the entry while this one waited.
        if verify(folder) is None:
            return folder
        if folder.is_dir():
            say(f"{folder} is damaged; it is made again")
        # Leftovers of other entries are removed too, because those may never be made again.
        clear_leftovers(folder.parent)
        new = None
        try:
            with published(folder) as new:
                make(new)
        except OSError as error:
            # An error of a write names no file. One that names another file came from the text.
            if new and error.filename and new not in (path := Path(error.filename), *path.parents):
                raise
            raise _not_writable(folder, error) from None
    return folder


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """Holds the one lock of the cache. Prints that it waits, if another process holds it."""
    path, flags = cache / ".lock", os.O_RDWR | os.O_CREAT
    lock = None
    while lock is None:
        try:
            cache.mkdir(parents=True, exist_ok=True)
            try:
                lock = open_locked(path, flags)
            except BlockingIOError:
                say(f"another process prepares data in {cache}; waiting for it ...")
                with suppress(FileNotFoundError):  # the folder was deleted meanwhile
                    lock = open_locked(path, flags, wait=True)
        except OSError as error:
            raise _not_writable(cache, error) from None
    try:
        yield
    finally:
        os.close(lock)


def _not_writable(path: Path, error: OSError) -> UserError:
    return UserError(f"data.cache: {path}: can't be written: {error.strerror or error}")


class CachedArrays:
    """What is read from an entry of the cache: `facts`, from facts.json, and arrays, which a
    subclass loads. It is pickled by its folder, so that another process maps the files itself.

    Raises:
        UserError: the files do not belong together, although the content of each is undamaged.
    """

    name = "facts"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self.facts: dict[str, Any] = json.loads((folder / "facts.json").read_text())
            self._load(folder)
        except (OSError, EOFError, ValueError, LookupError, TypeError) as error:
            raise UserError(
                f"{folder}: damaged {self.name} ({error}). Delete the folder; it is made again"
            ) from None

    def _load(self, folder: Path) -> None:
        """Loads the arrays. There are none by default."""

    @property
    def key(self) -> str:
        """A hash of everything that the arrays were made from."""
        return self._folder.name

    def __reduce__(self) -> tuple[type, tuple[Path]]:
        return type(self), (self._folder,)

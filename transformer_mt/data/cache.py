"""The cache folder (data.cache): every entry is made once, whole or not at all.

Several processes, also of several machines that share a file system, may want the same entry at
the same time: the first makes it, and the others wait and then find it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from transformer_mt.runtime.checksums import damage, write_checksums
from transformer_mt.runtime.console import say
from transformer_mt.runtime.errors import UserError
from transformer_mt.runtime.files import open_lock

# Nothing takes a day to make.
ABANDONED_AFTER = 24 * 3600  # seconds
# Most waits are over before a person would wonder.
PATIENCE = 1.0  # seconds


def entry(folder: Path, make: Callable[[Path], None]) -> Path:
    """A folder of the cache. If it is missing or damaged, `make` writes it anew.

    A whole entry is neither locked nor written to, so a cache can be read-only.

    Raises:
        UserError: the cache can't be written or locked. Errors of `make` are passed on.
    """
    if damage(folder) is None:
        return folder
    with _locked(folder.parent):
        # Another process may have made it while this one waited.
        if damage(folder) is not None:
            if folder.is_dir():
                say(f"{folder} is damaged; it is made anew")
            _make(folder, make)
    return folder


def _make(folder: Path, make: Callable[[Path], None]) -> None:
    temporary = None
    try:
        _clear_abandoned(folder.parent)
        temporary = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
        make(temporary)
        write_checksums(temporary)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(temporary, folder)
    except OSError as error:
        # A write that fails names no file; an error that names another one came from the text.
        if temporary and error.filename and not _is_in(temporary, Path(error.filename)):
            raise
        raise _not_writable(folder, error) from None
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _is_in(folder: Path, path: Path) -> bool:
    return folder in (path, *path.parents)


def _clear_abandoned(cache: Path) -> None:
    """Removes what processes that were killed at their work have left behind."""
    for folder in cache.glob(".building-*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > ABANDONED_AFTER:
                shutil.rmtree(folder)


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """Holds the one lock of the cache, which ends with the process if nothing else ends it."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        file = open_lock(cache / ".lock")
    except OSError as error:
        raise _not_writable(cache, error) from None
    with file:
        _wait_for(file, cache)
        yield


def _wait_for(file, cache: Path) -> None:
    started = time.monotonic()
    said = False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pass
        except OSError as error:
            raise UserError(
                f"data.cache: {cache}: can't be locked: {error.strerror}. Give data.cache=FOLDER, "
                "a folder of a file system that has locks"
            ) from None
        if not said and time.monotonic() - started > PATIENCE:
            say(f"another process prepares data in {cache}; waiting for it ...")
            said = True
        time.sleep(0.1)


def _not_writable(path: Path, error: OSError) -> UserError:
    return UserError(f"data.cache: {path}: can't be written: {error.strerror or error}")

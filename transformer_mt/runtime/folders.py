"""Folders that are written completely or not at all, and that replace others at one moment."""

import ctypes
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from transformer_mt.runtime.checksums import write_checksums
from transformer_mt.runtime.files import clear_leftovers, flush_to_disk
from transformer_mt.runtime.locks import open_locked

# Constants of Linux's fcntl.h and fs.h.
AT_FDCWD = -100
RENAME_EXCHANGE = 2


@contextmanager
def published(path: Path) -> Iterator[Path]:
    """Yields a new folder for the block to write into. When the block ends, checksums of its files
    are added, and it replaces `path`. If the block fails, the new folder is deleted.

    An earlier `path` stays complete until it is replaced, even if the power is cut. What a killed
    process has left of such a new folder is deleted.

    Raises:
        OSError: the folder can't be written.
    """
    final = Path(os.path.realpath(path))
    new = final.with_name(f".{final.name}.{os.getpid()}.tmp")
    parent_is_new = not final.parent.exists()
    descriptor = None
    try:
        new.parent.mkdir(parents=True, exist_ok=True)
        clear_leftovers(final.parent, final.name)
        new.mkdir()
        descriptor = open_locked(new, os.O_RDONLY, wait=True, optional=True)
        yield new
        write_checksums(new)
        for file in (*new.iterdir(), new):
            flush_to_disk(file)
        if final.exists():
            _exchange(new, final)
        else:
            new.rename(final)
        flush_to_disk(final.parent)
    finally:
        if descriptor is not None:
            os.close(descriptor)
        # After a failure this is the incomplete folder, and otherwise the one that was replaced.
        shutil.rmtree(new, ignore_errors=True)
        if parent_is_new:
            with suppress(OSError):  # it is not empty
                final.parent.rmdir()


def _exchange(new: Path, old: Path) -> None:
    """Exchanges the names of two folders, in one step if Linux and the file system support it."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    paths = os.fsencode(new), os.fsencode(old)
    if renameat2 and not renameat2(AT_FDCWD, paths[0], AT_FDCWD, paths[1], RENAME_EXCHANGE):
        return
    aside = new.with_name(f"{new.name}.old")
    old.rename(aside)
    try:
        new.rename(old)
    except OSError:
        aside.rename(old)
        raise
    aside.rename(new)

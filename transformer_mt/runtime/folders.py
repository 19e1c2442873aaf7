"""Folders that appear whole or not at all, and that take the place of others at one moment."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from transformer_mt.runtime.checksums import write_checksums
from transformer_mt.runtime.files import clear_leftovers, flush_to_disk
from transformer_mt.runtime.locks import open_locked

# Of Linux' fcntl.h and fs.h.
AT_FDCWD = -100
RENAME_EXCHANGE = 2


@contextmanager
def published(path: Path) -> Iterator[Path]:
    """A new folder for the block to write into. It takes the place of `path` when the block ends,
    with the checksums of its files, and is deleted if the block fails.

    Whatever was there before stays until then, even through a power cut. What a killed process has
    left of such a folder is deleted.

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
        # What was not whole, or what was replaced.
        shutil.rmtree(new, ignore_errors=True)
        if parent_is_new:
            with suppress(OSError):  # the folder is in it
                final.parent.rmdir()


def _exchange(new: Path, old: Path) -> None:
    """Each takes the other's name, at one moment where Linux and the file system can do that."""
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

"""The lock of this package: on a file or folder that is open, between processes.

The kernel releases a lock when the process that holds it ends, however it ends. (A library of lock
files cannot lock the file that is being written, or a folder, as is done here.)
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def open_locked(path: Path, flags: int, *, wait: bool = False, optional: bool = False) -> int:
    """Opens a file or a folder, and locks it.

    A link is not followed, because what it leads to is not ours to open.

    Args:
        flags: as in `os.open`.
        wait: whether to wait until no other process holds the lock.
        optional: whether to do without a lock where the file system has none.

    Returns: the descriptor, which holds the lock until it is closed.

    Raises:
        BlockingIOError: another process holds it, and `wait` is not set.
        OSError: it cannot be opened or locked.
    """
    while True:
        descriptor = os.open(path, flags | os.O_NOFOLLOW, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except OSError as error:
                if not optional or isinstance(error, BlockingIOError):
                    raise
            # The process that held the lock may have removed or renamed the file meanwhile.
            if is_open_at(path, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def is_open_at(path: Path, descriptor: int) -> bool:
    """Whether a path names the file or folder that is open."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False

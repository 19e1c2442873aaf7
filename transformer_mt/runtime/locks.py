"""Locks between processes, on open files and folders.

The kernel releases a lock when the process that holds it ends in any way. (Libraries of lock files,
such as filelock, cannot lock a folder, or the very file that is being written.)
"""

import fcntl
import os
from pathlib import Path


def open_locked(path: str | Path, flags: int, *, wait: bool = False, optional: bool = False) -> int:
    """Opens a file or a folder, and locks it.

    A link is not followed: it may lead to a file that belongs to somebody else.

    Args:
        flags: as in `os.open`.
        wait: whether to wait until no other process holds the lock.
        optional: whether to continue without a lock if the file system does not support locks.

    Returns: the descriptor. It holds the lock until it is closed.

    Raises:
        BlockingIOError: another process holds it, and `wait` is not set.
        OSError: it cannot be opened or locked.
    """
    while True:
        descriptor = os.open(path, flags | os.O_NOFOLLOW, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise
            except OSError as error:
                if not optional:
                    reason = f"{error.strerror}: it can't be locked. Give a folder on a file system"
                    raise OSError(error.errno, f"{reason} that has locks") from None
            # The process that held the lock may have deleted or renamed the file meanwhile. Then a
            # lock on it protects nothing, and the file that has its name now is opened.
            if is_open_at(path, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def is_open_at(path: str | Path, descriptor: int) -> bool:
    """Returns whether a path still names the open file or folder."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False

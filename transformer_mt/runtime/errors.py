"""What can go wrong for a user, the exit code of each, and what is said of it.

Exit codes, the same for every verb: 0 done, 1 failed, 2 wrong config or arguments (a named file
that does not exist counts as that), 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP (the terminal was lost).
"""

from __future__ import annotations

import errno
import re


class UserError(Exception):
    """Something the user can mend; its text says what, where, and what to do. Exit code 1."""

    exit_code = 1


class UsageError(UserError):
    """The config or an argument is wrong; nothing was written. Exit code 2."""

    exit_code = 2


class Interrupted(BaseException):
    """The process was asked to stop. Exit code 128 + the signal's number: 130, 143 or 129.

    It derives from BaseException, as KeyboardInterrupt does, so that no handler of ordinary errors
    swallows it.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.exit_code = 128 + signal_number


# Where in gloo, which connects the training processes on CPUs, an error comes from.
_IN_GLOO = re.compile(r"\[[^\s\[\]]*gloo/[\w./]+\.(?:cc|h):\d+\]")


def describe(error: Exception) -> str:
    """What to tell a person of any error, without a traceback."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"the disk is full ({error.filename or 'while writing'}). Free some space"
    if is_out_of_memory(error):
        return "out of memory. Lower training.device_tokens or decoding.batch_tokens"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    if is_lost_connection(error):
        return "another of the training processes has ended; what it said tells why"
    if isinstance(error, FileNotFoundError) and "temporary directory" in str(error.strerror):
        return f"{error.strerror}. Free some space there, or set TMPDIR to a folder with space"
    first_line = str(error).strip().split("\n")[0]
    return (
        f"{type(error).__name__}: {first_line}\nThis should not happen. "
        "TRANSFORMER_MT_DEBUG=1 shows where it did; please report it with that"
    )


def is_lost_connection(error: Exception) -> bool:
    """Whether another training process is gone or does not answer, as gloo says it."""
    return _IN_GLOO.search(str(error)) is not None


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out, a GPU's (as Paddle says it) or the machine's."""
    said = str(error)
    return isinstance(error, MemoryError) or "ResourceExhausted" in said or "out of memory" in said

"""Errors, the exit code of each, and the message that describes it.

Every command has the same exit codes: 0 done, 1 failed, 2 wrong config or arguments (including a
file that does not exist), 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP (the terminal was lost).
"""

import errno
import re


class UserError(Exception):
    """An error that the user can correct. Its text says what is wrong, where, and what to do. Exit
    code 1."""

    exit_code = 1


class UsageError(UserError):
    """The config or an argument is wrong; nothing was written. Exit code 2."""

    exit_code = 2


class Interrupted(BaseException):
    """The process was asked to stop. The exit code is 128 + the signal's number: 130, 143 or 129.

    Like KeyboardInterrupt, it derives from BaseException, so that handlers of ordinary errors do
    not catch it.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.exit_code = 128 + signal_number


# The optional packages of pyproject.toml: what they are for, as `pip install` has it.
_EXTRAS = {
    **dict.fromkeys(("fastapi", "fastapi_offline", "prometheus_client", "uvicorn"), "serve"),
    "matplotlib": "report",
    "ctranslate2": "ctranslate2",
    "snowballstemmer": "terms",
}
# The place in the source of gloo that an error names. Gloo connects training processes on CPUs.
_IN_GLOO = re.compile(r"\[[^\s\[\]]*gloo/[\w./]+\.(?:cc|h):\d+\]")


def describe(error: Exception) -> str:
    """Returns a message about any error, without a traceback."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"the disk is full ({error.filename or 'while writing'}). Free some space"
    if is_out_of_memory(error):
        return "out of memory. Lower training.device_tokens or decoding.batch_tokens"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and not missing.startswith("transformer_mt"):
        extra = _EXTRAS.get(missing.split(".")[0])
        return f"the package {missing} is needed, and is not installed in this environment. " + (
            f"Install it with: python -m pip install 'transformer-mt[{extra}]'"
            if extra
            else "scripts/setup.sh makes an environment that has all packages"
        )
    if is_lost_connection(error):
        return "another of the training processes has ended; its message says why"
    if isinstance(error, FileNotFoundError) and "temporary directory" in str(error.strerror):
        return f"{error.strerror}. Free some space there, or set TMPDIR to a folder with space"
    first_line = str(error).strip().split("\n")[0]
    return (
        f"{type(error).__name__}: {first_line}\nThis should not happen. "
        "TRANSFORMER_MT_DEBUG=1 shows where it did; please report it with that"
    )


def is_lost_connection(error: Exception) -> bool:
    """Returns whether gloo reports that another training process is gone or does not answer."""
    return _IN_GLOO.search(str(error)) is not None


def is_out_of_memory(error: Exception) -> bool:
    """Returns whether the memory of the machine, or of a GPU (as Paddle reports it), ran out."""
    text = str(error)
    return isinstance(error, MemoryError) or "ResourceExhausted" in text or "out of memory" in text

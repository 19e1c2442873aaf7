"""`python -m transformer_mt`, and the command `transformer-mt`."""

import gc
import os
import signal
import sys
from pathlib import Path


def stop(number: int, frame: object) -> None:
    """Ends a process that has not begun its work, or has done it: there is nothing to lose."""
    os.write(2, b"interrupted\n")
    os._exit(128 + number)


def run() -> int:
    """Runs the command line; returns the exit code."""
    # Signals come before the other imports, which take a while.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)
    from transformer_mt.cli import main

    exit_code = main()
    # Otherwise Python would look through all objects of the libraries for garbage when it ends.
    gc.freeze()
    return exit_code


if not __package__:
    # Paddle's launcher runs a file, whose folder Python then searches first: our modules would
    # stand in front of the library's of the same names.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

if __name__ == "__main__":
    sys.exit(run())

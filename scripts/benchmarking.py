"""What the benchmark scripts share; there is nothing to run here."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

# Paddle is not imported here: it is set up in different ways, each in a process of its own.

ROOT = Path(__file__).resolve().parents[1]


class Failure(Exception):
    """A benchmark can't go on; the text says why."""


def exit_code(work: Callable[[], None]) -> int:
    """Runs a benchmark; what ends it early is said in a line, after its folder has been removed
    and its processes have been ended."""
    # As Ctrl-C does it.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        work()
    except (Failure, OSError) as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    return 0


# ------------------------------------------------------------------------------------ processes


def program(*arguments: object) -> str:
    """What `python -m transformer_mt` says on stdout; the rest goes to stderr as it comes.

    Raises:
        Failure: it has failed.
    """
    command = [sys.executable, "-m", "transformer_mt", *map(str, arguments)]
    said = " ".join(command[2:])
    say(said)
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise Failure(f"{said}: exit code {done.returncode}")
    return done.stdout


class Side:
    """An object in a process of its own, which works while it is asked and sleeps in between."""

    def __init__(self, folder: Path, threads: int, kind: type, *arguments: Any) -> None:
        # What Paddle and PaddleNLP have to say is kept for the case that the process dies.
        self._log = folder / f"{kind.__name__}.log"
        context = multiprocessing.get_context("spawn")
        self._connection, its_end = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(its_end, self._log, threads, kind, arguments), daemon=True
        )
        self._process.start()
        its_end.close()

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *exception: object) -> None:
        self._connection.close()  # where the process waits, it ends by that
        self._process.join(timeout=3)
        self._process.kill()
        self._process.join()

    def ask(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the object and waits for what it returns.

        Raises:
            Failure: the process has died, or the method has raised something.
        """
        with contextlib.suppress(BrokenPipeError):  # it has failed, and may have said why
            self._connection.send((method, arguments))
        try:
            answer, error = self._connection.recv()
        except (EOFError, OSError):
            raise Failure(f"a process was killed:\n{tail(self._log)}") from None
        if error:
            raise Failure(error)
        return answer


def _serve(connection, log: Path, threads: int, kind: type, arguments: tuple) -> None:
    # Ctrl-C is the parent's to handle, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    try:
        served = kind(*arguments)
        while True:
            method, its_arguments = connection.recv()
            connection.send((getattr(served, method)(*its_arguments), None))
    except EOFError:  # the parent is gone
        pass
    except Exception as error:
        connection.send((None, f"{type(error).__name__}: {error}"))


def tail(log: Path) -> str:
    return log.read_text(errors="replace").strip()[-1000:]


def clear_settings() -> None:
    """Removes what is set for Paddle and its libraries: each side brings its own, or none."""
    for name in list(os.environ):
        if name.startswith(("FLAGS_", "OMP_", "MKL_", "KMP_", "MALLOC_", "GLIBC_TUNABLES")):
            del os.environ[name]


# --------------------------------------------------------------------------------------- output


def spread(values: list[float], form: str) -> str:
    """The median and the extremes of some values, each formatted with `form`."""
    median, least, greatest = (format(f(values), form) for f in (np.median, min, max))
    return f"{median} ({least}–{greatest})"


def table(header: list[str], lines: list[list[str]]) -> str:
    rule = ["---"] * len(header)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [header, rule, *lines])


def machine(*packages: str) -> str:
    """The cores and the versions of packages that figures were measured with."""
    processors = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    processor = processors[0] if processors else "an unknown processor"
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    return f"{cores()} cores of {processor}; {versions}."


def cores() -> int:
    return len(os.sched_getaffinity(0))


def say(message: str) -> None:
    print(time.strftime("%H:%M:%S"), message, file=sys.stderr, flush=True)

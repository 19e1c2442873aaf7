"""Runs the steps of a row, one after another, and remembers which are done."""

from __future__ import annotations

import json
import os
import resource
import shlex
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from transformer_mt import __version__
from transformer_mt.utils import signals
from transformer_mt.utils.console import say, warn
from transformer_mt.utils.errors import UserError

from .row import ROOT

# One line for each time that a step ran, in the folder of a row.
LOG = "steps.jsonl"


@dataclass(frozen=True)
class Run:
    """A step that ran.

    Attributes:
        command: its arguments.
        exit_code: 0 if it is done; otherwise it is run again.
        seconds: how long it ran.
        cpu_seconds: how long the cores worked for it, in all its processes.
        version: that of this program.
    """

    command: list[str]
    exit_code: int
    seconds: float
    cpu_seconds: float
    version: str


def runs_of(folder: Path) -> list[Run]:
    """Returns what ran in the folder of a row, oldest first. Damaged lines are left out: what they
    stood for runs again, and finds its own work done."""
    path, runs = folder / LOG, []
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else (), 1):
        try:
            runs.append(Run(**json.loads(line)))
        except (ValueError, TypeError):
            warn(f"{path}, line {number}: damaged; its step runs again")
    return runs


def run_all(commands: list[list[str]], folder: Path) -> None:
    """Runs the commands that are not done yet. A step that was interrupted continues where it was,
    because each command of the program does.

    Raises:
        UserError: a step failed; its own message was printed.
        Interrupted: a signal stopped it. The step has saved its work.
    """
    folder.mkdir(parents=True, exist_ok=True)
    done = [run.command for run in runs_of(folder) if run.exit_code == 0]
    for number, command in enumerate(commands, 1):
        shown = f"step {number} of {len(commands)}: {shlex.join(command)}"
        if command in done:
            say(f"{shown}: done before")
            continue
        say(shown)
        _run(command, folder)


def _run(command: list[str], folder: Path) -> None:
    with signals.held_back():
        exit_code = _run_held_back(command, folder)
    if exit_code:
        raise UserError(
            f"the step ended with exit code {exit_code}: {shlex.join(command)}\n"
            "When its cause is mended, repeat the command: it continues with this step"
        )


def _run_held_back(command: list[str], folder: Path) -> int:
    """Runs a command while signals are held back, hands them on to it, and remembers it.

    Returns: its exit code.
    """
    began, cpu_began = time.monotonic(), _cpu_seconds()
    # In a session of its own, it receives each signal once, from here, also one of a terminal.
    process = subprocess.Popen(
        [sys.executable, "-m", "transformer_mt", *command],
        cwd=ROOT,
        start_new_session=True,
        preexec_fn=partial(signals.end_with_parent, os.getpid()),
    )
    exit_code, sent = None, None
    while exit_code is None:
        try:
            exit_code = process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            if (number := signals.pending()) != sent:
                process.send_signal(number)
                sent = number
    run = Run(
        command=command,
        exit_code=exit_code,
        seconds=round(time.monotonic() - began, 1),
        cpu_seconds=round(_cpu_seconds() - cpu_began, 1),
        version=__version__,
    )
    with open(folder / LOG, "a+b") as file:
        # A process that was killed may have left a part of a line.
        file.seek(max(0, file.tell() - 1))
        end = b"" if file.read(1) in (b"", b"\n") else b"\n"
        file.write(end + json.dumps(asdict(run)).encode() + b"\n")
    return exit_code


def _cpu_seconds() -> float:
    """Returns how long the cores worked for processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime

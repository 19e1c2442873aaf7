"""Runs the steps of a row, one after another, and remembers which are done."""

from __future__ import annotations

import json
import resource
import shlex
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from transformer_mt import __version__
from transformer_mt.runtime.console import say
from transformer_mt.runtime.errors import UserError

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
    """Returns what ran in the folder of a row, oldest first."""
    path = folder / LOG
    if not path.exists():
        return []
    return [Run(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def run_all(commands: list[list[str]], folder: Path) -> None:
    """Runs the commands that are not done yet. A step that was interrupted continues where it was,
    because each command of the program does.

    Raises:
        UserError: a step failed; its own message was printed.
        KeyboardInterrupt: Ctrl-C. The step has saved its work.
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
    began, cpu_began = time.monotonic(), _cpu_seconds()
    process = subprocess.Popen([sys.executable, "-m", "transformer_mt", *command], cwd=ROOT)
    is_interrupted = False
    while True:
        try:
            exit_code = process.wait()
            break
        except KeyboardInterrupt:  # which the step has received too, and it saves its work now
            is_interrupted = True
    run = Run(
        command=command,
        exit_code=exit_code,
        seconds=round(time.monotonic() - began, 1),
        cpu_seconds=round(_cpu_seconds() - cpu_began, 1),
        version=__version__,
    )
    with open(folder / LOG, "a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(run)) + "\n")
    if is_interrupted:
        raise KeyboardInterrupt
    if exit_code:
        raise UserError(
            f"the step ended with exit code {exit_code}: {shlex.join(command)}\n"
            "When its cause is mended, repeat the command: it continues with this step"
        )


def _cpu_seconds() -> float:
    """Returns how long the cores worked for processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime

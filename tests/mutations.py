"""Breaks the package in many places, one at a time, and checks that the tests notice each.

This is a check of the tests, and not one of them: pytest does not collect it. It takes about half
an hour:

    .venv/bin/python -m tests.mutations            all mutations
    .venv/bin/python -m tests.mutations loss.py    those of the files whose name has this text

The mutations are in mutations.txt. Each has three lines: a file of the package, with the tests that
are there to notice the mutation; a piece of that file, which must be in it once; and what replaces
it. The tests run in a copy of the project. The exit code is 1 if a mutation goes unnoticed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
# Seconds that the tests of one mutation may take. Some mutations make a loop endless.
LONGEST = 300
# Not copied: what git keeps, and what the environment, trainings and tests leave behind.
IGNORED = (".git", ".venv", "runs", "cache", "downloads", "__pycache__", ".*_cache", ".hypothesis")


class Mutation(NamedTuple):
    file: str
    tests: list[str]
    right: str
    wrong: str

    def __str__(self) -> str:
        return f"{self.file}: {_short(self.right)} -> {_short(self.wrong)}"


def main(names: list[str]) -> int:
    chosen = [one for one in read_mutations() if not names or any(n in one.file for n in names)]
    if not chosen:
        raise SystemExit(f"no mutation is in a file named {' or '.join(names)}")
    unnoticed = []
    with tempfile.TemporaryDirectory() as folder:
        project = _copy(Path(folder))
        # A test that fails without any mutation would seem to notice every one.
        every_test = sorted({test for mutation in chosen for test in mutation.tests})
        if failed := _first_failure(project, every_test, longest=None):
            raise SystemExit(f"{failed} fails without any mutation")
        for number, mutation in enumerate(chosen, 1):
            started = time.monotonic()
            failed = _noticed_by(project, mutation)
            result = f"noticed by {failed}" if failed else "NOT NOTICED"
            seconds = time.monotonic() - started
            print(f"{number}/{len(chosen)}  {mutation}: {result} ({seconds:.0f} s)", flush=True)
            if not failed:
                unnoticed.append(mutation)
    print("\n".join([f"{len(unnoticed)} of {len(chosen)} were not noticed", *map(str, unnoticed)]))
    return 1 if unnoticed else 0


def read_mutations() -> list[Mutation]:
    mutations = []
    for entry in Path(__file__).with_suffix(".txt").read_text("utf-8").strip().split("\n\n"):
        first, right, wrong = entry.split("\n")
        file, tests = first.split(": ")
        mutations.append(
            Mutation(
                file, tests.split(), right.removeprefix("- "), wrong.removeprefix("+").lstrip()
            )
        )
    return mutations


def _copy(folder: Path) -> Path:
    """Copies the project, beside a link to the texts that some tests read."""
    project = folder / "project"
    shutil.copytree(ROOT, project, ignore=shutil.ignore_patterns(*IGNORED))
    (project / ".venv").symlink_to(ROOT / ".venv")
    if (ROOT.parent / "shared").is_dir():
        (folder / "shared").symlink_to((ROOT.parent / "shared").resolve())
    return project


def _noticed_by(project: Path, mutation: Mutation) -> str | None:
    """Makes a mutation, runs its tests and takes it back. Returns the first test that failed."""
    path = project / "transformer_mt" / mutation.file
    text = path.read_text("utf-8")
    if (count := text.count(mutation.right)) != 1:
        raise SystemExit(f"{mutation.file}: {mutation.right!r} is in it {count} times, not once")
    path.write_text(text.replace(mutation.right, mutation.wrong), "utf-8")
    try:
        return _first_failure(project, mutation.tests, LONGEST)
    finally:
        path.write_text(text, "utf-8")


def _first_failure(project: Path, tests: list[str], longest: float | None) -> str | None:
    paths = [f"tests/{name}" for name in tests]
    command = [sys.executable, "-m", "pytest", "-x", "-n", "2", "--dist", "loadfile", *paths]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    tested = subprocess.Popen(
        command,
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = tested.communicate(timeout=longest)
    except subprocess.TimeoutExpired:
        return "a test that does not end"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(tested.pid, signal.SIGKILL)  # with the workers of pytest
    if tested.returncode == 0:
        return None
    lines = [line for line in output.split("\n") if line.startswith(("FAILED", "ERROR"))]
    return lines[0].split(" ")[1] if lines else f"exit code {tested.returncode}"


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

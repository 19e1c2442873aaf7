"""The harness of the benchmarks: arguments, processes, turns, errors and tables.

A benchmark is a function that adds its arguments to a parser, and a generator that measures and
yields its results as paragraphs of Markdown. `run` does everything else.

Neither Paddle nor transformer_mt is imported here. Both read their settings from the environment
when they are imported, and every competitor must be able to choose its own settings.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
# The names of this project's competitors begin with it.
OURS = "transformer_mt"
# What follows it in the description of a benchmark is printed with the results.
NOTES = "\nHow to read the results\n\n"


class Failure(Exception):
    """The benchmark cannot go on; the message says why. The exit code is 1."""


class WrongArguments(Exception):
    """The arguments do not fit the files, or each other. The exit code is 2."""


def run(
    description: str,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    measure: Callable[[argparse.Namespace, Path], Iterator[str]],
) -> None:
    """Runs a benchmark as the main program, and exits if it fails.

    Args:
        description: the text of --help.
        measure: called with the arguments and a temporary folder. The paragraphs that it yields
            are printed to stdout as they come.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    options = parser.parse_args()
    # As Ctrl-C does, SIGTERM ends the processes and removes the folder.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    clear_settings()
    # All processes use the package beside this folder, even if another one is installed.
    sys.path.insert(0, str(ROOT))
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), inherited]))
    code = python_files(ROOT / "transformer_mt")
    try:
        with (
            tempfile.TemporaryDirectory(prefix=f"{Path(sys.argv[0]).stem}-") as folder,
            contextlib.closing(measure(options, Path(folder))) as paragraphs,
        ):
            for paragraph in paragraphs:
                print(paragraph, end="\n\n", flush=True)
        if notes := description.partition(NOTES)[2].strip():
            print(notes)
        if python_files(ROOT / "transformer_mt") != code:
            # Processes that started at different times have run different versions.
            raise Failure("the code of transformer_mt has changed meanwhile. Run it again")
    except WrongArguments as error:
        parser.error(str(error))
    except (Failure, OSError) as error:
        say(f"error: {error}")
        sys.exit(1)
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(130)


def clear_settings() -> None:
    """Removes settings of Paddle and its libraries from the environment."""
    for name in list(os.environ):
        if name.startswith(("FLAGS_", "OMP_", "MKL_", "KMP_", "MALLOC_", "GLIBC_TUNABLES")):
            del os.environ[name]
    # transformer_mt makes this setting for itself, so its competitors get it, too.
    with contextlib.suppress(OSError):
        if "AuthenticAMD" in Path("/proc/cpuinfo").read_text():
            os.environ["MKL_DEBUG_CPU_TYPE"] = "5"


def python_files(folder: Path) -> dict[Path, bytes]:
    """The contents of all Python files in a folder and its subfolders."""
    return {path: path.read_bytes() for path in folder.rglob("*.py")}


# ------------------------------------------------------------------------------------ arguments


def positive(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """The type of an argument that is a positive number: kind is int or float."""

    def number(text: str) -> Any:
        if not 0 < (value := kind(text)) < float("inf"):
            raise argparse.ArgumentTypeError(f"{text}: expected a number above 0")
        return value

    return number


def add_corpus(parser: argparse.ArgumentParser, source: str, target: str) -> None:
    """Adds --data, --source-lang and --target-lang, which name a training corpus."""
    files = f"folder with train.{source} and train.{target}"
    parser.add_argument("--data", metavar="FOLDER", type=Path, required=True, help=files)
    for side, lang in (("source", source), ("target", target)):
        flag, meaning = f"--{side}-lang", f"suffix of the {side} file ({lang})"
        parser.add_argument(flag, metavar="LANG", default=lang, help=meaning)


def check_corpus(options: argparse.Namespace) -> None:
    """
    Raises:
        WrongArguments: a file of the training corpus is missing or empty.
    """
    for lang in (options.source_lang, options.target_lang):
        path = options.data / f"train.{lang}"
        if not path.is_file() or not path.stat().st_size:
            raise WrongArguments(f"--data: {path}: there is no such file, or it is empty")


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """Adds key=value arguments, which replace values of the config."""
    meaning = "replaces a value of the config"
    parser.add_argument("overrides", metavar="key=value", nargs="*", help=meaning)


# ------------------------------------------------------------------------------------ processes


def program(*arguments: object, quiet: bool = False) -> str:
    """Runs `python -m transformer_mt` and returns its stdout.

    Args:
        quiet: do not show the program's stderr, but quote its end in the message of a failure.

    Raises:
        Failure: the program has failed.
    """
    command = [sys.executable, "-m", "transformer_mt", *map(str, arguments)]
    shown = " ".join(command[2:])
    say(shown)
    stderr = subprocess.PIPE if quiet else None
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, text=True)
    if done.returncode:
        reason = f": {done.stderr.strip()[-1000:]}" if quiet else ""
        raise Failure(f"{shown}: exit code {done.returncode}{reason}")
    return done.stdout


def evaluate(
    folder: Path, models: list[Path], source: Path, reference: Path, *settings: object
) -> list[dict[str, Any]]:
    """The scores and speed of each model by `evaluate --json`, which writes a file to `folder`."""
    json_file = folder / "scores.json"
    files = ["--source", source, "--reference", reference, "--json", json_file]
    program("evaluate", *models, *files, *settings)
    scores = json.loads(json_file.read_text("utf-8"))
    return scores if isinstance(scores, list) else [scores]


class Worker:
    """An object in a process of its own, which runs one method at a time and sleeps in between."""

    def __init__(self, folder: Path, threads: int, kind: type, *arguments: Any) -> None:
        """Starts the process, which makes the object kind(*arguments).

        Args:
            folder: where the output of the process goes.
            threads: the number of OpenMP threads.
        """
        self._log = folder / f"{kind.__name__}.log"
        context = multiprocessing.get_context("spawn")
        self._connection, its_end = context.Pipe()
        its_arguments = its_end, self._log, threads, kind, arguments
        self._process = context.Process(target=_serve, args=its_arguments, daemon=True)
        self._process.start()
        its_end.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        self._connection.close()  # ends a process that waits for work
        self._process.join(timeout=3)
        self._process.kill()
        self._process.join()

    def ask(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the object, waits, and returns its result.

        Raises:
            Failure: the process has died, or the method has raised an exception.
        """
        self.begin(method, *arguments)
        return self.result()

    def begin(self, method: str, *arguments: Any) -> None:
        """Calls a method of the object without waiting, so that several workers can be busy."""
        with contextlib.suppress(BrokenPipeError):  # its last message may say why it has ended
            self._connection.send((method, arguments))

    def result(self) -> Any:
        """Waits for the method that was begun, and returns its result.

        Raises:
            Failure: the process has died, or the method has raised an exception.
        """
        try:
            answer, error = self._connection.recv()
        except (EOFError, OSError):
            raise Failure(f"a process was killed:\n{tail(self._log)}") from None
        if error:
            raise Failure(error)
        return answer


class OtherPythonWorker(Worker):
    """A worker that runs in the Python of another environment, in which numpy is installed.

    multiprocessing can start another Python, but gives it the module search path of this one.
    """

    def __init__(
        self, folder: Path, threads: int, python: str, kind: type, *arguments: Any
    ) -> None:
        """Starts the process as `Worker` does; `kind` must be importable there."""
        self._log = folder / f"{kind.__name__}.log"
        self._connection, its_end = multiprocessing.Pipe()
        descriptor = its_end.fileno()
        command = [python, "-c", SERVE, str(ROOT / "scripts"), str(descriptor)]
        with its_end:
            self._process = subprocess.Popen(command, pass_fds=[descriptor])
        self._connection.send((self._log, threads, kind, arguments))

    def __exit__(self, *exception: object) -> None:
        self._connection.close()  # ends a process that waits for work
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=3)
        self._process.kill()
        self._process.wait()


# The program of an OtherPythonWorker. Its arguments are the folder of this package, and the file
# descriptor of its end of the pipe.
SERVE = """
import sys
sys.path.insert(0, sys.argv[1])
from multiprocessing.connection import Connection
from benchmarks.harness import _serve
connection = Connection(int(sys.argv[2]))
_serve(connection, *connection.recv())
"""


def _serve(connection: Any, log: Path, threads: int, kind: type, arguments: tuple) -> None:
    # The parent handles Ctrl-C, and then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # multiprocessing forbids daemons to start processes, which would outlive them. The processes
    # that transformer_mt starts end with their parent.
    multiprocessing.current_process()._config["daemon"] = False
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    try:
        served = kind(*arguments)
        while True:
            method, its_arguments = connection.recv()
            connection.send((getattr(served, method)(*its_arguments), None))
    except EOFError:  # the parent has closed its end
        pass
    except Exception as error:
        connection.send((None, f"{type(error).__name__}: {error}"))


# ---------------------------------------------------------------------------------------- turns


@dataclass(frozen=True)
class Turn:
    """One turn of a competitor: the amount of work (lines or target tokens), and its seconds."""

    amount: int
    seconds: float

    @property
    def speed(self) -> float:
        return self.amount / self.seconds


def take_turns(
    title: str, rounds: int, competitors: dict[str, Callable[[int], Turn]]
) -> dict[str, list[Turn]]:
    """Lets each competitor work once per round, never two at a time.

    Neighbours in a round meet the machine in nearly the same state, so the ratio of two competitors
    is computed within a round.

    Args:
        competitors: by their names, functions of the number of the round, from 0.
    """
    turns: dict[str, list[Turn]] = {name: [] for name in competitors}
    for number in range(rounds):
        for name, work in competitors.items():
            turns[name].append(work(number))
        speeds = ", ".join(f"{name} {its[-1].speed:,.1f}/s" for name, its in turns.items())
        say(f"{title}, round {number + 1} of {rounds}: {speeds}")
    return turns


# --------------------------------------------------------------------------------------- output


def spread(values: list[float], form: str) -> str:
    """The median, minimum and maximum of some values, each formatted with `form`."""
    median, least, greatest = (format(f(values), form) for f in (np.median, min, max))
    return f"{median} ({least}–{greatest})"


def ratio(turns: dict[str, list[Turn]], name: str, baseline: str) -> str:
    """The spread of the ratio of two competitors' speeds in each round; bold if `name` is ours."""
    if name == baseline:
        return "1"
    pairs = zip(turns[name], turns[baseline], strict=True)
    text = spread([one.speed / other.speed for one, other in pairs], ".2f")
    return f"**{text}**" if name.startswith(OURS) else text


def table(header: list[str], lines: list[list[str]]) -> str:
    """A Markdown table."""
    rule = ["---"] * len(header)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [header, rule, *lines])


def machine(*packages: str) -> str:
    """The number of cores, the processor, and the versions of packages."""
    processors = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    processor = processors[0] if processors else "an unknown processor"
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    return f"{cores()} cores of {processor}; {versions}."


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def say(message: str) -> None:
    """Prints a message with the time to stderr."""
    print(time.strftime("%H:%M:%S"), message, file=sys.stderr, flush=True)


# ----------------------------------------------------------------------------------------- data


def write_recipe(folder: Path, options: argparse.Namespace, **sections: dict[str, Any]) -> Path:
    """Writes a config of the training corpus that the arguments name, with more `sections`.

    The model directory and the cache are in `folder`.
    """
    data = {
        "root": str(options.data.resolve()),
        "source_lang": options.source_lang,
        "target_lang": options.target_lang,
        "cache": str(folder / "cache"),
    }
    data |= sections.pop("data", {})
    path = folder / "recipe.yaml"
    # JSON is YAML.
    path.write_text(json.dumps({"model_dir": str(folder / "model"), "data": data, **sections}))
    return path


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, without their ends."""
    return path.read_bytes().decode().removesuffix("\n").split("\n")


def tail(log: Path) -> str:
    """The last 1,000 characters of a file."""
    return log.read_text(errors="replace").strip()[-1000:]


def padded(rows: list[list[int]], pad: int) -> np.ndarray:
    """Rows of token ids as one array, int64 (rows, longest)."""
    array = np.full((len(rows), max(map(len, rows))), pad, np.int64)
    for index, row in enumerate(rows):
        array[index, : len(row)] = row
    return array

"""The files of a run for VisualDL and TensorBoard.

They hold nothing that metrics.jsonl lacks. So when a run is resumed, they are written again from
its lines, and never show a step that the resumed run does not have.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformer_mt.model_directory import texts
from transformer_mt.scoring.metrics import METRICS
from transformer_mt.utils.console import warn
from transformer_mt.utils.errors import UserError

# What is drawn of the lines of each kind, under tags such as train/loss.
SCALARS = {
    "train": (
        *("loss", "perplexity", "learning_rate", "gradient_norm", "tokens_per_second"),
        *("padding", "skipped"),
    ),
    "dev": ("loss", "perplexity", *METRICS),
    "general_dev": ("loss", "perplexity", *METRICS),
}


# By the values of training.log_to: the package and the class that write this kind of files, and a
# function that converts seconds since 1970 to what the class takes. VisualDL takes milliseconds.
WRITERS: dict[str, tuple[str, str, Callable[[float], Any]]] = {
    "visualdl": ("visualdl", "LogWriter", lambda seconds: round(1000 * seconds)),
    "tensorboard": ("tensorboardX", "SummaryWriter", float),
}


def require_packages(kinds: Iterable[str]) -> None:
    """
    Raises:
        UserError: a package that writes one of these kinds is not installed.
    """
    for kind in kinds:
        package = WRITERS[kind][0]
        if find_spec(package) is None:
            raise UserError(
                f"training.log_to: {kind} needs the package {package}, which is not installed. "
                f"Install it with `pip install {package}`, or leave {kind} out of training.log_to"
            )


class EventFiles:
    """Writes the lines of metrics.jsonl for VisualDL and TensorBoard.

    Args:
        folders: a folder without such files, for each kind in `WRITERS` that is to be written.
        lines: the lines that metrics.jsonl has already.
    """

    def __init__(self, folders: dict[str, Path], lines: Iterable[dict[str, Any]]) -> None:
        self._samples: dict[str, list[str]] = {}
        self._open = {}
        for kind, folder in folders.items():
            package, name, unit = WRITERS[kind]
            writer = getattr(import_module(package), name)
            self._open[kind] = (writer(logdir=str(folder)), unit)
        for line in lines:
            self._write(line)
        self._call("flush")

    def add(self, line: dict[str, Any]) -> None:
        """Writes a line, and makes it visible to whoever reads the files."""
        self._write(line)
        self._call("flush")

    def close(self) -> None:
        self._call("close")

    def _write(self, line: dict[str, Any]) -> None:
        kind, step, seconds = str(line.get("kind")), line.get("step", 0), 0.0
        with suppress(KeyError, TypeError, ValueError):  # a line of an earlier version
            seconds = datetime.fromisoformat(line["time"]).timestamp()
        if kind == "samples":
            self._samples = {name: texts(line.get(name)) for name in ("source", "reference")}
        for key in SCALARS.get(kind, ()):
            value = line.get(key)
            if isinstance(value, int | float):
                self._call("add_scalar", f"{kind}/{key}", value, step, seconds=seconds)
        if kind == "dev":
            columns = {**self._samples, "translation": texts(line.get("samples"))}
            # Some are missing if evaluation.samples has changed, and in lines of earlier versions.
            for number, parts in enumerate(zip(*columns.values(), strict=False), 1):
                text = "  \n".join(map(": ".join, zip(columns, parts, strict=True)))
                self._call("add_text", f"samples/{number}", text, step, seconds=seconds)

    def _call(self, method: str, *arguments: Any, seconds: float | None = None) -> None:
        """Calls a method of each writer. If that fails, as it does on a full disk and with numbers
        that the format cannot hold, the writer is not used any more, because training is worth more
        than these files.

        Args:
            seconds: the time of an event, in seconds since 1970.
        """
        for kind, (writer, unit) in list(self._open.items()):
            time = {} if seconds is None else {"walltime": unit(seconds)}
            try:
                getattr(writer, method)(*arguments, **time)
            except (OSError, ValueError, TypeError) as error:
                warn(f"training.log_to: {kind}: {error}; nothing more is written for it")
                del self._open[kind]

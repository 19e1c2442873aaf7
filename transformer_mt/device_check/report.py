"""What a check finds, and the report of all checks: lines on the terminal, and a JSON file."""

from __future__ import annotations

import json
import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from transformer_mt.utils import console
from transformer_mt.utils.files import write_atomically

OK, FAILED, LEFT_OUT = "ok", "FAILED", "left out"
WIDTH = 100
# The most characters of an error's message that are shown.
MESSAGE = 400
# The columns of a line: the verdict and the name of the check, then what was found.
VERDICT_WIDTH, NAME_WIDTH = 8, 32


class LeftOut(Exception):
    """Raised by a check that does not apply to the device. The text is the reason."""


class Figure(NamedTuple):
    """A measured number beside its tolerance.

    Attributes:
        title: what the number belongs to, such as a precision.
        value: the number.
        limit: the largest number that passes. A value that is not a number does not pass.
        detail: what exactly was measured; it is shown if the check fails.
    """

    title: str
    value: float
    limit: float
    detail: str = ""

    @property
    def passes(self) -> bool:
        return self.value <= self.limit

    @property
    def badness(self) -> float:
        """How bad the value is; above 1, it does not pass."""
        if math.isnan(self.value):
            return math.inf
        return self.value / self.limit if self.limit else math.inf * self.value if self.value else 0


@dataclass(frozen=True)
class Finding:
    """What a check has found.

    Attributes:
        passed: whether the device does what it should.
        text: the figures beside their tolerances, for a line of the report.
        figures: all figures, for the JSON file.
    """

    passed: bool
    text: str
    figures: Sequence[Figure] = ()

    @classmethod
    def of(cls, figures: Sequence[Figure], more: str = "") -> Finding:
        """Compares figures with their tolerances. Of each title, the worst one is shown.

        Args:
            more: a text to show after the figures.
        """
        worst: dict[str, Figure] = {}
        for figure in figures:
            if figure.title not in worst or figure.badness > worst[figure.title].badness:
                worst[figure.title] = figure
        shown = []
        for title, figure in worst.items():
            detail = f" ({figure.detail})" if figure.detail and not figure.passes else ""
            text = f"{figure.value:.2g}"
            if figure.limit:
                text += f" (limit {figure.limit:.2g})"
            shown.append(f"{title} {text}{detail}".strip())
        passed = all(figure.passes for figure in figures)
        return cls(passed, "; ".join(filter(None, [*shown, more])), tuple(figures))


@dataclass(frozen=True)
class Line:
    """A line of the report.

    Attributes:
        group, check: the names of the check and of the group to which it belongs.
        verdict: OK, FAILED or LEFT_OUT.
        found: what was measured, or the message of an error, or why the check was left out.
        advice: what to do; empty unless the check has failed.
        seconds: how long the check took.
    """

    group: str
    check: str
    verdict: str
    found: str
    advice: str = ""
    seconds: float = 0.0
    figures: Sequence[Figure] = ()

    def text(self) -> Iterator[str]:
        """Yields the line, as it is printed; it may have several lines."""
        start = f"  {self.verdict:<{VERDICT_WIDTH}}  {self.check:<{NAME_WIDTH}}  "
        yield from _wrapped(start, self.found, len(start))
        if self.advice:
            indent = " " * (VERDICT_WIDTH + 4)
            yield from _wrapped(f"{indent}What to do: ", self.advice, len(indent))


class Report:
    """Prints the report and keeps the JSON file up to date while the checks run.

    The file is written again after every check. If the process dies in one of them, the file says
    which checks were done; `finished` is then false.

    Args:
        machine: the device and the versions, by their titles.
        path: the JSON file; None: no file is written.
    """

    def __init__(self, machine: dict[str, str], path: Path | None) -> None:
        self.machine = machine
        self.path = path
        self.lines: list[Line] = []
        self._group = ""
        for title, value in machine.items():
            console.show(f"{title:<12}  {value}")
        console.show(
            "\nEach line shows the largest error that was found, and in brackets its limit."
        )
        self._write(is_finished=False)

    @property
    def passed(self) -> bool:
        """Whether no check has failed."""
        return all(line.verdict != FAILED for line in self.lines)

    def add(self, line: Line) -> None:
        """Prints a line, below the heading of its group."""
        if line.group != self._group:
            self._group = line.group
            console.show(f"\n{line.group}")
        for text in line.text():
            console.show(text)
        self.lines.append(line)
        self._write(is_finished=False)

    def finish(self, seconds: float) -> None:
        """Prints the summary."""
        counts = Counter(line.verdict for line in self.lines)
        parts = [f"{counts[OK]} ok", f"{counts[FAILED]} failed", f"{counts[LEFT_OUT]} left out"]
        console.show(f"\n{', '.join(parts)}, in {console.duration(seconds)}")
        if not self.passed:
            names = ", ".join(line.check for line in self.lines if line.verdict == FAILED)
            for text in _wrapped("Failed: ", names, 2):
                console.show(text)
            console.show("docs/check-device.md says what each check does, and what to report.")
        self._write(is_finished=True)

    def _write(self, is_finished: bool) -> None:
        if self.path is None:
            return
        content = {
            "machine": self.machine,
            "finished": is_finished,
            "passed": self.passed,
            "checks": [
                {**asdict(line), "figures": [figure._asdict() for figure in line.figures]}
                for line in self.lines
            ],
        }
        write_atomically(self.path, json.dumps(_plain(content), indent=2, allow_nan=False) + "\n")


def message_of(error: Exception) -> str:
    """Returns the message of an error on one line. Paddle's messages begin with its C++ stack; what
    has happened stands below it."""
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    summaries = [n for n, line in enumerate(lines) if line.startswith("Error Message Summary")]
    if summaries:
        lines = [line for line in lines[summaries[-1] + 1 :] if set(line) != {"-"}]
    return f"{type(error).__name__}: {' '.join(lines)}"[:MESSAGE]


def _plain(value: object) -> object:
    """Replaces numbers that JSON does not have by their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list) else value


def _wrapped(start: str, text: str, indent: int) -> list[str]:
    return textwrap.wrap(
        f"{start}{text}",
        WIDTH,
        subsequent_indent=" " * indent,
        break_long_words=False,
        drop_whitespace=True,
    )

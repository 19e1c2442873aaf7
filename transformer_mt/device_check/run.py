"""Runs the checks one after another."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Iterable
from pathlib import Path

from transformer_mt.device_check.checks import Check
from transformer_mt.device_check.machine import Machine
from transformer_mt.device_check.report import (
    FAILED,
    LEFT_OUT,
    OK,
    LeftOut,
    Line,
    Report,
    message_of,
)
from transformer_mt.utils import signals


def run(machine: Machine, checks: Iterable[Check], path: Path | None) -> bool:
    """Runs the checks and reports them; returns whether none has failed.

    Args:
        path: the JSON file; None: no file is written.
    """
    started = time.perf_counter()
    report = Report(machine.describe(), path)
    for check in checks:
        report.add(line_of(machine, check))
    report.finish(time.perf_counter() - started)
    return report.passed


def line_of(machine: Machine, check: Check) -> Line:
    """Runs a check. Whatever it raises is its own failure, so that the others run."""
    started = time.perf_counter()
    figures = ()
    try:
        with signals.undisguised():
            finding = check.run(machine)
            machine.synchronize()  # what a GPU has still to report belongs to this check
        verdict, found = OK if finding.passed else FAILED, finding.text
        figures = finding.figures
    except LeftOut as reason:
        verdict, found = LEFT_OUT, str(reason)
    except Exception as error:
        if os.environ.get("TRANSFORMER_MT_DEBUG"):
            traceback.print_exc()
        verdict, found = FAILED, message_of(error)
    advice = check.advice if verdict == FAILED else ""
    seconds = round(time.perf_counter() - started, 3)
    return Line(check.group, check.name, verdict, found, advice, seconds, figures)

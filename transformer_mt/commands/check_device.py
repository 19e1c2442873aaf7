"""The command `check-device`.

Run it first on a computer with a GPU. It needs no text, and takes up to three minutes. It computes
with small models on random numbers, and compares the results with those of the CPU.

what a line says:
  ok        The device does what it should. The error that was measured stands before its tolerance.
  FAILED    It does not, or an error was raised. The line says what to do.
  left out  The check does not apply to the device; the line says why.

Without a failure, the exit code is 0, otherwise 1. docs/check-device.md explains each check. A
report of a problem should contain the file that --json writes.

examples:
  python -m transformer_mt check-device
  python -m transformer_mt check-device --device gpu:1 --json check.json
  python -m transformer_mt check-device --device cpu
"""

import argparse
from pathlib import Path

from transformer_mt.commands.arguments import add_device, add_files
from transformer_mt.model_directory import require_safe_outputs
from transformer_mt.utils.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_device(parser)
    add_files(parser, json="the file for the same report as JSON, with all figures")


def run(options: argparse.Namespace) -> None:
    from transformer_mt.utils import device as devices

    require_safe_outputs({"--json": options.json}, {})
    name = devices.use(options.device)
    if not check(name, options.json):
        raise UserError("a check has failed; the lines above say what to do")


def check(device: str, path: Path | None) -> bool:
    """Runs all checks on the selected device; returns whether none has failed."""
    from transformer_mt.device_check import checks, machine
    from transformer_mt.device_check import run as runner

    return runner.run(machine.Machine(device), checks.all_checks(), path)

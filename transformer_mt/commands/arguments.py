"""Arguments that several commands have, and types of arguments."""

import argparse
import contextlib
import math
from collections.abc import Collection
from pathlib import Path

from transformer_mt.runtime.errors import UsageError


def add_model_dir(parser: argparse.ArgumentParser, writer: str = "`train` has written") -> None:
    parser.add_argument("model_dir", metavar="MODEL_DIR", help=f"what {writer}")


def add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "overrides", metavar="key=value", nargs="*", help="section.key=value in place of the file's"
    )


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint",
        metavar="NAME",
        help="best, last, step_N or average_... (best; last if there is none)",
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", metavar="D", help="cpu, gpu or gpu:N (a GPU if there is one)")


def add_files(
    parser: argparse.ArgumentParser, required: Collection[str] = (), **files: str
) -> None:
    """Adds options with a file each, by their names and help; some of them are required."""
    for name, help in files.items():
        parser.add_argument(
            f"--{name}", metavar="FILE", type=Path, required=name in required, help=help
        )


def require_files(options: argparse.Namespace, *names: str) -> None:
    """
    Raises:
        UsageError: one of these options names a file that does not exist.
    """
    for name in names:
        path = getattr(options, name)
        if path is not None and not path.is_file() and not path.is_fifo():
            raise UsageError(f"--{name}: {path}: there is no such file")


# ------------------------------------------------------------------------------------------- types


def positive(text: str) -> int:
    # Nothing that is counted here has more than nine digits. Python reads at most 4,300 digits.
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        shown = repr(text if len(text) <= 12 else f"{text[:9]}...")
        raise argparse.ArgumentTypeError(f"{shown}: expected a whole number from 1 on")
    return int(text)


def positive_number(text: str) -> float:
    number = _number(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0")
    return number


def share(text: str) -> float:
    number = _number(text)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a share, above 0 and at most 1")
    return number


def _number(text: str) -> float:
    with contextlib.suppress(ValueError):
        return float(text)
    return math.nan

"""Arguments that several commands have, and types of arguments."""

import argparse
import contextlib
import math
from collections.abc import Collection, Sequence
from pathlib import Path

from transformer_mt.scoring.metrics import DEFAULT_METRICS, TOKENIZERS
from transformer_mt.utils.errors import UsageError

MODEL_OR_EXPORT = "the model directory that `train` wrote, or an export"


def add_model_dir(
    parser: argparse.ArgumentParser, help: str = "the model directory that `train` wrote"
) -> None:
    parser.add_argument("model_dir", metavar="MODEL_DIR", help=help)


def add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "overrides",
        metavar="key=value",
        nargs="*",
        default=[],
        help="replaces a value of the recipe, as in training.max_steps=1000 or model_dir=runs/new",
    )


def add_checkpoint(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--checkpoint",
        metavar="NAME",
        help="the checkpoint to use: best, last, step_N, or average_... for one that `average` "
        "made (default: best, or last if there is no best one yet)",
    )


def add_device(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--device",
        metavar="D",
        help="the device to compute on: cpu, gpu, or gpu:N for the GPU with number N (default: a "
        "GPU if there is one, otherwise the CPU)",
    )


def add_files(
    parser: argparse.ArgumentParser, required: Collection[str] = (), **files: str
) -> None:
    """Adds options with a file each, by their names and help; some of them are required."""
    for name, help in files.items():
        parser.add_argument(
            f"--{name}", metavar="FILE", type=Path, required=name in required, help=help
        )


def add_files_by_position(parser: argparse.ArgumentParser, *names: str) -> None:
    """Adds files that can be given by position instead of by the options of these names, which
    `take_positions` reads."""
    for name in names:
        parser.add_argument(
            f"{name}_by_position", metavar=name.upper(), nargs="?", help=f"the same as --{name}"
        )


def take_positions(options: argparse.Namespace, *names: str) -> None:
    """Sets the options of these names to the files that were given by position, if any. The name -
    stands for the standard input or output, which is None.

    Raises:
        UsageError: a file was given in both ways.
    """
    for name in names:
        by_position = getattr(options, f"{name}_by_position")
        if by_position is not None and getattr(options, name) is not None:
            raise UsageError(
                f"{by_position}: {name.upper()} was also given as --{name}; give it once"
            )
        path = by_position or getattr(options, name)
        setattr(options, name, None if path is None or str(path) == "-" else Path(path))


def add_score_options(
    parser: argparse._ActionsContainer, metrics: Sequence[str], metrics_help: str, counted_by: str
) -> None:
    """Adds the options that say how translations are scored.

    Args:
        metrics: the choices of --metrics.
        metrics_help: what the metrics do.
        counted_by: what counts words in --training-text.
    """
    parser.add_argument(
        "--metrics",
        metavar="NAME",
        nargs="+",
        choices=metrics,
        default=list(DEFAULT_METRICS),
        help=f"{metrics_help} (default: {' '.join(DEFAULT_METRICS)})",
    )
    parser.add_argument(
        "--lowercase",
        action="store_true",
        help="treats upper and lower case as the same (ter always does)",
    )
    parser.add_argument(
        "--tokenize",
        metavar="NAME",
        choices=tuple(TOKENIZERS),
        help=f"BLEU's tokeniser, one of {', '.join(TOKENIZERS)} (default: evaluation.tokenize of "
        "the model, or the tokeniser of the target language)",
    )
    parser.add_argument(
        "--training-text",
        metavar="FILE",
        type=Path,
        help=f"the target side of the training text, in which {counted_by} to find the rare ones "
        "(default: the reference)",
    )


def add_references(parser: argparse.ArgumentParser, required: bool = True) -> None:
    parser.add_argument(
        "--reference",
        metavar="FILE",
        type=Path,
        action="append",
        required=required,
        help="the reference translations, one for each line that is scored. May be repeated, if "
        "there are several per line",
    )


def require_files(options: argparse.Namespace, *names: str) -> None:
    """
    Raises:
        UsageError: one of these options, which may be repeated, names a file that does not exist.
    """
    for name in names:
        value = getattr(options, name)
        for path in value if isinstance(value, list) else [value]:
            if path is not None and not is_readable(path):
                what = (
                    "a link that leads to no file" if path.is_symlink() else "there is no such file"
                )
                raise UsageError(f"--{name.replace('_', '-')}: {path}: {what}")


def is_readable(path: Path) -> bool:
    """Whether the path is a file, a pipe or a device."""
    return path.exists() and not path.is_dir()


# ------------------------------------------------------------------------------------------- types


def positive(text: str) -> int:
    # Nothing that is counted here has more than nine digits. Python reads at most 4,300 digits.
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        shown = repr(text if len(text) <= 12 else f"{text[:9]}...")
        raise argparse.ArgumentTypeError(f"{shown}: expected a whole number from 1 on")
    return int(text)


def positive_number(text: str) -> float:
    # Far beyond what anybody means, numbers overflow, or become 0, where they are computed with.
    number = _number(text)
    if not 1e-6 <= number <= 1e12:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0 (from 1e-6 to 1e12)")
    return number


def share(text: str) -> float:
    number = _number(text)
    if not 1e-6 <= number <= 1:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a share, above 0 (from 1e-6) and at most 1"
        )
    return number


def _number(text: str) -> float:
    with contextlib.suppress(ValueError):
        return float(text)
    return math.nan

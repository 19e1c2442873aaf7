"""Arguments that several commands have, and types of arguments."""

import argparse
import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from transformer_mt.config.decoding import SEARCH_KEYS, DecodingConfig
from transformer_mt.config.section import one_line
from transformer_mt.scoring.metrics import DEFAULT_METRICS, TOKENIZERS

MODEL_OR_EXPORT = "the model directory that `train` wrote, or an export"
# The titles of groups of options in `--help`.
MODEL_GROUP = "options for the model"
SETTINGS_GROUP = (
    "decoding settings (default: those of the model, the section `decoding` of its config)"
)
SETTINGS = DecodingConfig.model_fields
# Those of a command that reads only the best translation.
ONE_BEST = [key for key in SEARCH_KEYS if key != "n_best"]


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


def add_switches(parser: argparse._ActionsContainer, **switches: str) -> None:
    """Adds options without a value, by their names and help."""
    for name, help in switches.items():
        parser.add_argument(flag(name), action="store_true", help=help)


def add_values(
    parser: argparse._ActionsContainer,
    metavar: str,
    type: Callable[[str], Any] = str,
    required: Collection[str] = (),
    **options: str,
) -> None:
    """Adds options with a value each, by their names and help; some of them are required."""
    for name, help in options.items():
        parser.add_argument(
            flag(name), metavar=metavar, type=type, required=name in required, help=help
        )


def add_files(
    parser: argparse._ActionsContainer, required: Collection[str] = (), **files: str
) -> None:
    """Adds options with a file each, as `add_values` does."""
    add_values(parser, "FILE", Path, required, **files)


def flag(name: str) -> str:
    """The option of a name: --beam-size for beam_size."""
    return "--" + name.replace("_", "-")


# ---- How a model is used ----


def add_engine(parser: argparse._ActionsContainer) -> None:
    from transformer_mt.export.registry import BACKENDS  # imports NumPy, which `info` spares

    parser.add_argument(
        "--engine",
        choices=tuple(BACKENDS),
        help="the library that runs the model. For a model directory, paddle reads its "
        "checkpoints, and the others use its export in MODEL_DIR/export (default: paddle for a "
        "model directory, and for an export the engine that it was made for)",
    )


def add_checkpoint(parser: argparse._ActionsContainer) -> None:
    add_values(
        parser,
        "NAME",
        checkpoint="the checkpoint to use: best, last, step_N, or average_... for one that "
        "`average` made (default: best, or last if there is no best one yet)",
    )


def add_threads(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--threads",
        metavar="N",
        type=positive,
        default=len(os.sched_getaffinity(0)),
        help="the number of CPU cores to use (default: all)",
    )


def add_device(parser: argparse._ActionsContainer) -> None:
    add_values(
        parser,
        "D",
        device="the device to compute on: cpu, gpu, or gpu:N for the GPU with number N (default: a "
        "GPU if there is one, otherwise the CPU)",
    )


def add_model_choice(
    parser: argparse.ArgumentParser, settings: Iterable[str] = SEARCH_KEYS, *, ensemble: bool = True
) -> None:
    """Adds the arguments that say how to use a model; `translating.find_engine` reads them.

    Args:
        settings: the keys of the config's decoding section that get a flag.
        ensemble: whether several models can be used together.
    """
    group = parser.add_argument_group(MODEL_GROUP)
    add_engine(group)
    add_checkpoint(group)
    if ensemble:
        group.add_argument(
            "--ensemble",
            metavar="DIR[:NAME]",
            action="append",
            default=[],
            help="another model directory, and optionally one of its checkpoints. The models "
            "translate together, with the mean of their probabilities. They must have the same "
            "subwords. May be repeated",
        )
    else:
        parser.set_defaults(ensemble=[])
    add_threads(group)
    add_device(group)
    group = parser.add_argument_group(SETTINGS_GROUP)
    for name in settings:
        is_switch = SETTINGS[name].annotation in (bool, bool | None)
        is_list = name == "protect"
        form: dict[str, Any] = {"metavar": "X", "type": _settings if is_list else _setting}
        group.add_argument(
            flag(name),
            default=argparse.SUPPRESS,
            help=one_line(SETTINGS[name].description),
            **({"action": argparse.BooleanOptionalAction} if is_switch else form),
        )


# ---- How translations are scored ----


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


def add_score_options(
    parser: argparse._ActionsContainer, metrics: Sequence[str], metrics_help: str
) -> None:
    """Adds the options that say how translations are scored.

    Args:
        metrics: the choices of --metrics.
        metrics_help: what the metrics do.
    """
    parser.add_argument(
        "--metrics",
        metavar="NAME",
        nargs="+",
        choices=metrics,
        default=list(DEFAULT_METRICS),
        help=f"{metrics_help} (default: {' '.join(DEFAULT_METRICS)})",
    )
    add_switches(parser, lowercase="treats upper and lower case as the same (ter always does)")
    parser.add_argument(
        "--tokenize",
        metavar="NAME",
        choices=tuple(TOKENIZERS),
        help=f"BLEU's tokeniser, one of {', '.join(TOKENIZERS)} (default: evaluation.tokenize of "
        "the model, or the tokeniser of the target language)",
    )
    add_files(
        parser,
        training_text="the target side of the training text, in which words are counted to find "
        "the rare ones (default: the reference)",
    )


def add_terms(parser: argparse._ActionsContainer, files: str) -> None:
    """Adds the options of `translating.checker_of`, except --target-lang.

    Args:
        files: the option or argument that gives translations in files.
    """
    add_files(
        parser,
        terms="also tells how many terms of the source are translated as this list says: TBX, or "
        "lines with a term, its translation, and further forms of that, with tabs between them",
    )
    add_values(
        parser,
        "LANG",
        source_lang=f"the language of --source, for {files} with --terms (default: any language "
        "with its script)",
    )


# ---- Types ----


def positive(text: str) -> int:
    # Nothing that is counted here has more than nine digits. Python reads at most 4,300 digits.
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r:.20}: expected a whole number from 1 on")
    return int(text)


def percent(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 1 <= (number := float(text)) <= 100:
            return number
    raise argparse.ArgumentTypeError(f"{text!r:.20}: expected a number from 1 to 100")


def columns(text: str) -> tuple[str, str | None]:
    """The column of the source and that of the translation, with a comma between; None in its
    place: there is none."""
    names = text.split(",")
    if len(names) <= 2 and all(names):
        return names[0], names[1] if len(names) == 2 else None
    raise argparse.ArgumentTypeError(f"{text!r}: expected SOURCE or SOURCE,TARGET")


def positive_number(text: str) -> float:
    """A number of minutes of at most 60 days, or of seconds of at most one day."""
    with contextlib.suppress(ValueError):
        # Far beyond, numbers overflow, or become 0, where they are computed with.
        if 1e-6 <= (number := float(text)) <= 86_400:
            return number
    raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 0.000001 to 86400")


def _settings(text: str) -> list[str] | None:
    """A list, with commas between its items. An empty text is an empty list, and so is []."""
    if text == "null":
        return None
    return [] if text == "[]" else list(filter(None, text.split(",")))


def _setting(text: str) -> int | float | str | None:
    """A value as in a config; the schema decides whether it is a valid one."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return None if text == "null" else text

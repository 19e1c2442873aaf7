"""Which model a command uses, and how: the arguments for it, and the translator they choose."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from transformer_mt import __version__
from transformer_mt.commands.arguments import add_checkpoint, add_device, positive
from transformer_mt.config.decoding import SEARCH_KEYS, DecodingConfig
from transformer_mt.config.section import one_line
from transformer_mt.export import registry
from transformer_mt.export.registry import EngineSpec, split_model, with_decoding
from transformer_mt.utils.console import progress, warn
from transformer_mt.utils.errors import UsageError
from transformer_mt.utils.folders import CHECKSUMS

if TYPE_CHECKING:
    from transformer_mt.translator import Translator


SETTINGS = DecodingConfig.model_fields
# The titles of groups of options in `--help`.
MODEL_GROUP = "options for the model"
SETTINGS_GROUP = (
    "decoding settings (default: those of the model, the section `decoding` of its config)"
)


def add_engine(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--engine",
        choices=tuple(registry.BACKENDS),
        help="the library that runs the model. For a model directory, paddle reads its "
        "checkpoints, and the others use its export in MODEL_DIR/export (default: paddle for a "
        "model directory, and for an export the engine that it was made for)",
    )


def add_threads(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--threads",
        metavar="N",
        type=positive,
        help="the number of CPU cores to use (default: all)",
    )


def add_model_choice(
    parser: argparse.ArgumentParser, settings: Iterable[str] = SEARCH_KEYS, *, ensemble: bool = True
) -> None:
    """Adds the arguments that say how to use a model.

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
        form: dict[str, Any] = {"metavar": "X", "type": _setting}
        group.add_argument(
            "--" + name.replace("_", "-"),
            default=argparse.SUPPRESS,
            help=one_line(SETTINGS[name].description),
            **({"action": argparse.BooleanOptionalAction} if is_switch else form),
        )


def _setting(text: str) -> int | float | str | None:
    """A value as in a config; the schema decides whether it is a valid one."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return None if text == "null" else text


def find_engine(options: argparse.Namespace, model_dir: str, *asked: str) -> EngineSpec:
    """The engine that the arguments of `add_model_choice` choose for a model directory or an
    export.

    Args:
        asked: what the model does besides searching; see `registry.require_possible`.

    Raises:
        UsageError: there is no such model, or it can't be used so.
        UserError: the model is damaged.
    """
    spec = registry.find(
        model_dir,
        options.engine,
        options.checkpoint,
        options.ensemble,
        options.threads or len(os.sched_getaffinity(0)),
        options.device,
    )
    changes = {name: value for name, value in vars(options).items() if name in SETTINGS}
    try:
        spec = registry.with_decoding(spec, changes, asked)
    except UsageError as error:
        raise UsageError(_with_flags(str(error))) from None
    kind, decoding = spec.config.model.non_autoregressive, spec.config.decoding
    for name, reason in _without_effect(kind, decoding):
        if name in changes:
            warn(f"--{name.replace('_', '-')} makes no difference {reason}")
    return spec


@contextlib.contextmanager
def translating(
    spec: EngineSpec, title: str, total: int | None, done: int = 0
) -> Iterator[tuple[Translator, tqdm]]:
    """Loads an engine. Yields its translator, and a progress bar of `total` lines (None: it is not
    known how many), of which some are done."""
    from transformer_mt.translator import translator_of  # which help does not need

    with (
        translator_of(spec) as translator,
        progress(total=total, initial=done, title=title, unit="lines") as bar,
    ):
        yield translator, bar


def made_from(spec: EngineSpec) -> dict[str, Any]:
    """Everything that a translation depends on besides the text, under names that a person
    understands."""
    config = spec.config
    model = hashlib.sha256(spec.subwords.content())
    for folder in spec.checkpoints or [spec.folder]:
        with contextlib.suppress(OSError):  # Loading the model will report it.
            model.update((folder / CHECKSUMS).read_bytes())
    return {
        "version of this program": __version__,
        "model": model.hexdigest(),
        "--engine": spec.backend.name,
        "--device": spec.device,
        "data.max_length": config.data.max_length,
        "data.source_lang": config.data.source_lang,
        "data.target_lang": config.data.target_lang,
        **{f"decoding.{key}": value for key, value in config.decoding.model_dump().items()},
    }


def _without_effect(kind: str | None, decoding: DecodingConfig) -> Iterator[tuple[str, str]]:
    """Settings that have no effect, and why; `kind` is the config's model.non_autoregressive."""
    if not decoding.sampling:
        for name in ("temperature", "top_k", "top_p"):
            yield name, "without --sampling"
    if decoding.segmentations == 1:
        yield "segmentation_rate", "without --segmentations"
        if not decoding.sampling:
            yield "seed", "without --sampling or --segmentations"
    if kind is None:
        yield "iterations", "to an autoregressive model"
    else:
        yield "beam_size", "to a non-autoregressive model"
    if kind != "length":
        yield "length_candidates", "to a model that does not predict lengths"


def _with_flags(message: str) -> str:
    """A message about settings, with the names of their flags in place of their keys."""
    return re.sub(r"decoding\.(\w+)", lambda match: "--" + match[1].replace("_", "-"), message)


def find_model(options: argparse.Namespace, text: str) -> EngineSpec:
    """The engine of a model that is given as MODEL_DIR, MODEL_DIR:CHECKPOINT or an export, with the
    arguments of `add_model_choice`. A checkpoint in the text takes precedence over --checkpoint.

    Raises:
        UsageError: there is no such model, or it can't be used so.
        UserError: the model is damaged.
    """
    folder, checkpoint = split_model(text)
    chosen = argparse.Namespace(**vars(options))
    chosen.checkpoint = checkpoint or options.checkpoint
    return with_decoding(find_engine(chosen, folder), {"n_best": 1})


def translate(spec: EngineSpec, sources: list[str]) -> tuple[list[str], float]:
    """Returns the translations of lines, and the seconds that they took, without the time to load
    the model."""
    with translating(spec, "translating", len(sources)) as (translator, bar):
        translator.warm_up(spec.processes)
        started = time.perf_counter()
        hypotheses = translator.translate(sources, bar.update)
        return hypotheses, time.perf_counter() - started

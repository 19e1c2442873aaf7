"""Models that are named on the command line, and what they translate a text to."""

from __future__ import annotations

import argparse
import time

from transformer_mt.commands.model_choice import find_engine, translating
from transformer_mt.export.registry import EngineSpec, split_model, with_decoding


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

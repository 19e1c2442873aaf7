"""What a model is, in a few facts, for the people who use it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from transformer_mt.data.datasets import DATASETS
from transformer_mt.inspect import record
from transformer_mt.model_directory import ModelDirectory
from transformer_mt.utils.errors import UserError

# The file of an export that holds what its model directory says about the training.
CARD = "card.json"

Number = Annotated[float, Field(allow_inf_nan=False)]


class Score(BaseModel):
    """The score of a model on its test set, as it is printed. `interval` is half the width of the
    95 % confidence interval; None if it is not known."""

    metric: Literal["BLEU"] = "BLEU"
    score: Number
    interval: Number | None = None


class Training(BaseModel):
    """What is known about the training of a model.

    Attributes:
        pairs: the number of training pairs.
        dataset: the name of the dataset; None if the text was files of the user.
    """

    pairs: Annotated[int, Field(ge=0)] | None = None
    dataset: Literal[tuple(sorted(set(DATASETS) - {"files"}))] | None = None
    test: Score | None = None


def of_training(model_dir: Path, checkpoint: str) -> Training:
    """What a model directory says about a checkpoint of it. The score is None if it was measured
    with another checkpoint. What can't be read is left out."""
    with contextlib.suppress(UserError, OSError):
        found = record.read(model_dir, model_dir.name)
        tests = [line for line in found.lines("test") if line.get("checkpoint") == checkpoint]
        pairs = record.number(found.facts.get("pairs"))
        dataset = found.config.data.dataset if found.config else "files"
        return Training(
            pairs=None if pairs is None else max(0, int(pairs)),
            dataset=None if dataset == "files" else dataset,
            test=_score(tests[-1]) if tests else None,
        )
    return Training()


def of_export(folder: Path) -> Training:
    """What an export says about the training of its model; nothing if it says nothing."""
    with contextlib.suppress(UserError, OSError, ValidationError):
        return Training.model_validate_json(ModelDirectory(folder).own(CARD).read_bytes())
    return Training()


def _score(line: dict[str, Any]) -> Score | None:
    """The score of a line of metrics.jsonl."""
    bleu, half = record.number(line.get("bleu")), record.half_width(line, "bleu")
    if bleu is None:
        return None
    return Score(score=round(bleu, 2), interval=None if half is None else round(half, 2))

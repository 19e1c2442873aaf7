"""What a model is, in a few facts, for the people who use it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from transformer_mt.data.datasets import DATASETS
from transformer_mt.inspect import record
from transformer_mt.model_directory import ModelDirectory
from transformer_mt.runtime.errors import UserError

# The file of an export that holds what its model directory says about the training.
CARD = "card.json"


class Score(NamedTuple):
    """The score of a model on its test set.

    Attributes:
        interval: half the width of the 95 % confidence interval; None if it is not known.
    """

    metric: str
    score: float
    interval: float | None


class Training(NamedTuple):
    """What is known about the training of a model.

    Attributes:
        pairs: the number of training pairs.
        dataset: the name of the dataset; None if the text was files of the user.
    """

    pairs: int | None = None
    dataset: str | None = None
    test: Score | None = None


def of_training(model_dir: Path, checkpoint: str) -> Training:
    """What a model directory says about a checkpoint of it. The score is None if it was measured
    with another checkpoint. What can't be read is left out."""
    with contextlib.suppress(UserError, OSError):
        found = record.read(model_dir, model_dir.name)
        tests = [line for line in found.lines("test") if line.get("checkpoint") == checkpoint]
        dataset = found.config.data.dataset if found.config else "files"
        return Training(
            _count(found.facts.get("pairs")),
            None if dataset == "files" else dataset,
            _score(tests[-1]) if tests else None,
        )
    return Training()


def of_export(folder: Path) -> Training:
    """What an export says about the training of its model; nothing if it says nothing."""
    values = None
    with contextlib.suppress(UserError, OSError, ValueError, RecursionError):
        values = json.loads(ModelDirectory(folder).own(CARD).read_bytes())
    if not isinstance(values, dict):
        return Training()
    dataset, test = values.get("dataset"), values.get("test")
    score = interval = None
    if isinstance(test, dict):
        score, interval = record.number(test.get("score")), record.number(test.get("interval"))
    return Training(
        _count(values.get("pairs")),
        dataset if dataset in DATASETS else None,
        None if score is None else Score("BLEU", score, interval),
    )


def as_json(training: Training) -> str:
    """The content of CARD."""
    test = training.test._asdict() if training.test else None
    return json.dumps({**training._asdict(), "test": test}) + "\n"


def _count(value: Any) -> int | None:
    found = record.number(value)
    return None if found is None else int(found)


def _score(line: dict[str, Any]) -> Score | None:
    """The score of a line of metrics.jsonl."""
    bleu, half = record.number(line.get("bleu")), None
    intervals = line.get("intervals")
    ends = intervals.get("bleu") if isinstance(intervals, dict) else None
    if isinstance(ends, list) and len(ends) == 2:
        low, high = map(record.number, ends)
        half = None if low is None or high is None else (high - low) / 2
    return None if bleu is None else Score("BLEU", bleu, half)

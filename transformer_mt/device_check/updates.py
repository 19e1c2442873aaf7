"""What the checks ask of an updater."""

from __future__ import annotations

from pathlib import Path

from transformer_mt.data.batches import Update
from transformer_mt.training import checkpoint
from transformer_mt.training.state import Progress, State
from transformer_mt.training.update import Outcome, Updater, read


def apply(updater: Updater, update: Update, step: int) -> Outcome:
    """Makes an update; the numbers of the outcome are on the host."""
    return read([updater.apply(update, step)])[0]


def save(path: Path, updater: Updater) -> None:
    """Writes a checkpoint of the updater."""
    state = State(Progress((1, 1000)))
    checkpoint.save(path, updater.model, updater.optimizer.state(), state)


def restore(path: Path, updater: Updater) -> None:
    """Loads a checkpoint into the updater."""
    checkpoint.restore(path, updater.model, updater.optimizer)

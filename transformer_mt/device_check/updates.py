"""What the checks ask of an updater."""

from __future__ import annotations

from pathlib import Path

from transformer_mt.data.batches import Update
from transformer_mt.training import checkpoint
from transformer_mt.training import update as updates
from transformer_mt.training.state import Progress, State
from transformer_mt.training.update import Outcome, Updater


def apply(updater: Updater, update: Update, step: int) -> Outcome:
    """Makes an update; the numbers of the outcome are on the host."""
    outcome = updater.apply(update, step)
    if hasattr(updates, "read"):
        return updates.read([outcome])[0]
    return outcome


def loss_scale(updater: Updater) -> float:
    """The factor by which float16 multiplies the loss."""
    if hasattr(updater, "scaler"):
        return float(updater.scaler.state_dict()["scale"][0])
    return float(updater.scale.value)


def save(path: Path, updater: Updater) -> None:
    """Writes a checkpoint of the updater."""
    state = State(Progress((1, 1000)))
    if hasattr(updater.optimizer, "state"):
        checkpoint.save(path, updater.model, updater.optimizer.state(), state)
    else:
        checkpoint.save(path, updater.model, updater.optimizer, state)


def restore(path: Path, updater: Updater) -> None:
    """Loads a checkpoint into the updater."""
    checkpoint.restore(path, updater.model, updater.optimizer)

"""Checkpoints: written beside and renamed into place, so that one that exists is whole."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import paddle
from paddle import nn

from transformer_mt.assembly import WEIGHTS
from transformer_mt.errors import UserError
from transformer_mt.model_directory import ModelDirectory

OPTIMIZER = "optimizer.pdopt"
STATE = "state.json"


def save(
    directory: ModelDirectory,
    step: int,
    model: nn.Layer,
    optimizer: paddle.optimizer.Optimizer,
    state: dict[str, Any],
) -> Path:
    """Writes checkpoints/step_N; `state` is what the loop knows, as JSON.

    Raises:
        UserError: it could not be written (a full disk); earlier checkpoints are untouched.
    """
    final = directory.checkpoints / f"step_{step}"
    temporary = directory.checkpoints / f".step_{step}.tmp"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        # A tied parameter has several names in state_dict(); named_parameters() gives one.
        paddle.save(dict(model.named_parameters()), str(temporary / WEIGHTS))
        paddle.save(optimizer.state_dict(), str(temporary / OPTIMIZER))
        (temporary / STATE).write_text(json.dumps(state))
        for file in temporary.iterdir():
            _flush_to_disk(file)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(temporary, final)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise UserError(
            f"{final}: the checkpoint can't be written: {error.strerror or error}. "
            "The checkpoints before it are whole"
        ) from None
    return final


def remove_old(directory: ModelDirectory, keep: int) -> None:
    """Deletes all but the last `keep` checkpoints and the best one."""
    best = directory.best()
    for path in directory.saved_checkpoints()[:-keep]:
        if path != best:
            shutil.rmtree(path, ignore_errors=True)


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Checkpoints: written beside and renamed into place, so that one that exists is whole."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import paddle
from paddle import nn

from transformer_mt.errors import UserError
from transformer_mt.model_directory import ModelDirectory

WEIGHTS = "model.pdparams"
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


def load_weights(checkpoint: Path, model: nn.Layer) -> None:
    """Fills the model's parameters from a checkpoint.

    Raises:
        UserError: the file is missing or damaged, or does not fit the model; all that does not
            fit is listed, and the model is left as it was.
    """
    path = checkpoint / WEIGHTS
    if not path.is_file():
        raise UserError(f"{path}: there is no such file. Use another checkpoint")
    try:
        weights = paddle.load(str(path))
        shapes = {name: list(weight.shape) for name, weight in weights.items()}
    except Exception as error:  # unpickling a damaged file can raise nearly anything
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise UserError(f"{path}: damaged ({reason}). Use another checkpoint") from None
    parameters = dict(model.named_parameters())
    problems = []
    for name, parameter in parameters.items():
        if name not in shapes:
            problems.append(f"{name} is missing")
        elif shapes[name] != list(parameter.shape):
            problems.append(f"{name} is {shapes[name]}, the model's is {list(parameter.shape)}")
    problems += [f"{name} is not in the model" for name in shapes if name not in parameters]
    if problems:
        raise UserError(f"{path} does not fit the config: " + "; ".join(problems))
    for name, parameter in parameters.items():
        parameter.set_value(weights[name])


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

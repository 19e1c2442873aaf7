"""Checkpoints: written beside and renamed into place, so that one that exists is whole, with
checksums that tell when it no longer is."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn

from transformer_mt.assembly import WEIGHTS, load_weights
from transformer_mt.console import warn
from transformer_mt.errors import UserError
from transformer_mt.files import damage, flush_to_disk, write_checksums
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

    def write(folder: Path) -> None:
        # A tied parameter has several names in state_dict(); named_parameters() gives one.
        paddle.save(dict(model.named_parameters()), str(folder / WEIGHTS))
        paddle.save(_optimizer_state(model, optimizer), str(folder / OPTIMIZER))
        # Paddle's scaler has its scale as an array.
        (folder / STATE).write_text(json.dumps(state, default=np.ndarray.tolist))

    return write_folder(directory.checkpoints / f"step_{step}", write)


def restore(path: Path, model: nn.Layer, optimizer: paddle.optimizer.Optimizer) -> dict[str, Any]:
    """The inverse of `save`: fills model and optimiser, and returns the state."""
    load_weights(path, model)
    names = {name: parameter.name for name, parameter in model.named_parameters()}
    state = {}
    for key, value in paddle.load(str(path / OPTIMIZER)).items():
        name, slash, kind = key.rpartition("/")
        # What Paddle calls the first, and only, such tensor of the parameter.
        state[f"{names[name]}_{kind}_0" if slash else key] = value
    optimizer.set_state_dict(state)
    return json.loads((path / STATE).read_text())


def _optimizer_state(model: nn.Layer, optimizer: paddle.optimizer.Optimizer) -> dict[str, Any]:
    """The optimiser's tensors under the model's own names.

    Paddle's are numbered through the process ("linear_17.w_0_moment1_0"), so that they depend on
    what else was built in it.
    """
    names = {parameter.name: name for name, parameter in model.named_parameters()}
    state = {}
    for key, value in optimizer.state_dict().items():
        owner = max((n for n in names if key.startswith(f"{n}_")), key=len, default=None)
        if owner is None:
            state[key] = value
        else:
            state[f"{names[owner]}/{key[len(owner) + 1 :].removesuffix('_0')}"] = value
    return state


def write_folder(final: Path, write) -> Path:
    """Makes a folder of what `write` writes into one, with checksums; it appears when it is whole.

    Raises:
        UserError: it could not be written; what was there before is untouched.
    """
    temporary = final.with_name(f".{final.name}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        write(temporary)
        write_checksums(temporary)
        for file in temporary.iterdir():
            flush_to_disk(file)
        remove(final)
        os.replace(temporary, final)
        flush_to_disk(final.parent)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise UserError(
            f"{final}: the checkpoint can't be written: {error.strerror or error}. "
            "The checkpoints before it are whole"
        ) from None
    return final


def newest_whole(directory: ModelDirectory) -> Path | None:
    """The checkpoint to go on from; None if there is none at all. Damaged ones are named, and
    put aside.

    Raises:
        UserError: there are only damaged ones.
    """
    damaged = []
    for path in reversed(directory.saved_checkpoints()):
        problem = damage(path)
        if problem is None:
            break
        damaged.append((path, problem))
    else:
        if not damaged:
            return None
        problems = "\n".join(f"  {found}: {problem}" for found, problem in damaged)
        raise UserError(
            f"{directory.path}: none of its checkpoints is whole:\n{problems}\n"
            "Train anew with --restart, which deletes them"
        )
    for found, problem in damaged:
        aside = found.with_name(f"{found.name}.damaged")
        shutil.rmtree(aside, ignore_errors=True)
        found.rename(aside)
        warn(f"{found} is damaged ({problem}); passed over, and renamed {aside.name}")
    return path


def remove_old(directory: ModelDirectory, keep_last: int, best: list[int]) -> None:
    """Deletes all but the last `keep_last` checkpoints and those of the steps in `best`."""
    kept = {f"step_{step}" for step in best}
    for path in directory.saved_checkpoints()[:-keep_last]:
        if path.name not in kept:
            remove(path)


def remove(path: Path) -> None:
    """Deletes a checkpoint; one that is half deleted no longer has its name."""
    aside = path.with_name(f".{path.name}.old")
    shutil.rmtree(aside, ignore_errors=True)
    if path.exists():
        path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)

"""Adapters in a model directory, and apart from the model they were trained for.

`transformer_mt.weights` has the form of the files.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from paddle import nn
from safetensors import safe_open

from transformer_mt.model.adapters import adapted_layers
from transformer_mt.model.operations import array
from transformer_mt.model_directory import MODEL_CARD, ModelDirectory
from transformer_mt.training.folder import RunDirectory
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.folders import checksum_of, published, verify
from transformer_mt.weights import (
    ADAPTERS,
    BASE,
    WEIGHTS,
    A,
    Adapters,
    B,
    base_parameters,
    read_file,
    write_tensors,
)

# ---------------------------------------------------------------------------- in a model directory


def keep_base(directory: RunDirectory, model: nn.Layer, source: Path) -> None:
    """Writes the weights that adapters are trained for into the folder `base` of a directory.

    If the model has the weights of `source`, a checkpoint of another model, the file is a hard link
    to that one, which takes no room, or a copy on another file system. No program writes into such
    a file: it is only ever replaced.

    Raises:
        UserError: it can't be written.
    """
    weights = base_parameters(model)
    file = source / WEIGHTS
    is_same = False
    if file.is_file():
        with safe_open(file, "np") as tensors:
            shapes = {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
        # With new symbols, the vocabulary has more rows.
        is_same = shapes == {name: list(weight.shape) for name, weight in weights.items()}
    try:
        with published(directory.path / BASE) as folder:
            if is_same:
                _link(file, folder / WEIGHTS)
            else:
                write_tensors(folder / WEIGHTS, {name: array(p) for name, p in weights.items()})
    except OSError as error:
        raise UserError(f"{directory.path / BASE}: can't be written: {error.strerror}") from None


def _link(file: Path, new: Path) -> None:
    try:
        os.link(file.resolve(), new)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(file, new)


def adapters_of(model: nn.Layer, directory: Path, base_name: str) -> Adapters | None:
    """Returns the adapters of a model in training; None if it has none.

    Args:
        directory: the model directory, which has the folder `base`.
        base_name: as in `Adapters`.
    """
    layers = adapted_layers(model)
    if not layers:
        return None
    named = model.named_parameters()
    arrays = {name: p.numpy() for name, p in named if name.endswith((A, B))}
    return Adapters(layers[0].scale, checksum_of(directory / BASE, WEIGHTS), base_name, arrays)


def mean_of(adapters: Sequence[Adapters], factors: Sequence[float]) -> Adapters:
    """Returns adapters whose product is the weighted mean of the products A B of others.

    The mean of the matrices A times that of the matrices B would be something else. So the rank of
    the result is the sum of the ranks: [A1 A2] [B1; B2] / 2 = (A1 B1 + A2 B2) / 2.
    """
    arrays: dict[str, np.ndarray] = {}
    shares = [np.float32(factor / sum(factors)) for factor in factors]
    for name in adapters[0].arrays:
        parts = [own.arrays[name] for own in adapters]
        if name.endswith(A):
            arrays[name] = np.concatenate(parts, axis=1)
        else:
            arrays[name] = np.concatenate(
                [part * share for part, share in zip(parts, shares, strict=True)]
            )
    return replace(adapters[0], arrays=arrays)


# --------------------------------------------------------------------------- apart from their model


def apply_adapter(folder: Path, base: Path, model_dir: Path) -> RunDirectory:
    """Makes a model directory of adapters that were exported (`export --format adapter`) and the
    model that they were trained for.

    Args:
        folder: the export.
        base: a model directory that has these weights, in any of its checkpoints.
        model_dir: the new directory. Its checkpoint is step_0.

    Raises:
        UsageError: `folder` or `base` is not such a folder, or `model_dir` holds something.
        UserError: one of them is damaged, or `base` is another model; nothing is written.
    """
    export = ModelDirectory(folder)
    config, adapters = export.load_config(), Adapters.read(folder)
    if adapters is None:
        raise UsageError(f"{folder} holds no adapters (it has no {ADAPTERS})")
    if problem := verify(folder):
        raise UserError(f"{folder}: damaged ({problem}). Export the adapters again")
    source = _with_weights(ModelDirectory(base), adapters)
    try:
        adapters.added_to(read_file(source, f"Use another copy of {base}"))
    except ValueError as error:
        raise UserError(f"{folder}: its adapters do not fit {base}: {error}") from None
    subwords = export.load_subwords()
    directory = RunDirectory(model_dir)
    directory.claim()
    try:
        if directory.holds_run:
            raise UsageError(f"{model_dir} holds a model already. Give another folder")
        directory.start(config.model_copy(update={"model_dir": str(model_dir)}), subwords, [])
        with published(directory.path / BASE) as new:
            _link(source / WEIGHTS, new / WEIGHTS)
        checkpoint = directory.checkpoints / "step_0"
        with published(checkpoint) as new:
            adapters.write(new)
        directory.set_best(checkpoint)
        if export.own(MODEL_CARD).is_file():
            shutil.copyfile(export.own(MODEL_CARD), directory.path / MODEL_CARD)
    except OSError as error:
        raise UserError(f"{model_dir}: can't be written: {error.strerror or error}") from None
    finally:
        directory.release()
    return directory


def _with_weights(base: ModelDirectory, adapters: Adapters) -> Path:
    """Returns the folder in a model directory that has the weights of adapters.

    Raises:
        UserError: none of its checkpoints has them.
    """
    base.load_config()  # raises if this is no model directory
    folders = [base.own(f"checkpoints/{path.name}") for path in base.named_checkpoints()]
    for folder in [*folders, base.own(BASE)]:
        if checksum_of(folder, WEIGHTS) == adapters.base:
            return folder
    raise UserError(
        f"{base.path}: none of its checkpoints has the weights that these adapters were trained "
        f"for. They are those of {adapters.base_name}, in a file with the SHA-256 {adapters.base}"
    )

"""Checkpoints: folders that are written as a whole or not at all, with checksums. They hold the
weights of the model, and the state of training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn

from transformer_mt.model.operations import array, is_on_cpu
from transformer_mt.model_directory import START, ModelDirectory
from transformer_mt.training.adapters import adapters_of, mean_of
from transformer_mt.training.folder import RunDirectory
from transformer_mt.training.progress import Meter, Progress
from transformer_mt.training.update import Updater
from transformer_mt.utils.console import warn
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.folders import published, verify
from transformer_mt.weights import (
    OPTIMIZER,
    WEIGHTS,
    Adapters,
    load_weights,
    read_tensors,
    read_weights,
    write_tensors,
)

STATE = "state.json"


@dataclass
class State:
    """The state of training in a checkpoint.

    Attributes:
        progress: how far the run has come.
        scaler: `LossScale.state`; empty unless training is in float16.
        corpus: `PreparedData.key` of the text that is trained on.
        stopped: whether the checkpoint was saved because training was stopped. A run that is not
            stopped does not have it, so the next checkpoint replaces it.
        average_of: the names of the checkpoints that an average or a mix was made of. The other
            values are then the state of the last of them.
    """

    progress: Progress
    scaler: dict[str, Any] = field(default_factory=dict)
    corpus: str = ""
    stopped: bool = False
    average_of: list[str] = field(default_factory=list)

    def save(self, checkpoint: Path) -> None:
        """Writes state.json into the folder of a checkpoint."""
        values = asdict(self)
        if not self.average_of:
            del values["average_of"]
        (checkpoint / STATE).write_text(json.dumps(values))

    @classmethod
    def restore(cls, checkpoint: Path) -> State:
        """Reads what `save` wrote, in this version of the program or an earlier one.

        Checkpoints in `best` that no longer exist are left out.

        Raises:
            UserError: the file is damaged, or holds something else.
        """
        path = checkpoint / STATE
        if problem := verify(checkpoint, STATE):
            raise UserError(f"{path}: damaged ({problem})")
        try:
            values = json.loads(path.read_text())
            progress = values["progress"]
            progress["plan"] = tuple(progress["plan"])
            progress["best"] = [
                # Earlier versions kept the value of training.best_metric alone.
                (ranks if isinstance(ranks, list) else [float(ranks)], step)
                for ranks, step in progress["best"]
                if (checkpoint.parent / f"step_{step}").is_dir()
            ]
            progress["meter"] = Meter(**progress["meter"])
            progress["losses"] = [tuple(pair) for pair in progress.get("losses", ())]
            values["progress"] = Progress(**progress)
            return cls(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{path}: it is no state of training ({type(error).__name__}: {error}). "
                "Delete this checkpoint to resume from the one before it"
            ) from None


def save(
    path: Path,
    model: nn.Layer,
    optimizer_state: dict[str, np.ndarray],
    state: State,
    base_name: str = "",
) -> None:
    """Writes the checkpoint `path`. Of a model with adapters, it holds these alone.

    Args:
        optimizer_state: what the updater's `state` returns, or that of its optimiser alone.
        base_name: as in `Adapters`.

    Raises:
        UserError: it could not be written (a full disk); earlier checkpoints are untouched.
    """
    adapters = adapters_of(model, path.parent.parent, base_name)
    with _new_checkpoint(path) as folder:
        if adapters is None:
            # state_dict() lists a tied parameter under each of its names, named_parameters() once.
            weights = {name: _on_host(parameter) for name, parameter in model.named_parameters()}
            write_tensors(folder / WEIGHTS, weights)
        else:
            adapters.write(folder)
        write_tensors(folder / OPTIMIZER, optimizer_state)
        state.save(folder)


def restore(path: Path, updater: Updater) -> State:
    """The inverse of `save`: fills the updater and its model, and returns the state.

    Raises:
        UserError: the checkpoint is damaged.
    """
    load_weights(path, updater.model)
    try:
        updater.load(read_tensors(path / OPTIMIZER))
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{path / OPTIMIZER}: damaged ({error})") from None
    return State.restore(path)


def _on_host(tensor: paddle.Tensor) -> np.ndarray:
    """Returns the values of a tensor; on a CPU without copying them."""
    return array(tensor) if is_on_cpu(tensor) else tensor.numpy()


@contextmanager
def _new_checkpoint(path: Path) -> Iterator[Path]:
    """Yields a new folder for the block to write into. When the block ends, the folder becomes the
    checkpoint `path`, with checksums. An earlier one is replaced.

    Raises:
        UserError: it could not be written; an earlier one is untouched.
    """
    try:
        with published(path) as folder:
            yield folder
    except OSError as error:
        raise UserError(
            f"{path}: the checkpoint can't be written: {error.strerror or error}. "
            "The checkpoints before it are whole"
        ) from None


def mix(directory: RunDirectory, before: Path, after: Path, percent: int) -> Path:
    """Writes checkpoints/mix_P, whose weights are (1 - P/100) * before + P/100 * after.

    Wortsman et al. 2022 (arXiv 2109.01903, section 3) find that such an interpolation of a model
    before and after fine-tuning is often good both on the text of the first training and on that of
    the second.

    Args:
        before, after: the folders of the two checkpoints.
        percent: P, from 0 to 100.

    Raises:
        UserError: one of the checkpoints is damaged.
    """
    directory.require_inside()
    return _write_mean(directory, f"mix_{percent}", [before, after], [100 - percent, percent])


def average(directory: RunDirectory, kind: str, count: int) -> Path:
    """Writes checkpoints/average_KIND_N, whose weights are the mean of N checkpoints' weights.

    Such an average is often better than each of the checkpoints. Vaswani et al. 2017, section 6.1,
    average the last 5 of the base model.

    Args:
        kind: "last" or "best", which of the checkpoints.
        count: N.

    Returns: the folder of the average.

    Raises:
        UsageError: fewer than N checkpoints exist.
        UserError: one of them is damaged.
    """
    directory.require_inside()
    chosen = _choose(directory, kind, count)
    return _write_mean(directory, f"average_{kind}_{count}", chosen, [1] * count)


def _write_mean(directory: RunDirectory, name: str, parts: list[Path], factors: list[int]) -> Path:
    """Writes a checkpoint whose weights are the weighted mean of those of others; returns its
    folder."""
    adapters = [own for path in parts if (own := Adapters.read(path)) is not None]
    means = {} if adapters else _means(parts, factors)
    state = replace(State.restore(parts[-1]), average_of=[path.name for path in parts])
    path = directory.checkpoints / name
    with _new_checkpoint(path) as folder:
        if adapters:
            mean_of(adapters, factors).write(folder)
        else:
            write_tensors(folder / WEIGHTS, means)
        state.save(folder)
    return path


def _means(checkpoints: list[Path], factors: list[int]) -> dict[str, np.ndarray]:
    """Returns the weighted mean of each weight over checkpoints.

    Raises:
        UserError: one of them is damaged.
    """
    sums: dict[str, np.ndarray] = {}
    for path, factor in zip(checkpoints, factors, strict=True):
        weights = read_weights(path)
        if sums and sums.keys() != weights.keys():
            raise UserError(f"{path} has other weights than {checkpoints[0]}")
        for name, weight in weights.items():
            # In float64, so that the mean of equal weights is that weight.
            sums[name] = sums.get(name, 0.0) + factor * weight.astype(np.float64)
    return {name: (total / sum(factors)).astype(np.float32) for name, total in sums.items()}


def _choose(directory: ModelDirectory, kind: str, count: int) -> list[Path]:
    """Returns the checkpoints to average; the last is the newest, or the best."""
    saved = directory.trained_checkpoints()
    if kind == "best" and saved:
        best = State.restore(saved[-1]).progress.best_steps  # as the newest one knows them
        saved = [directory.checkpoints / f"step_{step}" for step in reversed(best)]
    if len(saved) < count:
        raise UsageError(
            f"{directory.path} has {len(saved)} of the {kind} checkpoints, not {count}: that many "
            f"must be kept during training, with training.keep_{kind}"
        )
    return saved[-count:]


def newest_whole(directory: ModelDirectory) -> Path | None:
    """Returns the newest checkpoint that is not damaged; None if there are no checkpoints.

    Newer ones, which are damaged, are renamed with a warning.

    Raises:
        UserError: all checkpoints are damaged.
    """
    damaged = []
    for path in reversed(directory.saved_checkpoints()):
        problem = verify(path)
        if problem is None:
            break
        damaged.append((path, problem))
    else:
        if not damaged:
            return None
        problems = "\n".join(f"  {found}: {problem}" for found, problem in damaged)
        raise UserError(
            f"{directory.path}: none of its checkpoints is whole:\n{problems}\n"
            "Train again from the beginning with --restart, which puts this folder aside"
        )
    for found, problem in damaged:
        aside = found.with_name(f"{found.name}.damaged")
        shutil.rmtree(aside, ignore_errors=True)
        found.rename(aside)
        warn(f"{found} is damaged ({problem}); passed over, and renamed {aside.name}")
    return path


def remove_old(directory: ModelDirectory, keep_last: int, best: list[int]) -> None:
    """Deletes checkpoints, except for the last `keep_last`, those of the steps in `best`, and the
    model before fine-tuning."""
    kept = {START, *(f"step_{step}" for step in best)}
    for path in directory.trained_checkpoints()[:-keep_last]:
        if path.name not in kept:
            remove(path)


def remove(path: Path) -> None:
    """Deletes a checkpoint. It is renamed first, so that no half-deleted one has its name."""
    aside = path.with_name(f".{path.name}.old")
    shutil.rmtree(aside, ignore_errors=True)
    if path.exists():
        path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)

"""Averages of checkpoints, which are often better than each of them.

Vaswani et al. 2017, section 6.1, average the last 5 checkpoints of the base model.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from transformer_mt.model_directory import ModelDirectory
from transformer_mt.runtime import tensors
from transformer_mt.runtime.errors import UsageError, UserError
from transformer_mt.training.checkpoint import write_checkpoint
from transformer_mt.training.run_directory import RunDirectory
from transformer_mt.training.state import State
from transformer_mt.weights import WEIGHTS, read_weights


def average(directory: RunDirectory, kind: str, count: int) -> Path:
    """Writes checkpoints/average_KIND_N, whose weights are the mean of N checkpoints' weights.

    Args:
        kind: "last" or "best", which of the checkpoints.
        count: how many.

    Raises:
        UsageError: there are not so many.
        UserError: one of them is damaged.
    """
    directory.require_inside()
    chosen = _choose(directory, kind, count)
    sums: dict[str, np.ndarray] = {}
    for path in chosen:
        weights = read_weights(path)
        if sums and sums.keys() != weights.keys():
            raise UserError(f"{path} has other weights than {chosen[0]}")
        for name, weight in weights.items():
            # In float64, so that the mean of equal weights is that weight.
            sums[name] = sums.get(name, 0.0) + weight.astype(np.float64)
    means = {name: (total / len(chosen)).astype(np.float32) for name, total in sums.items()}
    state = replace(State.restore(chosen[-1]), average_of=[path.name for path in chosen])

    def write(folder: Path) -> None:
        tensors.write(folder / WEIGHTS, means)
        state.save(folder)

    return write_checkpoint(directory.checkpoints / f"average_{kind}_{count}", write)


def _choose(directory: ModelDirectory, kind: str, count: int) -> list[Path]:
    """Returns the checkpoints to average; the last is the newest, or the best."""
    saved = directory.saved_checkpoints()
    if kind == "best" and saved:
        best = State.restore(saved[-1]).progress.best_steps  # as the newest one knows them
        saved = [directory.checkpoints / f"step_{step}" for step in reversed(best)]
    if len(saved) < count:
        raise UsageError(
            f"{directory.path} has {len(saved)} of the {kind} checkpoints, not {count}: that many "
            f"must be kept during training, with training.keep_{kind}"
        )
    return saved[-count:]

"""Averages of checkpoints: often better than any of them, for nothing.

Vaswani et al. 2017, section 6.1, average the last 5 checkpoints of the base model.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from transformer_mt.model_directory import ModelDirectory, checkpoint_step
from transformer_mt.runtime import tensors
from transformer_mt.runtime.errors import UsageError, UserError
from transformer_mt.training.checkpoint import STATE, read_state, write_checkpoint
from transformer_mt.weights import WEIGHTS, read_weights


def average(directory: ModelDirectory, kind: str, count: int) -> Path:
    """Writes checkpoints/average_KIND_N, the mean of the last or best N checkpoints' weights.

    Args:
        kind: "last" or "best".
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

    def write(folder: Path) -> None:
        tensors.write(folder / WEIGHTS, means)
        (folder / STATE).write_text(json.dumps({"average_of": [path.name for path in chosen]}))

    return write_checkpoint(directory.checkpoints / f"average_{kind}_{count}", write)


def _choose(directory: ModelDirectory, kind: str, count: int) -> list[Path]:
    saved = directory.saved_checkpoints()
    if kind == "best":
        by_step = {checkpoint_step(path): path for path in saved}
        saved = [by_step[step] for step in reversed(_best_steps(saved)) if step in by_step]
    if len(saved) < count:
        raise UsageError(
            f"{directory.path} has {len(saved)} of the {kind} checkpoints, not {count}: that many "
            f"must be kept during training, with training.keep_{kind}"
        )
    return saved[-count:]


def _best_steps(saved: list[Path]) -> list[int]:
    """Steps of the best checkpoints, the best first, as the newest one knows them."""
    if not saved:
        return []
    return [step for _, step in read_state(saved[-1])["progress"]["best"]]

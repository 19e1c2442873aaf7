"""The learning rate of each update."""

from __future__ import annotations

import math
from collections.abc import Callable

from transformer_mt.config.schema import TrainingConfig


def learning_rate(step: int, training: TrainingConfig, d_model: int) -> float:
    """Returns the rate of update number `step`, from 1. It rises linearly to its peak over
    training.warmup_steps, and then follows training.schedule."""
    warmup, peak = training.warmup_steps, training.learning_rate
    if peak is None:
        peak = (d_model * warmup) ** -0.5
    if step < warmup:
        return peak * step / warmup
    return peak * SCHEDULES[training.schedule](step, training)


def _inverse_sqrt(step: int, training: TrainingConfig) -> float:
    return (training.warmup_steps / step) ** 0.5


def _linear(step: int, training: TrainingConfig) -> float:
    return 1.0 - _share_done(step, training)


def _cosine(step: int, training: TrainingConfig) -> float:
    # Loshchilov and Hutter 2017 (arXiv 1608.03983), formula 5, without restarts.
    return 0.5 * (1.0 + math.cos(math.pi * _share_done(step, training)))


def _share_done(step: int, training: TrainingConfig) -> float:
    """Returns how much of the way from warmup_steps to decay_steps is done: 0 to 1."""
    length = training.decay_steps - training.warmup_steps
    return min(1.0, (step - training.warmup_steps) / length)


# What follows the warm-up: the rate of a step as a share of the peak. Where it becomes 0 is a
# setting of its own, decay_steps, so the rate does not jump if a resumed run has another length.
SCHEDULES: dict[str, Callable[[int, TrainingConfig], float]] = {
    # Formula 3 of Vaswani et al. 2017: d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5).
    "noam": _inverse_sqrt,
    "inverse_sqrt": _inverse_sqrt,
    "linear": _linear,
    "cosine": _cosine,
    "constant": lambda step, training: 1.0,
}

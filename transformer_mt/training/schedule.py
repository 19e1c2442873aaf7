"""The learning rate as a function of the step."""

from __future__ import annotations

from transformer_mt.config.schema import TrainingConfig


def learning_rate(step: int, config: TrainingConfig, d_model: int) -> float:
    """The rate of update number `step`; the first is 1, so that no update has a rate of zero.

    Every schedule rises linearly to its peak over warmup_steps. noam is the paper's formula 3
    (section 5.3): d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5), whose peak can be set
    by learning_rate; inverse_sqrt falls in the same way from the peak it is given; constant stays.
    """
    warmup = config.warmup_steps
    peak = config.learning_rate
    if peak is None:
        peak = (d_model * warmup) ** -0.5
    if step < warmup:
        return peak * step / warmup
    if config.schedule == "constant":
        return peak
    return peak * (warmup / step) ** 0.5

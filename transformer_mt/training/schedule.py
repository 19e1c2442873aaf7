"""Learning-rate schedules: the rate of an update as a function of its number.

To add a schedule, add an entry to `SCHEDULES`, and describe it in config/schema.py. This
module imports nothing heavy, because the config takes the names of the schedules, and what they
need, from here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class ScheduleSettings(Protocol):
    """The settings that a schedule may read; the config's training section has them."""

    @property
    def schedule(self) -> str: ...

    warmup_steps: int
    decay_steps: int | None
    learning_rate: float | None


@dataclass(frozen=True)
class Schedule:
    """The rate rises linearly to its peak over warmup_steps, and then follows `after_warmup`.

    Attributes:
        after_warmup: maps (step, settings) to the rate as a share of the peak, for steps from
            warmup_steps on. Steps count from 1.
        needs_warmup: whether warmup_steps must be at least 1.
        ends: whether the rate is 0 from decay_steps on. That is a setting of its own, so the rate
            does not jump if a run is resumed with another length.
        default_peak: maps (d_model, warmup_steps) to the peak if learning_rate is null; None if
            learning_rate must be given.
    """

    after_warmup: Callable[[int, ScheduleSettings], float]
    needs_warmup: bool = False
    ends: bool = False
    default_peak: Callable[[int, int], float] | None = None


def _inverse_sqrt(step: int, settings: ScheduleSettings) -> float:
    return (settings.warmup_steps / step) ** 0.5


def _linear(step: int, settings: ScheduleSettings) -> float:
    return 1.0 - _share_done(step, settings)


def _cosine(step: int, settings: ScheduleSettings) -> float:
    # Loshchilov and Hutter 2017 (arXiv 1608.03983), formula 5, without restarts.
    return 0.5 * (1.0 + math.cos(math.pi * _share_done(step, settings)))


def _share_done(step: int, settings: ScheduleSettings) -> float:
    """Returns how much of the way from warmup_steps to decay_steps is done: 0 to 1."""
    length = settings.decay_steps - settings.warmup_steps
    return min(1.0, (step - settings.warmup_steps) / length)


def _peak_of_the_paper(d_model: int, warmup_steps: int) -> float:
    return (d_model * warmup_steps) ** -0.5


SCHEDULES = {
    # Formula 3 of Vaswani et al. 2017: d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5).
    "noam": Schedule(_inverse_sqrt, needs_warmup=True, default_peak=_peak_of_the_paper),
    "inverse_sqrt": Schedule(_inverse_sqrt, needs_warmup=True),
    "linear": Schedule(_linear, ends=True),
    "cosine": Schedule(_cosine, ends=True),
    "constant": Schedule(lambda step, settings: 1.0),
}


def learning_rate(step: int, settings: ScheduleSettings, d_model: int) -> float:
    """Returns the rate of update number `step`. Steps count from 1."""
    schedule, warmup = SCHEDULES[settings.schedule], settings.warmup_steps
    peak = settings.learning_rate
    if peak is None:
        peak = schedule.default_peak(d_model, warmup)
    if step < warmup:
        return peak * step / warmup
    return peak * schedule.after_warmup(step, settings)

"""Learning-rate schedules: the rate of an update as a function of its number.

To add a schedule, add an entry to `SCHEDULES`, and describe it in config/schema.py. This
module imports nothing heavy, because the config takes the names of the schedules, and what they
need, from here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class ScheduleSettings(Protocol):
    """The settings that a schedule may read; the config's training section has them."""

    schedule: str
    warmup_steps: int
    learning_rate: float | None


@dataclass(frozen=True)
class Schedule:
    """The rate rises linearly to its peak over warmup_steps, and then follows `after_warmup`.

    Attributes:
        after_warmup: maps (step, settings, total_steps) to the rate as a share of the peak, for
            steps from warmup_steps on. Steps count from 1. total_steps is None unless
            `uses_total_steps`.
        uses_total_steps: whether the rate depends on the number of updates of the whole run. A run
            with such a schedule can't be resumed with another length, at which the rate would jump.
        needs_warmup: whether warmup_steps must be at least 1.
        default_peak: maps (d_model, warmup_steps) to the peak if learning_rate is null; None if
            learning_rate must be given.
    """

    after_warmup: Callable[[int, ScheduleSettings, int | None], float]
    uses_total_steps: bool = False
    needs_warmup: bool = False
    default_peak: Callable[[int, int], float] | None = None


def _inverse_sqrt(step: int, settings: ScheduleSettings, total_steps: int | None) -> float:
    return (settings.warmup_steps / step) ** 0.5


def _peak_of_the_paper(d_model: int, warmup_steps: int) -> float:
    return (d_model * warmup_steps) ** -0.5


SCHEDULES = {
    # Formula 3 of Vaswani et al. 2017: d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5).
    "noam": Schedule(_inverse_sqrt, needs_warmup=True, default_peak=_peak_of_the_paper),
    "inverse_sqrt": Schedule(_inverse_sqrt, needs_warmup=True),
    "constant": Schedule(lambda step, settings, total_steps: 1.0),
}


def learning_rate(step: int, settings: ScheduleSettings, d_model: int, total_steps: int) -> float:
    """Returns the rate of update number `step`. Steps count from 1, so no rate is zero.

    Args:
        total_steps: the number of updates of the whole run.
    """
    schedule, warmup = SCHEDULES[settings.schedule], settings.warmup_steps
    peak = settings.learning_rate
    if peak is None:
        peak = schedule.default_peak(d_model, warmup)
    if step < warmup:
        return peak * step / warmup
    known_steps = total_steps if schedule.uses_total_steps else None
    return peak * schedule.after_warmup(step, settings, known_steps)

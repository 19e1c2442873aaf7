"""How long the steps of a model take, and what a time is enough for."""

from __future__ import annotations

import time
from dataclasses import dataclass

from transformer_mt.config.schema import Config
from transformer_mt.data.prepare import PreparedData
from transformer_mt.training.loop import Trainer, seconds_per_step
from transformer_mt.training.parallel import Processes
from transformer_mt.training.recipes.sizes import Size
from transformer_mt.utils import device as devices
from transformer_mt.utils.console import warn

# The time that is not training, in seconds: importing, and the tests and the report at the end.
OTHER_SECONDS = 60.0
# To translate a sentence with a beam takes about so many times as long as without one.
BEAM_TIME = 3
# How long the speed of a model is measured, in seconds.
MEASURED_SECONDS = 8.0
# Training that gets less than this share of a core is slowed down by other programs.
BUSY = 0.8


@dataclass(frozen=True)
class Timing:
    """What a time is enough for.

    Attributes:
        seconds: the time of a step.
        others: the time of everything that is not a step.
        is_slowed: whether other programs computed during the measurement.
        size: None for the model that is fine-tuned.
    """

    size: Size | None
    where: str
    seconds: float
    others: float
    steps_per_epoch: int
    steps: int
    is_slowed: bool = False

    @property
    def epochs(self) -> float:
        return self.steps / self.steps_per_epoch


def measure(
    config: Config, data: PreparedData, sentences: float, seconds: float, used: str
) -> Timing:
    """Tries some steps of the model of a config.

    Args:
        sentences: how many sentences a run translates besides its steps, greedily. To translate a
            sentence so takes about as long as to train on it.
        seconds: how long the whole training may take.
        used: the name of the device.
    """
    processes = devices.processes(config.training.devices, used)
    trainer = Trainer(config, data, Processes(world_size=processes))
    started, computed = time.perf_counter(), time.process_time()
    step, per_epoch = seconds_per_step(trainer, MEASURED_SECONDS), trainer.plan.updates_per_epoch
    busy = (time.process_time() - computed) / (time.perf_counter() - started)
    others = OTHER_SECONDS + step * per_epoch / data.facts["pairs"] * sentences
    steps = max(1, int(max(seconds - others, seconds / 2) / step))
    where = used if processes == 1 else f"{processes} processes on {used}"
    return Timing(None, where, step, others, per_epoch, steps, used == "cpu" and busy < BUSY)


def warn_if_slowed(timing: Timing) -> None:
    """Warns if other programs computed while the steps were timed."""
    if timing.is_slowed:
        warn(
            "other programs are using this computer, so the steps are slower than they could be. "
            "Run `new` again when they have ended, for a longer training or a larger model"
        )

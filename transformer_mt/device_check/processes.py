"""The check of several processes: together they make the update that one of them would make."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import paddle

from transformer_mt.config.schema import Config
from transformer_mt.data.batches import Update
from transformer_mt.device_check import examples, updates
from transformer_mt.device_check.machine import Machine
from transformer_mt.device_check.model import MODEL_FACTOR
from transformer_mt.device_check.reference import compare_arrays
from transformer_mt.device_check.report import Finding, LeftOut
from transformer_mt.model_directory import ModelDirectory
from transformer_mt.training.processes import ALONE, Processes
from transformer_mt.training.workers import run_workers
from transformer_mt.utils import tensors

# On a CPU. On GPUs there is a process for each, and at most this many.
CPU_PROCESSES, MOST_PROCESSES = 2, 8
BEFORE, AFTER = "before.safetensors", "after.safetensors"
UPDATES = 2


@dataclass
class Job:
    """What `run_workers` hands to the workers in place of prepared data. There is no dev set."""

    dev_split: None = None


class ShortTrainer:
    """What a worker runs in place of a trainer: two updates from given weights. The first process
    writes the weights after them."""

    def __init__(self, config: Config, data: Job, processes: Processes) -> None:
        self.processes = processes
        self.updater = examples.updater(config, processes=processes)

    def start(self, resumed: Path | None) -> None:
        """There is nothing to resume: `run` reads the weights."""

    def run(self, directory: ModelDirectory) -> None:
        """Makes the updates."""
        examples.set_weights(self.updater.model, tensors.read(directory.path / BEFORE))
        for step in range(1, UPDATES + 1):
            updates.apply(self.updater, _share(step, self.processes), step)
        if self.processes.is_first:
            tensors.write(directory.path / AFTER, examples.weights_of(self.updater.model))
        self.processes.wait()


def _share(step: int, processes: Processes) -> Update:
    """The batches of an update that a process computes. The last process has none of the second
    update."""
    whole = examples.make_update(step, batches=3)
    own = whole.batches[processes.rank :: processes.world_size]
    if step == UPDATES and processes.world_size > 1:
        shared = processes.world_size - 1
        is_last = processes.rank == shared
        own = [] if is_last else whole.batches[processes.rank :: shared]
    return Update(own, whole.target_tokens)


def updates_together(machine: Machine, sharding: bool) -> Finding:
    """The gradients of several processes, which Paddle's launcher starts, add up to those of one:
    two updates by gradient descent with momentum give the same weights.

    Args:
        sharding: whether each process keeps only its share of the optimiser's state.
    """
    count = CPU_PROCESSES
    if machine.is_gpu:
        count = min(paddle.device.cuda.device_count(), MOST_PROCESSES)
        if count < 2 or ":" in machine.name:
            raise LeftOut("it needs several GPUs and --device gpu; --device cpu checks it on a CPU")
    config = examples.make_config(training={"momentum": 0.5, "sharding": sharding})
    alone = examples.updater(examples.make_config(training={"momentum": 0.5}))
    before = examples.weights_of(alone.model)
    with tempfile.TemporaryDirectory() as folder:
        directory = ModelDirectory(folder)
        tensors.write(directory.path / BEFORE, before)
        run_workers(ShortTrainer, config, Job(), directory, machine.name, count, None)
        found = tensors.read(directory.path / AFTER)
    for step in range(1, UPDATES + 1):
        updates.apply(alone, _share(step, ALONE), step)
    expected = examples.weights_of(alone.model)
    moves = [
        {name: before[name].astype(np.float64) - after[name] for name in before}
        for after in (found, expected)
    ]
    limit = machine.tolerance() * MODEL_FACTOR
    return Finding.of(
        compare_arrays("", *moves, limit, "change"), f"{count} processes on {machine.name}"
    )

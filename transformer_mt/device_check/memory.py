"""Checks of memory: what an update takes beside what `info` predicts, and running out of it."""

from __future__ import annotations

import gc

import numpy as np
import paddle

from transformer_mt.config.schema import Config
from transformer_mt.data.batches import Update
from transformer_mt.device_check import examples, updates
from transformer_mt.device_check.machine import Machine
from transformer_mt.device_check.report import Figure, Finding, message_of
from transformer_mt.inspect import memory
from transformer_mt.inspect.parameters import VocabularySizes
from transformer_mt.training.update import Updater
from transformer_mt.utils.errors import UserError, is_out_of_memory

VOCABULARY, ROWS, LENGTH = 4000, 32, 24
MODEL = {"num_layers": 3, "d_model": 128, "num_heads": 4, "d_ff": 512}
# How much more, or less, memory may be used than is predicted. `info` leaves a tenth free; in half
# precision its prediction was never measured.
LIMITS = {"float32": 0.25, "bfloat16": 0.4, "float16": 0.4}


def predicted(config: Config) -> tuple[int, int]:
    """What `info` predicts for a batch: the weights, gradients and state of the optimiser; and the
    activations, in bytes."""
    sizes = VocabularySizes(VOCABULARY, VOCABULARY, True)
    held = 2 * memory.weight_bytes(config, sizes) + memory.optimizer_bytes(config, sizes)
    held += memory.half_weight_bytes(config, sizes)
    return held, memory.activation_bytes(config, VOCABULARY, ROWS, LENGTH, LENGTH)


def of_an_update(machine: Machine, precision: str) -> Finding:
    """The most memory that an update takes, beside what `info` predicts.

    On a CPU, what is allocated when the loss has been computed is measured, as in `info`, without
    dropout, whose masks are not made by Paddle.
    """
    machine.require(precision)
    dropout = 0.1 if machine.is_gpu else 0.0
    training = {"optimizer": "adam", "precision": precision}
    config = examples.make_config({**MODEL, "dropout": dropout}, training)
    gc.collect()
    before = _allocated(machine)
    updater = examples.updater(config, VOCABULARY)
    batch = examples.full_batch(ROWS, LENGTH, VOCABULARY)
    update = Update([batch], batch.target_tokens)
    updates.apply(updater, update, 1)  # the optimiser makes its state
    held, activations = predicted(config)
    if machine.is_gpu:
        machine.synchronize()
        paddle.device.cuda.reset_max_memory_allocated(machine.device)
        updates.apply(updater, update, 2)
        machine.synchronize()
        found = paddle.device.cuda.max_memory_allocated(machine.device) - before
        expected = held + activations
    else:
        found = _at_the_loss(machine, updater, update) - before
        # Gradients do not exist yet.
        expected = (
            held
            + activations
            - memory.weight_bytes(config, VocabularySizes(VOCABULARY, VOCABULARY, True))
        )
    text = f"{found / 1e6:,.0f} MB, predicted {expected / 1e6:,.0f} MB"
    figure = Figure("difference", abs(found / expected - 1), LIMITS[precision], text)
    return Finding.of([figure], text)


def _allocated(machine: Machine) -> int:
    """The memory of all tensors, in bytes."""
    if machine.is_gpu:
        machine.synchronize()
        return int(paddle.device.cuda.memory_allocated(machine.device))
    return int(paddle.base.core.host_memory_stat_current_value("Allocated", 0))


def _at_the_loss(machine: Machine, updater: Updater, update: Update) -> int:
    found = []
    hook = updater.objective.criterion.register_forward_post_hook(
        lambda *_: found.append(_allocated(machine))
    )
    try:
        updates.apply(updater, update, 2)
    finally:
        hook.remove()
    return found[0]


def running_out(machine: Machine) -> Finding:
    """Memory is really used up, by one tensor and by an update that is too large: the program knows
    Paddle's message, names the keys to lower, and the next update works."""
    machine.require_gpu("using up a computer's memory would harm other programs")
    total = machine.memory_bytes
    try:
        paddle.empty([int(1.5 * total) // 4], dtype="float32")
        return Finding(False, "a tensor larger than the memory was made without an error")
    except Exception as error:
        if not is_out_of_memory(error):
            return Finding(False, f"the error is not known as one of memory: {message_of(error)}")
        message = message_of(error)
    config = examples.make_config({"num_layers": 1, "d_model": 16, "d_ff": 16})
    size, length = 50_000, 32
    updater = examples.updater(config, size)
    small = examples.full_batch(2, length, size)
    # The logits of this batch alone need 1.5 times the memory.
    rows = int(1.5 * total) // (4 * size * length)
    large = examples.full_batch(rows, length, size)
    try:
        updates.apply(updater, Update([large], large.target_tokens), 1)
        return Finding(False, "an update larger than the memory was made without an error")
    except UserError as error:
        if "training.device_tokens" not in str(error):
            return Finding(False, f"the message does not say what to do: {message_of(error)}")
    gc.collect()
    paddle.device.cuda.empty_cache()
    updater = examples.updater(config, size)
    outcome = updates.apply(updater, Update([small], small.target_tokens), 2)
    if not np.isfinite(outcome.loss):
        return Finding(False, "the update after it is not finite")
    return Finding(True, f"{message}; the next update works")

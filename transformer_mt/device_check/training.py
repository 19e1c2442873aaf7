"""Checks of training: updates in each precision, clipping, skipping, recompute, checkpoints."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import numpy as np

from transformer_mt.data.batches import Update
from transformer_mt.device_check import examples, updates
from transformer_mt.device_check.machine import Machine, relative_error
from transformer_mt.device_check.model import MODEL_FACTOR, losses_and_gradients
from transformer_mt.device_check.reference import Arrays, ReferenceModel, compare_arrays
from transformer_mt.device_check.report import Figure, Finding
from transformer_mt.training.update import Updater
from transformer_mt.utils import tensors
from transformer_mt.weights import OPTIMIZER, WEIGHTS

UPDATES = 50
# How the 50 updates learn. The loss falls by more than a third.
LEARNING = {
    "optimizer": "adam", "schedule": "inverse_sqrt", "warmup_steps": 10, "learning_rate": 5e-3,
    "clip_norm": 1.0,
}  # fmt: skip
LEAST_FALL = 0.15
# float16 may find its factor of the loss too large at the beginning.
MOST_SKIPPED = {"float32": 0, "bfloat16": 0, "float16": 5}
# The largest difference of a loss from that in float64, as a share of it. Rounding errors grow from
# update to update.
LOSS_LIMITS = {"float32": 1e-4, "TF32": 2e-2, "float16": 2e-2, "bfloat16": 5e-2}


def fifty_updates(machine: Machine, precision: str) -> Finding:
    """The loss of 50 updates by Adam falls as in float64 on the CPU, with an optimiser in NumPy."""
    machine.require(precision)
    config = examples.make_config(training={**LEARNING, "precision": precision})
    updater = examples.updater(config)
    reference = ReferenceModel(machine, config, examples.weights_of(updater.model))
    losses, expected, skipped = [], [], 0
    for step in range(1, UPDATES + 1):
        update = examples.make_update(step % 10)
        outcome = updates.apply(updater, update, step)
        losses.append(outcome.loss / update.target_tokens)
        if outcome.is_finite:
            expected.append(reference.adam(update, updater.rate(step)))
        else:  # float16 lowers its factor of the loss in this way
            expected.append(reference.gradients(update)[0])
            skipped += 1
    errors = np.abs(np.array(losses) / np.array(expected) - 1)
    limit = LOSS_LIMITS[machine.float32 if precision == "float32" else precision]
    worst = float(np.max(errors))  # nan if one of them is
    fall = 1 - losses[-1] / losses[0]
    figures = [
        Figure("", worst, limit, f"loss of update {int(np.argmax(errors)) + 1}"),
    ]
    if skipped:
        figures.append(Figure("skipped updates:", skipped, MOST_SKIPPED[precision]))
    if not fall > LEAST_FALL:
        figures.append(Figure("loss rises", 1 - fall, 1 - LEAST_FALL, "the loss does not fall"))
    return Finding.of(figures, f"the loss falls from {losses[0]:.2f} to {losses[-1]:.2f}")


def step_of(updater: Updater, update: Update) -> tuple[Arrays, float]:
    """Makes an update by plain gradient descent with a rate of 1; returns by how much each weight
    fell, which is its clipped gradient, and the reported norm."""
    before = examples.weights_of(updater.model)
    outcome = updates.apply(updater, update, 1)
    after = examples.weights_of(updater.model)
    return {name: before[name] - after[name] for name in before}, outcome.gradient_norm


def _norm(arrays: Arrays) -> float:
    return float(np.sqrt(sum((x.astype(np.float64) ** 2).sum() for x in arrays.values())))


def clipping(machine: Machine) -> Finding:
    """Gradients that are longer than clip_norm are scaled down to it, and keep their direction."""
    update = examples.make_update(5, batches=2)
    config = examples.make_config()
    updater = examples.updater(config)
    weights = examples.weights_of(updater.model)
    _, expected = ReferenceModel(machine, config, weights).gradients(update)
    norm = _norm(expected)
    figures = []
    limit = machine.tolerance() * MODEL_FACTOR
    for title, share in (("clipped to a third:", 1 / 3), ("not clipped:", 2.0)):
        clipped = examples.updater(examples.make_config(training={"clip_norm": share * norm}))
        examples.set_weights(clipped.model, weights)
        found, reported = step_of(clipped, update)
        factor = min(1.0, share)
        figures.append(Figure(title, abs(reported / norm - 1), limit, "the norm"))
        scaled = {name: factor * gradient for name, gradient in expected.items()}
        figures += compare_arrays(title, found, scaled, limit, "step")
    return Finding.of(figures)


def skipping(machine: Machine, precision: str) -> Finding:
    """An update that is not finite changes no weight, and the next one does. In float16, the factor
    of the loss is halved."""
    machine.require(precision)
    config = examples.make_config(training={**LEARNING, "precision": precision})
    updater = examples.updater(config)
    update = examples.make_update(6)
    updates.apply(updater, update, 1)
    scale = float(updater.scale.value) if precision == "float16" else 1.0
    losses = updater.objective.losses

    def infinite(*arguments):
        loss, nll = losses(*arguments)
        return loss * float("inf"), nll

    before = examples.weights_of(updater.model)
    updater.objective.losses = infinite
    try:
        outcome = updates.apply(updater, update, 2)
    finally:
        del updater.objective.losses
    after = examples.weights_of(updater.model)
    changed = sum(int((before[name] != after[name]).sum()) for name in before)
    figures = [
        Figure("weights changed:", changed, 0),
        Figure("reported as finite:", int(outcome.is_finite), 0),
    ]
    if precision == "float16":
        ratio = float(updater.scale.value) / scale
        figures.append(Figure("factor of the loss:", abs(ratio - 0.5), 0, f"times {ratio:g}"))
    updates.apply(updater, update, 3)
    again = examples.weights_of(updater.model)
    unmoved = int(all((after[name] == again[name]).all() for name in after))
    figures.append(Figure("next update left out:", unmoved, 0))
    return Finding.of(figures)


def recompute(machine: Machine) -> Finding:
    """Layers that are computed again in the backward pass give the same gradients, with the same
    dropout."""
    update = examples.make_update(7)
    results = []
    weights = None
    for is_on in (False, True):
        model = {"dropout": 0.3, "feed_forward_dropout": 0.1}
        updater = examples.updater(examples.make_config(model, {"recompute": is_on}))
        if weights is None:
            weights = examples.randomised(updater)
        examples.set_weights(updater.model, weights)
        results.append(losses_and_gradients(updater, update))
    (expected_loss, expected), (loss, gradients) = results
    limit = machine.tolerance()
    figures = [Figure("float32", abs(loss / expected_loss - 1), limit, "loss")]
    return Finding.of(figures + compare_arrays("float32", gradients, expected, limit))


def checkpoint(machine: Machine, to_cpu: bool) -> Finding:
    """A checkpoint that was saved on one device continues on another: all tensors are the same, and
    so is the next update, up to rounding."""
    config = examples.make_config(training=LEARNING)
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder) / "step_3", Path(folder) / "step_4"
        with machine.on_cpu():
            host = examples.updater(config)
        device = examples.updater(config)
        saver, reader = (device, host) if to_cpu else (host, device)
        with _selected(machine, saver is host):
            for step in (1, 2, 3):
                updates.apply(saver, examples.make_update(step), step)
            updates.save(first, saver)
            expected = _losses(saver)
        with _selected(machine, reader is host):
            # One update before, so that there is a state that must be replaced.
            updates.apply(reader, examples.make_update(9), 1)
            updates.restore(first, reader)
            updates.save(second, reader)
            found = _losses(reader)
        figures = []
        for name in (WEIGHTS, OPTIMIZER):
            saved, read = (tensors.read(path / name) for path in (first, second))
            different = [key for key in saved if not _same(saved[key], read.get(key))]
            detail = ", ".join(different[:3])
            figures.append(Figure("tensors that differ:", len(different), 0, detail))
        error = relative_error(found, expected)
        figures.append(Figure("next losses", error, machine.tolerance() * MODEL_FACTOR))
        return Finding.of(figures)


def _selected(machine: Machine, is_cpu: bool) -> contextlib.AbstractContextManager:
    return machine.on_cpu() if is_cpu else contextlib.nullcontext()


def _losses(updater: Updater) -> list[float]:
    """The losses of the next two updates. The second shows what the first did."""
    return [updates.apply(updater, examples.make_update(step), step).loss for step in (4, 5)]


def _same(a: np.ndarray, b: np.ndarray | None) -> bool:
    return b is not None and a.dtype == b.dtype and np.array_equal(a, b)

"""Checks of the whole model: its loss and gradients against the model in float64 on the CPU."""

from __future__ import annotations

import numpy as np
import paddle

from transformer_mt.data.batches import Update
from transformer_mt.device_check import examples
from transformer_mt.device_check.machine import Machine, relative_error
from transformer_mt.device_check.reference import Arrays, ReferenceModel, compare_arrays
from transformer_mt.device_check.report import Figure, Finding
from transformer_mt.training.update import Updater, seed_generators

# How many times larger the tolerance of a whole model is than that of one operation.
MODEL_FACTOR = 3
# The step along the gradient, and the largest error of the slope that is measured with it.
SLOPE_STEP, SLOPE_LIMIT = 2e-4, 0.01

MECHANISMS = {
    "copying": {"model": {"copying": True}},
    "guided attention": {
        "guided_attention": {"by": "alignment", "alignments": "links", "weight": 1.0}
    },
    "scheduled sampling": {
        # All words are replaced, by means over the vocabulary: no rounding changes a choice.
        "scheduled_sampling": {
            "decay": "linear",
            "k": 1e-9,
            "mixing": "top_k",
            "top_k": examples.VOCABULARY_SIZE,
            "backpropagate": True,
        }
    },
    "non-autoregressive, length": {"model": {"non_autoregressive": "length"}},
    "non-autoregressive, end": {"model": {"non_autoregressive": "end"}},
}


def losses_and_gradients(updater: Updater, update: Update) -> tuple[float, Arrays]:
    """The loss of an update per target token, and its gradients, in the precision of the config."""
    updater.model.train()
    seed_generators(1)
    for parameter in updater.model.parameters():
        parameter.clear_gradient(set_to_zero=False)
    total = 0.0
    for batch in update.batches:
        loss = updater.losses(batch, 1)[0] / update.target_tokens
        loss.backward()
        total += float(loss)
    return total, examples.gradients_of(updater.model)


def against_float64(machine: Machine, norm: str) -> Finding:
    """The loss and the gradient of all weights, in every precision, for padded batches."""
    update = examples.make_update(1, batches=2)
    figures = []
    for precision in machine.precisions:
        config = examples.make_config({"norm": norm}, {"precision": precision})
        updater = examples.updater(config)
        weights = examples.randomised(updater)
        expected_loss, expected = ReferenceModel(machine, config, weights).gradients(update)
        loss, gradients = losses_and_gradients(updater, update)
        limit = machine.tolerance(precision) * MODEL_FACTOR
        figures.append(Figure(precision, abs(loss / expected_loss - 1), limit, "loss"))
        figures += compare_arrays(precision, gradients, expected, limit)
    return Finding.of(figures)


def padding(machine: Machine) -> Finding:
    """A padded batch has the loss and the gradient of its sentences one by one."""
    sentences = examples.sentences(2, 6)
    config = examples.make_config()
    updater = examples.updater(config)
    examples.randomised(updater)
    batch = examples.make_batch(sentences)
    alone = [examples.make_batch([sentence]) for sentence in sentences]
    loss, gradients = losses_and_gradients(updater, Update([batch], batch.target_tokens))
    update = Update(alone, batch.target_tokens)
    expected_loss, expected = losses_and_gradients(updater, update)
    limit = machine.tolerance() * MODEL_FACTOR
    figures = [Figure("float32", abs(loss / expected_loss - 1), limit, "loss")]
    return Finding.of(figures + compare_arrays("float32", gradients, expected, limit))


def causality(machine: Machine) -> Finding:
    """Logits do not depend on later target ids."""
    updater = examples.updater(examples.make_config())
    examples.randomised(updater)
    batch = examples.make_batch(examples.sentences(3, 4, shortest=8, longest=8))
    changed = batch.target_input.copy()
    changed[:, 5:] = examples.EOS + 1 + changed[:, 5:] % 30
    model = updater.model
    model.eval()
    with paddle.no_grad():
        source = paddle.to_tensor(batch.source)
        memory = model.encode(source)
        before, after = (
            model.logits(paddle.to_tensor(ids), memory, source).numpy()
            for ids in (batch.target_input, changed)
        )
    error = relative_error(after[:, :5], before[:, :5])
    moved = relative_error(after[:, 5:], before[:, 5:])
    figures = [Figure("float32", error, machine.tolerance(), "an earlier position changed")]
    if not moved > machine.tolerance() * MODEL_FACTOR:
        figures.append(Figure("later positions", 1.0, 0.0, "they do not depend on their own ids"))
    return Finding.of(figures)


def mechanism(machine: Machine, name: str) -> Finding:
    """The loss of an optional mechanism and its gradient.

    A GPU is compared with the CPU. On a CPU, the slope of the loss along the gradient is compared
    with the norm of the gradient.
    """
    sections = MECHANISMS[name]
    config = examples.make_config(**sections)
    update = examples.make_update(4)
    updater = examples.updater(config)
    weights = examples.randomised(updater)
    loss, gradients = losses_and_gradients(updater, update)
    if not machine.is_gpu:
        return Finding.of([_slope(updater, update, weights, gradients)], f"loss {loss:.4f}")
    with machine.on_cpu():
        on_cpu = examples.updater(config)
        examples.set_weights(on_cpu.model, weights)
        expected_loss, expected = losses_and_gradients(on_cpu, update)
    limit = machine.tolerance() * MODEL_FACTOR
    figures = [Figure("float32", abs(loss / expected_loss - 1), limit, "loss")]
    return Finding.of(figures + compare_arrays("float32", gradients, expected, limit))


def _slope(updater: Updater, update: Update, weights: Arrays, gradients: Arrays) -> Figure:
    """The error of the gradient: along it, the loss must rise by the norm of the gradient."""
    norm = np.sqrt(sum((gradient.astype(np.float64) ** 2).sum() for gradient in gradients.values()))
    losses = []
    for sign in (1, -1):
        step = sign * SLOPE_STEP / norm
        moved = {key: value + step * gradients[key] for key, value in weights.items()}
        examples.set_weights(updater.model, moved)
        losses.append(losses_and_gradients(updater, update)[0])
    slope = (losses[0] - losses[1]) / (2 * SLOPE_STEP)
    return Figure("slope", abs(slope / norm - 1), SLOPE_LIMIT, f"{slope:.5f}, not {norm:.5f}")

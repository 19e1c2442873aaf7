"""What the device is compared with: NumPy in float64, and the model in float64 on the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor

from transformer_mt.config.schema import Config
from transformer_mt.data.batches import Batch, Update
from transformer_mt.device_check import examples
from transformer_mt.device_check.machine import Machine, relative_error
from transformer_mt.device_check.report import Figure
from transformer_mt.model.build import build_model

Arrays = dict[str, np.ndarray]
# The step of differences, which are wrong by about its square and by the rounding of float64.
STEP = 1e-5


def in_precision(precision: str) -> contextlib.AbstractContextManager:
    """Computes as training does with this value of training.precision."""
    if precision == "float32":
        return contextlib.nullcontext()
    return paddle.amp.auto_cast(dtype=precision, level="O1")


def compare_operation(
    machine: Machine,
    operation: Callable[..., Tensor],
    expected: Callable[..., np.ndarray],
    inputs: Arrays,
    detail: str = "",
    precisions: list[str] | None = None,
    factor: float = 1.0,
) -> list[Figure]:
    """Compares the value and the gradients of an operation with NumPy in float64.

    The loss is the sum of the operation's elements with random weights. The expected gradients are
    differences of the expected value.

    Args:
        operation, expected: both are called with `inputs` by name.
        inputs: floating arrays; small, because each element takes two differences.
        detail: what is compared.
        precisions: values of training.precision. None: all that the device supports.
        factor: how many times larger than usual the tolerance is.
    """
    value = np.asarray(expected(**inputs), np.float64)
    slopes = np.random.default_rng(3).standard_normal(value.shape)

    def loss(**arrays: np.ndarray) -> float:
        return float((expected(**arrays) * slopes).sum())

    gradients = {name: _differences(loss, inputs, name) for name in inputs}
    figures = []
    for precision in precisions or machine.precisions:
        tensors = {
            name: paddle.to_tensor(x.astype("float32"), stop_gradient=False)
            for name, x in inputs.items()
        }
        with in_precision(precision):
            found = operation(**tensors)
        (found.astype("float32") * paddle.to_tensor(slopes.astype("float32"))).sum().backward()
        limit = factor * machine.tolerance(precision)
        what = f"{detail}: " if detail else ""
        error = relative_error(found.astype("float32").numpy(), value)
        figures.append(Figure(precision, error, limit, f"{what}value"))
        for name, tensor in tensors.items():
            error = relative_error(tensor.grad.astype("float32").numpy(), gradients[name])
            figures.append(Figure(precision, error, limit, f"{what}gradient of {name}"))
    return figures


def _differences(loss: Callable[..., float], inputs: Arrays, name: str) -> np.ndarray:
    """The gradient of a loss with respect to one of its inputs, by central differences."""
    arrays = {key: x.astype(np.float64) for key, x in inputs.items()}
    gradient = np.zeros(arrays[name].shape)
    for place in np.ndindex(gradient.shape):
        before = arrays[name][place]
        arrays[name][place] = before + STEP
        above = loss(**arrays)
        arrays[name][place] = before - STEP
        below = loss(**arrays)
        arrays[name][place] = before
        gradient[place] = (above - below) / (2 * STEP)
    return gradient


def softmax(x: np.ndarray) -> np.ndarray:
    """Softmax over the last dimension."""
    exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


class ReferenceModel:
    """The model of a config in float64 on the CPU, with a loss and an optimiser of its own.

    Only Paddle's elementary operations compute it, because all faster ones of this program are for
    float32. Dropout must be 0.
    """

    def __init__(self, machine: Machine, config: Config, weights: Arrays) -> None:
        self.machine = machine
        self.smoothing = config.training.label_smoothing
        self.training = config.training
        with machine.on_cpu():
            self.model = build_model(config.model, examples.subwords())
            self.model.to(dtype="float64")
            examples.set_weights(self.model, weights)
        self._moments = dict.fromkeys(weights, (0.0, 0.0))
        self._updates = 0

    def loss(self, batch: Batch) -> Tensor:
        """The label-smoothed loss of a batch, summed over its real target positions, in nats."""
        labels = paddle.to_tensor(batch.target_output)
        log_probs = F.log_softmax(self.logits(batch.source, batch.target_input), axis=-1)
        right = paddle.take_along_axis(log_probs, labels.unsqueeze(2), axis=2).squeeze(2)
        losses = -(1 - self.smoothing) * right - self.smoothing * log_probs.mean(axis=-1)
        return (losses * (labels != examples.PAD).astype("float64")).sum()

    def logits(self, source: np.ndarray, target_input: np.ndarray) -> Tensor:
        """The logits, float64 (batch, target_len, vocabulary). Call it within `on_cpu`."""
        ids = paddle.to_tensor(source)
        return self.model.logits(paddle.to_tensor(target_input), self.model.encode(ids), ids)

    def log_probs(self, source: np.ndarray, target_input: np.ndarray) -> np.ndarray:
        """The log-probabilities of all next ids, (batch, target_len, vocabulary)."""
        with self.machine.on_cpu(), paddle.no_grad():
            return F.log_softmax(self.logits(source, target_input), axis=-1).numpy()

    def gradients(self, update: Update) -> tuple[float, Arrays]:
        """The loss of an update per target token, and its gradients."""
        total = 0.0
        with self.machine.on_cpu():
            for parameter in self.model.parameters():
                parameter.clear_gradient(set_to_zero=False)
            for batch in update.batches:
                loss = self.loss(batch) / update.target_tokens
                loss.backward()
                total += float(loss)
            names = self.model.named_parameters()
            return total, {name: parameter.grad.numpy() for name, parameter in names}

    def adam(self, update: Update, rate: float) -> float:
        """Makes an update by Adam (Kingma and Ba 2015, arXiv 1412.6980, algorithm 1), computed in
        NumPy; returns the loss per target token before it."""
        loss, gradients = self.gradients(update)
        self._updates += 1
        beta1, beta2 = self.training.betas
        clip = self.training.clip_norm
        if clip is not None:
            norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
            gradients = {name: g * min(1.0, clip / norm) for name, g in gradients.items()}
        weights = examples.weights_of(self.model)
        for name, gradient in gradients.items():
            mean, square = self._moments[name]
            mean = beta1 * mean + (1 - beta1) * gradient
            square = beta2 * square + (1 - beta2) * gradient**2
            self._moments[name] = mean, square
            step = mean / (1 - beta1**self._updates)
            spread = np.sqrt(square / (1 - beta2**self._updates)) + self.training.epsilon
            weights[name] = weights[name] - rate * step / spread
        with self.machine.on_cpu():
            examples.set_weights(self.model, weights)
        return loss


def compare_arrays(
    title: str, found: Arrays, expected: Arrays, limit: float, what: str = "gradient"
) -> list[Figure]:
    """Compares arrays by name. Errors are shares of the largest number of all arrays, because
    gradients that should be 0, such as those of the biases of keys, are only nearly 0."""
    largest = max(float(np.abs(x).max(initial=0.0)) for x in expected.values())
    return [
        Figure(
            title,
            relative_error(found[name] / largest, expected[name] / largest)
            * (float(np.abs(expected[name] / largest).max(initial=0.0)) or 1.0),
            limit,
            f"{what} of {name}",
        )
        for name in expected
    ]

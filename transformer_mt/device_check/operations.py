"""Checks of the operations of model and loss: value and gradient of each against NumPy in float64,
with padding and masks."""

from __future__ import annotations

import numpy as np
import paddle
from paddle import Tensor, nn

from transformer_mt.device_check.examples import PAD
from transformer_mt.device_check.machine import Machine, relative_error
from transformer_mt.device_check.reference import compare_operation, in_precision, softmax
from transformer_mt.device_check.report import Figure, Finding
from transformer_mt.model import operations
from transformer_mt.model.attention import (
    MultiHeadAttention,
    ScaledDotProductAttention,
    causal_mask,
    padding_mask,
)
from transformer_mt.model.basic_layers import Dropout
from transformer_mt.model.copying import mixture
from transformer_mt.model.embedding import PositionalEncoding, TokenEmbedding
from transformer_mt.model.layers import LayerNorm, PositionwiseFeedForward, ResidualNorm
from transformer_mt.model.transformer import at_positions
from transformer_mt.training.objective import LabelSmoothedCrossEntropy
from transformer_mt.training.terms.guided_attention import alignment_loss, diagonal_loss

# The widths of a head in the recipes of configs/ (a test holds them together).
HEAD_WIDTHS = (16, 32, 64)
EPSILON = 1e-5  # of the layer norm


def _random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape)


def _randomised(layer: nn.Layer, seed: int) -> dict[str, np.ndarray]:
    # Draws all weights of a layer; returns them in float64, by their names.
    own = {n: _random(*value.shape, seed=seed) / 4 for n, value in layer.named_parameters()}
    for name, value in layer.named_parameters():
        value.set_value(own[name].astype("float32"))
    return own


def products(machine: Machine) -> Finding:
    """The product of float32 matrices. It tells whether the device uses TF32."""
    error = machine.product_error
    limit = machine.tolerance()
    return Finding.of([Figure("", error, limit)], f"{machine.float32} is used")


def linear(machine: Machine) -> Finding:
    inputs = {"x": _random(3, 5, 16), "weight": _random(16, 24), "bias": _random(24)}
    return Finding.of(
        compare_operation(
            machine, operations.current.linear, lambda x, weight, bias: x @ weight + bias, inputs
        )
    )


def logits(machine: Machine) -> Finding:
    inputs = {"hidden": _random(3, 5, 16), "weight": _random(40, 16)}
    return Finding.of(
        compare_operation(
            machine, operations.current.logits, lambda hidden, weight: hidden @ weight.T, inputs
        )
    )


def _norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPSILON)
    return centred / deviation * weight + bias


def layer_norm(machine: Machine) -> Finding:
    figures = []
    for width in (128, 512, 1024):  # those of the recipes; a GPU has a kernel for each range
        layer = LayerNorm(width)

        def operation(x: Tensor, weight: Tensor, bias: Tensor, layer: LayerNorm = layer) -> Tensor:
            return operations.current.layer_norm(x, weight, bias, layer._epsilon)

        inputs = {"x": 3 + 2 * _random(2, width), "weight": _random(width), "bias": _random(width)}
        figures += compare_operation(machine, operation, _norm, inputs, f"width {width}")
    return Finding.of(figures)


def residual(machine: Machine) -> Finding:
    """The residual connection, with the norm after it and with the norm before it."""
    figures = []
    for norm in ("post", "pre"):
        layer = ResidualNorm(24, 0.0, norm)
        scale, offset = 1 + 0.1 * _random(24, seed=1), _random(24, seed=2)
        layer.norm.weight.set_value(scale.astype("float32"))
        layer.norm.bias.set_value(offset.astype("float32"))

        def operation(x: Tensor, output: Tensor, layer: ResidualNorm = layer) -> Tensor:
            return layer.leave(x, layer.enter(x) * output)

        def expected(x, output, norm=norm, scale=scale, offset=offset):
            if norm == "post":
                return _norm(x + x * output, scale, offset)
            return x + _norm(x, scale, offset) * output

        inputs = {"x": _random(2, 3, 24), "output": _random(2, 3, 24, seed=3)}
        figures += compare_operation(machine, operation, expected, inputs, f"norm {norm}")
    return Finding.of(figures)


def residual_with_dropout(machine: Machine) -> Finding:
    """The residual connection with dropout, which a GPU may compute with its norm in one operation.
    The elements that were dropped are those without a gradient."""
    rate, width, figures = 0.3, 128, []
    x, output, slopes = (_random(8, 64, width, seed=seed).astype("float32") for seed in range(3))
    for norm in ("post", "pre"):
        layer = ResidualNorm(width, rate, norm)
        layer.train()
        given = paddle.to_tensor(output, stop_gradient=False)
        result = layer.leave(paddle.to_tensor(x), given)
        (result * paddle.to_tensor(slopes)).sum().backward()
        kept = given.grad.numpy() != 0
        expected = x + output * kept / (1 - rate)
        if norm == "post":
            expected = _norm(expected, np.ones(width), np.zeros(width))
        title, deviation = f"{norm}:", np.sqrt(rate * (1 - rate) / kept.size)
        share = abs(1 - kept.mean() - rate)
        figures.append(Figure(title, share, 5 * deviation + 1 / 65536, "share of zeros"))
        # On a CPU the rate is rounded, and with it the scale.
        figures.append(Figure(title, relative_error(result.numpy(), expected), 1e-3, "value"))
    return Finding.of(figures)


def feed_forward(machine: Machine) -> Finding:
    layer = PositionwiseFeedForward(16, 40)
    own = _randomised(layer, seed=4)

    def expected(x: np.ndarray) -> np.ndarray:
        inner = x @ own["inner_projection.weight"] + own["inner_projection.bias"]
        outer = own["output_projection.weight"]
        return np.maximum(inner, 0) @ outer + own["output_projection.bias"]

    return Finding.of(compare_operation(machine, layer, expected, {"x": _random(2, 5, 16)}))


def embedding(machine: Machine) -> Finding:
    """The embedding of ids, of which some occur several times, with positions added."""
    ids = np.array([[5, 7, 5, PAD], [7, 7, 2, 5]])
    layer, positions = TokenEmbedding(9, 16), PositionalEncoding(16, 4)
    weight, slopes = _random(9, 16), _random(2, 4, 16)
    layer.weight.set_value(weight.astype("float32"))
    angles = np.arange(4)[:, np.newaxis] / 10000.0 ** (np.arange(0, 16, 2) / 16)
    table = np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(4, 16)
    expected = np.zeros(weight.shape)
    np.add.at(expected, ids, 4 * slopes)  # sqrt(16) is the scale of the embedding
    figures = []
    for precision in machine.precisions:
        layer.weight.clear_gradient()
        with in_precision(precision):
            found = positions(layer(paddle.to_tensor(ids)))
        (found.astype("float32") * paddle.to_tensor(slopes.astype("float32"))).sum().backward()
        limit = machine.tolerance(precision)
        error = relative_error(found.astype("float32").numpy(), 4 * weight[ids] + table)
        figures.append(Figure(precision, error, limit, "value"))
        error = relative_error(layer.weight.grad.numpy(), expected)
        figures.append(Figure(precision, error, limit, "gradient of weight"))
    return Finding.of(figures)


def gathering(machine: Machine) -> Finding:
    """The rows at target positions that are not padding."""
    places = np.array([0, 1, 3, 5])

    def operation(x: Tensor) -> Tensor:
        return at_positions(x, paddle.to_tensor(places))

    inputs = {"x": _random(2, 3, 8)}
    return Finding.of(
        compare_operation(machine, operation, lambda x: x.reshape(6, 8)[places], inputs)
    )


def masks(machine: Machine) -> Finding:
    """The masks of padding and of later positions: True forbids."""
    ids = np.array([[5, 6, 7], [8, PAD, PAD]])
    tensor = paddle.to_tensor(ids)
    found = padding_mask(tensor[:, :2], tensor, PAD).numpy()
    wrong = int((found != np.repeat((ids == PAD)[:, np.newaxis], 2, axis=1)).sum())
    later = causal_mask(7).numpy()
    wrong += int((later != ~np.tri(7, dtype=bool)).sum())
    return Finding.of([Figure("wrong places:", wrong, 0)])


def attention_masks(length: int, rows: int = 2) -> dict[str, np.ndarray | None]:
    """The kinds of masks that the recipes use, bool, True forbids, by what they are for.

    The last row of a batch is padded, in the mask of the padding.
    """
    padded = np.zeros((rows, 1, 1, length), bool)
    padded[-1, ..., length // 2 :] = True
    beam = np.random.default_rng(4).random((rows, 1, length, length)) < 0.5
    beam[..., 0] = False  # each hypothesis attends to at least one position
    nothing = padded.copy()
    nothing[0] = True  # a sentence without any key: its outputs are 0
    return {
        "no mask": None,
        "padding": padded,
        "later positions": ~np.tri(length, dtype=bool),
        "a beam": beam,
        "everything": nothing,
    }


def _attention(query, key, value, mask):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    if mask is None:
        return softmax(scores) @ value
    mask = np.broadcast_to(mask, scores.shape)
    weights = softmax(np.where(mask, -1e30, scores))
    return np.where(mask, 0.0, weights) @ value


def attention(machine: Machine) -> Finding:
    """Plain attention for every width of a head and every mask of the recipes."""
    figures = []
    layer = ScaledDotProductAttention()
    for width in HEAD_WIDTHS:
        for name, mask in attention_masks(4).items():
            own = None if mask is None else paddle.to_tensor(mask)

            def operation(query, key, value, own=own):
                return layer(query, key, value, own, need_weights=True)[0]

            def expected(query, key, value, mask=mask):
                return _attention(query, key, value, mask)

            inputs = {
                part: _random(2, 1, 4, width, seed=number)
                for number, part in enumerate(("query", "key", "value"))
            }
            detail = f"{name}, heads of width {width}"
            figures += compare_operation(machine, operation, expected, inputs, detail)
    return Finding.of(figures)


def heads(machine: Machine) -> Finding:
    """Attention of several heads with its four projections."""
    layer = MultiHeadAttention(24, 3)
    own = _randomised(layer, seed=6)
    mask = ~np.tri(4, dtype=bool)

    def project(x: np.ndarray, name: str) -> np.ndarray:
        return x @ own[f"{name}_projection.weight"] + own[f"{name}_projection.bias"]

    def split(x: np.ndarray, name: str) -> np.ndarray:
        return project(x, name).reshape(2, 4, 3, 8).transpose(0, 2, 1, 3)

    def expected(x: np.ndarray, memory: np.ndarray) -> np.ndarray:
        mixed = _attention(split(x, "query"), split(memory, "key"), split(memory, "value"), mask)
        return project(mixed.transpose(0, 2, 1, 3).reshape(2, 4, 24), "output")

    def operation(x: Tensor, memory: Tensor) -> Tensor:
        return layer(x, memory, memory, paddle.to_tensor(mask), need_weights=False)[0]

    inputs = {"x": _random(2, 4, 24), "memory": _random(2, 4, 24, seed=7)}
    return Finding.of(compare_operation(machine, operation, expected, inputs))


def loss(machine: Machine) -> Finding:
    """The label-smoothed loss, with padding and with a probability below e^-64."""
    labels = np.array([4, 7, PAD, 9, 1, PAD, 30])
    hidden = 2 * _random(len(labels), 40)
    hidden[3, 9] = -90.0

    def expected(logits: np.ndarray, epsilon: float = 0.1) -> np.ndarray:
        log_probs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        right = log_probs[np.arange(len(labels)), labels]
        losses = -(1 - epsilon) * right - epsilon * log_probs.mean(axis=1)
        return (losses * (labels != PAD)).sum()

    def operation(logits: Tensor) -> Tensor:
        return LabelSmoothedCrossEntropy(0.1, PAD)(logits, paddle.to_tensor(labels))[0]

    figures = compare_operation(machine, operation, expected, {"logits": hidden}, "smoothed")
    logits_ = paddle.to_tensor(hidden.astype("float32"))
    _, nll = LabelSmoothedCrossEntropy(0.1, PAD)(logits_, paddle.to_tensor(labels))
    error = relative_error(float(nll), expected(hidden, 0.0))
    figures.append(Figure("float32", error, machine.tolerance(), "negative log-likelihood"))
    return Finding.of(figures)


def copying(machine: Machine) -> Finding:
    """The mixture of generating and copying. It is computed in float32 in every precision."""
    ids = np.array([[4, 7, PAD], [5, 9, 11]])

    def expected(logits, gate, copied):
        total = np.logaddexp.reduce(logits, axis=1, keepdims=True)
        pointed = np.zeros(logits.shape)
        np.add.at(pointed, (np.arange(2)[:, np.newaxis], ids), copied)
        return np.log(np.exp(logits) + np.exp(total - gate) * pointed)

    def operation(logits, gate, copied):
        # Logits in float32 are overwritten, so a copy is given.
        return mixture(logits * 1.0, gate, copied, paddle.to_tensor(ids))

    copied = softmax(_random(2, 3, seed=8))
    inputs = {"logits": _random(2, 14), "gate": _random(2, 1), "copied": copied}
    return Finding.of(compare_operation(machine, operation, expected, inputs, factor=2.0))


def guided(machine: Machine) -> Finding:
    """The losses that teach heads of the decoder which source tokens to attend to."""
    links = (np.random.default_rng(9).random((2, 3, 4)) < 0.4).astype("float32")
    weights = softmax(_random(2, 2, 3, 4))

    def by_alignment(weights: np.ndarray) -> np.ndarray:
        return -(links * np.log(weights).mean(axis=1)).sum()

    def by_diagonal(weights: np.ndarray) -> np.ndarray:
        return (links * weights.mean(axis=1)).sum()

    pairs = [("alignment", alignment_loss, by_alignment), ("diagonal", diagonal_loss, by_diagonal)]
    figures = []
    for name, operation, expected in pairs:
        figures += compare_operation(
            machine,
            lambda weights, operation=operation: operation(weights, paddle.to_tensor(links)),
            expected,
            {"weights": weights},
            name,
            precisions=["float32"],  # the objective computes them outside of auto_cast
        )
    return Finding.of(figures)


def dropout(machine: Machine) -> Finding:
    """Dropout: the share of zeros, the scale of the others, the mask of the gradient, the seed."""
    figures = []
    count = 2**18
    for precision in machine.precisions:
        for rate in (0.1, 0.3):
            layer = Dropout(rate)
            paddle.seed(11)
            x = paddle.ones([count], dtype=precision)
            x.stop_gradient = False
            result = layer(x)
            result.sum().backward()
            kept = result.astype("float32").numpy()
            title, deviation = f"{precision}, rate {rate}:", np.sqrt(rate * (1 - rate) / count)
            share = float((kept == 0).mean())
            # On a CPU the rate is rounded to a multiple of 1 / 65,536.
            limit = 5 * deviation + 1 / 65536
            figures.append(Figure(title, abs(share - rate), limit, f"share of zeros {share:.4f}"))
            scale = relative_error(kept[kept != 0], np.full((kept != 0).sum(), 1 / (1 - rate)))
            slack = 1e-3 if precision == "float32" else machine.tolerance(precision)
            figures.append(Figure(title, scale, slack, "scale of the others"))
            gradient = x.grad.astype("float32").numpy()
            figures.append(Figure(title, float((gradient != kept).mean()), 0.0, "gradient's mask"))
            paddle.seed(11)
            again = layer(paddle.ones([count], dtype=precision)).astype("float32").numpy()
            figures.append(Figure(title, float((again != kept).mean()), 0.0, "the same seed"))
            other = layer(paddle.ones([count], dtype=precision)).astype("float32").numpy()
            same = abs(float(((other == 0) == (kept == 0)).mean()) - (1 - 2 * rate * (1 - rate)))
            figures.append(Figure(title, same, 0.01, "the next draw"))
    return Finding.of(figures)

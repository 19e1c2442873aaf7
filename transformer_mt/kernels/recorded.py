"""The layers of a model as they compute few positions on a CPU: by a list of calls.

Calling Paddle costs more than the arithmetic of few positions. Each of these layers records its
operations, with the addresses of the arrays that they read and write. Whoever has the list of calls
changes what is in the arrays and makes the calls, time and again.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np

from transformer_mt.kernels import mkl, onednn
from transformer_mt.kernels.mkl import Call
from transformer_mt.model.attention import FORBIDDEN_SCORE, MultiHeadAttention
from transformer_mt.model.layers import (
    ACTIVATIONS,
    LayerNorm,
    Linear,
    PositionwiseFeedForward,
    ResidualNorm,
)
from transformer_mt.model.operations import array, tensor

FORBIDDEN = np.float32(FORBIDDEN_SCORE)
# Sources are padded to a multiple of this length, so that fewer shapes occur.
SOURCE_STEP = 16
# The number of columns of a panel, see `Panels`.
PANEL = 16


def padded_length(source_len: int) -> int:
    """Returns the length to which a source of `source_len` subwords is padded."""
    return -(-source_len // SOURCE_STEP) * SOURCE_STEP


class Unused(threading.local):
    """What each thread has recorded for some sizes and does not use at the moment. Another thread
    must not use it, see `onednn.Operations`."""

    def __init__(self) -> None:
        self._lists: dict[tuple[int, ...], list] = {}

    def of(self, *sizes: int) -> list:
        """Returns the list of this thread for these sizes."""
        return self._lists.setdefault(sizes, [])


def recorder(has_fixed_rows: bool) -> Recorder:
    """Returns a new recorder, by oneDNN if it is there. The argument is as in `onednn.Recorder`."""
    library = onednn.library()
    return NumpyRecorder() if library is None else onednn.Recorder(library, has_fixed_rows)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns a @ b of float32 matrices."""
    library = onednn.library()
    if library is None:
        return np.matmul(a, b)
    out = np.empty((len(a), b.shape[1]), np.float32)
    library.product(a, b, out)
    return out


def exp(x: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Computes exp(x) into `out`, which is contiguous, float32, and returned."""
    library = onednn.library()
    if library is None:
        return np.exp(x, out=out)
    library.mkl.exp(np.ascontiguousarray(x, np.float32), out)
    return out


class Panels:
    """A matrix of which PANEL columns at a time lie together in memory.

    A product with few rows takes as long as reading the matrix, and this is the order in which it
    reads it. From 5 rows of 128 to 10,000 columns, it takes 0.35 ms, and otherwise 1 ms (measured
    with AVX2).

    Args:
        matrix: float32 (inner, columns).
    """

    def __init__(self, matrix: np.ndarray) -> None:
        inner, columns = matrix.shape
        self._columns = columns // PANEL * PANEL
        panels = matrix[:, : self._columns].reshape(inner, -1, PANEL).swapaxes(0, 1)
        self._panels = np.ascontiguousarray(panels)  # (panels, inner, PANEL)
        self._rest = np.ascontiguousarray(matrix[:, self._columns :])

    def record(self, recorder: Recorder, x: np.ndarray, out: np.ndarray) -> None:
        """Records out = x @ matrix, for `x` (rows, inner) and `out` (rows, columns). The recorder
        is one for fixed rows."""
        rows = len(x)
        for matrices, part in (
            (self._panels, out[:, : self._columns].reshape(rows, -1, PANEL).swapaxes(0, 1)),
            (self._rest[np.newaxis], out[np.newaxis, :, self._columns :]),
        ):
            if part.size:
                recorder.products(np.broadcast_to(x, (len(part), *x.shape)), matrices, part)


class RecordedAttention:
    """A `MultiHeadAttention`. The scores are scaled by scaling the queries.

    Attributes:
        key_width: heads * d_k, which is the width of queries, too.
        width: of keys and values side by side.
    """

    def __init__(self, attention: MultiHeadAttention) -> None:
        self._num_heads = attention.num_heads
        # Widths are read from the weights, as the layer does.
        self.key_width = attention.query_projection.weight.shape[1]
        scale = np.float32((self.key_width // self._num_heads) ** -0.5)
        query = RecordedLinear(attention.query_projection, scale=scale)
        key = RecordedLinear(attention.key_projection)
        value = RecordedLinear(attention.value_projection)
        self.project_query = query
        self.project_all = query.beside(key).beside(value)
        self._key_and_value = key.beside(value)
        self.width = self._key_and_value.weight.shape[1]
        self._output = RecordedLinear(attention.output_projection)

    def project(self, rows: np.ndarray) -> np.ndarray:
        """Projects `rows` (rows, d_model) to keys and values side by side: (rows, width)."""
        key_and_value = self._key_and_value
        return product(rows, key_and_value.weight) + key_and_value.bias

    def attend(
        self,
        recorder: Recorder,
        query: np.ndarray,
        keys_and_values: np.ndarray,
        add_mask: Callable[[np.ndarray], object],
        x: np.ndarray,
        growing: bool = False,
    ) -> np.ndarray:
        """Adds the attention from `query` (sentences, width, heads * d_k) to the keys to `x`
        (sentences * width, d_model). Returns the array of the weights, (sentences, heads, width,
        length).

        Args:
            keys_and_values: (sentences, length, self.width).
            add_mask: adds FORBIDDEN to the scores of forbidden keys, in an array of the shape of
                the weights.
            growing: whether the number of keys is that of `Recorder.calls_of`.
        """
        key = self._heads(keys_and_values[:, :, : self.key_width])
        value = self._heads(keys_and_values[:, :, self.key_width :])
        query = self._heads(query)
        weights = np.zeros((*query.shape[:3], key.shape[2]), np.float32)
        sentences, width = query.shape[0], query.shape[2]
        mixed = np.zeros((sentences, width, self._output.weight.shape[0]), np.float32)
        columns, inner = (mkl.COLUMNS, mkl.INNER) if growing else (None, None)
        recorder.products(query, key.swapaxes(2, 3), weights, columns)
        recorder.record(add_mask, weights)
        recorder.softmax(weights, weights)
        recorder.products(weights, value, self._heads(mixed), inner)
        self._output.add_to(recorder, mixed.reshape(len(x), -1), x)
        return weights

    def _heads(self, x: np.ndarray) -> np.ndarray:
        # (sentences, len, heads * d) -> (sentences, heads, len, d)
        sentences, length, width = x.shape
        heads = x.reshape(sentences, length, self._num_heads, width // self._num_heads)
        return heads.transpose(0, 2, 1, 3)


class RecordedFeedForward:
    """A `PositionwiseFeedForward`."""

    def __init__(self, feed_forward: PositionwiseFeedForward) -> None:
        self._inner = RecordedLinear(feed_forward.inner_projection)
        self._activation = feed_forward.activation
        gate = feed_forward.gate_projection
        self._gate = None if gate is None else RecordedLinear(gate)
        self._outer = RecordedLinear(feed_forward.output_projection)

    def add_to(self, recorder: Recorder, x: np.ndarray, out: np.ndarray) -> None:
        """Records that the output for `x` (rows, d_model) is added to `out`, same shape."""
        if self._gate is None:
            inner = self._inner(recorder, x, self._activation)
        else:
            inner = self._inner(recorder, x)
            recorder.record(np.multiply, inner, self._gate(recorder, x, self._activation), inner)
        self._outer.add_to(recorder, inner, out)


class RecordedLinear:
    """A `Linear` layer, of which weight (in, out) and bias (out,) are multiplied by `scale`."""

    def __init__(self, linear: Linear, scale: np.float32 | None = None) -> None:
        self.weight = array(linear.weight)
        width = self.weight.shape[1]
        self.bias = np.zeros(width, np.float32) if linear.bias is None else array(linear.bias)
        if scale is not None:
            self.weight, self.bias = self.weight * scale, self.bias * scale

    def beside(self, other: RecordedLinear) -> RecordedLinear:
        """Returns the layer that computes the outputs of both side by side."""
        both = copy.copy(self)
        both.weight = np.concatenate([self.weight, other.weight], axis=1)
        both.bias = np.concatenate([self.bias, other.bias])
        return both

    def __call__(
        self, recorder: Recorder, x: np.ndarray, activation: str | None = None
    ) -> np.ndarray:
        """Records the layer for `x` (rows, in), with an activation of ACTIVATIONS if one is given,
        and returns the array of its output, (rows, out)."""
        out = np.zeros((len(x), len(self.bias)), np.float32)
        recorder.affine(x, self.weight, self.bias, out, activation=activation)
        return out

    def add_to(self, recorder: Recorder, x: np.ndarray, out: np.ndarray) -> None:
        """Records that the output for `x` (rows, in) is added to `out` (rows, out)."""
        recorder.affine(x, self.weight, self.bias, out, add=True)


class RecordedResidual:
    """A `ResidualNorm` around a sublayer."""

    def __init__(self, residual: ResidualNorm) -> None:
        self._is_pre_norm = residual.is_pre_norm
        self._norm = RecordedNorm(residual.norm)

    @contextmanager
    def around(self, recorder: Recorder, x: np.ndarray, normed: np.ndarray) -> Iterator[np.ndarray]:
        """A block that records a sublayer, which adds its output to `x` (rows, d_model). Its value
        is the input of the sublayer: `x`, or `normed`, to which the norm of `x` is written."""
        if self._is_pre_norm:
            self._norm(recorder, x, normed)
            yield normed
        else:
            yield x
            self._norm(recorder, x, x)


class RecordedNorm:
    """A `LayerNorm`."""

    def __init__(self, norm: LayerNorm) -> None:
        self._weight, self._bias = array(norm.weight), array(norm.bias)
        self._epsilon = norm._epsilon

    def __call__(self, recorder: Recorder, x: np.ndarray, out: np.ndarray) -> None:
        """Records the norm of `x` (rows, d_model), which is written to `out`."""
        recorder.layer_norm(x, self._weight, self._bias, self._epsilon, out)


class NumpyRecorder:
    """As `onednn.Recorder`, where there is no oneDNN."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._rows = 0

    def calls_of(self, rows: int, keys: int = 0) -> list[Call]:
        self._rows = rows  # all keys are computed
        return self._calls

    def record(self, function: Callable, *arguments: object) -> None:
        self._calls.append((function, arguments))

    def affine(
        self,
        x: np.ndarray,
        weight: np.ndarray,
        bias: np.ndarray,
        out: np.ndarray,
        add: bool = False,
        activation: str | None = None,
    ) -> None:
        def compute() -> None:
            rows = self._rows
            result = x[:rows] @ weight
            result += bias
            if activation is not None:
                result = array(ACTIVATIONS[activation](tensor(result)))
            if add:
                out[:rows] += result
            else:
                out[:rows] = result

        self.record(compute)

    def products(
        self, a: np.ndarray, b: np.ndarray, out: np.ndarray, growing: int | None = None
    ) -> None:
        self.record(partial(np.matmul, a, b, out=out))

    def softmax(self, x: np.ndarray, out: np.ndarray) -> None:
        def compute() -> None:
            np.subtract(x, np.maximum.reduce(x, axis=-1, keepdims=True), out=out)
            np.exp(out, out=out)
            np.divide(out, np.add.reduce(out, axis=-1, keepdims=True), out=out)

        self.record(compute)

    def layer_norm(
        self, x: np.ndarray, scale: np.ndarray, shift: np.ndarray, epsilon: float, out: np.ndarray
    ) -> None:
        def compute() -> None:
            centred = x - x.mean(axis=-1, keepdims=True)
            variance = np.einsum("...i,...i->...", centred, centred) / x.shape[-1]
            centred *= (1 / np.sqrt(variance + epsilon)).astype(np.float32)[..., np.newaxis]
            np.multiply(centred, scale, out=out)
            np.add(out, shift, out=out)

        self.record(compute)


Recorder = NumpyRecorder | onednn.Recorder

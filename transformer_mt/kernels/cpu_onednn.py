"""The operations of a float32 model on a CPU that oneDNN computes, with their gradients.

Products of linear layers can be computed in bfloat16, see `OneDnnOperations.in_precision`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_float

import numpy as np
import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from transformer_mt.kernels.cpu import CpuOperations
from transformer_mt.kernels.onednn import Library, Operations
from transformer_mt.model.attention import FORBIDDEN_SCORE
from transformer_mt.model.operations import array, is_float32_on_cpu

# With fewer rows and without a gradient, Paddle's linear layer is faster, because it is called
# with less effort.
FEW_ROWS = 64


class OneDnnOperations(CpuOperations):
    """The operations for a float32 model on a CPU. Docstrings are those of `Operations`.

    Tensors of other types, and those without elements, are left to Paddle.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._threads = threading.local()

    @property
    def _own(self) -> Operations:
        # The operations of this thread, because only one thread at a time may use such an object.
        found = getattr(self._threads, "operations", None)
        if found is None:
            found = self._threads.operations = Operations(self._library)
        return found

    @contextmanager
    def in_precision(self, precision: str) -> Iterator[None]:
        before, self._threads.precision = self._precision, precision
        try:
            yield
        finally:
            self._threads.precision = before

    @property
    def _precision(self) -> str:
        return getattr(self._threads, "precision", "float32")

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not _has_numbers(x):
            return super().linear(x, weight, bias)
        if self._precision == "float32" and not paddle.is_grad_enabled():
            if x.size < FEW_ROWS * x.shape[-1]:
                return super().linear(x, weight, bias)
        return _Product.apply(x, weight, bias, False, self._own, self._precision)

    def logits(self, hidden: Tensor, weight: Tensor) -> Tensor:
        if not _has_numbers(hidden):
            return super().logits(hidden, weight)
        return _Product.apply(hidden, weight, None, True, self._own, self._precision)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        if not _has_numbers(x):
            return super().layer_norm(x, weight, bias, epsilon)
        return _LayerNorm.apply(x, weight, bias, epsilon, self._own)

    def fused_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        num_heads: int,
        mask: Tensor | None,
        rate: float,
        training: bool,
    ) -> Tensor | None:
        if not (_has_numbers(query) and _has_numbers(key)):
            return None
        dropped = None
        if training and rate > 0.0:
            shape = query.shape[0], num_heads, query.shape[1], key.shape[1]
            dropped = self.kept(shape, rate)
        mask = None if mask is None else array(mask)
        return _Attention.apply(query, key, value, num_heads, mask, dropped, self._own)

    def softmax(self, x: Tensor) -> Tensor:
        result, view = _empty(x.shape)
        self._own.softmax(array(x), view)
        return result


def _has_numbers(x: Tensor) -> bool:
    return is_float32_on_cpu(x) and x.size > 0


def _empty(shape: list[int] | tuple[int, ...]) -> tuple[Tensor, np.ndarray]:
    """Returns a new float32 tensor, and a view of it that can be written to. The view does not keep
    the tensor's memory."""
    x = paddle.empty(shape, "float32")
    memory = (c_float * x.size).from_address(x.data_ptr())
    return x, np.frombuffer(memory, np.float32).reshape(shape)


def _empty_like(x: np.ndarray) -> tuple[Tensor, np.ndarray]:
    return _empty(x.shape)


def _rows(x: Tensor) -> np.ndarray:
    # (..., width) -> (rows, width)
    return array(x).reshape(-1, x.shape[-1])


class _Product(PyLayer):
    """x W + b, or x W^T, with dx = dy W^T, dW = x^T dy and db = 1^T dy.

    In bfloat16, x, W and dy are rounded; sums and results are float32.
    """

    @staticmethod
    def forward(
        ctx,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        is_transposed: bool,
        operations: Operations,
        precision: str,
    ) -> Tensor:
        def rounded(x: np.ndarray) -> np.ndarray:
            return operations.round(x) if precision == "bfloat16" else x

        rows, matrix = rounded(_rows(x)), rounded(array(weight))
        if is_transposed:
            matrix = matrix.T
        result, view = _empty([*x.shape[:-1], matrix.shape[1]])
        view = view.reshape(len(rows), -1)
        if bias is not None:
            view[:] = array(bias)
        operations.library.product(rows, matrix, view, add=bias is not None)
        ctx.factors, ctx.is_transposed = (rows, matrix), is_transposed
        ctx.library, ctx.rounded, ctx.shape = operations.library, rounded, x.shape
        ctx.frozen = [part.stop_gradient for part in (x, weight, bias) if part is not None]
        return result

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor | None, ...]:
        rows, matrix = ctx.factors
        product, slopes = ctx.library.product, _rows(dy)
        rounded = ctx.rounded(slopes)
        gradients: list[Tensor | None] = [None] * len(ctx.frozen)
        if not ctx.frozen[0]:
            gradients[0], view = _empty(ctx.shape)
            product(rounded, matrix.T, view.reshape(rows.shape))
        if not ctx.frozen[1]:
            if ctx.is_transposed:
                gradients[1], view = _empty(matrix.shape[::-1])
                product(rounded.T, rows, view)
            else:
                gradients[1], view = _empty(matrix.shape)
                product(rows.T, rounded, view)
        if not all(ctx.frozen[2:]):
            # A product with ones takes half as long as NumPy's sum.
            gradients[2], view = _empty(slopes.shape[1:])
            product(np.ones((1, len(slopes)), np.float32), slopes, view[np.newaxis])
        return tuple(gradients)


class _LayerNorm(PyLayer):
    """Layer norm."""

    @staticmethod
    def forward(
        ctx, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, operations: Operations
    ) -> Tensor:
        rows = _rows(x)
        result, view = _empty(x.shape)
        statistics = np.empty((2, len(rows)), np.float32)
        ctx.inputs = rows, array(weight), array(bias), epsilon
        operations.layer_norm(*ctx.inputs, view.reshape(rows.shape), statistics)
        ctx.statistics, ctx.operations, ctx.shape = statistics, operations, x.shape
        ctx.frozen = [part.stop_gradient for part in (x, weight, bias)]
        return result

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, _, _ = ctx.inputs
        dx, view = _empty(ctx.shape)
        (dw, weight_view), (db, bias_view) = _empty(weight.shape), _empty(weight.shape)
        gradients = view.reshape(rows.shape), weight_view, bias_view
        ctx.operations.layer_norm_gradient(*ctx.inputs, ctx.statistics, _rows(dy), gradients)
        return _unfrozen((dx, dw, db), ctx.frozen)


class _Attention(PyLayer):
    """Attention in all heads, without copies of the heads.

    With scores S = Q K^T / sqrt(d), weights W = softmax(S) and W' = W after dropout, the result is
    O = W' V. The gradients are dV = W'^T dO, dW' = dO V^T, dS = W (dW - sum(dW W)), dQ = dS K and
    dK = dS^T Q, the last two divided by sqrt(d). NumPy computes dS, for which oneDNN has no fast
    way on processors without AVX-512; and it adds the mask, which some forms of masks make a
    hundred times slower in oneDNN.
    """

    @staticmethod
    def forward(
        ctx,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        num_heads: int,
        mask: np.ndarray | None,
        dropped: tuple[np.ndarray, float] | None,
        operations: Operations,
    ) -> Tensor:
        def heads(x: np.ndarray) -> np.ndarray:
            # (batch, len, heads * d) -> (batch, heads, len, d), a view
            return x.reshape(*x.shape[:2], num_heads, -1).swapaxes(1, 2)

        arrays = array(query), array(key), array(value)
        q, k, v = map(heads, arrays)
        scale = np.float32(q.shape[-1] ** -0.5)
        # The weights are computed in the place of the scores, (batch, heads, query_len, key_len).
        held, weights = _empty([*q.shape[:3], k.shape[2]])
        operations.products(q, k.swapaxes(2, 3), weights)
        weights *= scale
        if mask is not None:
            weights += np.multiply(mask, FORBIDDEN_SCORE, dtype=np.float32)
        operations.softmax(weights, weights)
        if mask is not None:
            has_no_key = mask.all(axis=-1, keepdims=True)
            if has_no_key.any():  # the softmax weighs all keys equally
                np.copyto(weights, 0.0, where=has_no_key)
        result, view = _empty([*query.shape[:2], value.shape[2]])
        operations.products(_dropped(weights, dropped), v, heads(view))
        ctx.arrays, ctx.weights, ctx.held, ctx.dropped = arrays, weights, held, dropped
        ctx.heads, ctx.scale, ctx.operations = heads, scale, operations
        ctx.frozen = [x.stop_gradient for x in (query, key, value)]
        return result

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor | None, ...]:
        products, heads, weights = ctx.operations.products, ctx.heads, ctx.weights
        q, k, v = map(heads, ctx.arrays)
        slopes = heads(array(dy))
        (dq, of_q), (dk, of_k), (dv, of_v) = map(_empty_like, ctx.arrays)
        products(_dropped(weights, ctx.dropped).swapaxes(2, 3), slopes, heads(of_v))
        of_weights = np.empty_like(weights)
        products(slopes, v.swapaxes(2, 3), of_weights)
        of_scores = _dropped(of_weights, ctx.dropped)
        of_scores -= np.einsum("...j,...j->...", of_scores, weights)[..., np.newaxis]
        of_scores *= weights
        of_scores *= ctx.scale
        products(of_scores, k, heads(of_q))
        products(of_scores.swapaxes(2, 3), q, heads(of_k))
        return _unfrozen((dq, dk, dv), ctx.frozen)


def _dropped(x: np.ndarray, dropped: tuple[np.ndarray, float] | None) -> np.ndarray:
    """Returns the elements of `x` that dropout keeps, scaled up, and 0 for the others.

    `dropped` is what `CpuOperations.kept` returns; None: nothing is dropped.
    """
    if dropped is None:
        return x
    kept, scale = dropped
    factors = np.multiply(kept, scale, dtype=np.float32)
    return np.multiply(x, factors, out=factors)


def _unfrozen(gradients: tuple[Tensor, ...], frozen: list[bool]) -> tuple[Tensor | None, ...]:
    # For an input without a gradient, Paddle expects None.
    return tuple(
        None if is_frozen else gradient
        for gradient, is_frozen in zip(gradients, frozen, strict=True)
    )

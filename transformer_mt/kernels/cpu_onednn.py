"""The operations of a float32 model on a CPU that oneDNN computes, with their gradients.

Products of linear layers can be computed in bfloat16, see `OneDnnOperations.in_precision`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_float

import numpy as np
import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from transformer_mt.kernels.cpu import CpuOperations, dropped
from transformer_mt.kernels.onednn import Library, Operations
from transformer_mt.model.attention import FORBIDDEN_SCORE
from transformer_mt.model.operations import array, is_float32_on_cpu

# With fewer rows and without a gradient, Paddle is faster, because calling it takes less time. A
# linear layer from 128 to 256 takes Paddle 29 us for 16 rows, and this 46 us; for 128 rows, both
# take 140 us (measured with AVX2, with which the products themselves are equally fast).
FEW_ROWS = 128


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
        threads = self._threads
        before = getattr(threads, "precision", "float32")
        threads.precision, threads.rounded = precision, None
        try:
            yield
        finally:
            threads.precision, threads.rounded = before, None

    def _bits(self, x: Tensor) -> np.ndarray | None:
        """Returns the bits of `x` (..., width) in bfloat16, uint16 (rows, width); None if products
        are computed in float32.

        The last bits are kept, because queries, keys and values are projections of one tensor.
        """
        threads = self._threads
        if getattr(threads, "precision", "float32") == "float32":
            return None
        x = x.contiguous()
        key = x.data_ptr(), x.shape
        if threads.rounded is None or threads.rounded[0] != key:
            # The tensor is held, so that no other one gets its address.
            threads.rounded = key, x.detach(), self._own.round(_rows(x))
        return threads.rounded[2]

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not _has_numbers(x):
            return super().linear(x, weight, bias)
        bits = self._bits(x)
        if bits is None and _is_small(x):
            return super().linear(x, weight, bias)
        return _Product.apply(x, weight, bias, False, bits, self._own)

    def logits(self, hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if not _has_numbers(hidden):
            return super().logits(hidden, weight, bias)
        return _Product.apply(hidden, weight, bias, True, self._bits(hidden), self._own)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        if not _has_numbers(x) or _is_small(x):
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
        if not all(map(_has_numbers, (query, key, value))):
            return None
        kept = None
        if training and rate > 0.0:
            shape = query.shape[0], num_heads, query.shape[1], key.shape[1]
            kept = self.kept(shape, rate)
        mask = None if mask is None else array(mask)
        return _Attention.apply(query, key, value, num_heads, mask, kept, self._own)

    def softmax(self, x: Tensor) -> Tensor:
        result = _empty(x.shape)
        self._own.softmax(array(x), _view(result))
        return result


def _has_numbers(x: Tensor) -> bool:
    return is_float32_on_cpu(x) and math.prod(x.shape) > 0


def _is_small(x: Tensor) -> bool:
    return not paddle.is_grad_enabled() and math.prod(x.shape[:-1]) < FEW_ROWS


def _empty(shape: Sequence[int]) -> Tensor:
    # What `paddle.empty` calls after it has looked at its arguments, which takes longer.
    return paddle._C_ops.empty(shape, paddle.float32, paddle.CPUPlace())


def _view(x: Tensor) -> np.ndarray:
    """Returns a view of a contiguous float32 tensor that can be written to. It does not keep the
    tensor's memory."""
    memory = (c_float * math.prod(x.shape)).from_address(x.data_ptr())
    return np.ndarray(x.shape, np.float32, memory)


def _rows(x: Tensor) -> np.ndarray:
    # The view of (..., width) as (rows, width).
    view = _view(x)
    return view.reshape(-1, view.shape[-1])


class _Product(PyLayer):
    """x W + b, or x W^T + b, with dx = dy W^T, dW = x^T dy and db = 1^T dy.

    If the `bits` of x in bfloat16 are given, the factors are rounded: x, W and dy. Sums and results
    are float32.
    """

    @staticmethod
    def forward(
        ctx,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        is_transposed: bool,
        bits: np.ndarray | None,
        operations: Operations,
    ) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        if bits is None:
            rows, matrix = _rows(x), _view(weight)
            ctx.save_for_backward(x, weight)
        else:
            rows, matrix = bits, operations.round(_view(weight))
        if is_transposed:
            matrix = matrix.T
        result = _empty([*x.shape[:-1], matrix.shape[1]])
        if bias is not None:
            _rows(result)[:] = _view(bias)
        operations.library.product(rows, matrix, _rows(result), add=bias is not None)
        ctx.rows, ctx.matrix, ctx.is_transposed = rows, matrix, is_transposed
        ctx.operations, ctx.shape = operations, x.shape
        ctx.frozen = [part.stop_gradient for part in (x, weight, bias) if part is not None]
        return result

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor | None, ...]:
        rows, matrix, product = ctx.rows, ctx.matrix, ctx.operations.library.product
        dy = dy.contiguous()
        slopes = _rows(dy)
        factor = slopes if rows.dtype == np.float32 else ctx.operations.round(slopes)
        gradients: list[Tensor | None] = [None] * len(ctx.frozen)
        if not ctx.frozen[0]:
            gradients[0] = _empty(ctx.shape)
            product(factor, matrix.T, _rows(gradients[0]))
        if not ctx.frozen[1]:
            if ctx.is_transposed:
                gradients[1] = _empty(matrix.shape[::-1])
                product(factor.T, rows, _view(gradients[1]))
            else:
                gradients[1] = _empty(matrix.shape)
                product(rows.T, factor, _view(gradients[1]))
        if not all(ctx.frozen[2:]):
            # A product with ones takes half as long as NumPy's sum.
            gradients[2] = _empty(slopes.shape[1:])
            ones = np.ones((1, len(slopes)), np.float32)
            product(ones, slopes, _view(gradients[2])[np.newaxis])
        return tuple(gradients)


class _LayerNorm(PyLayer):
    """Layer norm, of which the mean and the variance of each row are kept."""

    @staticmethod
    def forward(
        ctx, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, operations: Operations
    ) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x, weight, bias)
        rows, scale, shift = ctx.inputs = _rows(x), _view(weight), _view(bias)
        ctx.epsilon, ctx.statistics = epsilon, np.empty((2, len(rows)), np.float32)
        result = _empty(x.shape)
        operations.layer_norm(rows, scale, shift, epsilon, _rows(result), ctx.statistics)
        ctx.operations, ctx.shape = operations, x.shape
        ctx.frozen = [part.stop_gradient for part in (x, weight, bias)]
        return result

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor | None, ...]:
        dy, width = dy.contiguous(), ctx.shape[-1:]
        dx, dw, db = _empty(ctx.shape), _empty(width), _empty(width)
        gradients = _rows(dx), _view(dw), _view(db)
        ctx.operations.layer_norm_gradient(
            *ctx.inputs, ctx.epsilon, ctx.statistics, _rows(dy), gradients
        )
        return _unfrozen((dx, dw, db), ctx.frozen)


class _Attention(PyLayer):
    """Attention in all heads, without copies of the heads.

    With scores S = Q K^T / sqrt(d), weights W = softmax(S) and W' = W after dropout, the result is
    O = W' V. The gradients are dV = W'^T dO, dW' = dO V^T, dS = W (dW - sum(dW W)), dQ = dS K and
    dK = dS^T Q, the last two divided by sqrt(d). NumPy computes dS and adds the mask: on processors
    without AVX-512, oneDNN takes ten times as long for the first, and for some forms of masks a
    hundred times as long for the second.
    """

    @staticmethod
    def forward(
        ctx,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        num_heads: int,
        mask: np.ndarray | None,
        kept: tuple[np.ndarray, float] | None,
        operations: Operations,
    ) -> Tensor:
        def heads(x: Tensor) -> np.ndarray:
            # (batch, len, heads * d) -> (batch, heads, len, d)
            view = _view(x)
            return view.reshape(*view.shape[:2], num_heads, -1).swapaxes(1, 2)

        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        q, k, v = heads(query), heads(key), heads(value)
        # The weights are computed in the place of the scores, (batch, heads, query_len, key_len).
        held = _empty([*q.shape[:3], k.shape[2]])
        weights = _view(held)
        operations.products(q, k.swapaxes(2, 3), weights)
        weights *= np.float32(q.shape[3] ** -0.5)
        if mask is not None:
            weights += np.multiply(mask, FORBIDDEN_SCORE, dtype=np.float32)
        operations.softmax(weights, weights)
        if mask is not None:
            has_no_key = mask.all(axis=-1, keepdims=True)
            if has_no_key.any():  # the softmax weighs all keys equally
                np.copyto(weights, 0.0, where=has_no_key)
        result = _empty([*query.shape[:2], value.shape[2]])
        operations.products(weights if kept is None else dropped(weights, *kept), v, heads(result))
        ctx.save_for_backward(query, key, value, held)
        ctx.heads, ctx.kept, ctx.operations = heads, kept, operations
        return result

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, held = ctx.saved_tensor()
        products, heads, weights = ctx.operations.products, ctx.heads, _view(held)
        q, k, v = map(heads, inputs)
        dy = dy.contiguous()
        slopes = heads(dy)
        dq, dk, dv = gradients = [_empty(x.shape) for x in inputs]
        mixed = weights if ctx.kept is None else dropped(weights, *ctx.kept)
        products(mixed.swapaxes(2, 3), slopes, heads(dv))
        of_scores = np.empty_like(weights)
        products(slopes, v.swapaxes(2, 3), of_scores)
        if ctx.kept is not None:
            of_scores = dropped(of_scores, *ctx.kept)
        of_scores -= np.einsum("...j,...j->...", of_scores, weights)[..., np.newaxis]
        of_scores *= weights
        of_scores *= np.float32(q.shape[3] ** -0.5)
        products(of_scores, k, heads(dq))
        products(of_scores.swapaxes(2, 3), q, heads(dk))
        return _unfrozen(gradients, [x.stop_gradient for x in inputs])


def _unfrozen(gradients: Sequence[Tensor], frozen: list[bool]) -> tuple[Tensor | None, ...]:
    # For an input without a gradient, Paddle expects None.
    return tuple(
        None if is_frozen else gradient
        for gradient, is_frozen in zip(gradients, frozen, strict=True)
    )

"""The operations that the layers and the losses consist of, as Paddle computes them.

The room `kernels` has faster ones with the same results, for a CPU and for a GPU. `use` puts them
in the place of these for the whole process. The model does not know which ones it computes with.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor


class Operations:
    """Paddle's own operations. They work on every device, and in a graph that is being exported."""

    # The most bytes of matrices that an optimiser handles together; None: as many as there are.
    cache_bytes: int | None = None
    # The number of rows of logits that are computed at once; None: all of them.
    block_rows: int | None = None

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Computes x W + b of `x` (..., in), `weight` (in, out) and `bias` (out,) or None."""
        return F.linear(x, weight, bias)

    def logits(self, hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Computes H W^T + b of `hidden` (..., d_model), `weight` (vocabulary, d_model) and `bias`
        (vocabulary,) or None.

        Returns (..., vocabulary).
        """
        logits = paddle.matmul(hidden, weight, transpose_y=True)
        return logits if bias is None else logits + bias.astype(logits.dtype)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        """Normalises `x` (..., d_model) over its last dimension (Ba et al. 2016, arXiv 1607.06450).

        `weight` and `bias` are (d_model,). The result has the shape of `x`.
        """
        return F.layer_norm(x, weight.shape, weight, bias, epsilon)

    def dropout(self, x: Tensor, rate: float) -> Tensor:
        """Sets elements of `x`, of any shape, to 0 with probability `rate`, and scales up the
        others. All randomness comes from Paddle's generator."""
        return F.dropout(x, rate)

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
        """Computes `ScaledDotProductAttention` in all heads without returning its weights, in one
        operation.

        Args:
            query: (batch, query_len, heads * d_k).
            key: (batch, key_len, heads * d_k).
            value: (batch, key_len, heads * d_v).
            mask: bool, True where attention is forbidden: (batch, heads, query_len, key_len), of
                which dimensions may be 1.
            rate: that of the dropout of the weights, in training.

        Returns: (batch, query_len, heads * d_v); None if there is no operation for these tensors.
        """
        return None

    def fused_add_norm(
        self,
        x: Tensor,
        output: Tensor,
        weight: Tensor,
        bias: Tensor,
        rate: float,
        epsilon: float,
    ) -> Tensor | None:
        """Computes LayerNorm(x + dropout(output)) in training in one operation; None if there is
        none for these tensors (..., d_model)."""
        return None

    def smoothed_cross_entropy(
        self, logits: Tensor, targets: Tensor, epsilon: float, pad_id: int
    ) -> tuple[Tensor, Tensor]:
        """Computes the label-smoothed cross-entropy, and the negative log-likelihood.

        The loss of a target is (1 - epsilon) * -log p[target] + epsilon * mean(-log p)
        = -log p[target] + epsilon * (logits[target] - mean(logits)).

        Args:
            logits: float32 (rows, vocabulary).
            targets: int64 (rows,); pad_id at padding, which adds nothing.

        Returns: both summed over the targets, in nats, float32 scalars.
        """
        is_real = (targets != pad_id).astype("float32")
        logit = logits.take_along_axis(targets.unsqueeze(1), axis=1).squeeze(1)  # (rows,)
        nll = (paddle.logsumexp(logits, axis=1) - logit) * is_real
        excess = (logit - logits.mean(axis=1)) * is_real
        return nll.sum() + epsilon * excess.sum(), nll.sum()

    def log_sum_exp(self, logits: Tensor) -> Tensor:
        """Computes log(sum(exp(logits))) per row of `logits` (rows, vocabulary): (rows, 1).

        It has no gradient.
        """
        return paddle.logsumexp(logits, axis=1, keepdim=True)

    def plus_softmax(self, x: Tensor, logits: Tensor, log_total: Tensor, factor: Tensor) -> Tensor:
        """Computes x + factor * softmax(logits), without a gradient.

        `x` and `logits` are (rows, vocabulary), `factor` is (rows, 1), and `log_total` (rows, 1) is
        `log_sum_exp(logits)`. Returns (rows, vocabulary).
        """
        return x + factor * paddle.exp(logits - log_total)

    def view(self, x: Tensor) -> Tensor | np.ndarray:
        """Returns `x`, or a read-only NumPy view of it where NumPy computes faster."""
        return x

    def to_tensor(self, array: np.ndarray) -> Tensor:
        """Returns a tensor on the current device with the values of `array`."""
        return paddle.to_tensor(np.asarray(array))

    def sent_ahead(self, updates: Generator[Any]) -> Generator[Any]:
        """Returns `updates`, pairs (item, Update). Where it pays, the arrays of each update are
        sent to the device while the update before it is computed."""
        return updates

    def in_precision(self, precision: str) -> AbstractContextManager[None]:
        """A block in which linear layers and logits are computed in float32, bfloat16 or float16:
        a value of training.precision. The gradients are computed in a block, too."""
        if precision == "float32":
            return nullcontext()
        return paddle.amp.auto_cast(dtype=precision, level="O1")

    def prepare(self, head_width: int, d_model: int, dtype: paddle.dtype) -> None:
        """Tests what a model of these widths will need, so that no update waits for it.

        `dtype` is that of the matrix products.
        """


PLAIN = Operations()
# Those that all models of the process compute with.
current = PLAIN


def use(operations: Operations) -> None:
    """Makes all models of the process compute with these operations."""
    global current
    current = operations


@contextmanager
def plain() -> Iterator[None]:
    """A block in which models compute with Paddle's own operations, such as for an export."""
    before = current
    use(PLAIN)
    try:
        yield
    finally:
        use(before)


def to_tensor(values: np.ndarray) -> Tensor:
    """As `Operations.to_tensor`, by the current operations."""
    return current.to_tensor(values)


def is_on_cpu(x: Tensor) -> bool:
    """Whether `x` is in the memory of the host, where reading it waits for nothing."""
    return x.place.is_cpu_place()


def is_float32_on_cpu(x: Tensor) -> bool:
    """Whether NumPy can compute with `x` in place. In a graph that is being exported, it can't."""
    return paddle.in_dynamic_mode() and is_on_cpu(x) and x.dtype == paddle.float32


def array(x: Tensor) -> np.ndarray:
    """Returns a read-only view of the tensor's memory, while `x.numpy()` would copy it."""
    return np.from_dlpack(x.detach())


def tensor(x: np.ndarray) -> Tensor:
    """Returns a tensor on the CPU that shares the array's memory."""
    return paddle.utils.dlpack.from_dlpack(x)

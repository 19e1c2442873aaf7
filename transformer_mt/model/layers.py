"""The layers that the encoder and the decoder are made of, apart from attention.

Vaswani et al. 2017, "Attention Is All You Need", sections 3.1, 3.3 to 3.5 and 5.4.
"""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn

from transformer_mt.config.schema import GATED
from transformer_mt.model import operations

Norm = Literal["post", "pre"]
Positions = Literal["sinusoidal", "marian"]
# The activations of feed-forward layers. GELU is the exact one, x times the normal distribution's
# cumulative probability of x (Hendrycks and Gimpel 2016, arXiv 1606.08415).
ACTIVATIONS = {"relu": F.relu, "swish": F.silu, "gelu": F.gelu}


class Dropout(nn.Dropout):
    """Inverted dropout, section 5.4: in training, the elements that are kept are scaled up."""

    def forward(self, x: Tensor) -> Tensor:
        """Applies dropout to `x`, of any shape; same shape."""
        # Paddle's own layer runs a kernel and copies the tensor even if nothing is dropped.
        return operations.current.dropout(x, self.p) if self.training and self.p > 0.0 else x


class Linear(nn.Linear):
    """A linear layer with a Xavier uniform weight, and a bias of zeros or none."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__(
            in_features,
            out_features,
            weight_attr=nn.initializer.XavierUniform(),
            bias_attr=nn.initializer.Constant(0.0) if bias else False,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps `x` (..., in_features) to (..., out_features)."""
        return operations.current.linear(x, self.weight, self.bias)


class LayerNorm(nn.LayerNorm):
    """Layer norm (Ba et al. 2016, arXiv 1607.06450) over the last dimension."""

    def __init__(self, d_model: int, epsilon: float = 1e-5) -> None:
        super().__init__(d_model, epsilon)

    def forward(self, x: Tensor) -> Tensor:
        """Normalises `x` (..., d_model); same shape."""
        return operations.current.layer_norm(x, self.weight, self.bias, self._epsilon)


class TokenEmbedding(nn.Layer):
    """The learned embedding, multiplied by sqrt(d_model), section 3.4.

    The weight (vocab_size, d_model) is initialised from a normal distribution with the standard
    deviation d_model^-0.5, so that the embeddings to which positions are added have a variance of
    1. The row of `pad_id`, if it is given, is initialised with zeros.
    """

    def __init__(self, vocab_size: int, d_model: int, pad_id: int | None = None) -> None:
        super().__init__()
        self.scale = math.sqrt(d_model)
        self.weight = self.create_parameter(
            [vocab_size, d_model],
            default_initializer=nn.initializer.Normal(mean=0.0, std=d_model**-0.5),
        )
        # padding_idx is not used, because it would stop the gradient of the row. If the generator
        # shares the weight, the row needs the gradient of its logits. The masks let no gradient of
        # padded positions through.
        if pad_id is not None:
            with paddle.no_grad():
                self.weight[pad_id] = 0.0

    def forward(self, ids: Tensor) -> Tensor:
        """Embeds integers `ids` (batch, len) as floating (batch, len, d_model)."""
        return F.embedding(ids, self.weight) * self.scale


class PositionalEncoding(nn.Layer):
    """Adds sinusoidal positions, section 3.5, and applies dropout to the sum, section 5.4.

    See `sinusoids`. `max_len` positions are computed in advance, and more when a longer sequence
    needs them.
    """

    table: Tensor  # (positions, d_model)

    def __init__(
        self, d_model: int, max_len: int, dropout: float = 0.0, kind: Positions = "sinusoidal"
    ) -> None:
        super().__init__()
        self.kind = kind
        self.dropout = Dropout(dropout)
        # The table is not persistable: it follows from d_model, so checkpoints do not hold it.
        table = paddle.to_tensor(sinusoids(max_len, d_model, kind), dtype="float32")
        self.register_buffer("table", table, persistable=False)

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        """Adds the positions offset, offset + 1, ... to `x` (batch, len, d_model); same shape."""
        end = offset + x.shape[1]
        # A graph that is being exported can't extend its table, so max_len is the limit there.
        if paddle.in_dynamic_mode() and end > self.table.shape[0]:
            self._grow(end)
        positions = self.table[offset:end]  # (len, d_model)
        return self.dropout(x + positions.astype(x.dtype))

    def rows(self, start: int, end: int) -> np.ndarray:
        """Returns the encodings of the positions from `start` to before `end`, on a CPU: float32
        (positions, d_model)."""
        if end > self.table.shape[0]:
            self._grow(end)
        # A view: reading one row by Paddle takes longer than the layers of a small model.
        return operations.array(self.table)[start:end]

    def _grow(self, length: int) -> None:
        # The length at least doubles, so that incremental decoding rarely computes a new table.
        length = max(length, 2 * self.table.shape[0])
        self.table = paddle.to_tensor(
            sinusoids(length, self.table.shape[1], self.kind),
            dtype=self.table.dtype,
            place=self.table.place,
        )


def divisors(d_model: int, kind: Positions = "sinusoidal") -> np.ndarray:
    """Computes the divisors of the positions, one per pair of channels: float64 (ceil(d / 2),).

    Divisor i is 10000^(2i / d_model), section 3.5. Marian's is 10000^(i / (d_model / 2 - 1)), for
    an even d_model of at least 4, so that the last one is 10000.
    """
    pairs = np.arange((d_model + 1) // 2)
    if kind == "marian":
        return 10000.0 ** (pairs / (d_model // 2 - 1))
    return 10000.0 ** (2 * pairs / d_model)


def sinusoids(length: int, d_model: int, kind: Positions = "sinusoidal") -> np.ndarray:
    """Computes the sinusoidal positions 0 .. length - 1, section 3.5: float64 (length, d_model).

    PE(pos, 2i) = sin(pos / divisors[i]), PE(pos, 2i + 1) = cos(pos / divisors[i]). If d_model is
    odd, the last sine has no cosine.
    """
    # float64 is needed: an angle of 1,000 radians in float32 is wrong in the fifth digit.
    angles = np.arange(length)[:, np.newaxis] / divisors(d_model, kind)  # (length, ceil(d / 2))
    table = np.empty((length, d_model))
    table[:, 0::2] = np.sin(angles)
    table[:, 1::2] = np.cos(angles[:, : d_model // 2])
    return table


class PositionwiseFeedForward(nn.Layer):
    """max(0, x W1 + b1) W2 + b2, formula (2) of section 3.3, with dropout before W2.

    Another activation can take the place of the ReLU. In the GATED ones, the activation of a gate
    is multiplied by the inner projection: (activation(x W3 + b3) * (x W1 + b1)) W2 + b2.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        dropout: float = 0.0,
        bias: bool = True,
        activation: str = "relu",
    ) -> None:
        super().__init__()
        self.activation = GATED.get(activation, activation)
        self.inner_projection = Linear(d_model, d_ff, bias)
        self.gate_projection = Linear(d_model, d_ff, bias) if activation in GATED else None
        self.output_projection = Linear(d_ff, d_model, bias)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Transforms each position of `x` (batch, len, d_model) by itself; same shape."""
        inner = self.inner_projection(x)  # (batch, len, d_ff)
        if self.gate_projection is None:
            inner = ACTIVATIONS[self.activation](inner)
        else:
            inner = ACTIVATIONS[self.activation](self.gate_projection(x)) * inner
        return self.output_projection(self.dropout(inner))


class ResidualNorm(nn.Layer):
    """The residual connection around a sublayer, with its layer norm and dropout.

    "post" is LayerNorm(x + dropout(sublayer(x))), as in sections 3.1 and 5.4; "pre" is
    x + dropout(sublayer(LayerNorm(x))), which trains more easily (Xiong et al. 2020, "On Layer
    Normalization in the Transformer Architecture") and needs one more norm at the end of the stack.
    """

    def __init__(
        self, d_model: int, dropout: float = 0.0, norm: Norm = "post", epsilon: float = 1e-5
    ) -> None:
        super().__init__()
        self.is_pre_norm = norm == "pre"
        self.norm = LayerNorm(d_model, epsilon)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Applies `sublayer` to `x` (batch, len, d_model) inside the residual connection.

        The result has the shape of `x`.
        """
        return self.leave(x, sublayer(self.enter(x)))

    # `enter` and `leave` serve sublayers that take or return more than one tensor.

    def enter(self, x: Tensor) -> Tensor:
        """Returns the input of the sublayer: `x`, normalised if the norm is "pre"."""
        return self.norm(x) if self.is_pre_norm else x

    def leave(self, x: Tensor, output: Tensor) -> Tensor:
        """Adds the sublayer's `output` to `x`, and normalises the sum if the norm is "post"."""
        if self.is_pre_norm:
            return x + self.dropout(output)
        if self.training:
            norm, rate = self.norm, self.dropout.p
            fused = operations.current.fused_add_norm(
                x, output, norm.weight, norm.bias, rate, norm._epsilon
            )
            if fused is not None:
                return fused
        return self.norm(x + self.dropout(output))

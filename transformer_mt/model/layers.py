"""Feed-forward network, residual connection with norm, encoder and decoder layer.

Vaswani et al. 2017, sections 3.1, 3.3 and 5.4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import paddle.nn.functional as F
from paddle import Tensor, nn

from transformer_mt.model import operations
from transformer_mt.model.attention import KeyValueCache, Linear, MultiHeadAttention
from transformer_mt.model.dropout import Dropout

Norm = Literal["post", "pre"]


class PositionwiseFeedForward(nn.Layer):
    """max(0, x W1 + b1) W2 + b2, formula (2) of section 3.3, with dropout after the ReLU.

    Raises ValueError if `dropout` is not in [0, 1).
    """

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__()
        self.inner_projection = Linear(d_model, d_ff, bias)
        self.output_projection = Linear(d_ff, d_model, bias)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Transforms each position of `x` (batch, len, d_model) by itself; same shape."""
        inner = self.dropout(F.relu(self.inner_projection(x)))  # (batch, len, d_ff)
        return self.output_projection(inner)


class LayerNorm(nn.LayerNorm):
    """The layer norm of this model, over the last dimension."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model, epsilon=1e-5)

    def forward(self, x: Tensor) -> Tensor:
        """Normalises `x` (..., d_model); same shape."""
        return operations.layer_norm(x, self.weight, self.bias, self._epsilon)


class ResidualNorm(nn.Layer):
    """The residual connection around a sublayer, with its layer norm and dropout.

    "post" is LayerNorm(x + dropout(sublayer(x))), as in sections 3.1 and 5.4; "pre" is
    x + dropout(sublayer(LayerNorm(x))), which trains more easily (Xiong et al. 2020, "On Layer
    Normalization in the Transformer Architecture") and needs one more norm at the end of the stack.

    Raises ValueError if `norm` is neither, or `dropout` not in [0, 1).
    """

    def __init__(self, d_model: int, dropout: float = 0.0, norm: Norm = "post") -> None:
        super().__init__()
        if norm not in ("post", "pre"):
            raise ValueError(f'norm must be "post" or "pre", not {norm!r}')
        self.is_pre_norm = norm == "pre"
        self.norm = LayerNorm(d_model)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """`x` (batch, len, d_model) passed through and around `sublayer`; same shape."""
        return self.leave(x, sublayer(self.enter(x)))

    # The two halves, for a sublayer that takes or returns more than one tensor.

    def enter(self, x: Tensor) -> Tensor:
        """What the sublayer is to read."""
        return self.norm(x) if self.is_pre_norm else x

    def leave(self, x: Tensor, output: Tensor) -> Tensor:
        """`x` joined with the sublayer's `output`."""
        x = x + self.dropout(output)
        return x if self.is_pre_norm else self.norm(x)


class EncoderLayer(nn.Layer):
    """Self-attention, then feed-forward: a layer of the encoder, section 3.1.

    Args:
        d_model, num_heads, d_ff: widths and number of heads.
        dropout: rate at the end of each sublayer, before the residual sum.
        attention_dropout: rate for the attention weights.
        feed_forward_dropout: rate inside the feed-forward network, after the ReLU.
        norm: "post" or "pre", see `ResidualNorm`.
        bias: whether the linear layers have a bias.

    Raises: ValueError as `MultiHeadAttention` and `ResidualNorm` do.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        feed_forward_dropout: float = 0.0,
        norm: Norm = "post",
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, num_heads, attention_dropout, bias=bias)
        self.self_attention_residual = ResidualNorm(d_model, dropout, norm)
        self.feed_forward = PositionwiseFeedForward(d_model, d_ff, feed_forward_dropout, bias)
        self.feed_forward_residual = ResidualNorm(d_model, dropout, norm)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Passes `x` (batch, source_len, d_model) through the layer.

        `mask`, True where forbidden, is as in `ScaledDotProductAttention`. Returns (x, weights),
        the weights (batch, heads, source_len, source_len) or None if not needed.
        """
        normed = self.self_attention_residual.enter(x)
        attended, weights = self.self_attention(normed, normed, normed, mask, need_weights)
        x = self.self_attention_residual.leave(x, attended)
        return self.feed_forward_residual(x, self.feed_forward), weights


@dataclass
class LayerCache:
    """What a decoder layer keeps between the steps of incremental decoding."""

    self_attention: KeyValueCache = field(default_factory=KeyValueCache)
    cross_attention: KeyValueCache = field(default_factory=lambda: KeyValueCache(static=True))


class DecoderLayer(nn.Layer):
    """Self-attention, attention over the memory, feed-forward: a layer of the decoder, section 3.1.

    Arguments and errors are those of `EncoderLayer`.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        feed_forward_dropout: float = 0.0,
        norm: Norm = "post",
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, num_heads, attention_dropout, bias=bias)
        self.self_attention_residual = ResidualNorm(d_model, dropout, norm)
        self.cross_attention = MultiHeadAttention(d_model, num_heads, attention_dropout, bias=bias)
        self.cross_attention_residual = ResidualNorm(d_model, dropout, norm)
        self.feed_forward = PositionwiseFeedForward(d_model, d_ff, feed_forward_dropout, bias)
        self.feed_forward_residual = ResidualNorm(d_model, dropout, norm)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None,
        self_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        need_weights: bool = False,
        cache: LayerCache | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Passes `x` (batch, target_len, d_model) through the layer.

        Args:
            x: all target positions, or with a cache the new ones.
            memory: the encoder's output (batch, source_len, d_model); may be None if the cache of
                the cross-attention is filled.
            self_mask, memory_mask: True where forbidden, as in `ScaledDotProductAttention`.
            need_weights: whether to return the attention weights.
            cache: of this layer; takes in the keys and values of this call.

        Returns: (x, self_weights, cross_weights): the weights (batch, heads, target_len, cached +
            target_len) and (batch, heads, target_len, source_len), or None if not needed.
        """
        normed = self.self_attention_residual.enter(x)
        attended, self_weights = self.self_attention(
            normed, normed, normed, self_mask, need_weights, cache and cache.self_attention
        )
        x = self.self_attention_residual.leave(x, attended)

        # The memory has its norm already, at the end of the encoder.
        normed = self.cross_attention_residual.enter(x)
        attended, cross_weights = self.cross_attention(
            normed, memory, memory, memory_mask, need_weights, cache and cache.cross_attention
        )
        x = self.cross_attention_residual.leave(x, attended)
        return self.feed_forward_residual(x, self.feed_forward), self_weights, cross_weights

"""Feed-forward network, residual connection with norm, encoder and decoder layer.

Vaswani et al. 2017, sections 3.1, 3.3 and 5.4.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import paddle.nn.functional as F
from paddle import Tensor, nn

from transformer_mt.config.schema import ModelConfig
from transformer_mt.model import operations
from transformer_mt.model.attention import KeyValueCache, MultiHeadAttention
from transformer_mt.model.basic_layers import Dropout, LayerNorm, Linear

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


class _Layer(nn.Layer):
    """The sublayers of an encoder or a decoder layer; a subclass connects them.

    Args:
        config: the sizes, dropout rates and options of the model.

    Raises: ValueError as `MultiHeadAttention` and `ResidualNorm` do.
    """

    attends_to_memory = False

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()

        def attention() -> MultiHeadAttention:
            return MultiHeadAttention(
                config.d_model,
                config.num_heads,
                config.attention_dropout,
                bias=config.bias,
                projection_dropout=config.projection_dropout,
            )

        def residual() -> ResidualNorm:
            return ResidualNorm(config.d_model, config.dropout, config.norm)

        # The order of these lines decides which random numbers initialise which weight.
        self.self_attention = attention()
        self.self_attention_residual = residual()
        if self.attends_to_memory:
            self.cross_attention = attention()
            self.cross_attention_residual = residual()
        self.feed_forward = PositionwiseFeedForward(
            config.d_model, config.d_ff, config.feed_forward_dropout, config.bias
        )
        self.feed_forward_residual = residual()


class EncoderLayer(_Layer):
    """A layer of the encoder, section 3.1: self-attention, then the feed-forward network.

    Arguments and errors are those of `_Layer`.
    """

    def forward(
        self, x: Tensor, mask: Tensor | None = None, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Passes `x` (batch, source_len, d_model) through the layer.

        `mask` is as in `ScaledDotProductAttention`: True forbids. Returns (x, weights). The
        weights are (batch, heads, source_len, source_len), or None if they are not needed.
        """
        normed = self.self_attention_residual.enter(x)  # (batch, source_len, d_model)
        attended, weights = self.self_attention(normed, normed, normed, mask, need_weights)
        x = self.self_attention_residual.leave(x, attended)
        return self.feed_forward_residual(x, self.feed_forward), weights


@dataclass
class LayerCache:
    """The keys and values that a decoder layer keeps between the steps of incremental decoding."""

    self_attention: KeyValueCache = field(default_factory=KeyValueCache)
    cross_attention: KeyValueCache = field(default_factory=lambda: KeyValueCache(static=True))


class DecoderLayer(_Layer):
    """A layer of the decoder, section 3.1: self-attention, attention over the memory, then the
    feed-forward network.

    Arguments and errors are those of `_Layer`.
    """

    attends_to_memory = True

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
            x: all target positions. With a cache, only the new ones.
            memory: the encoder's output (batch, source_len, d_model). It may be None if the cache
                of the cross-attention is filled.
            self_mask, memory_mask: as in `ScaledDotProductAttention`: True forbids.
            need_weights: whether to return the attention weights.
            cache: the cache of this layer. The keys and values of this call are added to it.

        Returns: (x, self_weights, cross_weights): the weights (batch, heads, target_len, cached +
            target_len) and (batch, heads, target_len, source_len), or None if not needed.
        """
        normed = self.self_attention_residual.enter(x)  # (batch, target_len, d_model)
        attended, self_weights = self.self_attention(
            normed, normed, normed, self_mask, need_weights, cache and cache.self_attention
        )
        x = self.self_attention_residual.leave(x, attended)

        # Only the queries are normalised here: the encoder has normalised the memory already.
        normed = self.cross_attention_residual.enter(x)
        attended, cross_weights = self.cross_attention(
            normed, memory, memory, memory_mask, need_weights, cache and cache.cross_attention
        )
        x = self.cross_attention_residual.leave(x, attended)
        return self.feed_forward_residual(x, self.feed_forward), self_weights, cross_weights

"""The Transformer of Vaswani et al. 2017, "Attention Is All You Need": encoder, decoder, generator.

The model reads and writes integer ids; what they stand for is not its business.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.distributed.fleet.utils import recompute

from transformer_mt.config.schema import ModelConfig
from transformer_mt.model import operations
from transformer_mt.model.ancestors import AncestorMask
from transformer_mt.model.attention import causal_mask, padding_mask
from transformer_mt.model.embedding import PositionalEncoding, TokenEmbedding
from transformer_mt.model.layers import DecoderLayer, EncoderLayer, LayerCache, LayerNorm


class AttentionWeights(NamedTuple):
    """Attention weights of a forward pass, before dropout: one tensor a layer, first one first."""

    encoder: list[Tensor]  # (batch, heads, source_len, source_len)
    decoder: list[Tensor]  # (batch, heads, target_len, target_len)
    cross: list[Tensor]  # (batch, heads, target_len, source_len)


@dataclass
class DecoderCache:
    """State of incremental decoding, made by `Transformer.start_cache`; see `AncestorMask` for how
    the hypotheses of a sentence are kept."""

    layers: list[LayerCache]
    memory_mask: Tensor  # bool, True where the source is padding: (sentences, 1, 1, source_len)
    ancestors: AncestorMask = field(default_factory=AncestorMask)

    def select(self, sentences: np.ndarray) -> None:
        """Keeps the sentences with these indices, int64 (kept,), in this order."""
        self.ancestors.select(sentences)
        index = paddle.to_tensor(sentences)
        self.memory_mask = paddle.index_select(self.memory_mask, index)
        for layer in self.layers:
            layer.self_attention.select(index)
            layer.cross_attention.select(index)


# Whether attention weights are needed, of all layers; or the numbers of those of which they are.
Needed = bool | Collection[int]


class Encoder(nn.Layer):
    """A stack of encoder layers, section 3.1. With pre-norm, the stack ends with one more norm.

    Args:
        config: the sizes of the model.
        recompute: if True, training keeps only the input of each layer, and computes the layer
            again in the backward pass, with the same dropout. This trades a second forward pass
            for memory (Chen et al. 2016, arXiv 1604.06174).
    """

    def __init__(self, config: ModelConfig, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.layers = _stack(EncoderLayer, config.encoder_layers, config)
        self.norm = LayerNorm(config.d_model) if config.norm == "pre" else None

    def forward(
        self, x: Tensor, mask: Tensor | None = None, need_weights: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Encodes the embedded source `x` (batch, source_len, d_model) into the memory, same shape.

        `mask`, True where forbidden, is as in `ScaledDotProductAttention`. Returns (memory,
        weights), one (batch, heads, source_len, source_len) a layer, none if not needed.
        """
        all_weights = []
        recomputing = self.recompute and self.training and not x.stop_gradient and not need_weights
        for layer in self.layers:
            if recomputing:
                x = recompute(lambda x, layer=layer: layer(x, mask)[0], x)
                continue
            x, weights = layer(x, mask, need_weights)
            if need_weights:
                all_weights.append(weights)
        return x if self.norm is None else self.norm(x), all_weights


class Decoder(nn.Layer):
    """A stack of decoder layers, section 3.1. With pre-norm, the stack ends with one more norm.

    The arguments are those of `Encoder`.
    """

    def __init__(self, config: ModelConfig, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.layers = _stack(DecoderLayer, config.decoder_layers, config)
        self.norm = LayerNorm(config.d_model) if config.norm == "pre" else None

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None,
        self_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        need_weights: Needed = False,
        cache: list[LayerCache] | None = None,
    ) -> tuple[Tensor, list[Tensor | None], list[Tensor | None]]:
        """Decodes the embedded target `x` (batch, target_len, d_model), same shape.

        Arguments are those of `DecoderLayer`, `cache` holding one for each layer; `need_weights` is
        as in `Transformer.decode`. Returns (x, self_weights, cross_weights), the weights one tensor
        a layer, or None.
        """
        count = len(self.layers)
        needed = range(count) if need_weights is True else need_weights or ()
        all_self_weights, all_cross_weights = [None] * count, [None] * count
        recomputing = self.recompute and self.training and not x.stop_gradient
        for number, layer in enumerate(self.layers):
            if recomputing and cache is None and number not in needed:
                x = recompute(
                    lambda x, memory, layer=layer: layer(x, memory, self_mask, memory_mask)[0],
                    x,
                    memory,
                )
                continue
            layer_cache = None if cache is None else cache[number]
            x, all_self_weights[number], all_cross_weights[number] = layer(
                x, memory, self_mask, memory_mask, number in needed, layer_cache
            )
        return x if self.norm is None else self.norm(x), all_self_weights, all_cross_weights


def _stack(
    kind: type[EncoderLayer | DecoderLayer], num_layers: int, config: ModelConfig
) -> nn.LayerList:
    return nn.LayerList(
        kind(
            config.d_model,
            config.num_heads,
            config.d_ff,
            config.dropout,
            config.attention_dropout,
            config.feed_forward_dropout,
            config.norm,
            config.bias,
        )
        for _ in range(num_layers)
    )


class Generator(nn.Layer):
    """Linear map to the vocabulary, without bias and without the softmax, section 3.4.

    `weight` is the (vocab_size, d_model) embedding matrix to share; if None it gets one of its own.
    Raises ValueError if that has another shape.
    """

    def __init__(self, d_model: int, vocab_size: int, weight: Tensor | None = None) -> None:
        super().__init__()
        if weight is None:
            weight = self.create_parameter(
                [vocab_size, d_model], default_initializer=nn.initializer.XavierUniform()
            )
        if list(weight.shape) != [vocab_size, d_model]:
            raise ValueError(
                f"a generator of {vocab_size} ids from width {d_model} needs a weight of shape"
                f" [{vocab_size}, {d_model}], not {list(weight.shape)}"
            )
        self.weight = weight

    def forward(self, hidden: Tensor) -> Tensor:
        """The logits (..., vocabulary) of `hidden` (..., d_model)."""
        return operations.logits(hidden, self.weight)


class Transformer(nn.Layer):
    """The encoder-decoder Transformer, figure 1.

    Args:
        config: the sizes, dropout rates and options of the model: the section `model` of a config.
        source_vocab_size, target_vocab_size: the numbers of ids.
        share_source_embedding: whether the source embedding is the target embedding, too. This
            needs one vocabulary for both sides.
        pad_id: the id of padding in the target.
        source_pad_id: the id of padding in the source. By default it is `pad_id`.
        max_len: the number of positions that are computed in advance. Longer sequences work, too,
            see `PositionalEncoding`.
        recompute: whether training trades time for memory, see `Encoder`.

    Padding comes last in each row. No real position depends on a padded one, and no target position
    depends on a later one, neither in its value nor in its gradient.

    Raises: ValueError if the source embedding is to be shared, but vocabulary sizes or pad ids
        differ.
    """

    # Numbers of the decoder layers, from 0, whose attention `generate` needs.
    generates_from: Collection[int] = ()

    def __init__(
        self,
        config: ModelConfig,
        source_vocab_size: int,
        target_vocab_size: int,
        *,
        share_source_embedding: bool = False,
        pad_id: int = 0,
        source_pad_id: int | None = None,
        max_len: int = 1024,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.pad_id = pad_id
        self.source_pad_id = pad_id if source_pad_id is None else source_pad_id

        self.target_embedding = TokenEmbedding(target_vocab_size, config.d_model, pad_id)
        if share_source_embedding:
            self.require_one_vocabulary("a shared source embedding", source_vocab_size)
            self.source_embedding = self.target_embedding
        else:
            self.source_embedding = TokenEmbedding(
                source_vocab_size, config.d_model, self.source_pad_id
            )
        dropout = config.dropout if config.embedding_dropout is None else config.embedding_dropout
        self.positional_encoding = PositionalEncoding(config.d_model, max_len, dropout)
        self.encoder = Encoder(config, recompute)
        self.decoder = Decoder(config, recompute)
        # Section 3.4 ties the generator to the target embedding.
        tied = self.target_embedding.weight if config.tie_embeddings else None
        self.generator = Generator(config.d_model, target_vocab_size, tied)

    def require_one_vocabulary(self, what: str, source_vocab_size: int) -> None:
        """Raises ValueError, which names `what`, if source and target have different ids."""
        target_vocab_size = self.target_embedding.weight.shape[0]
        if (source_vocab_size, self.source_pad_id) != (target_vocab_size, self.pad_id):
            raise ValueError(
                f"{what} needs one vocabulary, but there are {source_vocab_size} source ids"
                f" (padding: {self.source_pad_id}) and {target_vocab_size} target ids"
                f" (padding: {self.pad_id})"
            )

    def forward(
        self, source_ids: Tensor, target_ids: Tensor, need_weights: bool = False
    ) -> Tensor | tuple[Tensor, AttentionWeights]:
        """The logits of every next token, given the target before it.

        Args:
            source_ids: int64 (batch, source_len).
            target_ids: int64 (batch, target_len), as the decoder reads them: beginning with bos.

        Returns: logits (batch, target_len, vocabulary); with `need_weights`, (logits, weights).
        """
        if not need_weights:
            return self.logits(target_ids, self.encode(source_ids), source_ids)
        memory, encoder_weights = self.encode(source_ids, need_weights=True)
        hidden, decoder_weights, cross_weights = self.decode(
            target_ids, memory, source_ids, need_weights=True
        )
        weights = AttentionWeights(encoder_weights, decoder_weights, cross_weights)
        return self.generate(hidden, cross_weights, source_ids), weights

    def encode(
        self, source_ids: Tensor, need_weights: bool = False
    ) -> Tensor | tuple[Tensor, list[Tensor]]:
        """Encodes `source_ids` (batch, source_len) into the memory (batch, source_len, d_model).

        With `need_weights`, returns (memory, weights), one (batch, heads, source_len, source_len)
        for each layer.
        """
        x = self.positional_encoding(self.source_embedding(source_ids))
        # x: (batch, source_len, d_model)
        memory, weights = self.encoder(x, self._source_mask(source_ids), need_weights)
        return (memory, weights) if need_weights else memory

    def logits(
        self,
        target: Tensor,
        memory: Tensor,
        source_ids: Tensor,
        positions: Tensor | None = None,
        need_weights: Needed = False,
    ) -> Tensor | tuple[Tensor, list[Tensor | None]]:
        """The logits of the next token at target positions, given the target before it.

        Args:
            target, memory, source_ids, need_weights: as in `decode`.
            positions: int64 (count,), which of the batch * target_len positions, row after row;
                None is all of them.

        Returns: (count, vocabulary), or (batch, target_len, vocabulary); with `need_weights`,
            (logits, cross_weights), of all positions, as in `decode`.
        """
        needed = need_weights or ()
        if needed is not True:
            needed = {*needed, *self.generates_from}
        hidden, _, cross_weights = self._decode(target, memory, source_ids, needed)
        logits = self.generate(hidden, cross_weights, source_ids, positions)
        return (logits, cross_weights) if need_weights else logits

    def generate(
        self,
        hidden: Tensor,
        cross_weights: list[Tensor | None],
        source_ids: Tensor,
        positions: Tensor | None = None,
    ) -> Tensor:
        """The logits, as `logits` returns them, of what `decode` gives; of the weights those of
        `generates_from` are needed."""
        return self.generator(hidden if positions is None else at_positions(hidden, positions))

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        source_ids: Tensor,
        need_weights: Needed = False,
    ) -> Tensor | tuple[Tensor, list[Tensor | None], list[Tensor | None]]:
        """Decodes the target into (batch, target_len, d_model), what the generator reads.

        Args:
            target: int64 (batch, target_len), as the decoder reads it; or its embeddings, floating
                (batch, target_len, d_model), without positions.
            memory: (batch, source_len, d_model), of `source_ids` (batch, source_len).
            need_weights: whether to return attention weights, of all layers; or of which, from 0.
                The others are faster on a GPU, and are computed again with `recompute`.

        With `need_weights`, returns (hidden, self_weights, cross_weights), for each layer one
        (batch, heads, target_len, target_len) and (batch, heads, target_len, source_len), or None.
        """
        decoded = self._decode(target, memory, source_ids, need_weights)
        return decoded if need_weights else decoded[0]

    def _decode(
        self, target: Tensor, memory: Tensor, source_ids: Tensor, need_weights: Needed
    ) -> tuple[Tensor, list[Tensor | None], list[Tensor | None]]:
        embedded = self.target_embedding(target) if target.ndim == 2 else target
        x = self.positional_encoding(embedded)  # (batch, target_len, d_model)
        return self.decoder(
            x,
            memory,
            self._target_mask(target),
            self._source_mask(source_ids),
            need_weights,
        )

    def start_cache(self, memory: Tensor, source_ids: Tensor) -> DecoderCache:
        """A cache to decode with step by step, before the first step.

        The memory (sentences, source_len, d_model) of `source_ids` (sentences, source_len) is
        projected here, once for all steps.
        """
        layer_caches = []
        for layer in self.decoder.layers:
            layer_cache = LayerCache()
            layer_cache.cross_attention.update(*layer.cross_attention.project(memory, memory))
            layer_caches.append(layer_cache)
        return DecoderCache(layer_caches, self._source_mask(source_ids))

    def decode_step(self, ids: Tensor, parents: np.ndarray, cache: DecoderCache) -> Tensor:
        """One step of incremental decoding: the logits of what may follow each hypothesis.

        Args:
            ids: int64 (sentences, width), the last id of each hypothesis; first of all bos.
            parents: as in `AncestorMask.grow`.

        Returns: floating (sentences, width, vocabulary).
        """
        return self.generator(self._step(ids, parents, cache)[0])

    def _step(
        self, ids: Tensor, parents: np.ndarray, cache: DecoderCache
    ) -> tuple[Tensor, list[Tensor | None]]:
        # Up to the hidden states (sentences, width, d_model); and the weights of cross-attention
        # that `generate` needs.
        kept = cache.ancestors.prune()
        if kept is not None:
            for layer in cache.layers:
                layer.self_attention.take(paddle.to_tensor(kept))
        position = cache.ancestors.length
        strangers = cache.ancestors.grow(parents)
        self_mask = None if strangers is None else paddle.to_tensor(strangers)
        sentences, width = ids.shape
        # (sentences * width, 1, d_model), for all are at the same position
        x = self.target_embedding(ids.reshape([sentences * width, 1]))
        x = self.positional_encoding(x, position).reshape([sentences, width, -1])
        hidden, _, cross_weights = self.decoder(
            x, None, self_mask, cache.memory_mask, self.generates_from, cache.layers
        )
        return hidden, cross_weights

    def _target_mask(self, target: Tensor) -> Tensor:
        # True where a target position must not look: (target_len, target_len), for all rows
        return causal_mask(target.shape[1])

    def _source_mask(self, source_ids: Tensor) -> Tensor:
        # True where the source is padding: (batch, 1, 1, source_len), for all heads and queries,
        # for which a single one is asked
        return padding_mask(source_ids[:, :1], source_ids, self.source_pad_id).unsqueeze(1)


def at_positions(x: Tensor, positions: Tensor) -> Tensor:
    """Of `x` (batch, len, width) the rows at `positions` of batch * len: (count, width)."""
    return x.reshape([-1, x.shape[-1]]).gather(positions)

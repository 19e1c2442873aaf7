"""The Transformer of Vaswani et al. 2017, "Attention Is All You Need": encoder, decoder, generator.

The model reads and writes integer ids. It does not know what text they stand for.
"""

import random
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.distributed.fleet.utils import recompute

from transformer_mt.config.schema import ModelConfig
from transformer_mt.model import operations
from transformer_mt.model.attention import MultiHeadAttention, causal_mask, padding_mask
from transformer_mt.model.cache import BufferedKeyValueCache, DecoderCache, LayerCache, capacity
from transformer_mt.model.layers import (
    Dropout,
    LayerNorm,
    PositionalEncoding,
    PositionwiseFeedForward,
    ResidualNorm,
    TokenEmbedding,
)


class _Layer(nn.Layer):
    """The sublayers of an encoder or a decoder layer; a subclass connects them.

    Args:
        config: the sizes, dropout rates and options of the model.
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
            return ResidualNorm(config.d_model, config.dropout, config.norm, config.norm_epsilon)

        # The order of these lines decides which random numbers initialise which weight.
        self.self_attention = attention()
        self.self_attention_residual = residual()
        if self.attends_to_memory:
            self.cross_attention = attention()
            self.cross_attention_residual = residual()
        self.feed_forward = PositionwiseFeedForward(
            config.d_model,
            config.d_ff,
            config.feed_forward_dropout,
            config.bias,
            config.activation,
        )
        self.feed_forward_residual = residual()


class EncoderLayer(_Layer):
    """A layer of the encoder, section 3.1: self-attention, then the feed-forward network.

    Arguments are those of `_Layer`.
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


class DecoderLayer(_Layer):
    """A layer of the decoder, section 3.1: self-attention, attention over the memory, then the
    feed-forward network.

    Arguments are those of `_Layer`.
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
            memory: the encoder's output (batch, source_len, d_model). None stands for what is in
                the cache of the cross-attention already.
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


# True or False: the attention weights of all layers are needed, or none. A collection: the numbers
# of the layers, from 0, whose weights are needed.
Needed = bool | Collection[int]


class _Stack(nn.Layer):
    """A stack of equal layers. With pre-norm, it ends with one more norm.

    With layer dropout, training leaves out each layer with a probability (LayerDrop, Fan et al.
    2020, arXiv 1909.11556).

    Args:
        layer_class: the class of its layers.
        num_layers: their number.
        config: the sizes of the model.
        recompute: if True, training keeps only the input of each layer, and computes the layer
            again in the backward pass, with the same dropout. This trades a second forward pass
            for memory (Chen et al. 2016, arXiv 1604.06174).
    """

    def __init__(
        self,
        layer_class: type[EncoderLayer | DecoderLayer],
        num_layers: int,
        config: ModelConfig,
        recompute: bool,
    ) -> None:
        super().__init__()
        self.recompute = recompute
        self.layer_dropout = config.layer_dropout
        self.layers = nn.LayerList(layer_class(config) for _ in range(num_layers))
        is_pre_norm = config.norm == "pre"
        self.norm = LayerNorm(config.d_model, config.norm_epsilon) if is_pre_norm else None

    def _recomputes(self, x: Tensor) -> bool:
        # Recomputing serves the gradient of the input `x`; without one there is nothing to save.
        return self.recompute and self.training and not x.stop_gradient

    def _kept_layers(self, needed: Collection[int]) -> Iterator[tuple[int, nn.Layer]]:
        # Yields the layers to compute with their numbers, from 0; the `needed` ones always.
        for number, layer in enumerate(self.layers):
            is_dropped = self.training and random.random() < self.layer_dropout
            if number in needed or not is_dropped:
                yield number, layer

    def _leave(self, x: Tensor) -> Tensor:
        return x if self.norm is None else self.norm(x)


class Encoder(_Stack):
    """A stack of encoder layers, section 3.1. Arguments are those of `_Stack`."""

    def __init__(self, config: ModelConfig, recompute: bool = False) -> None:
        super().__init__(EncoderLayer, config.encoder_layers, config, recompute)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, need_weights: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Encodes the embedded source `x` (batch, source_len, d_model) into the memory, same shape.

        `mask` is as in `ScaledDotProductAttention`: True forbids. Returns (memory, weights). The
        weights are one (batch, heads, source_len, source_len) per layer; the list is empty if they
        are not needed.
        """
        all_weights = []
        recomputing = self._recomputes(x) and not need_weights
        for _, layer in self._kept_layers(range(len(self.layers)) if need_weights else ()):
            if recomputing:
                x = recompute(lambda x, layer=layer: layer(x, mask)[0], x)
                continue
            x, weights = layer(x, mask, need_weights)
            if need_weights:
                all_weights.append(weights)
        return self._leave(x), all_weights


class Decoder(_Stack):
    """A stack of decoder layers, section 3.1. Arguments are those of `_Stack`."""

    def __init__(self, config: ModelConfig, recompute: bool = False) -> None:
        super().__init__(DecoderLayer, config.decoder_layers, config, recompute)
        self.output_dropout = Dropout(config.output_dropout)

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

        The arguments are those of `DecoderLayer`, with one `cache` per layer. `need_weights` is as
        in `Transformer.decode`. Returns (x, self_weights, cross_weights), where the weights are one
        tensor or None per layer.
        """
        count = len(self.layers)
        needed = range(count) if need_weights is True else need_weights or ()
        all_self_weights, all_cross_weights = [None] * count, [None] * count
        recomputing = self._recomputes(x) and cache is None
        for number, layer in self._kept_layers(needed):
            if recomputing and number not in needed:
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
        return self.output_dropout(self._leave(x)), all_self_weights, all_cross_weights


class Generator(nn.Layer):
    """The linear map to the vocabulary, section 3.4. It applies no softmax.

    `weight` is the embedding matrix to share, (vocab_size, d_model); if it is None, the layer has a
    weight of its own. `bias` says whether it has a bias, which the paper's has not.
    """

    def __init__(
        self, d_model: int, vocab_size: int, weight: Tensor | None = None, bias: bool = False
    ) -> None:
        super().__init__()
        if weight is None:
            weight = self.create_parameter(
                [vocab_size, d_model], default_initializer=nn.initializer.XavierUniform()
            )
        self.weight = weight
        self.bias = self.create_parameter([vocab_size], is_bias=True) if bias else None

    def forward(self, hidden: Tensor) -> Tensor:
        """Maps `hidden` (..., d_model) to logits (..., vocabulary)."""
        return operations.current.logits(hidden, self.weight, self.bias)


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

    Padding must come last in each row. No real position depends on a padded one, and no target
    position depends on a later one, neither in its value nor in its gradient.
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
            self.source_embedding = self.target_embedding
        else:
            self.source_embedding = TokenEmbedding(
                source_vocab_size, config.d_model, self.source_pad_id
            )
        dropout = config.dropout if config.embedding_dropout is None else config.embedding_dropout
        self.positional_encoding = PositionalEncoding(
            config.d_model, max_len, dropout, config.positions
        )
        self.encoder = Encoder(config, recompute)
        self.decoder = Decoder(config, recompute)
        # Section 3.4 ties the generator to the target embedding.
        tied = self.target_embedding.weight if config.tie_embeddings else None
        self.generator = Generator(config.d_model, target_vocab_size, tied, config.output_bias)

    def forward(self, source_ids: Tensor, target_ids: Tensor) -> Tensor:
        """Computes the logits of every next token, given the target before it.

        Args:
            source_ids: int64 (batch, source_len).
            target_ids: int64 (batch, target_len), the decoder input, which begins with bos.

        Returns: logits (batch, target_len, vocabulary).
        """
        return self.logits(target_ids, self.encode(source_ids), source_ids)

    def encode(
        self, source_ids: Tensor, need_weights: bool = False, embedded: Tensor | None = None
    ) -> Tensor | tuple[Tensor, list[Tensor]]:
        """Encodes `source_ids` (batch, source_len) into the memory (batch, source_len, d_model).

        With `need_weights`, returns (memory, weights), where the weights are one
        (batch, heads, source_len, source_len) per layer. `embedded` (batch, source_len, d_model),
        without positions, is read in place of the embeddings of the ids.
        """
        if embedded is None:
            embedded = self.source_embedding(source_ids)
        x = self.positional_encoding(embedded)
        # x: (batch, source_len, d_model); memory: the same shape
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
        """Computes the logits of the next token at target positions, given the target before it.

        Args:
            target, memory, source_ids, need_weights: as in `decode`.
            positions: int64 (count,), indices into the batch * target_len positions, row after
                row. None selects all positions.

        Returns: logits (count, vocabulary), or (batch, target_len, vocabulary) for all positions.
            With `need_weights`, (logits, cross_weights); the weights are those of all positions, as
            in `decode`.
        """
        needed = need_weights or ()
        if needed is not True:
            needed = {*needed, *self.generates_from}
        hidden, _, cross_weights = self.decode(target, memory, source_ids, needed)
        source = self.copyable(source_ids)
        logits = self.generate(hidden, cross_weights, source, positions)
        return (logits, cross_weights) if need_weights else logits

    def copyable(self, source_ids: Tensor) -> Any:
        """Returns what `generate` can copy from `source_ids`, int64 (batch, source_len): nothing.

        A subclass may return an object that has a method `select`, as `DecoderCache` has.
        """
        return None

    def generate(
        self,
        hidden: Tensor,
        cross_weights: list[Tensor | None],
        source: Any,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Computes logits from what `decode` returns, in the shape that `logits` describes.

        Of `cross_weights`, only the layers in `generates_from` are read. `source` is what
        `copyable` returns.
        """
        return self.generator(hidden if positions is None else at_positions(hidden, positions))

    def decode(
        self, target: Tensor, memory: Tensor, source_ids: Tensor, need_weights: Needed = False
    ) -> tuple[Tensor, list[Tensor | None], list[Tensor | None]]:
        """Decodes the target into hidden states (batch, target_len, d_model) for the generator.

        Args:
            target: the decoder input, int64 (batch, target_len); or its embeddings, floating
                (batch, target_len, d_model), without positions.
            memory: (batch, source_len, d_model), the encoder's output for
            source_ids: int64 (batch, source_len).
            need_weights: whether to compute the attention weights of all layers, or the numbers of
                the layers, from 0, whose weights to compute. The other layers are faster on a GPU,
                and only they are recomputed with `recompute`.

        Returns: (hidden, self_weights, cross_weights). Per layer, the weights are
            (batch, heads, target_len, target_len) and (batch, heads, target_len, source_len), or
            None.
        """
        embedded = self.target_embedding(target) if target.ndim == 2 else target
        x = self.positional_encoding(embedded)  # (batch, target_len, d_model)
        return self.decoder(
            x, memory, self._target_mask(target), self._source_mask(source_ids), need_weights
        )

    def start_cache(self, memory: Tensor, source_ids: Tensor) -> DecoderCache:
        """Makes the cache for incremental decoding, as it is before the first step.

        `memory` (sentences, source_len, d_model) is the encoder's output for `source_ids`
        (sentences, source_len). Its keys and values are projected here, once for all steps.
        """
        layer_caches = []
        for layer in self.decoder.layers:
            layer_cache = LayerCache(BufferedKeyValueCache())
            layer_cache.cross_attention.update(*layer.cross_attention.project(memory, memory))
            layer_caches.append(layer_cache)
        mask = self._source_mask(source_ids)
        return DecoderCache(layer_caches, mask, self.copyable(source_ids))

    def decode_step(self, ids: Tensor, parents: np.ndarray, cache: DecoderCache) -> Tensor:
        """Takes one step of incremental decoding.

        Args:
            ids: int64 (sentences, width), the last id of each hypothesis; bos at the first step.
            parents: as in `AncestorMask.grow`.

        Returns: the logits of the next token of each hypothesis, floating
            (sentences, width, vocabulary).
        """
        # 1. Drop the positions that no hypothesis descends from.
        kept = cache.ancestors.prune()
        if kept is not None:
            index = paddle.to_tensor(kept)
            for layer in cache.layers:
                layer.self_attention.take(index)
        # 2. Add this step to the mask: (sentences, 1, width, capacity), or 1 instead of sentences
        # and width. The positions that are not filled yet are forbidden, too.
        position = cache.ancestors.length
        mask = cache.ancestors.grow(parents)
        positions = cache.ancestors.positions
        shape = (1, 1, 1) if mask is None else mask.shape[:3]
        forbidden = np.ones((*shape, capacity(positions)), bool)
        forbidden[..., :positions] = False if mask is None else mask
        self_mask = paddle.to_tensor(forbidden)
        # 3. Embed the ids as (sentences * width, 1, d_model), because all have the same position.
        sentences, width = ids.shape
        x = self.target_embedding(ids.reshape([sentences * width, 1]))
        x = self.positional_encoding(x, position).reshape([sentences, width, -1])
        # 4. Decode. The hypotheses of a sentence stand side by side, like positions of a sequence.
        hidden, _, cross_weights = self.decoder(
            x, None, self_mask, cache.memory_mask, self.generates_from, cache.layers
        )
        return self.generate(hidden, cross_weights, cache.source)

    def _target_mask(self, target: Tensor) -> Tensor:
        # (target_len, target_len), one mask for all rows. True forbids.
        return causal_mask(target.shape[1])

    def _source_mask(self, source_ids: Tensor) -> Tensor:
        # (batch, 1, 1, source_len), one mask for all heads and queries: it is made for one query.
        # True forbids: the source is padding there.
        return padding_mask(source_ids[:, :1], source_ids, self.source_pad_id).unsqueeze(1)


def at_positions(x: Tensor, positions: Tensor) -> Tensor:
    """Gathers the rows of `x` (batch, len, width) at `positions`, indices into batch * len.

    Returns (count, width).
    """
    return x.reshape([-1, x.shape[-1]]).gather(positions)


@contextmanager
def evaluating(models: Sequence[nn.Layer]) -> Iterator[None]:
    """Computes without gradients and with the models in evaluation mode, within a block."""
    # Setting the mode visits every layer, so it is skipped if the mode is already right.
    training = [model for model in models if model.training]
    for model in training:
        model.eval()
    try:
        with paddle.no_grad():
            yield
    finally:
        for model in training:
            model.train()

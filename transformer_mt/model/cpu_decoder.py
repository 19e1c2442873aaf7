"""Incremental decoding on a CPU: what `Transformer.decode_step` computes, in NumPy.

A step works on few positions, so that calling Paddle costs more than the arithmetic: a layer's norm
of five hypotheses takes 25 us there and 10 us here, and attention has all keys copied to append a
few. Here products read keys and values where they lie. Results agree to float32's rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import paddle
from paddle import Tensor, nn

from transformer_mt.model.ancestors import AncestorMask
from transformer_mt.model.attention import Linear, MultiHeadAttention, ScaledDotProductAttention
from transformer_mt.model.dropout import Dropout
from transformer_mt.model.embedding import PositionalEncoding, TokenEmbedding
from transformer_mt.model.layers import (
    DecoderLayer,
    LayerNorm,
    PositionwiseFeedForward,
    ResidualNorm,
)
from transformer_mt.model.operations import array, is_float32_on_cpu, tensor
from transformer_mt.model.transformer import Decoder, Generator, Transformer

# Far below any score, see attention.FORBIDDEN_SCORE.
FORBIDDEN = np.float32(-1e9)
# Positions that a cache has room for beyond those that it must hold.
GROWTH = 32


@dataclass(frozen=True)
class _Kind:
    """What a layer of some class consists of: its parts, with the class that each must be of (None:
    any, for Paddle computes it), and its settings, the attributes that its class reads."""

    parts: dict[str, type | None] = field(default_factory=dict)
    settings: tuple[str, ...] = ()


_MODEL = _Kind(
    {
        "source_embedding": None,
        "target_embedding": TokenEmbedding,
        "positional_encoding": PositionalEncoding,
        "encoder": None,
        "decoder": Decoder,
        "generator": Generator,
    },
    ("pad_id", "source_pad_id"),
)
_PROJECTIONS = ("query_projection", "key_projection", "value_projection", "output_projection")
# All that is repeated here. A class that is not named, a part, or a setting, is left to Paddle.
_KINDS = {
    Transformer: _MODEL,
    TokenEmbedding: _Kind(settings=("scale",)),
    PositionalEncoding: _Kind({"dropout": Dropout}),
    Decoder: _Kind({"layers": nn.LayerList, "norm": LayerNorm}, ("norm", "recompute")),
    DecoderLayer: _Kind(
        {
            "self_attention": MultiHeadAttention,
            "self_attention_residual": ResidualNorm,
            "cross_attention": MultiHeadAttention,
            "cross_attention_residual": ResidualNorm,
            "feed_forward": PositionwiseFeedForward,
            "feed_forward_residual": ResidualNorm,
        }
    ),
    MultiHeadAttention: _Kind(
        {**dict.fromkeys(_PROJECTIONS, Linear), "attention": ScaledDotProductAttention},
        ("num_heads", "d_k", "d_v"),
    ),
    ScaledDotProductAttention: _Kind({"dropout": Dropout}),
    PositionwiseFeedForward: _Kind(
        {"inner_projection": Linear, "output_projection": Linear, "dropout": Dropout}
    ),
    ResidualNorm: _Kind({"norm": LayerNorm, "dropout": Dropout}, ("is_pre_norm",)),
    Linear: _Kind(settings=("name", "bias")),
    LayerNorm: _Kind(),
    Dropout: _Kind(settings=("name", "p", "axis", "mode", "inplace")),
    Generator: _Kind(),
}


class Output(Protocol):
    """What a kind of model makes of the generator's logits, for one batch of sentences."""

    def logits(self, logits: np.ndarray, hidden: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """The model's logits (sentences, width, vocabulary), given the generator's, the decoder's
        output (sentences, width, d_model), and the last layer's attention to the source
        (sentences, heads, width, source_len)."""

    def select(self, sentences: np.ndarray) -> None:
        """Keeps the sentences with these indices, int64 (kept,), in this order."""


# The classes of models that can be decoded here, and what each makes of the generator's logits.
_OUTPUTS: dict[type[Transformer], Callable[[Transformer, Tensor], Output] | None] = {
    Transformer: None
}


def register(
    model: type[Transformer], parts: dict[str, type], output: Callable[..., Output]
) -> None:
    """Declares that a kind of model can be decoded here: a `Transformer` with these further parts,
    and with `output(model, source_ids)` behind its generator."""
    _KINDS[model] = _Kind({**_MODEL.parts, **parts}, _MODEL.settings)
    _OUTPUTS[model] = output


class CpuDecoder:
    """The decoder of a model. Weights are read where they are: they must not change in its life.

    Raises ValueError if it can't decode the model.
    """

    @staticmethod
    def can_decode(model: Transformer) -> bool:
        """Whether the model is in float32, on the CPU, and nothing in it but what is repeated here:
        every layer that decodes is of exactly the class that is known, has no other parts or
        settings, no hook, and no method of its own."""
        return (
            type(model) in _OUTPUTS
            and _is_known(model, type(model), model.training)
            and all(_has_known_sizes(layer) for layer in model.decoder.layers)
        )

    def __init__(self, model: Transformer) -> None:
        if not self.can_decode(model):
            raise ValueError("a CpuDecoder needs a float32 Transformer, known here, on the CPU")
        self.layers = [_Layer(layer) for layer in model.decoder.layers]
        self.norm = None if model.decoder.norm is None else _Norm(model.decoder.norm)
        self.model = model
        self.source_pad_id = model.source_pad_id
        self._embedding = array(model.target_embedding.weight)
        self._scale = np.float32(model.target_embedding.scale)
        self._positions = model.positional_encoding
        # (d_model, vocabulary): twice as fast as the other way round, for few rows
        self._output = model.generator.weight.t().contiguous()

    def embed(self, ids: np.ndarray, position: int) -> np.ndarray:
        """`ids` (sentences, width), all at one position, as (sentences, width, d_model)."""
        return self._embedding[ids] * self._scale + self._positions.at(position)

    def logits(self, x: np.ndarray) -> np.ndarray:
        """(sentences, width, d_model) to (sentences, width, vocabulary)."""
        rows = tensor(x.reshape(-1, x.shape[-1]))
        return array(paddle.matmul(rows, self._output)).reshape(*x.shape[:-1], -1)


def _is_known(layer: nn.Layer, kind: type | None, training: bool) -> bool:
    """Whether a layer and all its parts are what `_KINDS` says."""
    if kind is None:
        return True
    parts = {name: part for name, part in layer._sub_layers.items() if part is not None}
    # A stack is of any height.
    known = _Kind(dict.fromkeys(parts, DecoderLayer)) if kind is nn.LayerList else _KINDS[kind]
    attributes = vars(layer)
    return (
        type(layer) is kind
        and layer.training == training
        and not layer._forward_pre_hooks
        and not layer._forward_post_hooks
        and not any(callable(getattr(kind, name, None)) for name in attributes)
        and {name for name in attributes if name[0] != "_"} <= {"training", *known.settings}
        and all(is_float32_on_cpu(weight) for weight in layer.parameters(include_sublayers=False))
        and parts.keys() <= known.parts.keys()
        and all(_is_known(part, known.parts[name], training) for name, part in parts.items())
    )


def _has_known_sizes(layer: DecoderLayer) -> bool:
    """Whether settings agree that are read here only once, or that a weight tells as well."""
    residuals = (
        layer.self_attention_residual,
        layer.cross_attention_residual,
        layer.feed_forward_residual,
    )
    return len({residual.is_pre_norm for residual in residuals}) == 1 and all(
        projection.weight.shape[1] == attention.num_heads * size
        for attention in (layer.self_attention, layer.cross_attention)
        for projection, size in (
            (attention.query_projection, attention.d_k),
            (attention.key_projection, attention.d_k),
            (attention.value_projection, attention.d_v),
        )
    )


class CpuDecoderState:
    """One batch of sentences, decoded step by step; all hypotheses of a sentence together.

    Args:
        memory: float32 (sentences, source_len, d_model), on the CPU, what `encode` gives for
        source_ids: int64 (sentences, source_len).
    """

    def __init__(self, decoder: CpuDecoder, memory: Tensor, source_ids: Tensor) -> None:
        self._decoder = decoder
        self._ancestors = AncestorMask()
        padding = array(source_ids) == decoder.source_pad_id
        # True where the source is padding: (sentences, 1, 1, source_len)
        self._padding = padding[:, np.newaxis, np.newaxis] if padding.any() else None
        self._self_caches = [_Cache() for _ in decoder.layers]
        self._cross_caches = [_Cache() for _ in decoder.layers]
        for layer, cache in zip(decoder.layers, self._cross_caches, strict=True):
            cache.append(*layer.cross_attention.project(array(memory)))
        make_output = _OUTPUTS[type(decoder.model)]
        self._output = None if make_output is None else make_output(decoder.model, source_ids)

    def step(self, ids: np.ndarray, parents: np.ndarray) -> np.ndarray:
        """The logits, float32 (sentences, width, vocabulary), of what may follow each hypothesis.

        Args:
            ids: int64 (sentences, width), the last id of each hypothesis; first of all bos.
            parents: as in `AncestorMask.grow`.
        """
        decoder = self._decoder
        kept = self._ancestors.prune()
        if kept is not None:
            for cache in self._self_caches:
                cache.take(kept)
        x = decoder.embed(ids, self._ancestors.length)  # (sentences, width, d_model)
        strangers = self._ancestors.grow(parents)
        for layer, own, cross in zip(
            decoder.layers, self._self_caches, self._cross_caches, strict=True
        ):
            x = layer(x, own, strangers, cross, self._padding)
        if decoder.norm is not None:
            x = decoder.norm(x)
        logits = decoder.logits(x)
        if self._output is None:
            return logits
        return self._output.logits(logits, x, self._cross_caches[-1].weights)

    def select(self, sentences: np.ndarray) -> None:
        """Keeps the sentences with these indices, int64 (kept,), in this order."""
        self._ancestors.select(sentences)
        if self._padding is not None:
            self._padding = self._padding[sentences]
        for cache in (*self._self_caches, *self._cross_caches):
            cache.select(sentences)
        if self._output is not None:
            self._output.select(sentences)


class _Cache:
    """Projected keys and values, (sentences, length, heads * d); heads are not split yet."""

    def __init__(self) -> None:
        self._length = 0
        # (sentences, at least length, heads * d): what is beyond the length is not filled yet
        self._key: np.ndarray | None = None
        self._value: np.ndarray | None = None
        # Of the last attention to them, (sentences, heads, width, length)
        self.weights: np.ndarray | None = None

    @property
    def key(self) -> np.ndarray:
        return self._key[:, : self._length]

    @property
    def value(self) -> np.ndarray:
        return self._value[:, : self._length]

    def append(self, key: np.ndarray, value: np.ndarray) -> None:
        end = self._length + key.shape[1]
        if self._key is None:
            self._key, self._value = key, value
        else:
            if end > self._key.shape[1]:
                self._key, self._value = self._grown(self._key, end), self._grown(self._value, end)
            self._key[:, self._length : end] = key
            self._value[:, self._length : end] = value
        self._length = end

    def _grown(self, x: np.ndarray, length: int) -> np.ndarray:
        # At least doubled, so that all growing together copies no more than there is in the end.
        length = max(length, 2 * x.shape[1]) + GROWTH
        grown = np.empty((x.shape[0], length, x.shape[2]), x.dtype)
        grown[:, : self._length] = x[:, : self._length]
        return grown

    def select(self, sentences: np.ndarray) -> None:
        self._key, self._value = self.key[sentences], self.value[sentences]

    def take(self, positions: np.ndarray) -> None:
        """Keeps these positions of each sentence, (sentences, kept)."""
        index = positions[:, :, np.newaxis]
        self._key = np.take_along_axis(self.key, index, axis=1)
        self._value = np.take_along_axis(self.value, index, axis=1)
        self._length = positions.shape[1]


class _Layer:
    """As `DecoderLayer`."""

    def __init__(self, layer: DecoderLayer) -> None:
        self._is_pre_norm = layer.self_attention_residual.is_pre_norm
        self._self_norm = _Norm(layer.self_attention_residual.norm)
        self._cross_norm = _Norm(layer.cross_attention_residual.norm)
        self._feed_forward_norm = _Norm(layer.feed_forward_residual.norm)
        self._self_attention = _Attention(layer.self_attention)
        self.cross_attention = _Attention(layer.cross_attention)
        self._inner = _Linear(layer.feed_forward.inner_projection)
        self._outer = _Linear(layer.feed_forward.output_projection)

    def __call__(
        self,
        x: np.ndarray,
        self_cache: _Cache,
        strangers: np.ndarray | None,
        cross_cache: _Cache,
        padding: np.ndarray | None,
    ) -> np.ndarray:
        """`x` (sentences, width, d_model), same shape; masks are True where forbidden."""

        def attend_to_past(x: np.ndarray) -> np.ndarray:
            self_cache.append(*self._self_attention.project(x))
            return self._self_attention(x, self_cache, strangers)

        def attend_to_source(x: np.ndarray) -> np.ndarray:
            return self.cross_attention(x, cross_cache, padding)

        x = self._around(attend_to_past, self._self_norm, x)
        x = self._around(attend_to_source, self._cross_norm, x)
        return self._around(self._feed_forward, self._feed_forward_norm, x)

    def _around(self, sublayer: Callable, norm: _Norm, x: np.ndarray) -> np.ndarray:
        # As `ResidualNorm`.
        return x + sublayer(norm(x)) if self._is_pre_norm else norm(x + sublayer(x))

    def _feed_forward(self, x: np.ndarray) -> np.ndarray:
        inner = self._inner(x)
        return self._outer(np.maximum(inner, 0, out=inner))


class _Attention:
    """As `MultiHeadAttention`."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        self._num_heads = attention.num_heads
        self._scale = np.float32(attention.d_k**-0.5)
        self._query_projection = _Linear(attention.query_projection)
        self._key_projection = _Linear(attention.key_projection)
        self._value_projection = _Linear(attention.value_projection)
        self._output_projection = _Linear(attention.output_projection)

    def project(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of `x` (sentences, len, d_model), (sentences, len, heads * d) each."""
        return self._key_projection(x), self._value_projection(x)

    def __call__(self, x: np.ndarray, cache: _Cache, mask: np.ndarray | None) -> np.ndarray:
        """Attends from `x` (sentences, width, d_model), same shape, to what the cache holds; the
        mask, (sentences, 1, 1 or width, length), leaves each query something to attend to."""
        query = self._query_projection(x)
        query *= self._scale
        # (sentences, heads, width, length); heads are split as views, and nothing is copied
        weights = np.matmul(self._heads(query), self._heads(cache.key).swapaxes(-1, -2))
        if mask is not None:
            np.copyto(weights, FORBIDDEN, where=mask)
        weights -= np.maximum.reduce(weights, axis=-1, keepdims=True)
        np.exp(weights, out=weights)
        weights /= np.add.reduce(weights, axis=-1, keepdims=True)
        cache.weights = weights
        value = cache.value
        mixed = np.empty((*x.shape[:2], value.shape[-1]), np.float32)
        np.matmul(weights, self._heads(value), out=self._heads(mixed))
        return self._output_projection(mixed)

    def _heads(self, x: np.ndarray) -> np.ndarray:
        # (sentences, len, heads * d) -> (sentences, heads, len, d)
        sentences, length, width = x.shape
        heads = x.reshape(sentences, length, self._num_heads, width // self._num_heads)
        return heads.transpose(0, 2, 1, 3)


class _Linear:
    def __init__(self, linear: Linear) -> None:
        self._weight = array(linear.weight)
        self._bias = None if linear.bias is None else array(linear.bias)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        # As one product of all rows: NumPy makes one for each sentence of three dimensions.
        y = x.reshape(-1, x.shape[-1]) @ self._weight
        if self._bias is not None:
            y += self._bias
        return y.reshape(*x.shape[:-1], -1)


class _Norm:
    def __init__(self, norm: LayerNorm) -> None:
        self._weight, self._bias = array(norm.weight), array(norm.bias)
        self._epsilon = norm._epsilon

    def __call__(self, x: np.ndarray) -> np.ndarray:
        width = x.shape[-1]
        centred = x - np.add.reduce(x, axis=-1, keepdims=True) / np.float32(width)
        variance = np.einsum("...i,...i->...", centred, centred) / width
        centred *= (1 / np.sqrt(variance + self._epsilon)).astype(np.float32)[..., np.newaxis]
        centred *= self._weight
        centred += self._bias
        return centred

"""Incremental decoding on a CPU: computes `Transformer.decode_step` in NumPy.

A step works on few positions, so that calling Paddle costs more than the arithmetic. The layer norm
of five hypotheses takes 25 us in Paddle and 10 us in NumPy, and Paddle's attention copies all keys
to append a few. Here, matrix products read keys and values in place. The results of both agree up
to float32 rounding, which is tested with each model before it is decoded so.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable

import numpy as np
import paddle
from paddle import Tensor

from transformer_mt.model.attention import FORBIDDEN_SCORE, MultiHeadAttention
from transformer_mt.model.cache import AncestorMask
from transformer_mt.model.layers import LayerNorm, Linear, ResidualNorm
from transformer_mt.model.operations import array, is_float32_on_cpu, tensor
from transformer_mt.model.transformer import DecoderLayer, Transformer, evaluating
from transformer_mt.model.variants import CopyingTransformer
from transformer_mt.utils.console import warn

FORBIDDEN = np.float32(FORBIDDEN_SCORE)
# How far the logits of the decoder may be from the model's, as a share of the largest one. Rounding
# makes a difference of 1e-6, and of 1e-5 with weights that are drawn many times too large.
TOLERANCE = 1e-4
# The number of positions that a growing cache allocates in addition.
GROWTH = 32
# The models whose decoders compute the same logits, so that a validation does not test it again.
_CHECKED: weakref.WeakSet[Transformer] = weakref.WeakSet()


def cpu_decoders(models: list[Transformer]) -> list[CpuDecoder]:
    """A decoder for each model; none at all if one of the models is not in float32 on a CPU, or if
    a decoder does not compute what its model does, which a warning tells."""
    if not all(is_float32_on_cpu(weight) for model in models for weight in model.parameters()):
        return []
    try:
        return [CpuDecoder(model) for model in models]
    except Exception as error:  # Whatever it is, the warning says it.
        _warn_of_slow_decoding(f"{type(error).__name__}: {error}")
        return []


@functools.cache  # so that it is said once, and not at every validation
def _warn_of_slow_decoding(reason: str) -> None:
    warn(
        "the fast decoder for a CPU (kernels/cpu_decoder.py) can't decode this model, so Paddle "
        f"does, which is slower. The translations are the same. ({reason})"
    )


class CpuDecoder:
    """The decoder of a model in NumPy. It reads the weights in place: they must not change.

    Args:
        model: float32, on the CPU.

    Raises:
        ValueError: it does not compute what the model computes, for example because a layer was
            changed. A model whose layers have other parts may raise anything.
    """

    def __init__(self, model: Transformer) -> None:
        self.layers = [_Layer(layer) for layer in model.decoder.layers]
        self.norm = None if model.decoder.norm is None else _Norm(model.decoder.norm)
        self.model = model
        self.embedding = array(model.target_embedding.weight)
        self.scale = np.float32(model.target_embedding.scale)
        self.positions = model.positional_encoding
        # (d_model, vocabulary). For few rows, the product is twice as fast as with the transpose.
        self.output = model.generator.weight.t().contiguous()
        if model not in _CHECKED:
            with evaluating([model]):
                self._require_equal_steps()
            _CHECKED.add(model)

    def _require_equal_steps(self) -> None:
        """Takes a few steps for two small sources, in which hypotheses fork and one of the sources
        is padded, and compares the logits with those of the model."""
        model, random = self.model, np.random.default_rng(1)
        source_ids = np.arange(model.source_embedding.weight.shape[0])
        source = random.choice(np.delete(source_ids, model.source_pad_id), (2, 3))
        source[1, 2] = model.source_pad_id
        source = paddle.to_tensor(source)
        memory = model.encode(source)
        cache, state = model.start_cache(memory, source), CpuDecoderState(self, memory, source)
        for parents in map(np.array, ([[0], [0]], [[0, 0], [0, 0]], [[1, 0], [1, 1]])):
            ids = random.integers(len(self.embedding), size=parents.shape)
            expected = model.decode_step(paddle.to_tensor(ids), parents, cache).numpy()
            largest = np.abs(expected).max(initial=0, where=np.isfinite(expected))
            found, limit = state.step(ids, parents), TOLERANCE * largest
            if not np.allclose(found, expected, rtol=0, atol=limit, equal_nan=True):
                raise ValueError("the logits of CpuDecoder differ from those of the model")


class CpuDecoderState:
    """The state of a batch of sentences that is decoded step by step.

    The hypotheses of a sentence are decoded together, see `AncestorMask`.

    Args:
        memory: float32 (sentences, source_len, d_model), on the CPU, the encoder's output for
        source_ids: int64 (sentences, source_len).
    """

    def __init__(self, decoder: CpuDecoder, memory: Tensor, source_ids: Tensor) -> None:
        self._decoder = decoder
        self._ancestors = AncestorMask()
        padding = array(source_ids) == decoder.model.source_pad_id
        # (sentences, 1, 1, source_len). True forbids: the source is padding there.
        self._padding = padding[:, np.newaxis, np.newaxis] if padding.any() else None
        self._self_caches = [_Cache() for _ in decoder.layers]
        self._cross_caches = [_Cache() for _ in decoder.layers]
        for layer, cache in zip(decoder.layers, self._cross_caches, strict=True):
            cache.append(*layer.cross_attention.project(array(memory)))
        model = decoder.model
        self._copyable = (
            model.copyable(source_ids) if isinstance(model, CopyingTransformer) else None
        )

    @paddle.no_grad()
    def step(self, ids: np.ndarray, parents: np.ndarray) -> np.ndarray:
        """Takes one step of incremental decoding.

        Args:
            ids: int64 (sentences, width), the last id of each hypothesis; bos at the first step.
            parents: as in `AncestorMask.grow`.

        Returns: the logits of the next token of each hypothesis, float32
            (sentences, width, vocabulary).
        """
        decoder = self._decoder
        # 1. Drop the positions that no hypothesis descends from.
        kept = self._ancestors.prune()
        if kept is not None:
            for cache in self._self_caches:
                cache.take(kept)
        # 2. Embed the ids, and add this step to the mask (sentences, 1, width, positions).
        position = decoder.positions.at(self._ancestors.length)
        x = decoder.embedding[ids] * decoder.scale + position  # (sentences, width, d_model)
        mask = self._ancestors.grow(parents)
        # 3. Pass the hypotheses through all layers.
        for layer, own, cross in zip(
            decoder.layers, self._self_caches, self._cross_caches, strict=True
        ):
            x = layer(x, own, mask, cross, self._padding)
        if decoder.norm is not None:
            x = decoder.norm(x)
        # 4. Compute the logits (sentences, width, vocabulary).
        logits = paddle.matmul(tensor(x.reshape(-1, x.shape[-1])), decoder.output)
        if isinstance(decoder.model, CopyingTransformer):
            attention = tensor(self._cross_caches[-1].weights)
            logits = decoder.model.generate(tensor(x), [attention], self._copyable, logits=logits)
        return array(logits).reshape(*x.shape[:-1], -1)

    def select(self, sentences: np.ndarray) -> None:
        """Keeps the sentences with these indices, int64 (kept,), in this order."""
        self._ancestors.select(sentences)
        if self._padding is not None:
            self._padding = self._padding[sentences]
        for cache in (*self._self_caches, *self._cross_caches):
            cache.select(sentences)
        if self._copyable is not None:
            self._copyable = self._copyable.select(paddle.to_tensor(sentences))


class _Cache:
    """Projected keys and values, (sentences, length, heads * d) each; heads are not split yet."""

    def __init__(self) -> None:
        self._length = 0
        # Keys and values, (sentences, at least length, heads * d). What follows the length is not
        # filled yet.
        self._arrays: list[np.ndarray] = []
        # The weights of the last attention to them, (sentences, heads, width, length).
        self.weights: np.ndarray | None = None

    def read(self) -> list[np.ndarray]:
        """Returns views of the keys and of the values, (sentences, length, heads * d)."""
        return [x[:, : self._length] for x in self._arrays]

    def append(self, *arrays: np.ndarray) -> None:
        """Appends keys and values, (sentences, new_len, heads * d)."""
        end = self._length + arrays[0].shape[1]
        if not self._arrays:
            self._arrays = list(arrays)
        else:
            if end > self._arrays[0].shape[1]:
                self._arrays = [self._grown(x, end) for x in self._arrays]
            for filled, new in zip(self._arrays, arrays, strict=True):
                filled[:, self._length : end] = new
        self._length = end

    def _grown(self, x: np.ndarray, length: int) -> np.ndarray:
        # The length at least doubles, so that all copies together are no longer than the result.
        length = max(length, 2 * x.shape[1]) + GROWTH
        grown = np.empty((x.shape[0], length, x.shape[2]), x.dtype)
        grown[:, : self._length] = x[:, : self._length]
        return grown

    def select(self, sentences: np.ndarray) -> None:
        """Keeps the sentences with these indices, int64 (kept,), in this order."""
        self._arrays = [x[sentences] for x in self.read()]

    def take(self, positions: np.ndarray) -> None:
        """Keeps the positions of each sentence with these indices, int64 (sentences, kept)."""
        index = positions[:, :, np.newaxis]
        self._arrays = [np.take_along_axis(x, index, axis=1) for x in self.read()]
        self._length = positions.shape[1]


class _Layer:
    """Computes a `DecoderLayer`."""

    def __init__(self, layer: DecoderLayer) -> None:
        self._self_residual = _Residual(layer.self_attention_residual)
        self._cross_residual = _Residual(layer.cross_attention_residual)
        self._feed_forward_residual = _Residual(layer.feed_forward_residual)
        self._self_attention = _Attention(layer.self_attention)
        self.cross_attention = _Attention(layer.cross_attention)
        self._inner = _Linear(layer.feed_forward.inner_projection)
        self._outer = _Linear(layer.feed_forward.output_projection)

    def __call__(
        self,
        x: np.ndarray,
        self_cache: _Cache,
        mask: np.ndarray | None,
        cross_cache: _Cache,
        padding: np.ndarray | None,
    ) -> np.ndarray:
        """Passes `x` (sentences, width, d_model) through the layer; same shape.

        `mask` (sentences, 1, width, positions) is for self-attention and `padding`
        (sentences, 1, 1, source_len) for cross-attention. True forbids.
        """

        def attend_to_past(x: np.ndarray) -> np.ndarray:
            self_cache.append(*self._self_attention.project(x))
            return self._self_attention(x, self_cache, mask)

        def attend_to_source(x: np.ndarray) -> np.ndarray:
            return self.cross_attention(x, cross_cache, padding)

        x = self._self_residual(x, attend_to_past)
        x = self._cross_residual(x, attend_to_source)
        return self._feed_forward_residual(x, self._feed_forward)

    def _feed_forward(self, x: np.ndarray) -> np.ndarray:
        inner = self._inner(x)
        return self._outer(np.maximum(inner, 0, out=inner))


class _Attention:
    """Computes a `MultiHeadAttention`."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        self._num_heads = attention.num_heads
        # Widths are read from the weights, as the layer does.
        head_width = attention.query_projection.weight.shape[1] // attention.num_heads
        self._scale = np.float32(head_width**-0.5)
        self._query_projection = _Linear(attention.query_projection)
        self._key_projection = _Linear(attention.key_projection)
        self._value_projection = _Linear(attention.value_projection)
        self._output_projection = _Linear(attention.output_projection)

    def project(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Projects `x` (sentences, len, d_model) to keys and values (sentences, len, heads * d)."""
        return self._key_projection(x), self._value_projection(x)

    def __call__(self, x: np.ndarray, cache: _Cache, mask: np.ndarray | None) -> np.ndarray:
        """Attends from `x` (sentences, width, d_model) to the keys of the cache; same shape.

        The mask is (sentences, 1, 1 or width, length), and True forbids. It must leave each query
        at least one key.
        """
        key, value = cache.read()
        query = self._query_projection(x)
        query *= self._scale
        # Scores (sentences, heads, width, length). Heads are split by views, without copies.
        weights = np.matmul(self._heads(query), self._heads(key).swapaxes(-1, -2))
        if mask is not None:
            np.copyto(weights, FORBIDDEN, where=mask)
        # The softmax over the keys, in place.
        weights -= np.maximum.reduce(weights, axis=-1, keepdims=True)
        np.exp(weights, out=weights)
        weights /= np.add.reduce(weights, axis=-1, keepdims=True)
        cache.weights = weights
        # The weighted values, written into (sentences, width, heads * d).
        mixed = np.empty((*x.shape[:2], value.shape[-1]), np.float32)
        np.matmul(weights, self._heads(value), out=self._heads(mixed))
        return self._output_projection(mixed)

    def _heads(self, x: np.ndarray) -> np.ndarray:
        # (sentences, len, heads * d) -> (sentences, heads, len, d)
        sentences, length, width = x.shape
        heads = x.reshape(sentences, length, self._num_heads, width // self._num_heads)
        return heads.transpose(0, 2, 1, 3)


class _Linear:
    """Computes a `Linear` layer of `x` (sentences, len, in): (sentences, len, out)."""

    def __init__(self, linear: Linear) -> None:
        self._weight = array(linear.weight)
        self._bias = None if linear.bias is None else array(linear.bias)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        # With three dimensions, NumPy would compute one product per sentence. This is one for all.
        y = x.reshape(-1, x.shape[-1]) @ self._weight
        if self._bias is not None:
            y += self._bias
        return y.reshape(*x.shape[:-1], -1)


class _Residual:
    """Computes a `ResidualNorm` around a sublayer."""

    def __init__(self, residual: ResidualNorm) -> None:
        self._is_pre_norm = residual.is_pre_norm
        self._norm = _Norm(residual.norm)

    def __call__(self, x: np.ndarray, sublayer: Callable) -> np.ndarray:
        norm = self._norm
        return x + sublayer(norm(x)) if self._is_pre_norm else norm(x + sublayer(x))


class _Norm:
    """Computes a `LayerNorm` of `x` (..., d_model); same shape."""

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

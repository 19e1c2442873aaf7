"""Encoding a single sentence on a CPU: computes `Transformer.encode` by recorded calls.

Calling Paddle takes longer than the arithmetic of so few positions. Several sentences together have
enough of them.
"""

from __future__ import annotations

import numpy as np
from paddle import Tensor

from transformer_mt.kernels.recorded import (
    FORBIDDEN,
    RecordedAttention,
    RecordedFeedForward,
    RecordedNorm,
    RecordedResidual,
    Unused,
    padded_length,
    recorder,
)
from transformer_mt.model.operations import array, tensor
from transformer_mt.model.transformer import EncoderLayer, Transformer


class CpuEncoder:
    """The encoder of a model, for one sentence at a time. The weights must not change meanwhile.

    Args:
        model: float32, on the CPU. One whose layers have other parts may raise anything.
    """

    def __init__(self, model: Transformer) -> None:
        self.layers = [_EncoderLayer(layer) for layer in model.encoder.layers]
        self.norm = None if model.encoder.norm is None else RecordedNorm(model.encoder.norm)
        self.embedding = array(model.source_embedding.weight)
        self.scale = np.float32(model.source_embedding.scale)
        self.pad_id = model.source_pad_id
        self._positions = model.positional_encoding
        self._unused = Unused()

    def __call__(self, source_ids: Tensor) -> Tensor:
        """Encodes int64 `source_ids` (1, source_len) into the memory (1, source_len, d_model)."""
        length = source_ids.shape[1]
        unused = self._unused.of(padded_length(length))
        one_pass = unused.pop() if unused else _Pass(self, padded_length(length))
        memory = one_pass(array(source_ids)[0], self._positions.rows(0, length))
        unused.append(one_pass)
        return tensor(memory[np.newaxis])


class _Pass:
    """The calls for one sentence of at most `length` positions, and their arrays."""

    def __init__(self, encoder: CpuEncoder, length: int) -> None:
        self._encoder = encoder
        self._recorder = recorder(has_fixed_rows=True)
        self._x = x = np.zeros((length, encoder.embedding.shape[1]), np.float32)
        self._padding = np.full((1, 1, 1, length), FORBIDDEN)
        normed = np.zeros_like(x)
        for layer in encoder.layers:
            with layer.attention_residual.around(self._recorder, x, normed) as entered:
                # Queries, keys and values side by side: (1, length, heads * d) each.
                projected = layer.attention.project_all(self._recorder, entered)[np.newaxis]
                query, keys_and_values = np.split(projected, [layer.attention.key_width], axis=2)
                layer.attention.attend(self._recorder, query, keys_and_values, self._add_padding, x)
            with layer.feed_forward_residual.around(self._recorder, x, normed) as entered:
                layer.feed_forward.add_to(self._recorder, entered, x)
        if encoder.norm is not None:
            encoder.norm(self._recorder, x, x)

    def __call__(self, ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Encodes `ids` (source_len,) with their positions (source_len, d_model): a new array of
        that shape."""
        encoder, count = self._encoder, len(ids)
        x = self._x[:count]
        np.take(encoder.embedding, ids, axis=0, out=x, mode="clip")
        x *= encoder.scale
        x += positions
        self._x[count:] = 0
        self._padding[...] = FORBIDDEN
        self._padding[0, 0, 0, :count] = (ids == encoder.pad_id) * FORBIDDEN
        for function, arguments in self._recorder.calls_of(len(self._x)):
            function(*arguments)
        return x.copy()

    def _add_padding(self, scores: np.ndarray) -> None:
        scores += self._padding


class _EncoderLayer:
    """The parts of an `EncoderLayer`."""

    def __init__(self, layer: EncoderLayer) -> None:
        self.attention_residual = RecordedResidual(layer.self_attention_residual)
        self.feed_forward_residual = RecordedResidual(layer.feed_forward_residual)
        self.attention = RecordedAttention(layer.self_attention)
        self.feed_forward = RecordedFeedForward(layer.feed_forward)

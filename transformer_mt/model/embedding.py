"""Token embedding and sinusoidal positions (Vaswani et al. 2017, sections 3.4 and 3.5)."""

from __future__ import annotations

import math

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn

from transformer_mt.model.dropout import Dropout


class TokenEmbedding(nn.Layer):
    """Learned embedding times sqrt(d_model), section 3.4.

    The weight (vocab_size, d_model) starts as N(0, d_model^-0.5), the second being the standard
    deviation, so that embeddings enter the sum with the positions with a variance of 1; the row
    of `pad_id`, if given, starts as zeros.
    """

    def __init__(self, vocab_size: int, d_model: int, pad_id: int | None = None) -> None:
        super().__init__()
        self.scale = math.sqrt(d_model)
        self.weight = self.create_parameter(
            [vocab_size, d_model],
            default_initializer=nn.initializer.Normal(mean=0.0, std=d_model**-0.5),
        )
        # Zeroed once and not by padding_idx: the row may also be an output row of the generator,
        # which needs its gradient, and through the masks none comes from padded positions anyway.
        if pad_id is not None:
            with paddle.no_grad():
                self.weight[pad_id] = 0.0

    def forward(self, ids: Tensor) -> Tensor:
        """Embeds `ids` (batch, len), integers, as floating (batch, len, d_model)."""
        return F.embedding(ids, self.weight) * self.scale


class PositionalEncoding(nn.Layer):
    """Adds sinusoidal positions, section 3.5, and applies dropout to the sum, section 5.4.

    PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos of the same. `max_len`
    positions are computed in advance; more are added when asked for, as the formula has no end.

    Raises ValueError if `dropout` is not in [0, 1).
    """

    def __init__(self, d_model: int, max_len: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        # Not persistable: it follows from d_model and has no place in a checkpoint.
        table = paddle.to_tensor(sinusoids(max_len, d_model), dtype="float32")
        self.register_buffer("table", table, persistable=False)  # (max_len, d_model)

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        """Adds the positions offset, offset + 1, ... to `x` (batch, len, d_model), same shape."""
        end = offset + x.shape[1]
        # A graph that is being exported can't grow its table: there max_len is the limit.
        if paddle.in_dynamic_mode() and end > self.table.shape[0]:
            self._grow(end)
        positions = self.table[offset:end]  # (len, d_model)
        return self.dropout(x + positions.astype(x.dtype))

    def at(self, position: int) -> np.ndarray:
        """One row of the table, float32 (d_model,)."""
        if position >= self.table.shape[0]:
            self._grow(position + 1)
        return self.table[position].numpy()

    def _grow(self, length: int) -> None:
        # At least doubled, so that decoding step by step does not compute it at every step.
        length = max(length, 2 * self.table.shape[0])
        self.table = paddle.to_tensor(
            sinusoids(length, self.table.shape[1]), dtype=self.table.dtype, place=self.table.place
        )


def sinusoids(length: int, d_model: int) -> np.ndarray:
    """The sinusoidal positions 0 .. length - 1, section 3.5: float64 (length, d_model).

    With an odd d_model the last sine has no cosine beside it.
    """
    even = np.arange(0, d_model, 2)
    # In float64: a float32 angle of 1,000 radians is already wrong in the fifth digit.
    angles = np.arange(length)[:, np.newaxis] / 10000.0 ** (even / d_model)  # (length, ceil(d / 2))
    table = np.empty((length, d_model))
    table[:, 0::2] = np.sin(angles)
    table[:, 1::2] = np.cos(angles[:, : d_model // 2])
    return table

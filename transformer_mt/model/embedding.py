"""Token embedding and sinusoidal positions (Vaswani et al. 2017, sections 3.4 and 3.5)."""

import math

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn

from transformer_mt.model.basic_layers import Dropout


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

    PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos of the same. `max_len`
    positions are computed in advance, and more when a longer sequence needs them.

    Raises ValueError if `dropout` is not in [0, 1).
    """

    table: Tensor  # (positions, d_model)

    def __init__(self, d_model: int, max_len: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        # The table is not persistable: it follows from d_model, so checkpoints do not hold it.
        table = paddle.to_tensor(sinusoids(max_len, d_model), dtype="float32")
        self.register_buffer("table", table, persistable=False)

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        """Adds the positions offset, offset + 1, ... to `x` (batch, len, d_model); same shape."""
        end = offset + x.shape[1]
        # A graph that is being exported can't extend its table, so max_len is the limit there.
        if paddle.in_dynamic_mode() and end > self.table.shape[0]:
            self._grow(end)
        positions = self.table[offset:end]  # (len, d_model)
        return self.dropout(x + positions.astype(x.dtype))

    def at(self, position: int) -> np.ndarray:
        """Returns the encoding of one position, float32 (d_model,)."""
        if position >= self.table.shape[0]:
            self._grow(position + 1)
        return self.table[position].numpy()

    def _grow(self, length: int) -> None:
        # The length at least doubles, so that incremental decoding rarely computes a new table.
        length = max(length, 2 * self.table.shape[0])
        self.table = paddle.to_tensor(
            sinusoids(length, self.table.shape[1]), dtype=self.table.dtype, place=self.table.place
        )


def sinusoids(length: int, d_model: int) -> np.ndarray:
    """Computes the sinusoidal positions 0 .. length - 1, section 3.5: float64 (length, d_model).

    If d_model is odd, the last sine has no cosine.
    """
    even = np.arange(0, d_model, 2)
    # float64 is needed: an angle of 1,000 radians in float32 is wrong in the fifth digit.
    angles = np.arange(length)[:, np.newaxis] / 10000.0 ** (even / d_model)  # (length, ceil(d / 2))
    table = np.empty((length, d_model))
    table[:, 0::2] = np.sin(angles)
    table[:, 1::2] = np.cos(angles[:, : d_model // 2])
    return table

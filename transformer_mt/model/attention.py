"""Scaled dot-product and multi-head attention, and their masks.

Vaswani et al. 2017, "Attention Is All You Need", section 3.2. In every mask of this package, True
means *forbidden*.
"""

import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn

from transformer_mt.model import operations
from transformer_mt.model.cache import KeyValueCache
from transformer_mt.model.layers import Dropout, Linear

# The score of a forbidden key. It is far below all other scores, but finite: with -inf, the softmax
# of a row in which all keys are forbidden would be NaN. float16 ends at -65,504.
FORBIDDEN_SCORE = -1e9
FORBIDDEN_SCORE_FLOAT16 = -3e4


def lowest_score(scores: Tensor) -> float:
    """The score of a forbidden key, in the dtype of `scores`."""
    return FORBIDDEN_SCORE_FLOAT16 if scores.dtype == paddle.float16 else FORBIDDEN_SCORE


def padding_mask(query_ids: Tensor, key_ids: Tensor, pad_id: int) -> Tensor:
    """Makes the mask of padding for attention from `query_ids` to `key_ids`.

    Args: `query_ids` (batch, query_len) and `key_ids` (batch, key_len), integers.
    Returns: bool (batch, query_len, key_len), True (forbidden) where the key is `pad_id`.
    """
    batch, query_len = query_ids.shape
    forbidden_keys = (key_ids == pad_id).unsqueeze(1)  # (batch, 1, key_len)
    return forbidden_keys.expand([batch, query_len, key_ids.shape[1]])


def causal_mask(length: int) -> Tensor:
    """Makes the mask of the positions to the right of each query (section 3.2.3).

    Returns: bool (length, length), True (forbidden) where the key is later than the query.
    """
    positions = paddle.arange(length)
    return positions.unsqueeze(0) > positions.unsqueeze(1)


class ScaledDotProductAttention(nn.Layer):
    """softmax(Q K^T / sqrt(d_k)) V, formula (1) of section 3.2.1, with dropout of the weights."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Attends from every query to the keys that the mask allows.

        Args:
            query: floating (batch, query_len, d_k) or (batch, heads, query_len, d_k).
            key: (..., key_len, d_k).
            value: (..., key_len, d_v).
            mask: bool, True where attention is forbidden: (query_len, key_len),
                (batch, query_len, key_len) for all heads, or (batch, heads, query_len, key_len).
                Dimensions may be 1 to broadcast.

        Returns: (output, weights): the output (..., query_len, d_v), and the weights before
            dropout (..., query_len, key_len). Weights are exactly 0 where attention is forbidden.
            The output of a query is 0 if all of its keys are forbidden.

        Raises: TypeError if the mask is not bool.
        """
        mask = _mask_of(mask, query.ndim)
        # Scaling the query is the same as scaling the scores, and the query is usually smaller.
        scaled_query = query * query.shape[-1] ** -0.5
        scores = paddle.matmul(scaled_query, key, transpose_y=True)  # (..., query_len, key_len)
        if mask is None:
            weights = F.softmax(scores, axis=-1)
        else:
            scores = paddle.masked_fill(scores, mask, lowest_score(scores))
            # Paddle's softmax on a CPU gives no weight below exp(-64), however low the score is.
            # Filling both its input and its output stops the value and the gradient of forbidden
            # keys.
            weights = paddle.masked_fill(F.softmax(scores, axis=-1), mask, 0.0)
        output = paddle.matmul(self.dropout(weights), value)  # (..., query_len, d_v)
        return output, weights


def _mask_of(mask: Tensor | None, dims: int) -> Tensor | None:
    """Returns a mask that `ScaledDotProductAttention` takes with as many dimensions as the scores,
    3 or 4, of which some are 1."""
    if mask is None:
        return None
    if mask.dtype != paddle.bool:
        raise TypeError(f"an attention mask must be bool (True: forbidden), not {mask.dtype}")
    while mask.ndim < dims:  # (query_len, key_len), (batch, query_len, key_len)
        mask = mask.unsqueeze(-3)
    return mask


class MultiHeadAttention(nn.Layer):
    """Multi-head attention, section 3.2.2.

    Args:
        d_model: width of queries, keys, values, and output.
        num_heads: number of heads.
        dropout: rate of dropout of the attention weights.
        d_k, d_v: width of a head's keys and of its values; by default d_model // num_heads.
        bias: whether the four projections have a bias.
        projection_dropout: rate of dropout of the projected queries, keys and values.

    Raises: ValueError if d_model is not a multiple of num_heads and d_k is not given.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        dropout: float = 0.0,
        d_k: int | None = None,
        d_v: int | None = None,
        bias: bool = True,
        projection_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if d_k is None and d_model % num_heads:
            raise ValueError(
                f"d_model ({d_model}) must be a multiple of num_heads ({num_heads}),"
                " unless the width of a head is given as d_k"
            )
        self.num_heads = num_heads
        self.d_k = d_model // num_heads if d_k is None else d_k
        self.d_v = d_model // num_heads if d_v is None else d_v
        # There are three projections instead of one that is sliced in three, because the gradient
        # of a slice writes a whole tensor.
        self.query_projection = Linear(d_model, num_heads * self.d_k, bias)
        self.key_projection = Linear(d_model, num_heads * self.d_k, bias)
        self.value_projection = Linear(d_model, num_heads * self.d_v, bias)
        self.output_projection = Linear(num_heads * self.d_v, d_model, bias)
        self.attention = ScaledDotProductAttention(dropout)
        self.projection_dropout = Dropout(projection_dropout)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        mask: Tensor | None = None,
        need_weights: bool = True,
        cache: KeyValueCache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attends from `query` to `key`, in all heads at once.

        Args:
            query: floating (batch, query_len, d_model).
            key, value: (batch, key_len, d_model). None stands for what is in the cache already;
                then nothing is added to it.
            mask: as in `ScaledDotProductAttention`. With a cache, its keys are all of the cache,
                the new ones included.
            need_weights: whether to return the weights. Without them, attention may be faster.
            cache: the earlier keys and values. Those of this call are appended.

        Returns: (output, weights): the output (batch, query_len, d_model), and the weights before
            dropout (batch, heads, query_len, key_len) or None.
        """
        queries = self.projection_dropout(self.query_projection(query))
        if cache is None:
            keys, values = self._projected(key, value)
            if not need_weights:
                output = operations.current.fused_attention(
                    *(queries, keys, values, self.num_heads, _mask_of(mask, 4)),
                    *(self.attention.dropout.p, self.training),
                )
                if output is not None:
                    return self.output_projection(output), None
            keys, values = self._split_heads(keys), self._split_heads(values)
        elif key is None:
            keys, values = cache.key, cache.value
        else:
            keys, values = cache.update(*self.project(key, value))

        output, weights = self.attention(self._split_heads(queries), keys, values, mask)
        # (batch, heads, query_len, d_v) -> (batch, query_len, heads * d_v)
        output = output.transpose([0, 2, 1, 3]).reshape([0, 0, self.num_heads * self.d_v])
        return self.output_projection(output), weights if need_weights else None

    def project(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Projects `key` and `value` (batch, key_len, d_model) for the heads.

        Returns: keys (batch, heads, key_len, d_k) and values (batch, heads, key_len, d_v).
        """
        keys, values = self._projected(key, value)
        return self._split_heads(keys), self._split_heads(values)

    def _projected(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        # Keys (batch, key_len, heads * d_k) and values (batch, key_len, heads * d_v).
        keys, values = self.key_projection(key), self.value_projection(value)
        return self.projection_dropout(keys), self.projection_dropout(values)

    def _split_heads(self, x: Tensor) -> Tensor:
        # (batch, len, heads * d) -> (batch, heads, len, d). A 0 in reshape keeps the dimension.
        return x.reshape([0, 0, self.num_heads, x.shape[-1] // self.num_heads]).transpose(
            [0, 2, 1, 3]
        )

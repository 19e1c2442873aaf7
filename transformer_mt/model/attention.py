"""Attention: scaled dot-product, multi-head, its masks, and its cache for incremental decoding.

Vaswani et al. 2017, "Attention Is All You Need", section 3.2. In every mask of this package True
marks what is *forbidden*.
"""

from __future__ import annotations

import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn

from transformer_mt.model import operations
from transformer_mt.model.dropout import Dropout

# The score of a forbidden key: far below all others, yet finite, for the softmax of a row in which
# all are forbidden would otherwise be NaN. float16 ends at -65,504.
FORBIDDEN_SCORE = -1e9
FORBIDDEN_SCORE_FLOAT16 = -3e4


def padding_mask(query_ids: Tensor, key_ids: Tensor, pad_id: int) -> Tensor:
    """Mask of the keys that are padding, for attention of `query_ids` over `key_ids`.

    Args: `query_ids` (batch, query_len) and `key_ids` (batch, key_len), integers.
    Returns: bool (batch, query_len, key_len), True (forbidden) where the *key* is `pad_id`.
    """
    batch, query_len = query_ids.shape
    forbidden_keys = (key_ids == pad_id).unsqueeze(1)  # (batch, 1, key_len)
    return forbidden_keys.expand([batch, query_len, key_ids.shape[1]])


def causal_mask(length: int) -> Tensor:
    """Mask of the positions to the right of each query (section 3.2.3).

    Returns: bool (length, length), True (forbidden) where the key is later than the query.
    """
    positions = paddle.arange(length)
    return positions.unsqueeze(0) > positions.unsqueeze(1)


class KeyValueCache:
    """Projected keys and values of the positions seen so far, for incremental decoding.

    `KeyValueCache(static=False)` grows: each call's keys and values are appended to it
    (self-attention). `KeyValueCache(static=True)` is filled once and then reused, so that its
    keys and values are projected only once (cross-attention over the memory).

    `key` is (batch, heads, length, d_k), `value` (batch, heads, length, d_v); both None when empty.
    """

    def __init__(self, static: bool = False) -> None:
        self.static = static
        self.key: Tensor | None = None
        self.value: Tensor | None = None

    @property
    def length(self) -> int:
        """Number of positions held."""
        return 0 if self.key is None else self.key.shape[2]

    @property
    def is_complete(self) -> bool:
        """True if nothing needs to be projected any more."""
        return self.static and self.key is not None

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Takes in projected keys and values (batch, heads, new_len, d); returns all of them.

        Raises ValueError if the cache is static and already filled.
        """
        if self.is_complete:
            raise ValueError("a static cache of keys and values can be filled only once")
        if self.key is not None:
            key = paddle.concat([self.key, key], axis=2)  # (batch, heads, length + new_len, d_k)
            value = paddle.concat([self.value, value], axis=2)
        self.key, self.value = key, value
        return key, value

    def select(self, index: Tensor) -> None:
        """Keeps the rows of the batch with these indices, int64 (rows,), in this order."""
        if self.key is not None:
            self.key = paddle.index_select(self.key, index, axis=0)
            self.value = paddle.index_select(self.value, index, axis=0)

    def take(self, positions: Tensor) -> None:
        """Keeps these positions of each row, int64 (batch, kept)."""
        index = positions.unsqueeze([1, 3])  # (batch, 1, kept, 1), for all heads
        self.key = paddle.take_along_axis(self.key, index, axis=2)
        self.value = paddle.take_along_axis(self.value, index, axis=2)


def has_fused_attention(query: Tensor) -> bool:
    """Whether the device attends in one fast operation, which does not give the weights: a GPU in
    float16 or bfloat16. Not in a graph that is being exported."""
    return (
        paddle.in_dynamic_mode()
        and query.place.is_gpu_place()
        and query.dtype in (paddle.float16, paddle.bfloat16)
    )


class ScaledDotProductAttention(nn.Layer):
    """softmax(Q K^T / sqrt(d_k)) V, formula (1) of section 3.2.1, with dropout of the weights.

    Raises ValueError if `dropout` is not in [0, 1).
    """

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        need_weights: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """Attends from every query to the keys it may see.

        Args:
            query: floating (batch, query_len, d_k) or (batch, heads, query_len, d_k).
            key: (..., key_len, d_k).
            value: (..., key_len, d_v).
            mask: bool, True where attention is forbidden; (query_len, key_len), or
                (batch, query_len, key_len), which holds for all heads, or
                (batch, heads, query_len, key_len). Dimensions may be 1 to broadcast.
            need_weights: whether to return the weights; without them a GPU is faster.

        Returns: (output, weights): the output (..., query_len, d_v) and the weights
            (..., query_len, key_len) as they are before dropout, or None. They are exactly 0 where
            forbidden, and so is the output of a query all of whose keys are.

        Raises: TypeError if the mask is not bool, ValueError if it has more dimensions than the
            scores.
        """
        if mask is not None:
            mask = self._fitted(mask, query)
        if query.ndim == 4 and not need_weights and has_fused_attention(query):
            return self._fused(query, key, value, mask), None
        # Scaling the query is the same as scaling the scores, and the query is usually smaller.
        scaled_query = query * query.shape[-1] ** -0.5
        scores = paddle.matmul(scaled_query, key, transpose_y=True)  # (..., query_len, key_len)
        if mask is None:
            weights = F.softmax(scores, axis=-1)
        else:
            scores = paddle.masked_fill(scores, mask, lowest_score(scores))
            # Paddle's softmax on a CPU gives no weight below exp(-64), however low the score. With
            # both its sides filled, neither value nor gradient of a forbidden key gets through.
            weights = paddle.masked_fill(F.softmax(scores, axis=-1), mask, 0.0)
        output = paddle.matmul(self.dropout(weights), value)  # (..., query_len, d_v)
        return output, weights if need_weights else None

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        # Of Paddle's operation: tensors are (batch, len, heads, d), the mask is added to the
        # scores. It is given whole, for not every kernel of it broadcasts over batch and queries.
        added = None
        if mask is not None:
            zeros = paddle.zeros([query.shape[0], 1, query.shape[2], key.shape[2]], query.dtype)
            added = paddle.masked_fill(zeros, mask, lowest_score(query))
        output = F.scaled_dot_product_attention(
            *(x.transpose([0, 2, 1, 3]) for x in (query, key, value)),
            attn_mask=added,
            dropout_p=self.dropout.p,
            training=self.training,
        ).transpose([0, 2, 1, 3])  # (batch, heads, query_len, d_v)
        if mask is None:
            return output
        # A query all of whose keys are forbidden would see them all alike.
        return paddle.masked_fill(output, mask.all(axis=-1, keepdim=True), 0.0)

    @staticmethod
    def _fitted(mask: Tensor, query: Tensor) -> Tensor:
        if mask.dtype != paddle.bool:
            raise TypeError(f"an attention mask must be bool (True: forbidden), not {mask.dtype}")
        if mask.ndim > query.ndim:
            raise ValueError(
                f"a mask of shape {list(mask.shape)} does not fit queries of shape"
                f" {list(query.shape)}"
            )
        if mask.ndim == 3 and query.ndim == 4:
            mask = mask.unsqueeze(1)  # (batch, 1, query_len, key_len)
        return mask


def lowest_score(scores: Tensor) -> float:
    """The score of a forbidden key, in the dtype of `scores`."""
    return FORBIDDEN_SCORE_FLOAT16 if scores.dtype == paddle.float16 else FORBIDDEN_SCORE


class Linear(nn.Linear):
    """A linear layer as this model initialises them: Xavier uniform weight, zero bias or none."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__(
            in_features,
            out_features,
            weight_attr=nn.initializer.XavierUniform(),
            bias_attr=nn.initializer.Constant(0.0) if bias else False,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps `x` (..., in_features) to (..., out_features)."""
        return operations.linear(x, self.weight, self.bias)


class MultiHeadAttention(nn.Layer):
    """Multi-head attention, section 3.2.2.

    Args:
        d_model: width of queries, keys, values, and output.
        num_heads: number of heads.
        dropout: rate of dropout of the attention weights.
        d_k, d_v: width of a head's keys and of its values; by default d_model // num_heads.
        bias: whether the four projections have a bias.

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
    ) -> None:
        super().__init__()
        if d_k is None and d_model % num_heads:
            raise ValueError(
                f"d_model ({d_model}) must be a multiple of num_heads ({num_heads}),"
                " or the width of a head be given as d_k"
            )
        self.num_heads = num_heads
        self.d_k = d_model // num_heads if d_k is None else d_k
        self.d_v = d_model // num_heads if d_v is None else d_v
        # Three projections, not one sliced in three: the gradient of a slice writes a whole tensor.
        self.query_projection = Linear(d_model, num_heads * self.d_k, bias)
        self.key_projection = Linear(d_model, num_heads * self.d_k, bias)
        self.value_projection = Linear(d_model, num_heads * self.d_v, bias)
        self.output_projection = Linear(num_heads * self.d_v, d_model, bias)
        self.attention = ScaledDotProductAttention(dropout)

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
            key, value: (batch, key_len, d_model); not read, and may be None, if `cache` is static
                and filled.
            mask: as in `ScaledDotProductAttention`; with a cache its keys are those of the cache,
                the new ones included.
            need_weights: whether to return the weights.
            cache: holds earlier keys and values, and takes in those of this call.

        Returns: (output, weights): (batch, query_len, d_model), and before dropout
            (batch, heads, query_len, key_len) or None.
        """
        queries = self._split_heads(self.query_projection(query))  # (batch, heads, query_len, d_k)
        if cache is not None and cache.is_complete:
            keys, values = cache.key, cache.value
        else:
            keys, values = self.project(key, value)
            if cache is not None:
                keys, values = cache.update(keys, values)

        output, weights = self.attention(queries, keys, values, mask, need_weights)
        # (batch, heads, query_len, d_v) -> (batch, query_len, heads * d_v)
        output = output.transpose([0, 2, 1, 3]).reshape([0, 0, self.num_heads * self.d_v])
        return self.output_projection(output), weights

    def project(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The keys (batch, heads, key_len, d_k) and values (batch, heads, key_len, d_v) that the
        heads see of `key` and `value` (batch, key_len, d_model)."""
        return (
            self._split_heads(self.key_projection(key)),
            self._split_heads(self.value_projection(value)),
        )

    def _split_heads(self, x: Tensor) -> Tensor:
        # (batch, len, heads * d) -> (batch, heads, len, d); a 0 in reshape keeps that dimension.
        return x.reshape([0, 0, self.num_heads, x.shape[-1] // self.num_heads]).transpose(
            [0, 2, 1, 3]
        )

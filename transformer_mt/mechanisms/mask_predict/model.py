"""A Transformer that predicts all target positions at once, from a target with masks in it.

The conditional masked language model of Ghazvininejad et al. 2019, "Mask-Predict" (arXiv
1904.09324), section 2. With all positions masked it is, but for the fertilities, the model of Gu et
al. 2018 (arXiv 1711.02281).
"""

from __future__ import annotations

import paddle
from paddle import Tensor

from transformer_mt.model import operations
from transformer_mt.model.embedding import TokenEmbedding
from transformer_mt.model.transformer import Transformer


class NonAutoregressiveTransformer(Transformer):
    """A Transformer whose decoder sees the whole target, to the left and to the right.

    The target is not shifted: at position i is predicted what stands at position i. Where there is
    nothing to be seen yet stands a mask, an id that the caller has chosen and that is never
    predicted. Real positions depend on no padding, neither of the source nor of the target.

    Args:
        longest: the greatest length of a target that the encoder can predict; None: it predicts
            none. To predict it (section 2.3), a token LENGTH is put before the source, without a
            position, and what the encoder makes of it is compared with an embedding of each length.
            Its place in the memory is left out then.
        The others are those of `Transformer`.
    """

    def __init__(self, *arguments, longest: int | None = None, **options) -> None:
        super().__init__(*arguments, **options)
        self.predicts_length = longest is not None
        if self.predicts_length:
            # Row n is the length n. No target has the length 0, so that row is the token's own.
            width = self.target_embedding.weight.shape[1]
            self.length_embedding = TokenEmbedding(longest + 1, width)

    def encode(
        self, source_ids: Tensor, need_weights: bool = False
    ) -> Tensor | tuple[Tensor, list[Tensor]]:
        """As `Transformer.encode`; the weights are those of the source alone, without LENGTH."""
        if not self.predicts_length:
            return super().encode(source_ids, need_weights)
        encoded, weights = self._encode_with_length(source_ids, need_weights)
        memory = encoded[:, 1:]
        return (memory, [w[:, :, 1:, 1:] for w in weights]) if need_weights else memory

    def encode_with_lengths(self, source_ids: Tensor) -> tuple[Tensor, Tensor]:
        """The memory of `source_ids` (batch, source_len), and the logits of the target's length:
        floating (batch, longest), of the lengths 1, 2, ...

        Raises TypeError if the model predicts no length.
        """
        if not self.predicts_length:
            raise TypeError("this model predicts no length")
        encoded, _ = self._encode_with_length(source_ids)
        logits = operations.logits(encoded[:, 0], self.length_embedding.weight)
        return encoded[:, 1:], logits[:, 1:]

    def start_cache(self, *_) -> None:
        """There are no steps: raises TypeError, as `decode_step` does."""
        raise TypeError("a non-autoregressive model does not decode step by step")

    decode_step = start_cache

    def _encode_with_length(
        self, source_ids: Tensor, need_weights: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        words = self.positional_encoding(self.source_embedding(source_ids))
        token = self.length_embedding(paddle.zeros([len(source_ids), 1], source_ids.dtype))
        token = self.positional_encoding.dropout(token)
        x = paddle.concat([token, words], axis=1)  # (batch, 1 + source_len, d_model)
        mask = self._source_mask(source_ids)
        mask = paddle.concat([paddle.zeros_like(mask[..., :1]), mask], axis=-1)
        return self.encoder(x, mask, need_weights)

    def _target_mask(self, target: Tensor) -> Tensor:
        # True where the target is padding: (batch, 1, 1, target_len)
        return (target == self.pad_id).unsqueeze([1, 2])

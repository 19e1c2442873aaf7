"""A Transformer that predicts all target positions at once from a partly masked target.

It is the conditional masked language model of Ghazvininejad et al. 2019, "Mask-Predict" (arXiv
1904.09324), section 2. If all positions are masked, it is the model of Gu et al. 2018 (arXiv
1711.02281) without fertilities.
"""

from typing import Any

import paddle
from paddle import Tensor

from transformer_mt.model import operations
from transformer_mt.model.embedding import TokenEmbedding
from transformer_mt.model.transformer import Transformer


class NonAutoregressiveTransformer(Transformer):
    """A Transformer whose decoder attends to the whole target, to the left and to the right.

    The target is not shifted: the logits at position i predict the token at position i. An unknown
    token is replaced by the mask token, an id that the caller chooses and that is never predicted.
    No real position depends on padding, neither of the source nor of the target.

    Args:
        longest: the greatest target length that the encoder can predict, or None if it predicts no
            lengths. For the prediction (section 2.3), a token LENGTH without a position is put
            before the source. Its encoding is compared with an embedding of each length. The memory
            does not contain it.
        The other arguments are those of `Transformer`.
    """

    def __init__(self, *arguments, longest: int | None = None, **options) -> None:
        super().__init__(*arguments, **options)
        self.predicts_length = longest is not None
        if self.predicts_length:
            # Row n is the embedding of the length n. No target has the length 0, so row 0 is the
            # embedding of the token LENGTH.
            width = self.target_embedding.weight.shape[1]
            self.length_embedding = TokenEmbedding(longest + 1, width)

    def encode(
        self, source_ids: Tensor, need_weights: bool = False
    ) -> Tensor | tuple[Tensor, list[Tensor]]:
        """As `Transformer.encode`. The attention weights leave out the token LENGTH."""
        if not self.predicts_length:
            return super().encode(source_ids, need_weights)
        encoded, weights = self._encode_with_length(source_ids, need_weights)
        memory = encoded[:, 1:]
        return (memory, [w[:, :, 1:, 1:] for w in weights]) if need_weights else memory

    def encode_with_lengths(self, source_ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """Encodes `source_ids` (batch, source_len) and predicts the length of the target.

        Returns: the memory (batch, source_len, d_model), and the logits of the lengths 1, 2, ...,
            floating (batch, longest); None instead of the logits if the model predicts no length.
        """
        if not self.predicts_length:
            return self.encode(source_ids), None
        encoded, _ = self._encode_with_length(source_ids)
        logits = operations.current.logits(encoded[:, 0], self.length_embedding.weight)
        return encoded[:, 1:], logits[:, 1:]

    def start_cache(self, *_) -> None:
        """Raises TypeError, as `decode_step` does: there is no incremental decoding."""
        raise TypeError("a non-autoregressive model does not decode step by step")

    decode_step: Any = start_cache

    def _encode_with_length(
        self, source_ids: Tensor, need_weights: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        # Encodes the token LENGTH and the source: (batch, 1 + source_len, d_model).
        words = self.positional_encoding(self.source_embedding(source_ids))
        token = self.length_embedding(paddle.zeros([len(source_ids), 1], source_ids.dtype))
        token = self.positional_encoding.dropout(token)
        x = paddle.concat([token, words], axis=1)  # (batch, 1 + source_len, d_model)
        mask = self._source_mask(source_ids)  # (batch, 1, 1, source_len)
        mask = paddle.concat([paddle.zeros_like(mask[..., :1]), mask], axis=-1)
        return self.encoder(x, mask, need_weights)

    def _target_mask(self, target: Tensor) -> Tensor:
        # (batch, 1, 1, target_len). True forbids: the target is padding there.
        return (target == self.pad_id).unsqueeze([1, 2])

"""The variants of the Transformer, and which one a config builds.

CopyingTransformer is a pointer-generator: it can also copy subwords of the source.
NonAutoregressiveTransformer predicts all target positions at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from transformer_mt.config.decoding import LONGEST_TARGET
from transformer_mt.config.schema import ModelConfig
from transformer_mt.data.subword import Subwords
from transformer_mt.model import operations
from transformer_mt.model.layers import Linear, TokenEmbedding
from transformer_mt.model.transformer import Transformer, at_positions


def build_model(config: ModelConfig, subwords: Subwords, recompute: bool = False) -> Transformer:
    """Builds the Transformer of a config, with weights drawn from Paddle's random generator.

    `recompute` is as in `Transformer`.
    """
    kind: Callable[..., Transformer] = CopyingTransformer if config.copying else Transformer
    if config.non_autoregressive is not None:
        longest = LONGEST_TARGET if config.non_autoregressive == "length" else None
        kind = partial(NonAutoregressiveTransformer, longest=longest)
    return kind(
        config,
        subwords.source.size,
        subwords.target.size,
        share_source_embedding=config.tie_embeddings and subwords.joint,
        pad_id=subwords.target.pad,
        source_pad_id=subwords.source.pad,
        recompute=recompute,
    )


# ---- Copying ----

# p_gen before training, apart from the effect of the gate's random weights.
FIRST_P_GEN = 0.9
# float32 ends at exp(88). No exponent of an id that is copied is larger than this, because on a CPU
# no attention weight except 0 is below exp(-64).
LARGEST_EXPONENT = 80.0


@dataclass
class CopyableSource:
    """The ids that can be copied from a batch of source sentences.

    Attributes:
        ids: int64 (batch, source_len). Each id of a sentence stands here once, at its first
            position. The padding id stands at the positions where ids are repeated.
        places: float32 (batch, source_len, source_len). `places[b, i, j]` is 1 if the source at i
            is `ids[b, j]`, and otherwise 0.
    """

    ids: Tensor
    places: Tensor

    @classmethod
    def of(cls, source_ids: Tensor, pad_id: int) -> CopyableSource:
        """Finds the ids of `source_ids`, int64 (batch, source_len)."""
        same = source_ids.unsqueeze(2) == source_ids.unsqueeze(1)  # (batch, len, len)
        # An id at position j is a repetition if an earlier position i < j holds it, too.
        stands_before = same.astype("int32").triu(1).astype("bool").any(axis=1)
        ids = paddle.masked_fill(source_ids, stands_before, pad_id)
        places = source_ids.unsqueeze(2) == ids.unsqueeze(1)
        return cls(ids, places.astype("float32"))

    def select(self, sentences: Tensor) -> CopyableSource:
        """Selects the sentences with these indices, int64 (kept,)."""
        return CopyableSource(self.ids.gather(sentences), self.places.gather(sentences))

    def pointed_at(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Computes how much attention each id gets at all of its positions together.

        Args:
            weights: attention weights, floating (batch, heads, target_len, source_len), which are
                0 at padding.

        Returns: (copied, ids), float32 and int64, both (batch, target_len, source_len).
        """
        target_len = weights.shape[2]
        copied = paddle.matmul(weights.astype("float32").mean(axis=1), self.places)
        return copied, self.ids.unsqueeze(1).expand([-1, target_len, -1])


class CopyingTransformer(Transformer):
    """A pointer-generator: a Transformer with a gate that mixes generating and copying.

    The model is that of See et al. 2017, arXiv 1704.04368, section 2.2. Pointing by attention is
    from Vinyals et al. 2015, arXiv 1506.03134, section 2.3. The attention to copy by is the mean
    over the heads of the last decoder layer's cross-attention. With a gate g, linear in the
    decoder's output,

        p_gen = sigmoid(g)
        p(v)  = p_gen * softmax(logits)[v] + (1 - p_gen) * copied[v],

    where copied[v] is the sum of the attention to all source positions that hold v. An unseen name
    is copied subword by subword. Both sides share one vocabulary, which is not extended.

    The model returns logits whose softmax is p, so that the loss, search, sampling, ensembles and
    scores need no change. Because p(v) * sum(exp(logits)) / p_gen is

        exp(logits[v]) + exp(log_total - g) * copied[v],   log_total = log(sum(exp(logits))),

    only the logits of the few ids in the source differ from those of the generator.

    The arguments are those of `Transformer`.
    """

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self.gate = Linear(self.generator.weight.shape[1], 1)
        self.gate.bias.set_value(np.array([math.log(FIRST_P_GEN / (1 - FIRST_P_GEN))], np.float32))

    @property
    def generates_from(self) -> tuple[int]:
        """The number of the last layer, whose attention decides what is copied."""
        return (len(self.decoder.layers) - 1,)

    def copyable(self, source_ids: Tensor) -> CopyableSource:
        """Returns the ids that can be copied from `source_ids`, int64 (batch, source_len)."""
        return CopyableSource.of(source_ids, self.pad_id)

    def generate(
        self,
        hidden: Tensor,
        cross_weights: list[Tensor | None],
        source: CopyableSource,
        positions: Tensor | None = None,
        logits: Tensor | None = None,
    ) -> Tensor:
        """As `Transformer.generate`: computes the logits of generating and copying together.

        `logits` are those of the generator (rows, vocabulary), if they are known; in float32 they
        are overwritten.
        """
        # 1. Sum the attention per id, in float32.
        with paddle.amp.auto_cast(enable=False):
            copied, ids = source.pointed_at(cross_weights[-1])
        # 2. Flatten to rows, or select rows: (rows, d_model), (rows, source_len) twice.
        if positions is None:
            places = hidden.shape[:-1]
            hidden, copied, ids = (x.reshape([-1, x.shape[-1]]) for x in (hidden, copied, ids))
        else:
            places = positions.shape
            hidden, copied, ids = (at_positions(x, positions) for x in (hidden, copied, ids))
        # 3. Mix the distributions: (rows, vocabulary).
        logits = self.generator(hidden) if logits is None else logits
        mixed = mixture(logits, self.gate(hidden), copied, ids)
        return mixed.reshape([*places, mixed.shape[-1]])


def mixture(logits: Tensor, gate: Tensor, copied: Tensor, ids: Tensor) -> Tensor:
    """Computes logits whose softmax is p softmax(logits) + (1 - p) copied, with p = sigmoid(gate).

    The result and its gradient are finite for all finite logits and gates.

    Args:
        logits: floating (rows, vocabulary). Logits in float32 are overwritten.
        gate: floating (rows, 1).
        copied: floating (rows, source_len), the probabilities of `ids`; they may be 0.
        ids: int64 (rows, source_len). Only ids with probability 0 may be repeated.

    Returns: float32 (rows, vocabulary).
    """
    with paddle.amp.auto_cast(enable=False):  # float32, even in half precision
        return _Mixture.apply(*(x.astype("float32") for x in (logits, gate, copied)), ids)


class _Mixture(PyLayer):
    """The mixture, computed in the memory of the logits, and its gradient.

    For mixed = log(exp(l) + exp(log_total - g) * c), the derivative with respect to log_total and
    to -g is the copied share, s = exp(log_total - g) * c / exp(mixed). With respect to l it is
    1 - s, and with respect to c it is s / c. The derivative of log_total with respect to the logits
    is softmax(logits).
    """

    @staticmethod
    def forward(ctx, logits: Tensor, gate: Tensor, copied: Tensor, ids: Tensor) -> Tensor:
        log_total = operations.current.log_sum_exp(logits)  # (rows, 1)
        generated = _at(logits, ids)  # (rows, source_len)
        log_odds = log_total - gate
        mixed = paddle.logaddexp(generated, log_odds + copied.log())  # log(0) is -inf
        logits.put_along_axis_(ids, mixed, axis=1)
        ctx.save_for_backward(logits, log_total, log_odds, copied, ids, generated, mixed)
        return logits

    @staticmethod
    def backward(ctx, slopes: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        logits, log_total, log_odds, copied, ids, generated, mixed = ctx.saved_tensor()
        own = _at(slopes, ids)  # (rows, source_len)
        share = paddle.exp(log_odds + copied.log() - mixed)
        to_total = (own * share).sum(axis=1, keepdim=True)  # (rows, 1)
        # The result is wrong at the ids of the source, where the mixed logits have replaced the
        # generator's and may be large. These elements are overwritten below.
        with np.errstate(over="ignore", invalid="ignore"):
            to_logits = operations.current.plus_softmax(slopes, logits, log_total, to_total)
        kept = own * paddle.exp(generated - mixed)
        to_logits.put_along_axis_(ids, kept + to_total * paddle.exp(generated - log_total), axis=1)
        to_copied = own * paddle.exp((log_odds - mixed).clip(max=LARGEST_EXPONENT))
        return to_logits, -to_total, to_copied, None


def _at(x: Tensor, ids: Tensor) -> Tensor:
    # Gathers the elements of `x` (rows, vocabulary) at `ids` (rows, count): (rows, count). For
    # 2,560 rows of 8,000, paddle.take_along_axis takes 40 ms and this 1 ms.
    rows, vocabulary = x.shape
    places = ids + paddle.arange(rows).unsqueeze(1) * vocabulary
    return x.flatten().gather(places.flatten()).reshape(ids.shape)


# ---- All positions at once ----


class NonAutoregressiveTransformer(Transformer):
    """A Transformer whose decoder attends to the whole target, to the left and to the right, and
    which predicts all positions at once from a partly masked target.

    It is the conditional masked language model of Ghazvininejad et al. 2019, "Mask-Predict" (arXiv
    1904.09324), section 2. If all positions are masked, it is the model of Gu et al. 2018 (arXiv
    1711.02281) without fertilities.

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

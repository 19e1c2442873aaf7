"""Guided attention: a loss for heads of the decoder's attention to the source, which tells them
where to look."""

from __future__ import annotations

import numpy as np
import paddle
from paddle import Tensor

from transformer_mt.config.schema import Config
from transformer_mt.data.batches import Batch
from transformer_mt.data.subword import Subwords
from transformer_mt.model.transformer import Transformer
from transformer_mt.training.objective import TeacherForcing

# A weight below it counts as it: the logarithm of 0 would be infinite.
LEAST_WEIGHT = 1e-30


class GuidedAttention(TeacherForcing):
    """As teacher forcing, and to attend with some heads where they are told to; the latter is left
    out where the dev set is measured."""

    def __init__(self, config: Config, model: Transformer, subwords: Subwords) -> None:
        super().__init__(config, model, subwords)
        self.guided = config.guided_attention
        self.layer, self.heads = self.guided.guided_heads(config.model.decoder_layers)
        self.source_pad_id = subwords.source.pad

    def losses(self, batch: Batch, step: int | None = None) -> tuple[Tensor, Tensor]:
        """As `TeacherForcing.losses`; the loss to train on holds that of attention, weighted."""
        if step is None:
            return super().losses(batch)
        source = paddle.to_tensor(batch.source)
        target = paddle.to_tensor(batch.target_input)
        positions, wanted = self.real_positions(batch)
        logits, cross_weights = self.model.logits(
            target, self.model.encode(source), source, positions, need_weights=(self.layer,)
        )
        loss, nll = self.criterion(logits, wanted)
        weights = cross_weights[self.layer][:, : self.heads]
        with paddle.amp.auto_cast(enable=False):  # in float32, as the rest of the loss
            attention_loss = self.attention_loss(weights.astype("float32"), batch)
            return loss + self.guided.weight * attention_loss, nll

    def attention_loss(self, weights: Tensor, batch: Batch) -> Tensor:
        """The loss of the guided heads' weights (batch, heads, target_len, source_len), the mean of
        the heads, summed over the target tokens, a float32 scalar."""
        if self.guided.by == "alignment":
            return alignment_loss(weights, paddle.to_tensor(batch.alignment))
        penalty = diagonal_penalty(
            (batch.source != self.source_pad_id).sum(axis=1),
            (batch.target_output != self.criterion.pad_id).sum(axis=1),
            self.guided.width,
        )
        return diagonal_loss(weights, paddle.to_tensor(penalty))


def alignment_loss(weights: Tensor, alignment: Tensor) -> Tensor:
    """Garg et al. 2019 (arXiv 1909.02074, section 4): the cross-entropy of a head's attention A
    against the alignment G of the words, -sum_m sum_n G_mn log A_mn over the target tokens m and
    the source tokens n.

    Args:
        weights: A, float32 (batch, heads, target_len, source_len).
        alignment: G, as `Alignments.matrix`; a row of zeros, of a token without a link, counts
            nothing.

    Returns: the mean of the heads, in nats.
    """
    logarithms = paddle.clip(weights, min=LEAST_WEIGHT).log().mean(axis=1)
    return -(alignment * logarithms).sum()


def diagonal_loss(weights: Tensor, penalty: Tensor) -> Tensor:
    """Tachibana et al. 2018 (arXiv 1710.08969, section 4): of each sentence the mean of A_nt W_nt
    over its source tokens n and its target tokens t, here times the latter's number, for the loss
    is a sum over target tokens.

    Args:
        weights: A, float32 (batch, heads, target_len, source_len).
        penalty: W / N, as `diagonal_penalty`.

    Returns: the mean of the heads.
    """
    return (penalty * weights.mean(axis=1)).sum()


def diagonal_penalty(
    source_lengths: np.ndarray, target_lengths: np.ndarray, width: float
) -> np.ndarray:
    """W_nt / N, where W_nt = 1 - exp(-(n / N - t / T)^2 / (2 width^2)), with n and t from 1, and
    the lengths N and T of each sentence.

    Args:
        source_lengths, target_lengths: of each sentence, eos counted, integers (batch,).

    Returns: float32 (batch, target_len, source_len), 0 for padding.
    """
    n, t = (np.arange(1, lengths.max() + 1) for lengths in (source_lengths, target_lengths))
    source, target = source_lengths[:, np.newaxis], target_lengths[:, np.newaxis]
    distance = (n / source)[:, np.newaxis, :] - (t / target)[:, :, np.newaxis]
    penalty = (1 - np.exp(-(distance**2) / (2 * width**2))) / source[:, :, np.newaxis]
    real = (n <= source)[:, np.newaxis, :] & (t <= target)[:, :, np.newaxis]
    return np.where(real, penalty, 0).astype(np.float32)

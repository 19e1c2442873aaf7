"""Guided attention: a loss that teaches heads of the decoder which source tokens to attend to."""

import numpy as np
import paddle
from paddle import Tensor

from transformer_mt.config.schema import Config
from transformer_mt.data.batches import Batch
from transformer_mt.data.subword import Subwords
from transformer_mt.model.operations import to_tensor
from transformer_mt.model.transformer import Transformer
from transformer_mt.training.objective import Term

# Smaller weights are replaced by this one, because the logarithm of 0 is infinite.
LEAST_WEIGHT = 1e-30


class GuidedAttention(Term):
    """Adds the weighted loss of the guided heads' attention to the translation loss."""

    def __init__(self, config: Config, model: Transformer, subwords: Subwords) -> None:
        self.guided = config.guided_attention
        layer, self.heads = self.guided.guided_heads(config.model.decoder_layers)
        self.cross_attention_layers = (layer,)
        self.source_pad, self.target_pad = subwords.source.pad, subwords.target.pad

    def loss(self, batch: Batch, cross_weights: list[Tensor | None]) -> Tensor:
        """As `Term.loss`."""
        (layer,) = self.cross_attention_layers
        weights = cross_weights[layer][:, : self.heads].astype("float32")
        return self.guided.weight * self.attention_loss(weights, batch)

    def attention_loss(self, weights: Tensor, batch: Batch) -> Tensor:
        """Returns the loss of the guided heads' weights: a float32 scalar, the mean over the heads
        and the sum over the target tokens.

        Args:
            weights: float32 (batch, heads, target_len, source_len).
        """
        if self.guided.by == "alignment":
            return alignment_loss(weights, to_tensor(batch.alignment))
        penalty = diagonal_penalty(
            (batch.source != self.source_pad).sum(axis=1),
            (batch.target_output != self.target_pad).sum(axis=1),
            self.guided.width,
            (batch.target_output.shape[1], batch.source.shape[1]),
        )
        return (to_tensor(penalty) * weights.mean(axis=1)).sum()


def alignment_loss(weights: Tensor, alignment: Tensor) -> Tensor:
    """Computes the cross-entropy of a head's attention A against the word alignment G.

    That is -sum_m sum_n G_mn log A_mn over the target tokens m and the source tokens n (Garg et al.
    2019, arXiv 1909.02074, section 4).

    Args:
        weights: A, float32 (batch, heads, target_len, source_len).
        alignment: G, as `Alignments.matrix`. The row of a token without a link is zero and adds
            nothing to the loss.

    Returns: the mean over the heads, in nats.
    """
    logarithms = paddle.clip(weights, min=LEAST_WEIGHT).log().mean(axis=1)
    return -(alignment * logarithms).sum()


def diagonal_penalty(
    source_lengths: np.ndarray, target_lengths: np.ndarray, width: float, shape: tuple[int, int]
) -> np.ndarray:
    """Computes W_nt / N, where W_nt = 1 - exp(-(n / N - t / T)^2 / (2 width^2)).

    n and t count from 1; N and T are the lengths of a sentence. Its loss in Tachibana et al. 2018
    (arXiv 1710.08969, section 4) is the mean of the attention A_nt times W_nt over its source
    tokens n and its target tokens t. Without the division by T, it is a sum over target tokens, as
    other losses are.

    Args:
        source_lengths, target_lengths: N and T per sentence, with eos, integers (batch,).
        shape: the padded lengths (target_len, source_len).

    Returns: float32 (batch, target_len, source_len), 0 at padding.
    """
    t, n = (np.arange(1, length + 1) for length in shape)
    source, target = source_lengths[:, np.newaxis], target_lengths[:, np.newaxis]
    distance = (n / source)[:, np.newaxis, :] - (t / target)[:, :, np.newaxis]
    penalty = (1 - np.exp(-(distance**2) / (2 * width**2))) / source[:, :, np.newaxis]
    real = (n <= source)[:, np.newaxis, :] & (t <= target)[:, :, np.newaxis]
    return np.where(real, penalty, 0).astype(np.float32)

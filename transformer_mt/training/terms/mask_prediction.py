"""Training to predict masked target tokens from the others, for a non-autoregressive model.

Ghazvininejad et al. 2019, "Mask-Predict" (arXiv 1904.09324), sections 2.2 and 2.3.
"""

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn

from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.config.schema import Config
from transformer_mt.data.batches import Batch, rounded
from transformer_mt.data.subword import Subwords
from transformer_mt.decoding.engine import length_limits
from transformer_mt.model.operations import to_tensor
from transformer_mt.model.variants import NonAutoregressiveTransformer


class MaskPrediction:
    """Predicts masked target tokens from the source and from the target tokens without a mask.

    Between one and all of the tokens of a sentence are masked. Every number of masks is equally
    probable, and so is every set of that many tokens. Only masked tokens are predicted.

    With model.non_autoregressive: length, the target has no eos, and its length is predicted as
    well. With end, the target is filled up with eos to the length with which decoding begins
    (decoding.max_length_ratio * source + max_length_extra); at least one eos is appended.
    """

    def __init__(
        self,
        config: Config,
        model: NonAutoregressiveTransformer,
        subwords: Subwords,
        criterion: nn.Layer,
    ) -> None:
        self.model = model
        self.decoding = config.decoding
        self.source, self.target = subwords.source, subwords.target
        self.criterion = criterion

    @staticmethod
    def decoded_lengths(
        config: Config, source_lengths: np.ndarray, target_lengths: np.ndarray
    ) -> np.ndarray:
        """As `Objective.decoded_lengths`."""
        if config.model.non_autoregressive == "length":
            return target_lengths
        return _filled_lengths(config.decoding, source_lengths, target_lengths) - 1

    def losses(self, batch: Batch, step: int | None = None) -> tuple[Tensor, Tensor]:
        """As `Objective.losses`; if the length is predicted, both losses include its loss.

        In training, (N + 1) / 2 of N tokens are masked on average. Their loss is doubled, so that
        it stands for N + 1 tokens, as many as the target has with eos. The loss of the length is
        doubled too, so that both have the same weight as in the paper. NumPy's generator draws the
        masks.

        On the dev set, all tokens are masked, as at the beginning of decoding, and nothing is
        doubled.
        """
        labels = self.labels(batch)  # (batch, target_len)
        is_real = labels != self.target.pad
        masked = is_real if step is None else random_masks(is_real)
        source = to_tensor(batch.source)
        # A non-autoregressive decoder never reads bos, so bos can stand for a mask.
        target = to_tensor(np.where(masked, self.target.bos, labels))
        memory, length_logits = self.model.encode_with_lengths(source)
        length_loss = 0.0
        if length_logits is not None:
            length_loss = self.length_loss(length_logits, is_real.sum(axis=1))
        scale = 1.0 if step is None else 2.0
        positions = np.flatnonzero(masked)
        if not len(positions):  # all targets are empty
            return length_loss * scale, length_loss * scale
        logits = self.model.logits(target, memory, source, to_tensor(positions))
        loss, nll = self.criterion(logits, to_tensor(labels.reshape(-1)[positions]))
        return (loss + length_loss) * scale, (nll + length_loss) * scale

    def labels(self, batch: Batch) -> np.ndarray:
        """Returns the correct token of every target position, padded: int64 (batch, target_len)."""
        lengths_with_eos = (batch.target_output != self.target.pad).sum(axis=1)
        if self.model.predicts_length:
            length = rounded(max(1, lengths_with_eos.max() - 1), batch.multiple)
            tokens = batch.target_output[:, :length]
            is_token = np.arange(length) < lengths_with_eos[:, np.newaxis] - 1
            return np.where(is_token, tokens, self.target.pad)
        source_lengths = (batch.source != self.source.pad).sum(axis=1) - 1  # without eos
        lengths = _filled_lengths(self.decoding, source_lengths, lengths_with_eos - 1)
        length = rounded(lengths.max(), batch.multiple)
        labels = np.full((len(lengths), length), self.target.eos, np.int64)
        own = batch.target_output[:, :length]
        np.copyto(labels[:, : own.shape[1]], own, where=own != self.target.pad)
        labels[np.arange(labels.shape[1]) >= lengths[:, np.newaxis]] = self.target.pad
        return labels

    @staticmethod
    def length_loss(logits: Tensor, lengths: np.ndarray) -> Tensor:
        """Returns the cross-entropy of the lengths (batch,), summed over the batch.

        Args:
            logits: (batch, longest), of the lengths from 1.
        """
        labels = to_tensor(np.clip(lengths, 1, logits.shape[1]) - 1)
        with paddle.amp.auto_cast(enable=False):
            return F.cross_entropy(logits.astype("float32"), labels, reduction="sum")


def _filled_lengths(
    decoding: DecodingConfig, source_lengths: np.ndarray, target_lengths: np.ndarray
) -> np.ndarray:
    """Returns the lengths to which targets are filled up with eos, int64 (sentences,).

    The given lengths are without eos.
    """
    longest = int(source_lengths.max(initial=0))
    limits = np.array([length_limits(length, decoding)[1] for length in range(longest + 1)])
    return np.maximum(limits[source_lengths], target_lengths.astype(np.int64) + 1)


def random_masks(is_real: np.ndarray) -> np.ndarray:
    """Chooses some of the True values of each row, at least one if the row has any.

    Every number of them is equally probable, and so is every set of that many.

    Args:
        is_real: bool (batch, target_len).

    Returns: bool (batch, target_len), True where chosen.
    """
    lengths = is_real.sum(axis=1)
    counts = 1 + (np.random.random_sample(len(lengths)) * lengths).astype(np.int64)
    order = np.where(is_real, np.random.random_sample(is_real.shape), np.inf)
    ranks = order.argsort(axis=1).argsort(axis=1)
    return is_real & (ranks < counts[:, np.newaxis])

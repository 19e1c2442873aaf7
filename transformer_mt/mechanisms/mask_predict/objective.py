"""Training to predict masked target words from the others: what a non-autoregressive model learns.

Ghazvininejad et al. 2019, "Mask-Predict" (arXiv 1904.09324), sections 2.2 and 2.3.
"""

from __future__ import annotations

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor

from transformer_mt.config.schema import Config
from transformer_mt.data.batches import Batch
from transformer_mt.data.subword import Subwords
from transformer_mt.decoding.engine import Engine, length_limits
from transformer_mt.mechanisms.mask_predict.engine import MaskPredictEngine
from transformer_mt.mechanisms.mask_predict.model import NonAutoregressiveTransformer
from transformer_mt.training.loss import LabelSmoothedCrossEntropy


class MaskPrediction:
    """To predict masked tokens of the target from the source and from those that are not masked.

    Of each sentence any number of tokens is masked, from one to all of them, all numbers being
    equally probable, and then any such set of tokens. Only masked ones are predicted.

    With model.non_autoregressive: length, the tokens are the words of the target, without eos, and
    the length of the target is predicted as well. With end, they are as many as translating such a
    source would begin with (decoding.max_length_ratio * source + max_length_extra), at least one
    more than there are words, and all that follow the words are eos.
    """

    def __init__(
        self, config: Config, model: NonAutoregressiveTransformer, subwords: Subwords
    ) -> None:
        self.model = model
        self.decoding = config.decoding
        self.source, self.target = subwords.source, subwords.target
        self.criterion = LabelSmoothedCrossEntropy(config.training.label_smoothing, self.target.pad)

    def engine(self, subwords: Subwords) -> Engine:
        """As `TeacherForcing.engine`."""
        return MaskPredictEngine(self.model, subwords)

    def decoded_lengths(self, source_lengths: np.ndarray, target_lengths: np.ndarray) -> np.ndarray:
        """As `TeacherForcing.decoded_lengths`."""
        if self.model.predicts_length:
            return target_lengths
        return self._canvas_lengths(source_lengths, target_lengths) - 1

    def losses(self, batch: Batch, step: int | None = None) -> tuple[Tensor, Tensor]:
        """The loss to train on, and the plain negative log-likelihood of the target, its length
        (where that is predicted) and its tokens; float32 scalars, in nats, summed over the batch.

        In training, the tokens that are masked stand for all: of N of them (N + 1) / 2 are on
        average, so that twice their sum is that of N + 1, as many as the target has with its end.
        The length counts twice with them, so that the two weigh as in the paper.

        `step` is the number of the update, whose masks NumPy's generator decides; None: the dev set
        is being measured, and all is masked, as when translating begins, and counts once.
        """
        wanted = self.canvas(batch)
        is_real = wanted != self.target.pad
        masked = is_real if step is None else random_masks(is_real)
        source = paddle.to_tensor(batch.source)
        # No decoder of this kind reads a beginning, so that bos is free to stand for a mask.
        target = paddle.to_tensor(np.where(masked, self.target.bos, wanted))
        if self.model.predicts_length:
            memory, length_logits = self.model.encode_with_lengths(source)
            length_loss = self.length_loss(length_logits, is_real.sum(axis=1))
        else:
            memory, length_loss = self.model.encode(source), 0.0
        scale = 1.0 if step is None else 2.0
        positions = np.flatnonzero(masked)
        if not len(positions):  # all targets are empty
            return length_loss * scale, length_loss * scale
        logits = self.model.logits(target, memory, source, paddle.to_tensor(positions))
        loss, nll = self.criterion(logits, paddle.to_tensor(wanted.reshape(-1)[positions]))
        return (loss + length_loss) * scale, (nll + length_loss) * scale

    def canvas(self, batch: Batch) -> np.ndarray:
        """What every position of the decoder should say, padded: int64 (batch, target_len)."""
        words_and_end = (batch.target_output != self.target.pad).sum(axis=1)
        if self.model.predicts_length:
            words = batch.target_output[:, : max(1, batch.target_output.shape[1] - 1)]
            is_word = np.arange(words.shape[1]) < words_and_end[:, np.newaxis] - 1
            return np.where(is_word, words, self.target.pad)
        source_lengths = (batch.source != self.source.pad).sum(axis=1) - 1  # without eos
        lengths = self._canvas_lengths(source_lengths, words_and_end - 1)
        canvas = np.full((len(lengths), lengths.max()), self.target.eos, np.int64)
        own = batch.target_output[:, : canvas.shape[1]]
        np.copyto(canvas[:, : own.shape[1]], own, where=own != self.target.pad)
        canvas[np.arange(canvas.shape[1]) >= lengths[:, np.newaxis]] = self.target.pad
        return canvas

    def _canvas_lengths(self, source_lengths: np.ndarray, target_lengths: np.ndarray) -> np.ndarray:
        # Both without eos; as `length_limits` has it for a source of each length.
        longest = max(source_lengths, default=0)
        limits = [length_limits(length, self.decoding)[1] for length in range(int(longest) + 1)]
        return np.maximum(np.array(limits)[source_lengths], target_lengths.astype(np.int64) + 1)

    @staticmethod
    def length_loss(logits: Tensor, lengths: np.ndarray) -> Tensor:
        """Cross-entropy of the lengths (batch,), summed; `logits` are (batch, longest)."""
        wanted = paddle.to_tensor(np.clip(lengths, 1, logits.shape[1]) - 1)
        with paddle.amp.auto_cast(enable=False):
            return F.cross_entropy(logits.astype("float32"), wanted, reduction="sum")


def random_masks(is_real: np.ndarray) -> np.ndarray:
    """Of each row of `is_real`, bool (batch, target_len), some of its True ones, at least one if it
    has any; all numbers of them are equally probable, and then all sets of so many."""
    lengths = is_real.sum(axis=1)
    counts = 1 + (np.random.random_sample(len(lengths)) * lengths).astype(np.int64)
    order = np.where(is_real, np.random.random_sample(is_real.shape), np.inf)
    ranks = order.argsort(axis=1).argsort(axis=1)
    return is_real & (ranks < counts[:, np.newaxis])

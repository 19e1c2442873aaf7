"""What a model is trained to do with a batch; any other way than the usual one has its own file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import paddle
from paddle import Tensor

from transformer_mt.config.schema import Config
from transformer_mt.data.batches import Batch
from transformer_mt.data.subword import Subwords
from transformer_mt.decoding.engine import Engine
from transformer_mt.decoding.paddle_engine import PaddleEngine
from transformer_mt.model.transformer import Transformer
from transformer_mt.training.loss import LabelSmoothedCrossEntropy

if TYPE_CHECKING:
    from transformer_mt.mechanisms.mask_predict.objective import MaskPrediction


class TeacherForcing:
    """To predict each target token from the true ones before it."""

    def __init__(self, config: Config, model: Transformer, subwords: Subwords) -> None:
        self.model = model
        self.criterion = LabelSmoothedCrossEntropy(
            config.training.label_smoothing, subwords.target.pad
        )

    def engine(self, subwords: Subwords) -> Engine:
        """The engine that searches with the model as it is now."""
        return PaddleEngine([self.model], subwords)

    def decoded_lengths(self, source_lengths: np.ndarray, target_lengths: np.ndarray) -> np.ndarray:
        """How long the targets are that the decoder reads, by which batches are made; all int64
        (sentences,), in subwords without eos."""
        return target_lengths

    def losses(self, batch: Batch, step: int | None = None) -> tuple[Tensor, Tensor]:
        """The loss to train on, and the plain negative log-likelihood to report; both summed over
        the real target tokens of a batch, in nats, float32 scalars.

        `step` is the number of the update, from 1; None: the dev set is being measured.
        """
        source = paddle.to_tensor(batch.source)
        target = paddle.to_tensor(batch.target_input)
        positions, wanted = self.real_positions(batch)
        logits = self.model.logits(target, self.model.encode(source), source, positions)
        return self.criterion(logits, wanted)

    def real_positions(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Where the target is not padding, and the token that is wanted there, int64 (count,) each.

        Only these go on to the vocabulary, the widest and most costly part.
        """
        targets = batch.target_output.reshape(-1)
        real = np.flatnonzero(targets != self.criterion.pad_id)
        return paddle.to_tensor(real), paddle.to_tensor(targets[real])


def make_objective(
    config: Config, model: Transformer, subwords: Subwords
) -> TeacherForcing | MaskPrediction:
    """The objective that the config asks for; it lets no two of them be asked for."""
    if config.scheduled_sampling.decay is not None:
        from transformer_mt.mechanisms.scheduled_sampling.objective import ScheduledSampling

        return ScheduledSampling(config, model, subwords)
    if config.guided_attention.by is not None:
        from transformer_mt.mechanisms.guided_attention.objective import GuidedAttention

        return GuidedAttention(config, model, subwords)
    if config.model.non_autoregressive is not None:
        from transformer_mt.mechanisms.mask_predict.objective import MaskPrediction

        return MaskPrediction(config, model, subwords)
    return TeacherForcing(config, model, subwords)

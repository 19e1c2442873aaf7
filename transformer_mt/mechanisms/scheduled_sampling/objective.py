"""Training on the model's own predictions: scheduled sampling for Transformers.

Bengio et al. 2015 (arXiv 1506.03099) replace some true words before the one to predict by what the
model would have said, more and more of them. Mihaylova and Martins 2019 (arXiv 1906.07651) do that
for Transformers in two passes of the decoder, Duckworth et al. 2019 (arXiv 1906.04331) in more.
"""

from __future__ import annotations

import contextlib
import math

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor

from transformer_mt.config.schema import Config
from transformer_mt.data.batches import Batch
from transformer_mt.data.subword import Subwords
from transformer_mt.mechanisms.scheduled_sampling.config import ScheduledSamplingConfig
from transformer_mt.model.transformer import Transformer
from transformer_mt.training.objective import TeacherForcing


def true_share(step: int, config: ScheduledSamplingConfig) -> float:
    """The share of true words at update `step`, from 1 (Bengio et al. 2015, section 2.4).

    With i, the updates done since `start`: linear max(minimum, k - slope i), exponential k^i,
    inverse_sigmoid k / (k + exp(i / k)), neither of them below the minimum either.
    """
    done = step - 1 - config.start
    if done < 0:
        return 1.0
    k = config.k
    if config.decay == "linear":
        share = k - config.slope * done
    elif config.decay == "exponential":
        share = k**done
    else:
        share = k / (k + math.exp(min(done / k, 700.0)))  # exp(710) is beyond a float
    return min(1.0, max(config.minimum, share))


class ScheduledSampling(TeacherForcing):
    """To predict each target token from a mixture of true tokens and predicted ones.

    The first pass reads true tokens, and predicts what would come in the place of some of them; the
    next reads the mixture (Mihaylova and Martins 2019, section 3). With more passes, each predicts
    again from the mixture before. Which places are chosen, and what a draw from a distribution
    depends on, is the same in all passes; so with as many as the target has tokens, and without
    dropout, the mixture is that of predicting one token after another (Duckworth et al. 2019,
    section 3).

    The last pass is what is trained on, with the embeddings that it reads; gradients flow into the
    earlier ones with `backpropagate` only. The dev set's loss is that of `TeacherForcing`.
    """

    def __init__(self, config: Config, model: Transformer, subwords: Subwords) -> None:
        super().__init__(config, model, subwords)
        self.settings = config.scheduled_sampling

    def losses(self, batch: Batch, step: int | None = None) -> tuple[Tensor, Tensor]:
        """As `TeacherForcing.losses`."""
        if step is None:
            return super().losses(batch)
        places = self._chosen_places(batch, true_share(step, self.settings))
        if not len(places):
            return super().losses(batch, step)
        source = paddle.to_tensor(batch.source)
        memory = self.model.encode(source)
        target = self._mixture(batch, memory, source, places)
        positions, wanted = self.real_positions(batch)
        return self.criterion(self.model.logits(target, memory, source, positions), wanted)

    def _chosen_places(self, batch: Batch, share: float) -> np.ndarray:
        """Which positions of batch * target_len are to be predicted: int64 (count,). The first
        token of a row, bos, is always true; there is nothing that it could be predicted from."""
        candidates = batch.target_input != self.criterion.pad_id
        candidates[:, 0] = False
        drawn = paddle.rand(batch.target_input.shape).numpy() >= share
        return np.flatnonzero(candidates & drawn)

    def _mixture(self, batch: Batch, memory: Tensor, source: Tensor, places: np.ndarray) -> Tensor:
        """What the last pass reads: int64 (batch, target_len), or embeddings of them."""
        true = paddle.to_tensor(batch.target_input)
        before = paddle.to_tensor(places - 1)  # a place is predicted at the position before it
        index = paddle.to_tensor(places)
        draws = paddle.rand([len(places), 1])
        mixture = true
        for _ in range(self.settings.passes - 1):
            # The embeddings of the mixture are trained in any case.
            with contextlib.nullcontext() if self.settings.backpropagate else paddle.no_grad():
                logits = self.model.logits(mixture, memory, source, before).astype("float32")
            if self.settings.mixing == "top_k":
                mixture = self._with_means(true, index, logits)
            else:
                ids = logits.argmax(-1) if self.settings.mixing == "argmax" else draw(logits, draws)
                mixture = paddle.scatter(true.flatten(), index, ids).reshape(true.shape)
        return mixture

    def _with_means(self, true: Tensor, index: Tensor, logits: Tensor) -> Tensor:
        """Embeddings of `true` (batch, target_len, d_model), in which those at `index` are means of
        the most probable ones."""
        embedding = self.model.target_embedding
        top_k = min(self.settings.top_k, logits.shape[-1])
        scores, ids = logits.topk(top_k, axis=-1)  # (count, top_k)
        # (count, 1, top_k) times (count, top_k, d_model)
        means = paddle.matmul(F.softmax(scores, axis=-1).unsqueeze(1), embedding(ids)).squeeze(1)
        embedded = embedding(true)  # (batch, target_len, d_model)
        flat = embedded.reshape([-1, embedded.shape[-1]])
        return paddle.scatter(flat, index, means.astype(flat.dtype)).reshape(embedded.shape)


def draw(logits: Tensor, draws: Tensor) -> Tensor:
    """An id from the distribution of each row of `logits` (count, vocabulary), that in which the
    number of `draws` (count, 1), from 0 to 1, falls: int64 (count,)."""
    cumulated = F.softmax(logits, axis=-1).cumsum(-1)
    # The last is 1 but for rounding.
    return (cumulated < draws * cumulated[:, -1:]).astype("int64").sum(-1)

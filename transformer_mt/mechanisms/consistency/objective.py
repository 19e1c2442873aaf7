"""Consistency training: two passes over each batch, with different noise."""

import numpy as np

from transformer_mt.config.schema import Config
from transformer_mt.data.batches import Batch
from transformer_mt.data.subword import Subwords
from transformer_mt.mechanisms.consistency.loss import ConsistencyLoss
from transformer_mt.model.transformer import Transformer
from transformer_mt.training.objective import Dropped, Term


class Consistency(Term):
    """Doubles the rows of a batch, so that both passes are one, and compares their predictions.

    With sim_cut and cutoff, tokens of the second half are cut: their embeddings are zero, on both
    sides (token cutoff; Shen et al. 2020, section 3.1).
    """

    def __init__(self, config: Config, model: Transformer, subwords: Subwords) -> None:
        self.settings = config.consistency
        self.criterion = ConsistencyLoss(
            config.training.label_smoothing,
            subwords.target.pad,
            self.settings.method,
            self.settings.weight,
        )

    def batch(self, batch: Batch, step: int) -> Batch:
        """As `Term.batch`."""
        return batch.repeated(2)

    def dropped(self, batch: Batch) -> Dropped:
        """As `Term.dropped`."""
        if self.settings.method == "r_drop":
            return None, None
        return self._cut(batch.source), self._cut(batch.target_input)

    def _cut(self, ids: np.ndarray) -> np.ndarray:
        drawn = np.random.random_sample(ids.shape) < self.settings.cut
        drawn[: len(ids) // 2] = False
        return drawn

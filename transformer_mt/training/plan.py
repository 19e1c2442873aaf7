"""The plan of a run: which sentences each of its updates reads, and how many updates there are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from transformer_mt.config.schema import TrainingConfig

if TYPE_CHECKING:
    import numpy as np


def batch_plan(config: TrainingConfig) -> tuple[int, int]:
    """Returns how many batches an update adds up, and the padded tokens of each."""
    count = -(-config.batch_tokens // config.device_tokens)
    return count, config.batch_tokens // count


@dataclass(frozen=True)
class Plan:
    """The updates of a run. They follow from the lengths of the sentences, the seed and the epoch.

    Attributes:
        source_lengths, decoded_lengths: per sentence of the training text, in subwords without eos;
            the latter is how many tokens the decoder reads.
        batches: as `batch_plan` gave it when the run began.
    """

    training: TrainingConfig
    source_lengths: np.ndarray
    decoded_lengths: np.ndarray
    batches: tuple[int, int]

    def epoch_updates(self, epoch: int) -> list[list[np.ndarray]]:
        """Returns the updates of an epoch, from 0: of each the sentence numbers of its batches."""
        # `info` needs `batch_plan` alone, and does without NumPy.
        import numpy as np

        from transformer_mt.data.batches import epoch_batches, group_batches

        count, tokens = self.batches
        seed = self.training.seed
        batches = epoch_batches(self.source_lengths, self.decoded_lengths, tokens, seed, epoch)
        plan = group_batches(batches, count)
        # A run that is resumed with fewer device_tokens keeps its updates, in smaller batches.
        pieces = -(-tokens // self.training.device_tokens)
        if pieces > 1:
            plan = [
                [piece for b in update for piece in np.array_split(b, pieces) if len(piece)]
                for update in plan
            ]
        return plan

    @cached_property
    def updates_per_epoch(self) -> int:
        """Updates of an epoch. Every epoch has as many: the sorted lengths, from which batches are
        cut, are the same."""
        return len(self.epoch_updates(0))

    @cached_property
    def total_steps(self) -> int:
        """Updates of the whole run."""
        ends = [self.training.max_steps] if self.training.max_steps else []
        if self.training.max_epochs:
            ends.append(self.training.max_epochs * self.updates_per_epoch)
        return min(ends)

"""The plan of a run: which sentences each of its updates reads, and how many updates there are."""

import sys
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from transformer_mt.config.schema import TrainingConfig
from transformer_mt.data.batches import WeightedText, epoch_batches, group_batches
from transformer_mt.utils.errors import UserError


@dataclass(frozen=True)
class Plan:
    """The updates of a run, which the lengths of the sentences, the seed and the epoch determine.

    Attributes:
        source_lengths: the source length of each training sentence, in subwords without eos.
        decoded_lengths: how many tokens the decoder reads of each, without eos.
        batches: `TrainingConfig.batch_plan` when the run began, and as a third number
            `length_multiple` if it is more than 1.
        texts: as in `epoch_batches`.
    """

    training: TrainingConfig
    source_lengths: np.ndarray
    decoded_lengths: np.ndarray
    batches: tuple[int, ...]
    texts: tuple[WeightedText, ...] = ()

    def epoch_updates(self, epoch: int) -> list[list[np.ndarray]]:
        """Returns the updates of an epoch; each is a list of batches of sentence numbers.

        Args:
            epoch: the number of the epoch, from 0.

        Raises:
            UserError: the corpus is too small for a single update.
        """
        count, tokens = self.batches[:2]
        seed, lengths = self.training.seed, (self.source_lengths, self.decoded_lengths)
        batches = epoch_batches(*lengths, tokens, seed, epoch, self.length_multiple, self.texts)
        plan = group_batches(batches, count)
        if not plan:
            raise UserError("there is no batch to train on")
        # A run that is resumed with fewer device_tokens has the same updates, in smaller batches.
        pieces = -(-tokens // self.training.device_tokens)
        if pieces > 1:
            plan = [
                [piece for b in update for piece in np.array_split(b, pieces) if len(piece)]
                for update in plan
            ]
        return plan

    @property
    def length_multiple(self) -> int:
        """The number that the padded lengths of the batches are multiples of."""
        return self.batches[2] if len(self.batches) > 2 else 1

    @cached_property
    def updates_per_epoch(self) -> int:
        """The number of updates of the first epoch. It is the same for every epoch, because batches
        are cut from the sorted lengths. Only if epochs draw sentences, whose lengths differ, it can
        differ a little."""
        return len(self.epoch_updates(0))

    @cached_property
    def total_steps(self) -> int:
        """The number of updates of the whole run."""
        most = self.training.max_steps or sys.maxsize
        epochs = self.training.max_epochs
        if not epochs:
            return most
        if not any(text.drawn for text in self.texts):
            return min(most, epochs * self.updates_per_epoch)
        total = 0
        for epoch in range(epochs):
            total += len(self.epoch_updates(epoch))
            if total >= most:
                return most
        return total

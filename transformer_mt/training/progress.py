"""The plan of a run, and its progress: which updates it consists of, and how many are done."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter

import numpy as np
import paddle

from transformer_mt.config.schema import Config, TrainingConfig
from transformer_mt.data.batches import Update, WeightedText, epoch_batches, group_batches
from transformer_mt.data.prepare import PreparedData
from transformer_mt.training.objective import decoded_lengths
from transformer_mt.training.update import Outcome
from transformer_mt.utils.errors import UserError

# Matrix products of half precision use tensor cores best if sizes are multiples of 8.
GPU_LENGTH_MULTIPLE = 8
# Training counts as diverging if it gets worse at each of this many validations, and the training
# loss rises by this much in all, in nats per token.
DIVERGING_VALIDATIONS = 3
DIVERGING_RISE = 0.1


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

    @classmethod
    def of(cls, config: Config, data: PreparedData, batches: tuple[int, ...] | None = None) -> Plan:
        """Returns the plan of a run.

        Args:
            batches: those of a run that is resumed; None for a new one.
        """
        training = config.training
        source, target = data.train.source.lengths, data.train.target.lengths
        if batches is None:
            default = 1 if paddle.get_device() == "cpu" else GPU_LENGTH_MULTIPLE
            multiple = training.length_multiple or default
            batches = (*training.batch_plan, multiple) if multiple > 1 else training.batch_plan
        return cls(training, source, decoded_lengths(config, source, target), batches, data.texts)

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


@dataclass
class Meter:
    """Sums over the updates since the last line of the log; gradient_norm is the maximum.

    Attributes:
        tokens: target tokens without padding.
        positions, padding: all positions of this process's padded batches on both sides, and those
            of them that are padding.
    """

    loss: float = 0.0
    nll: float = 0.0
    gradient_norm: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    positions: int = 0
    padding: int = 0

    def add(self, outcome: Outcome, update: Update) -> None:
        self.loss += outcome.loss
        self.nll += outcome.nll
        self.gradient_norm = max(self.gradient_norm, outcome.gradient_norm)
        self.tokens += update.target_tokens
        self.positions += update.positions
        self.padding += update.padding

    def line(self) -> dict[str, float]:
        """Returns the figures of a line of the log; the losses are per token."""
        tokens = max(1, self.tokens)  # all updates may have been skipped
        return {
            "loss": self.loss / tokens,
            "nll": self.nll / tokens,
            "perplexity": perplexity(self.nll / tokens),
            "gradient_norm": self.gradient_norm,
            "tokens_per_second": self.tokens / max(1e-9, self.seconds),
            "padding": self.padding / max(1, self.positions),
        }


def perplexity(nll: float) -> float:
    """Returns exp of the plain negative log-likelihood per token (not of the smoothed loss)."""
    return math.exp(min(nll, 700.0))  # exp(710) is beyond a float


@dataclass
class Progress:
    """How far a run has come: everything that the training loop counts.

    Attributes:
        plan: `Plan.batches` of the run.
        step: updates done, including those that were skipped.
        epoch: the epoch that is being read, from 0.
        update: updates of it that are done.
        validated: the step of the last validation; -1 if the model is to be validated before the
            first step, because it is fine-tuned.
        skipped, skipped_in_a_row: updates that were skipped because they were not finite: all of
            them, and those since the last one that was not skipped.
        best: (ranks, step) of the best validations, best first. Ranks are compared one after
            another, and higher ones are better (see `DevScores.ranks`).
        without_new_best: validations since the best one.
        meter: sums for the next line of the log.
        losses: (training loss, dev loss) of the last validations after the warm-up, in nats per
            token. The training loss is the mean since the validation before.
        loss_since, tokens_since: the training loss since the last validation, summed over target
            tokens, and the number of these tokens.
        seconds: how long the run has trained, with validations and saving.
    """

    plan: tuple[int, ...]
    step: int = 0
    epoch: int = 0
    update: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    validated: int = 0
    best: list[tuple[list[float], int]] = field(default_factory=list)
    without_new_best: int = 0
    meter: Meter = field(default_factory=Meter)
    losses: list[tuple[float, float]] = field(default_factory=list)
    loss_since: float = 0.0
    tokens_since: int = 0
    seconds: float = 0.0

    def add(self, outcome: Outcome, update: Update) -> None:
        """Counts the loss of an update."""
        self.meter.add(outcome, update)
        self.loss_since += outcome.loss
        self.tokens_since += update.target_tokens

    def add_validation(self, ranks: list[float], dev_loss: float, config: TrainingConfig) -> bool:
        """Counts a validation of this step; returns whether it is a new best.

        Args:
            ranks: as in `best`.
        """
        self.validated = self.step
        if self.tokens_since and self.step > config.warmup_steps:
            self.losses.append((self.loss_since / self.tokens_since, dev_loss))
            del self.losses[: -DIVERGING_VALIDATIONS - 1]
        self.loss_since, self.tokens_since = 0.0, 0
        is_best = not self.best or ranks > self.best[0][0]
        self.without_new_best = 0 if is_best else self.without_new_best + 1
        # Sorting keeps the order of equal ones, so the earlier one ranks first.
        best = sorted([*self.best, (ranks, self.step)], key=itemgetter(0), reverse=True)
        self.best = best[: config.keep_best]
        return is_best

    @property
    def best_steps(self) -> list[int]:
        """The steps of the best validations, the best first."""
        return [step for _, step in self.best]

    @property
    def diverges(self) -> bool:
        """Whether the training loss and the dev loss have risen at each of the last validations.

        (If a model overfits, the dev loss rises while the training loss falls.)
        """
        if len(self.losses) <= DIVERGING_VALIDATIONS:
            return False
        rises = np.diff(self.losses, axis=0)  # (validations, 2)
        rise = self.losses[-1][0] - self.losses[0][0]
        return bool((rises > 0).all()) and rise > DIVERGING_RISE

    def is_finished(self, config: TrainingConfig, total_steps: int) -> bool:
        """Returns whether no update is left to do."""
        return self.step >= total_steps or (
            config.patience is not None and self.without_new_best >= config.patience
        )

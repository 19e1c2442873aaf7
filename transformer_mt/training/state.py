"""The state of training, which is saved with every checkpoint as state.json."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from transformer_mt.config.schema import TrainingConfig
from transformer_mt.utils.errors import UserError
from transformer_mt.utils.folders import verify

if TYPE_CHECKING:
    from transformer_mt.data.batches import Update
    from transformer_mt.training.update import Outcome

STATE = "state.json"
# Training counts as diverging if it gets worse at each of this many validations, and the training
# loss rises by this much in all, in nats per token.
DIVERGING_VALIDATIONS = 3
DIVERGING_RISE = 0.1


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
        validated: the step of the last validation.
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


@dataclass
class State:
    """The state of training in a checkpoint.

    Attributes:
        progress: how far the run has come.
        scaler: `LossScale.state`; empty unless training is in float16.
        corpus: `PreparedData.key` of the text that is trained on.
        stopped: whether the checkpoint was saved because training was stopped. A run that is not
            stopped does not have it, so the next checkpoint replaces it.
        average_of: the names of the checkpoints that an average was made of. The other values are
            then the state of the newest of them, or of the best.
    """

    progress: Progress
    scaler: dict[str, Any] = field(default_factory=dict)
    corpus: str = ""
    stopped: bool = False
    average_of: list[str] = field(default_factory=list)

    def save(self, checkpoint: Path) -> None:
        """Writes state.json into the folder of a checkpoint."""
        values = asdict(self)
        if not self.average_of:
            del values["average_of"]
        (checkpoint / STATE).write_text(json.dumps(values))

    @classmethod
    def restore(cls, checkpoint: Path) -> State:
        """Reads what `save` wrote, in this version of the program or an earlier one.

        Checkpoints in `best` that no longer exist are left out.

        Raises:
            UserError: the file is damaged, or holds something else.
        """
        path = checkpoint / STATE
        if problem := verify(checkpoint, STATE):
            raise UserError(f"{path}: damaged ({problem})")
        try:
            values = json.loads(path.read_text())
            progress = values["progress"]
            progress["plan"] = tuple(progress["plan"])
            progress["best"] = [
                # Earlier versions kept the value of training.best_metric alone.
                (ranks if isinstance(ranks, list) else [float(ranks)], step)
                for ranks, step in progress["best"]
                if (checkpoint.parent / f"step_{step}").is_dir()
            ]
            progress["meter"] = Meter(**progress["meter"])
            progress["losses"] = [tuple(pair) for pair in progress.get("losses", ())]
            values["progress"] = Progress(**progress)
            return cls(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{path}: it is no state of training ({type(error).__name__}: {error}). "
                "Delete this checkpoint to resume from the one before it"
            ) from None

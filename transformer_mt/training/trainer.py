"""The training loop."""

from __future__ import annotations

import itertools
import signal
import time
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from transformer_mt.config.schema import Config
from transformer_mt.data.batches import Update, epoch_batches, read_ahead, read_update, updates
from transformer_mt.data.prepare import PreparedData
from transformer_mt.model_directory import ModelDirectory, checkpoint_step
from transformer_mt.runtime import signals
from transformer_mt.runtime.console import duration, on_terminal, progress, quoted, say, warn
from transformer_mt.runtime.errors import Interrupted, UserError
from transformer_mt.training import checkpoint
from transformer_mt.training.plan import batch_plan
from transformer_mt.training.processes import Processes
from transformer_mt.training.update import Outcome, Updater
from transformer_mt.training.validation import DevScores, perplexity, validate
from transformer_mt.weights import take_weights


@dataclass
class Meter:
    """Sums since the last line of the log."""

    loss: float = 0.0
    nll: float = 0.0
    gradient_norm: float = 0.0  # the largest
    tokens: int = 0
    seconds: float = 0.0

    def add(self, outcome: Outcome, tokens: int) -> None:
        self.loss += outcome.loss
        self.nll += outcome.nll
        self.gradient_norm = max(self.gradient_norm, outcome.gradient_norm)
        self.tokens += tokens

    def line(self) -> dict[str, float]:
        tokens = max(1, self.tokens)  # all updates may have been skipped
        return {
            "loss": self.loss / tokens,
            "nll": self.nll / tokens,
            "perplexity": perplexity(self.nll / tokens),
            "gradient_norm": self.gradient_norm,
            "tokens_per_second": self.tokens / max(1e-9, self.seconds),
        }


# Validations over which training must get worse to count as diverging, and by how much the training
# loss must rise in all, in nats a token.
DIVERGING_VALIDATIONS = 3
DIVERGING_RISE = 0.1


@dataclass
class Progress:
    """Where a run is: all that the loop counts, saved with every checkpoint."""

    plan: tuple[int, int]  # batches an update, and padded tokens of each, as the run began
    step: int = 0  # updates done, those included that were skipped
    epoch: int = 0  # the one being read, from 0
    update: int = 0  # updates of it done
    skipped: int = 0
    skipped_in_a_row: int = 0
    validated: int = 0  # the step of the last validation
    best: list[tuple[float, int]] = field(default_factory=list)  # merit and step, best first
    without_new_best: int = 0  # validations since the best one
    meter: Meter = field(default_factory=Meter)
    # Of the last validations after the warm-up: the mean training loss since the one before, and
    # the dev loss, in nats a token.
    losses: list[tuple[float, float]] = field(default_factory=list)
    loss_since: float = 0.0  # sum of the training loss since the last validation
    tokens_since: int = 0  # of the target, that it is summed over

    def add(self, outcome: Outcome, tokens: int) -> None:
        """Counts the loss of an update."""
        self.meter.add(outcome, tokens)
        self.loss_since += outcome.loss
        self.tokens_since += tokens

    def add_validation(self, dev_loss: float, in_warm_up: bool) -> None:
        if self.tokens_since and not in_warm_up:
            self.losses.append((self.loss_since / self.tokens_since, dev_loss))
            del self.losses[: -DIVERGING_VALIDATIONS - 1]
        self.loss_since, self.tokens_since = 0.0, 0

    @classmethod
    def restored(cls, values: dict[str, Any], saved: set[int]) -> Progress:
        """The progress that a checkpoint was saved with; `saved` are the steps of the checkpoints
        that there are."""
        return cls(
            **{
                **values,
                "plan": tuple(values["plan"]),
                "meter": Meter(**values["meter"]),
                "losses": [tuple(pair) for pair in values.get("losses", ())],
                # One may have gone since, if newer checkpoints were damaged.
                "best": [(merit, step) for merit, step in values["best"] if step in saved],
            }
        )

    @property
    def diverges(self) -> bool:
        """Whether the training loss and the dev loss have risen at each of the last validations. (A
        model that overfits has a dev loss that rises, and a training loss that falls.)"""
        rises = [
            after[0] > before[0] and after[1] > before[1]
            for before, after in itertools.pairwise(self.losses)
        ]
        return (
            len(rises) == DIVERGING_VALIDATIONS
            and all(rises)
            and self.losses[-1][0] - self.losses[0][0] > DIVERGING_RISE
        )


class Trainer:
    """Trains one model on prepared data, as one of `processes`."""

    def __init__(self, config: Config, data: PreparedData, processes: Processes) -> None:
        self.config = config
        self.data = data
        self.processes = processes
        self.progress = Progress(batch_plan(config.training))
        self.updater = Updater(config, data.subwords, processes)
        self.updater.total_steps = self.total_steps
        self.model = self.updater.model
        # The checkpoint that was saved because training was stopped, and from which it goes on. A
        # run that was never stopped does not have it, so it goes when the next is saved.
        self._stopped_at: Path | None = None

    # ----------------------------------------------------------------------------- the plan

    def epoch_updates(self, epoch: int) -> list[list[np.ndarray]]:
        """The updates of an epoch, each the sentence numbers of its batches."""
        count, tokens = self.progress.plan
        corpus = self.data.train
        lengths = corpus.source.lengths, corpus.target.lengths
        decoded = self.updater.objective.decoded_lengths(*lengths)
        seed = self.config.training.seed
        batches = epoch_batches(corpus.source.lengths, decoded, tokens, seed, epoch)
        plan = updates(batches, count)
        # A run that goes on with fewer device_tokens keeps its updates, and takes them in pieces.
        pieces = -(-tokens // self.config.training.device_tokens)
        if pieces > 1:
            plan = [
                [piece for b in update for piece in np.array_split(b, pieces) if len(piece)]
                for update in plan
            ]
        return plan

    @cached_property
    def total_steps(self) -> int:
        """The updates of the whole run. Every epoch has as many: the sorted lengths, which the cuts
        follow from, are the same."""
        training = self.config.training
        ends = [training.max_steps] if training.max_steps else []
        if training.max_epochs:
            ends.append(training.max_epochs * len(self.epoch_updates(0)))
        return min(ends)

    @property
    def is_finished(self) -> bool:
        """Whether there is no update left to do."""
        patience = self.config.training.patience
        return self.progress.step >= self.total_steps or (
            patience is not None and self.progress.without_new_best >= patience
        )

    @property
    def was_stopped(self) -> bool:
        """Whether it goes on from where it was stopped, and something may be due there."""
        return self._stopped_at is not None

    def read(self, epoch: int, number: int, sentences: list[np.ndarray]) -> Update:
        """This process's share of an update of an epoch."""
        return read_update(
            self.data.train,
            sentences,
            self.data.subwords,
            self.processes.rank,
            self.processes.world_size,
            self.config.subword.sampling,
            (self.config.training.seed, epoch, number),
            self.data.alignments,
        )

    # ------------------------------------------------------------------------------ the run

    def start(self, directory: ModelDirectory, resumed: Path | None = None) -> None:
        """Begins a run: with the checkpoint to go on from, with the weights of another model, or
        with random ones."""
        if resumed is not None:
            self._restore(directory, resumed)
        elif self.config.training.init_from is not None:
            self._take_weights(ModelDirectory(self.config.training.init_from))

    def run(self, directory: ModelDirectory) -> None:
        """Trains to the end, saving and validating into `directory` on the way.

        Raises:
            Interrupted: after saving a checkpoint, if a signal came.
            UserError: a checkpoint can't be written, memory ran out, or too many updates in a row
                were not finite.
        """
        total, done = self.total_steps, self.progress.step
        with (
            signals.held_back(),
            progress(total=total, initial=done, title="training", unit="steps") as bar,
        ):
            self._validate_and_save(directory)  # what was due when training was stopped
            while not self.is_finished:
                self._run_epoch(directory, bar)
        if self.progress.step < self.total_steps and self.processes.is_first:
            say(f"stopped early: no new best in {self.progress.without_new_best} validations")

    def _run_epoch(self, directory: ModelDirectory, bar) -> None:
        """Trains on what is left of the epoch, or until the run is finished."""
        now = self.progress
        plan = list(enumerate(self.epoch_updates(now.epoch)))
        if not plan:
            raise UserError("there is no batch to train on")
        ahead = read_ahead(lambda item: self.read(now.epoch, *item), plan[now.update :])
        with closing(ahead):
            started = time.perf_counter()
            for (_, sentences), update in ahead:
                outcome = self.updater.update(update, now.step + 1)
                if outcome.stopping:
                    self._stop(directory)
                now.step += 1
                now.update += 1
                if outcome.is_finite:
                    now.skipped_in_a_row = 0
                    now.add(outcome, update.target_tokens)
                else:
                    self._skipped(directory, outcome, sentences)
                now.meter.seconds += time.perf_counter() - started
                bar.update()
                if now.step % self.config.training.log_every == 0 or now.step == self.total_steps:
                    self._log(directory, bar)
                    now.meter = Meter()
                self._validate_and_save(directory)
                if self.is_finished:
                    return
                started = time.perf_counter()
        now.epoch += 1
        now.update = 0

    def _stop(self, directory: ModelDirectory) -> None:
        """Saves and ends the run, for a process was asked to stop."""
        if self.progress.step:
            self._save(directory, stopped=True)
        self.processes.wait()  # the launcher ends the first if others are gone before it has saved
        if self.processes.is_first:
            say(
                f"stopped at step {self.progress.step}, which is saved. The same command goes on "
                f"from there; to translate with it: bash scripts/translate.sh "
                f"{quoted(directory.path)} FILE"
                if self.progress.step
                else "stopped before the first update"
            )
        # If it was another process that was asked, it was by the launcher.
        raise Interrupted(signals.pending() or signal.SIGTERM)

    def _skipped(
        self, directory: ModelDirectory, outcome: Outcome, sentences: list[np.ndarray]
    ) -> None:
        """Counts and names an update whose loss or gradient was not finite."""
        now = self.progress
        now.skipped += 1
        now.skipped_in_a_row += 1
        what = "loss" if not np.isfinite(outcome.loss) else "gradient"
        pairs = [int(sentence) for batch in sentences for sentence in batch]
        if self.processes.is_first:
            example = self.data.subwords.source.decode(self.data.train.source[pairs[0]])
            warn(
                f"step {now.step}: the {what} is not finite, so the update is skipped "
                f"({now.skipped_in_a_row} in a row, {now.skipped} in all). It is update "
                f"{now.update} of epoch {now.epoch + 1}, of {len(pairs)} pairs such as {example!r}"
            )
            directory.log(
                kind="skipped", step=now.step, epoch=now.epoch, update=now.update, what=what,
                pairs=pairs,
            )  # fmt: skip
        if now.skipped_in_a_row >= self.config.training.max_skipped:
            raise UserError(
                f"{now.skipped_in_a_row} updates in a row were not finite: training has diverged. "
                "Lower training.learning_rate, raise training.warmup_steps, or set "
                "training.clip_norm, and train anew with --restart, or go on from the last "
                f"checkpoint with training.init_from={quoted(directory.path)} model_dir=FOLDER"
            )

    def _log(self, directory: ModelDirectory, bar) -> None:
        now = self.progress
        if not self.processes.is_first:
            return
        line = now.meter.line()
        rate = self.updater.rate(now.step)
        directory.log(kind="train", step=now.step, epoch=now.epoch, learning_rate=rate, **line)
        numbers = (
            f"epoch {now.epoch + 1}  loss {line['loss']:.3f}  "
            f"ppl {line['perplexity']:.2f}  lr {rate:.2e}  "
            f"{line['tokens_per_second']:,.0f} tokens/s"
        )
        if on_terminal():
            bar.set_postfix_str(numbers)
            return
        total, every = self.total_steps, self.config.training.log_every
        left = (total - now.step) * now.meter.seconds / min(now.step, every)
        say(f"step {now.step:,}/{total:,}  {numbers}  {duration(left)} left")

    # --------------------------------------------------------------- validation, checkpoints

    def _validate_and_save(self, directory: ModelDirectory) -> None:
        """Does what this step calls for."""
        now, training = self.progress, self.config.training
        at_end = now.step >= self.total_steps
        if (
            self.data.dev is not None
            and now.validated < now.step
            and (now.step % training.validate_every == 0 or at_end)
        ):
            try:
                scores = validate(self.config, self.data, self.updater)
            except Exception:
                self._save_before_failing(directory)
                raise
            if scores is None:
                self._stop(directory)
            self._judge(directory, scores)
        if now.step and (now.step % training.save_every == 0 or self.is_finished):
            self._save(directory)

    def _save_before_failing(self, directory: ModelDirectory) -> None:
        """Saves a checkpoint of a step whose validation has failed, with which the run goes on."""
        try:
            path = self._save(directory, stopped=True)
            if self.processes.is_first:
                say(f"the validation failed; {path} is saved, and the same command goes on from it")
        except UserError as error:
            warn(str(error))
        # The launcher ends the first soon after another is gone. One that is gone waits for nobody.
        with suppress(Exception):
            self.processes.wait()

    def _judge(self, directory: ModelDirectory, scores: DevScores) -> None:
        """Logs the scores of a validation, and keeps the checkpoint if it is one of the best."""
        now, training = self.progress, self.config.training
        now.validated = now.step
        now.add_validation(scores.loss, in_warm_up=now.step <= training.warmup_steps)
        merit = scores.merit(training.best_metric)
        is_best = not now.best or merit > now.best[0][0]
        now.without_new_best = 0 if is_best else now.without_new_best + 1
        # Of equal ones, the earlier is the better.
        best = sorted([*now.best, (merit, now.step)], key=lambda item: (-item[0], item[1]))
        now.best = best[: training.keep_best]
        if self.processes.is_first:
            say(
                f"step {now.step:,}  dev loss {scores.loss:.3f}  ppl {scores.perplexity:.2f}  "
                f"BLEU {scores.bleu:.2f}  chrF {scores.chrf:.2f}"
                f"{'  (best so far)' if is_best else ''}"
            )
            directory.log(kind="dev", step=now.step, **asdict(scores))
            if now.diverges:
                first, last = now.losses[0], now.losses[-1]
                warn(
                    f"training diverges: over the last {DIVERGING_VALIDATIONS} validations the "
                    f"training loss has risen from {first[0]:.3f} to {last[0]:.3f}, and the dev "
                    f"loss from {first[1]:.3f} to {last[1]:.3f}. If it goes on so, lower "
                    "training.learning_rate or raise training.warmup_steps, and train anew with "
                    "--restart; or go on from the best checkpoint with a lower rate and "
                    f"training.init_from={quoted(directory.path)} model_dir=FOLDER"
                )
        if (merit, now.step) in now.best:
            path = self._save(directory)
            if is_best and self.processes.is_first:
                directory.set_best(path)

    def _save(self, directory: ModelDirectory, stopped: bool = False) -> Path:
        """Saves a checkpoint, if there is none of this step yet."""
        path = directory.checkpoints / f"step_{self.progress.step}"
        if not self.processes.is_first or (path.is_dir() and path != self._stopped_at):
            return path
        state = {
            "progress": asdict(self.progress),
            "scaler": self.updater.scaler.state_dict(),
            "corpus": self.data.key,
            "stopped": stopped,
        }
        checkpoint.save(directory, self.progress.step, self.model, self.updater.optimizer, state)
        if self._stopped_at not in (None, path):
            checkpoint.remove(self._stopped_at)
        self._stopped_at = path if stopped else None
        if not stopped:
            best = [step for _, step in self.progress.best]
            checkpoint.remove_old(directory, self.config.training.keep_last, best)
        return path

    def _restore(self, directory: ModelDirectory, path: Path) -> None:
        state = checkpoint.restore(path, self.model, self.updater.optimizer)
        saved = {checkpoint_step(found) for found in directory.saved_checkpoints()}
        try:
            self.updater.scaler.load_state_dict(state["scaler"])
            self.progress = Progress.restored(state["progress"], saved)
            self._stopped_at = path if state["stopped"] else None
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{path}: its state of training is not one ({type(error).__name__}: {error}). "
                "Delete this checkpoint to go on from the one before it"
            ) from None
        if self.processes.is_first:
            best = [directory.checkpoints / f"step_{step}" for _, step in self.progress.best]
            directory.set_best(best[0] if best else None)

    def _take_weights(self, other: ModelDirectory) -> None:
        """Begins with the weights of another model, as far as they fit."""
        path = other.checkpoint()
        left = take_weights(path, self.model)
        if not self.processes.connected:  # connected ones do what another process has announced
            count = len(list(self.model.named_parameters()))
            say(f"training.init_from: {count - len(left)} of {count} weights are those of {path}")
            if left:
                say(f"  begun at random: {', '.join(left)}")


def seconds_per_step(trainer: Trainer, seconds: float = 10.0) -> float:
    """Measures some steps of a trainer that is thrown away afterwards. They are taken for those of
    the middle of the run, for what is trained on may change in its course.

    Raises:
        UserError: the corpus makes no update at all.
    """
    plan = trainer.epoch_updates(0)
    if not plan:
        raise UserError("there is no batch to train on")
    started = first_done = time.perf_counter()
    for step, (number, sentences) in enumerate(itertools.cycle(enumerate(plan))):
        trainer.updater.update(trainer.read(0, number, sentences), trainer.total_steps // 2 + 1)
        now = time.perf_counter()
        if step == 0:
            first_done = now  # the first step allocates, and tells nothing
        elif now - started > seconds:
            return (now - first_done) / step
    raise AssertionError

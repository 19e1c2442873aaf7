"""The training loop."""

import itertools
import signal
import time
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from transformer_mt.config.schema import Config
from transformer_mt.data.batches import Update, read_ahead, read_update
from transformer_mt.data.prepare import PreparedData
from transformer_mt.data.vocabulary import Vocabulary
from transformer_mt.model import operations
from transformer_mt.model_directory import ModelDirectory
from transformer_mt.scoring.groups import spread
from transformer_mt.training import checkpoint
from transformer_mt.training.checkpoint import State
from transformer_mt.training.event_files import EventFiles
from transformer_mt.training.folder import RunDirectory
from transformer_mt.training.parallel import ALONE, Processes
from transformer_mt.training.progress import DIVERGING_VALIDATIONS, Meter, Plan, Progress
from transformer_mt.training.update import Outcome, Updater, read
from transformer_mt.training.validate import DevScores, validate
from transformer_mt.utils import signals
from transformer_mt.utils.console import (
    TrainingBar,
    duration,
    on_terminal,
    quoted,
    say,
    say_counts,
    warn,
)
from transformer_mt.utils.errors import Interrupted, UserError
from transformer_mt.weights import NewRows, base_parameters, take_weights

# On a terminal, a line of figures stays after this number of seconds; others are replaced.
KEPT_LINE_SECONDS = 60.0
# The number of new symbols that are listed.
SHOWN_SYMBOLS = 10
# The fractional parts of the multiples of the golden ratio are spread evenly over [0, 1), however
# many of them are taken.
GOLDEN_RATIO = 0.5 * (1 + 5**0.5)


@dataclass(frozen=True)
class _Applied:
    """An update that has been applied.

    Attributes:
        place: the numbers of its step, of its epoch and of itself in the epoch, all from 1, by
            their keys in metrics.jsonl.
        sentences: the sentence numbers of its batches.
    """

    place: dict[str, int]
    sentences: list[np.ndarray]
    update: Update
    outcome: Outcome


class Trainer:
    """Trains the model of a config on prepared data, as one of `processes`.

    Args:
        plan: the plan of the run, if it is known already.
    """

    def __init__(
        self,
        config: Config,
        data: PreparedData,
        processes: Processes = ALONE,
        plan: Plan | None = None,
    ) -> None:
        self.config = config
        self.data = data
        self.processes = processes
        self.updater = Updater(config, data.subwords, processes)
        self.model = self.updater.model
        self.plan = plan or Plan.of(config, data)
        self.progress = Progress(self.plan.batches)
        self.directory: RunDirectory | None = None  # set by `run`
        self.started_from: Path | None = None  # a checkpoint of training.init_from, set by `start`
        self._uncounted: list[_Applied] = []  # the updates whose outcomes have not been read
        self._event_files = EventFiles({}, [])  # set by `run` in the first process
        self._started = time.monotonic()  # when training would have begun if it was never stopped
        self._last_kept = self._started  # when the last line of figures was printed that stays
        # What the training loss is called on the terminal.
        self._loss_name = "smoothed loss" if config.training.label_smoothing else "loss"
        # The checkpoint that was saved when training was stopped. An uninterrupted run would not
        # have it, so it is removed as soon as the next checkpoint is saved.
        self._stopped_at: Path | None = None

    @property
    def is_finished(self) -> bool:
        """Whether no update is left to do."""
        return self.progress.is_finished(self.config.training, self.plan.total_steps)

    def read(self, epoch: int, number: int, sentences: list[np.ndarray]) -> Update:
        """Reads this process's share of an update of an epoch."""
        return read_update(
            self.data.train,
            sentences,
            self.data.subwords,
            self.processes.rank,
            self.processes.world_size,
            self.config.subword.sampling,
            (self.config.training.seed, epoch, number),
            self.data.alignments,
            self.plan.length_multiple,
        )

    def start(self, resumed: Path | None = None) -> None:
        """Loads the checkpoint to resume from, or the weights of training.init_from, if any.

        Otherwise the weights stay random.

        Raises:
            UserError: the file is damaged, or its weights do not fit the model.
        """
        if resumed is not None:
            state = checkpoint.restore(resumed, self.updater)
            if self.updater.scale is not None:
                self.updater.scale.load(state.scaler)
            self.progress = state.progress
            if state.progress.plan != self.plan.batches:
                self.plan = replace(self.plan, batches=state.progress.plan)
            self._stopped_at = resumed if state.stopped else None
        elif self.config.training.init_from is not None:
            other = ModelDirectory(self.config.training.init_from)
            path, theirs, own = other.checkpoint(), other.load_subwords(), self.data.subwords
            source = _new_rows(own.source, theirs.source)
            target = _new_rows(own.target, theirs.target)
            random = take_weights(path, self.model, source, target)
            if random and self.config.adapter.is_on:
                raise UserError(
                    "adapter.rank: adapters are trained for a whole model, but some weights are "
                    f"not those of {path}, and would stay random: {', '.join(random)}"
                )
            self.started_from = path
            if self.updater.average is not None:
                self.updater.average.restart()
            # A validation and a checkpoint of step 0 are due: the model before fine-tuning.
            self.progress.validated = -1
            if self.processes.connected:
                return  # of workers, the parent process has printed the lines below
            count = len(base_parameters(self.model))
            say(f"training.init_from: {count - len(random)} of {count} weights are those of {path}")
            if source.parts or target.parts:
                new = list(dict.fromkeys([*source.pieces, *target.pieces]))
                more = f" and {len(new) - SHOWN_SYMBOLS} more" if len(new) > SHOWN_SYMBOLS else ""
                say(f"  new symbols: {' '.join(new[:SHOWN_SYMBOLS])}{more}")
            if random:
                say(f"  initialised at random: {', '.join(random)}")

    def run(self, directory: RunDirectory) -> None:
        """Trains to the end; saves checkpoints and logs validations in `directory`.

        Raises:
            Interrupted: a signal arrived, and a checkpoint was saved.
            UserError: a checkpoint can't be written, memory ran out, or too many updates in a row
                were not finite.
        """
        self.directory = directory
        total, training = self.plan.total_steps, self.config.training
        self._started = time.monotonic() - self.progress.seconds
        folders = {}
        if self.processes.is_first:
            smoothing = training.label_smoothing
            how = f" (label smoothing {smoothing:g})" if smoothing else ""
            say(
                f"  {self._loss_name}: the training objective{how}, nats per subword\n"
                "  ppl: perplexity, exp of the cross-entropy without smoothing"
            )
            folders = directory.event_folders(training.log_to)
        logged = directory.logged() if folders else []
        with (
            signals.held_back(),
            closing(EventFiles(folders, logged)) as self._event_files,
            TrainingBar(total, self.progress.step) as bar,
        ):
            self._validate_and_save()  # what was due when training was stopped, or before step 1
            while not self.is_finished:
                self._run_epoch(bar)
        if self.progress.step < total and self.processes.is_first:
            say(f"stopped early: no new best in {self.progress.without_new_best} validations")
        self.processes.leave()

    def _record(self, kind: str, **values: Any) -> None:
        """Logs a line about this step, unless `values` name another one."""
        seconds = round(time.monotonic() - self._started, 3)
        place = {"step": self.progress.step, "epoch": self.progress.epoch + 1, "seconds": seconds}
        self._event_files.add(self.directory.log(kind=kind, **place | values))

    def _run_epoch(self, bar: TrainingBar) -> None:
        """Trains on the rest of the epoch, or until the run is finished."""
        now, training, total = self.progress, self.config.training, self.plan.total_steps
        plan = list(enumerate(self.plan.epoch_updates(now.epoch)))
        updates: Any = read_ahead(lambda item: self.read(now.epoch, *item), plan[now.update :])
        with closing(operations.current.sent_ahead(updates)) as ahead:
            started = time.perf_counter()
            for (_, sentences), update in ahead:
                outcome = self.updater.apply(update, now.step + 1)
                if outcome.stopping:
                    self._count_updates()
                    self._stop()
                now.step += 1
                now.update += 1
                place = {"step": now.step, "epoch": now.epoch + 1, "update": now.update}
                self._uncounted.append(_Applied(place, sentences, update, outcome))
                is_log_due = now.step % training.log_every == 0 or now.step == total
                # On a GPU, reading the outcomes would stop its queue of work at every update, so
                # they are read when the log, a validation or a checkpoint needs them.
                others = training.validate_every, training.save_every
                is_needed = is_log_due or any(now.step % steps == 0 for steps in others)
                if self.updater.reads_at_once or is_needed:
                    self._count_updates()
                now.meter.seconds += time.perf_counter() - started
                bar.update()
                if is_log_due:
                    self._log(bar)
                    now.meter = Meter()
                self._validate_and_save()
                if self.is_finished:
                    return
                started = time.perf_counter()
        now.epoch += 1
        now.update = 0

    def _count_updates(self) -> None:
        """Reads and counts the outcomes of the updates since the last call.

        Raises:
            UserError: too many updates in a row were skipped.
        """
        now, uncounted = self.progress, self._uncounted
        self._uncounted = []
        outcomes = read([applied.outcome for applied in uncounted])
        for applied, outcome in zip(uncounted, outcomes, strict=True):
            if outcome.is_finite:
                now.skipped_in_a_row = 0
                now.add(outcome, applied.update)
            else:
                self._count_skipped(applied, outcome)

    def _stop(self) -> NoReturn:
        """Saves a checkpoint and ends the run, because a process was asked to stop."""
        if self.progress.step:
            self._save(stopped=True)
        # Paddle's launcher ends the first process if others are gone before it has saved.
        self.processes.leave()
        if self.processes.is_first:
            say(
                f"stopped at step {self.progress.step}, which is saved. The same command goes on "
                f"from there; to translate with it: bash scripts/translate.sh "
                f"{quoted(self.directory.path)} FILE"
                if self.progress.step
                else "stopped before the first update"
            )
        # If only another process was asked, Paddle's launcher asked it, and it uses SIGTERM.
        raise Interrupted(signals.pending() or signal.SIGTERM)

    def _count_skipped(self, applied: _Applied, outcome: Outcome) -> None:
        """Counts and reports an update whose loss or gradient was not finite.

        Raises:
            UserError: too many updates in a row were skipped.
        """
        now = self.progress
        now.skipped += 1
        now.skipped_in_a_row += 1
        what = "loss" if not np.isfinite(outcome.loss) else "gradient"
        pairs = [int(sentence) for batch in applied.sentences for sentence in batch]
        if self.processes.is_first:
            example = self.data.subwords.source.decode(self.data.train.source[pairs[0]])
            place = applied.place
            warn(
                f"step {place['step']}: the {what} is not finite, so the update is skipped "
                f"({now.skipped_in_a_row} in a row, {now.skipped} in all). It is update "
                f"{place['update']} of epoch {place['epoch']}, of {len(pairs)} pairs such as "
                f"{example!r}",
                kind="updates were skipped, which metrics.jsonl lists",
            )
            self._record("skipped", **place, what=what, pairs=pairs)
        if now.skipped_in_a_row >= self.config.training.max_skipped:
            raise UserError(
                f"{now.skipped_in_a_row} updates in a row were not finite: training has diverged. "
                "Lower training.learning_rate, raise training.warmup_steps, or set "
                "training.clip_norm, and train again from the beginning with --restart, or "
                "continue from the last checkpoint with "
                f"training.init_from={quoted(self.directory.path)} model_dir=FOLDER"
            )

    def _log(self, bar: TrainingBar) -> None:
        """Logs the averages since the last line of the log, and shows them on the terminal."""
        now = self.progress
        if not self.processes.is_first:
            return
        line = now.meter.line()
        rate = self.updater.rate(now.step)
        self._record("train", learning_rate=rate, skipped=now.skipped, **line)
        figures = (
            f"epoch {now.epoch + 1}  {self._loss_name} {line['loss']:.3f}  "
            f"ppl {line['perplexity']:,.2f}  lr {rate:.2e}  "
            f"{line['tokens_per_second']:,.0f} tokens/s"
        )
        bar.figures(figures)
        if on_terminal() and time.monotonic() - self._last_kept < KEPT_LINE_SECONDS:
            return
        self._last_kept = time.monotonic()
        total, every = self.plan.total_steps, self.config.training.log_every
        left = (total - now.step) * now.meter.seconds / min(now.step, every)
        say(f"step {now.step:,}/{total:,}  {figures}  {duration(left)} left")

    # --------------------------------------------------------------- validation, checkpoints

    def _validate_and_save(self) -> None:
        """Validates and saves a checkpoint, each only if it is due at this step."""
        now, training = self.progress, self.config.training
        at_end = now.step >= self.plan.total_steps
        if (
            self.data.dev_sets
            and now.validated < now.step
            and (now.step % training.validate_every == 0 or at_end)
        ):
            found = {}
            for kind, dev in self.data.dev_sets.items():
                try:
                    scores = validate(self.config, dev, self.data.subwords, self.updater)
                except Exception:
                    self._save_before_failing()
                    raise
                if scores is None:
                    self._stop()
                found[kind] = scores
            say_counts()
            self._record_validation(found)
        is_start = now.step == 0 and training.init_from is not None
        if is_start or (now.step and (now.step % training.save_every == 0 or self.is_finished)):
            self._save()

    def _save_before_failing(self) -> None:
        """Saves a checkpoint to resume from, because the validation of this step has failed."""
        try:
            path = self._save(stopped=True)
            if self.processes.is_first:
                say(f"the validation failed; {path} is saved, and the same command goes on from it")
        except UserError as error:
            warn(str(error))
        # Paddle's launcher ends the first process soon after another one has ended, so the others
        # wait for it. Waiting for a process that has ended raises an error.
        with suppress(Exception):
            self.processes.leave()

    def _record_validation(self, found: dict[str, DevScores]) -> None:
        """Logs the scores of a validation, shows the translations of the fixed sentences of the dev
        set, and saves a checkpoint if it is one of the best.

        Args:
            found: the scores of each of `PreparedData.dev_sets`.
        """
        now, training = self.progress, self.config.training
        scores = found["dev"]
        is_best = now.add_validation(scores.ranks(training.best_metric), scores.loss, training)
        if self.processes.is_first:
            say(
                f"step {now.step:,}  dev {self._loss_name} {scores.loss:.3f}  "
                f"ppl {scores.perplexity:,.2f}  {'  '.join(scores.scores.labelled())}"
                f"{'  (best)' if is_best else ''}{'  (before fine-tuning)' if not now.step else ''}"
            )
            if general := found.get("general_dev"):
                brief = "  ".join(general.scores.labelled())
                say(f"  general dev set: ppl {general.perplexity:,.2f}  {brief}")
                self._record("general_dev", **general.as_dict())
            references = self.data.dev_split.text[1]
            shown = spread(len(references), self.config.evaluation.samples)
            samples = [scores.hypotheses[index] for index in shown]
            for index, sample in zip(shown, samples, strict=True):
                say(f"  reference    {references[index]}\n  translation  {sample}")
            self._record("dev", **scores.as_dict(), best=is_best, samples=samples)
            self.directory.keep_hypotheses(scores.hypotheses, now.step, now.best_steps)
            if now.diverges:
                first, last = now.losses[0], now.losses[-1]
                warn(
                    f"training diverges: over the last {DIVERGING_VALIDATIONS} validations the "
                    f"training loss has risen from {first[0]:.3f} to {last[0]:.3f}, and the dev "
                    f"loss from {first[1]:.3f} to {last[1]:.3f}. If this continues, lower "
                    "training.learning_rate or raise training.warmup_steps, and train again from "
                    "the beginning with --restart; or continue from the best checkpoint with a "
                    "lower rate and "
                    f"training.init_from={quoted(self.directory.path)} model_dir=FOLDER"
                )
        if now.step in now.best_steps:
            path = self._save()
            if is_best and self.processes.is_first:
                self.directory.set_best(path)

    def _save(self, stopped: bool = False) -> Path:
        """Saves a checkpoint of this step, unless one exists; returns its path.

        Args:
            stopped: whether it is saved only because training stops here.
        """
        path = self.directory.checkpoints / f"step_{self.progress.step}"
        is_saved = path.is_dir() and path != self._stopped_at
        is_shared = self.config.training.sharding  # then all processes give their part of the state
        if is_shared:
            is_saved = self.processes.gather(is_saved)[0]
        if is_saved or not (is_shared or self.processes.is_first):
            return path
        optimizer_state = self.updater.state()
        if not self.processes.is_first:
            return path
        self.progress.seconds = time.monotonic() - self._started
        scale = self.updater.scale
        scaler = {} if scale is None else scale.state()
        state = State(self.progress, scaler, self.data.key, stopped)
        with self.updater.final_weights():
            base_name = Path(self.config.training.init_from or "").name
            checkpoint.save(path, self.model, optimizer_state, state, base_name)
        if self._stopped_at not in (None, path):
            checkpoint.remove(self._stopped_at)
        self._stopped_at = path if stopped else None
        if not stopped:
            keep_last = self.config.training.keep_last
            checkpoint.remove_old(self.directory, keep_last, self.progress.best_steps)
        return path


def _new_rows(own: Vocabulary, theirs: Vocabulary) -> NewRows:
    """What a vocabulary has in addition to another one, whose ids are the first of its own."""
    pieces = own.pieces(range(theirs.size, own.size))
    encoded = ([i for i in theirs.encode(piece) if i != theirs.space] for piece in pieces)
    return NewRows(theirs.size, pieces, [ids or [theirs.unk] for ids in encoded])


def seconds_per_step(trainer: Trainer, seconds: float = 10.0) -> float:
    """Returns the mean duration of an update, in seconds, measured for about `seconds` seconds.

    The weights of the trainer change, so it can't be used afterwards. The numbers of the updates
    are spread over the run, because the work of an update may depend on its number.
    """
    updates = itertools.cycle(enumerate(trainer.plan.epoch_updates(0)))

    def apply_next(share: float) -> None:
        """Applies an update as that after this share of the run."""
        step = 1 + int(share * trainer.plan.total_steps)
        with signals.held_back():
            # Reading the outcome waits until a GPU has finished the update.
            read([trainer.updater.apply(trainer.read(0, *next(updates)), step)])

    apply_next(0.99)  # the first update allocates memory, so it is not measured
    started, count, spent = time.perf_counter(), 0, 0.0
    while spent < seconds:
        apply_next(count * GOLDEN_RATIO % 1)
        count += 1
        spent = time.perf_counter() - started
    return spent / count

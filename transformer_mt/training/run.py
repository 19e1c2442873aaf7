"""A whole training run: from a config to a trained model and the score of its test set; and which
checkpoint a run is resumed from, and with which settings."""

from __future__ import annotations

import json
import platform
import shutil
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import paddle

from transformer_mt import __version__
from transformer_mt.config import file as config_file
from transformer_mt.config.problems import printable
from transformer_mt.config.schema import SECTIONS, Config
from transformer_mt.data.prepare import PreparedData
from transformer_mt.model.costs import VocabularySizes, parts
from transformer_mt.model_directory import DATA_FACTS, ModelDirectory, subwords_to_keep
from transformer_mt.scoring.groups import spread
from transformer_mt.scoring.tokenizers import require_tokenizer
from transformer_mt.training import folder, launch
from transformer_mt.training.advice import advice
from transformer_mt.training.checkpoint import newest_whole
from transformer_mt.training.finish import finish
from transformer_mt.training.folder import RunDirectory
from transformer_mt.training.loop import Trainer, run_on_several_machines, seconds_per_step
from transformer_mt.training.parallel import Processes, is_one_of_several, own_device
from transformer_mt.training.plan import Plan
from transformer_mt.training.setup import make_plan, make_trainer, prepare_for
from transformer_mt.training.state import Progress, State
from transformer_mt.training.tune import keep_choice, require_tunable
from transformer_mt.utils import device as devices
from transformer_mt.utils.console import duration, on_terminal, quoted, say, show, table, warn
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.files import write_atomically


@dataclass(frozen=True)
class Run:
    """A run whose input has been read and checked. Nothing but the cache has been written yet.

    Attributes:
        config: with the settings that the text decides.
        state: the state of the checkpoint `resumed`, from which the run goes on; both are None for
            a new run.
    """

    config: Config
    data: PreparedData
    directory: RunDirectory
    plan: Plan
    resumed: Path | None = None
    state: State | None = None

    @classmethod
    def prepare(cls, config: Config, directory: RunDirectory, restart: bool) -> Run:
        """
        Args:
            restart: whether a run in the directory is not resumed.

        Raises:
            UserError: something is wrong with the data or the model directory.
        """
        _require_other_model(config, directory)
        resumed = None if restart else checkpoint_to_resume(directory, config)
        subwords = directory.load_subwords() if resumed else subwords_to_keep(config)
        config, data = prepare_for(config, subwords, directory if resumed else None)
        _require_tunable(config, data)
        state = checked_state(resumed, data, directory) if resumed else None
        plan = make_plan(config, data, state.progress.plan if state else None)
        # Held-out pairs are read from the directory, once they are there.
        data = data.with_held_out_in(directory.held_out)
        return cls(config, data, directory, plan, resumed, state)

    @property
    def progress(self) -> Progress:
        """How far the run has come."""
        return self.state.progress if self.state else Progress(self.plan.batches)

    @property
    def has_ended(self) -> bool:
        """Whether no update is left to do."""
        if self.state is None or self.state.stopped:  # if it was stopped, a validation may be due
            return False
        return self.progress.is_finished(self.config.training, self.plan.total_steps)

    def trainer(self, processes: Processes) -> Trainer:
        """Returns a trainer with the weights that the run begins or goes on with.

        Raises:
            UserError: the weights are damaged, or do not fit the model.
        """
        trainer = make_trainer(self.config, self.data, processes, self.plan)
        trainer.start(self.resumed)
        return trainer

    def begin(self) -> None:
        """Writes the first files of a new run into the directory, or brings it into the state of
        the checkpoint."""
        config, data, directory = self.config, self.data, self.directory
        if self.state is None:
            directory.start(config, data.subwords, data.held_out_files)
        else:
            directory.resume(keep_choice(config, directory), self.progress, data.held_out_files)
            say(f"going on from {self.resumed}")
        directory.keep_terminal_log()
        facts = json.dumps(data.facts, ensure_ascii=False)
        write_atomically(directory.path / DATA_FACTS, f"{facts}\n")
        _record_start(self)
        if data.dev_split is not None:
            _keep_dev_set(self)


def check(config: Config, device: str | None, verbose: bool = False, restart: bool = False) -> None:
    """Prints facts about the data and the plan of a run, warnings, the settings that differ from
    their defaults, and an estimate of the run's duration.

    Only the cache is written.

    Args:
        verbose: whether the whole config is printed.
        restart: as in `train`.

    Raises:
        UserError: something that training would read is wrong, or it would not train into
            model_dir.
    """
    directory = RunDirectory(config.model_dir)
    _require_other_model(config, directory)
    if directory.path.exists():
        directory.require_own(restart)
        if not restart:
            require_resumable(directory, config)
    used = _use_device(config, device)
    require_tokenizer(config)
    config, data = prepare_for(config, subwords_to_keep(config))
    _require_tunable(config, data)
    processes = devices.processes(config.training.devices, used)
    trainer = make_trainer(config, data, Processes(world_size=processes))
    trainer.start()
    # Everything has been read by now, so no error comes after what is printed.
    _report(config, data, trainer.plan, show)
    show(f"\n{config_file.dump(config) if verbose else _changed_settings(config)}\n")
    say("timing some steps ...")
    seconds = seconds_per_step(trainer)
    estimate = duration(seconds * trainer.plan.total_steps)
    where = used if processes == 1 else f"{processes} processes on {used}"
    print(f"estimated time  {estimate} of training, {seconds:.2f} s per step ({where})")


def train(
    config: Config,
    device: str | None,
    restart: bool,
    finished: Callable[[RunDirectory], object] = lambda directory: None,
) -> None:
    """Trains, or resumes a run that was stopped, and then scores the test set.

    If Paddle's launcher has started this process as one of several, on several machines, it trains
    together with the others.

    Args:
        finished: is called with the directory of the trained model, which is still locked.

    Raises:
        UserError: something is wrong with the data or the model directory.
        Interrupted: a signal arrived, and a checkpoint was saved.
    """
    used = _use_device(config, own_device(device) if is_one_of_several() else device)
    # This comes before anything that can fail, because connected processes notice at once if one of
    # them ends.
    processes = Processes.join()
    directory = RunDirectory(config.model_dir)
    if not processes.is_first:
        processes.wait()  # until the first process has prepared the directory
        config, data = prepare_for(config, directory.load_subwords(), directory)
        run_on_several_machines(make_trainer(config, data, processes), directory)
        return
    require_tokenizer(config)
    directory.claim(restart)
    try:
        launch.clear_work_folder(directory)
        # 1. All input is read and checked. The directory does not change before that.
        run = Run.prepare(config, directory, restart)
        count = 1 if processes.connected else devices.processes(config.training.devices, used)
        starts_from_a_model = config.training.init_from is not None and run.resumed is None
        trainer = run.trainer(processes) if count == 1 or starts_from_a_model else None
        _report(run.config, run.data, run.plan, say)
        # 2. The run begins, or goes on.
        run.begin()
        if processes.connected:
            processes.wait()
            run_on_several_machines(trainer, directory)
        elif run.has_ended:
            say(f"this run has reached its end; {_how_to_go_on(run.config, run.resumed)}")
        else:
            where = used if count == 1 else f"{count} processes"
            say(f"training into {directory.path} on {where}; Ctrl-C saves and stops")
            if count == 1:
                trainer.run(directory)
            else:
                launch.run_workers(run.config, run.data, directory, used, count, run.resumed)
        # 3. The model is chosen, and scored.
        finish(run.config, run.data, directory)
        finished(directory)
    finally:
        directory.release()


def _use_device(config: Config, device: str | None) -> str:
    """Sets Paddle's device, and returns its name.

    Raises:
        UserError: there is no such device, it can't compute in training.precision, or a package
            that training.log_to needs is missing.
    """
    folder.require_packages(config.training.log_to)
    used = devices.use(device)
    devices.require_precision(config.training.precision, used)
    return used


def _require_other_model(config: Config, directory: RunDirectory) -> None:
    """
    Raises:
        UsageError: the model to start from lies in the directory that training writes to.
    """
    other = config.training.init_from
    if other is not None and Path(other).resolve() == directory.path.resolve():
        raise UsageError(f"training.init_from: {other} is model_dir itself; give another model_dir")


def _require_tunable(config: Config, data: PreparedData) -> None:
    if config.decoding.tune:
        require_tunable(config, data.dev_split is not None, "decoding.tune")


def _how_to_go_on(config: Config, last: Path) -> str:
    """Returns what the user can do after the end of a run, whose last checkpoint is given."""
    keys = ["max_steps", "max_epochs", "patience"]
    decay_steps = config.training.decay_steps
    if decay_steps is not None and int(last.name.removeprefix("step_")) >= decay_steps:
        keys = []  # the rate is 0 from there on
    keys = [f"training.{key}" for key in keys if getattr(config.training, key)]
    how = f"raise {' or '.join(keys)}"
    if not keys:
        how = f"start a run with training.init_from={quoted(config.model_dir)} model_dir=FOLDER"
    return f"to continue, {how}; to train again from the beginning, add --restart"


def _keep_dev_set(run: Run) -> None:
    """Writes the dev set into the directory, beside its translations, and logs the sentences whose
    translations are shown at every validation."""
    sources, references = run.data.dev_split.text
    run.directory.write_lines("dev/source", sources)
    run.directory.write_lines("dev/reference", references)
    chosen = spread(len(sources), run.config.evaluation.samples)
    texts = {"source": [sources[i] for i in chosen], "reference": [references[i] for i in chosen]}
    logged = [line for line in run.directory.logged() if line.get("kind") == "samples"]
    if not logged or not texts.items() <= logged[-1].items():
        step, seconds = run.progress.step, run.progress.seconds
        run.directory.log(kind="samples", step=step, seconds=seconds, **texts)


def _record_start(run: Run) -> None:
    """Logs the versions and the machine with which the run begins, or continues."""
    run.directory.log(
        kind="start",
        step=run.progress.step,
        seconds=run.progress.seconds,
        version=__version__,
        paddle=paddle.__version__,
        python=platform.python_version(),
        **devices.description(),
        parameters=_parameters(run.config, run.data),
        updates_per_epoch=run.plan.updates_per_epoch,
        total_steps=run.plan.total_steps,
    )


def _parameters(config: Config, data: PreparedData) -> int:
    sizes = VocabularySizes.of(data.subwords)
    return sum(part.parameters for part in parts(config.model, sizes))


def _report(config: Config, data: PreparedData, plan: Plan, output: Callable[[str], None]) -> None:
    """Outputs what is trained on and what is trained, and warns of what is odd about it."""
    count, tokens = plan.batches[:2]
    lines = [
        *data.report(),
        f"model           {_parameters(config, data):,} parameters",
        f"an update       {count} x {tokens:,} padded target tokens; "
        f"{plan.updates_per_epoch:,} per epoch, {plan.total_steps:,} in all",
    ]
    output("\n".join(lines))
    for message in advice(config, data.facts, plan.total_steps):
        # Whole words are easier to read, and no message has a command to copy.
        width = shutil.get_terminal_size().columns - 10 if on_terminal() else 10_000
        warn("\n  ".join(textwrap.wrap(message, width, break_on_hyphens=False)))


def _changed_settings(config: Config) -> str:
    """Returns a table of the settings that differ from their defaults."""
    rows = [("setting", "value", "default")]
    for name, value in config_file.changed(config).items():
        section, _, key = name.rpartition(".")
        field = (SECTIONS[section] if section else Config).model_fields[key]
        default = "" if field.is_required() else _as_text(field.default)
        rows.append((name, _as_text(value), default))
    lines = table(rows, "<<<", indent="  ")
    return "\n".join(["changed settings (--verbose shows all):", *lines])


def _as_text(value: object) -> str:
    return printable(value if isinstance(value, str) else json.dumps(value), 32)


# ---------------------------------------------------------------------------------- resuming a run

# Settings that may change when a run is resumed. Paths of the text and its alignments may change,
# because their content is compared. Another number of processes draws other dropout masks, but it
# trains on the same updates.
MAY_CHANGE = {
    *("data.root", "data.cache", "subword.vocabulary", "guided_attention.alignments"),
    *(
        f"training.{key}"
        for key in (
            *("max_steps", "max_epochs", "log_every", "validate_every", "save_every"),
            *("keep_last", "keep_best", "patience", "average_last", "max_skipped"),
            *("devices", "device_tokens", "recompute", "log_to", "gradient_sum_precision"),
            "sharding",
        )
    ),
}
SECTIONS_THAT_MAY_CHANGE = ("decoding", "evaluation")
# These may not change with model.non_autoregressive: end, whose decoder is trained on this length.
# null is the value that the text decides, and the text may not change either.
LENGTHS_TRAINED_ON = {"decoding.max_length_ratio", "decoding.max_length_extra"}


def checkpoint_to_resume(directory: ModelDirectory, config: Config) -> Path | None:
    """Returns the newest undamaged checkpoint of a directory; None if it has no checkpoints.

    Raises:
        UserError: all of its checkpoints are damaged.
        UsageError: a setting has changed that may not change.
    """
    require_resumable(directory, config)
    return newest_whole(directory) if _has_checkpoints(directory) else None


def _has_checkpoints(directory: ModelDirectory) -> bool:
    return directory.holds_run and bool(directory.saved_checkpoints())


def require_resumable(directory: ModelDirectory, config: Config) -> None:
    """Checks that a config continues the run in a directory, if the run has saved a checkpoint.

    Raises:
        UsageError: a setting has changed that may not change.
    """
    if not _has_checkpoints(directory):
        return
    if different := differences(directory.load_config(), config):
        raise UsageError(
            f"{directory.path} holds a run with other settings:\n"
            + "\n".join(f"  {line}" for line in different)
            + "\nTo continue it, restore its settings. To rename it and train from the "
            "beginning, add --restart. To train into another folder, add model_dir=FOLDER"
        )


def differences(old: Config, new: Config) -> list[str]:
    """Returns the settings that differ but may not change, as `section.key: old, now new`."""
    lines = []
    old_values, new_values = old.model_dump(), new.model_dump()
    may_not_change = set()
    if new.model.non_autoregressive == "end":
        may_not_change |= LENGTHS_TRAINED_ON
    for section in SECTIONS:
        for key, value in new_values[section].items():
            before, name = old_values[section][key], f"{section}.{key}"
            may_change = section in SECTIONS_THAT_MAY_CHANGE or name in MAY_CHANGE
            if name in may_not_change:
                may_change = value is None
            if value != before and not may_change:
                lines.append(f"{name}: {_shown(before)}, now {_shown(value)}")
    return lines


def checked_state(checkpoint: Path, data: PreparedData, directory: ModelDirectory) -> State:
    """Returns the state of training in a checkpoint.

    Raises:
        UserError: the training text, or its alignments, have changed since.
    """
    state = State.restore(checkpoint)
    if state.corpus != data.key:
        aligned = data.alignments is not None
        raise UserError(
            f"{checkpoint} was trained on another text{' or other alignments' if aligned else ''} "
            "than the training files hold now. Put back what was there, train again from the "
            "beginning with --restart, or fine-tune on the new text with "
            f"training.init_from={quoted(directory.path)} model_dir=FOLDER"
        )
    return state


def _shown(value: object) -> str:
    return "null" if value is None else str(value)

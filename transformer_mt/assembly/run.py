"""A whole training run: from a config to a trained model and the score of its test set."""

import json
import platform
import shutil
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import paddle

from transformer_mt import __version__
from transformer_mt.assembly.data import prepare_for
from transformer_mt.assembly.finish import finish
from transformer_mt.assembly.report import write_report
from transformer_mt.assembly.training import make_plan, make_trainer
from transformer_mt.assembly.tuning import keep_choice, require_tunable
from transformer_mt.config import file as config_file
from transformer_mt.config.problems import printable
from transformer_mt.config.schema import SECTIONS, Config
from transformer_mt.data.prepare import PreparedData
from transformer_mt.evaluation.groups import spread
from transformer_mt.evaluation.scoring import require_tokenizer
from transformer_mt.inspect import model_card
from transformer_mt.inspect.parameters import VocabularySizes, parts
from transformer_mt.model_directory import DATA_FACTS, MODEL_CARD, REPORT, subwords_to_keep
from transformer_mt.runtime import device as devices
from transformer_mt.runtime.console import duration, on_terminal, quoted, say, show, table, warn
from transformer_mt.runtime.errors import UsageError, UserError, describe
from transformer_mt.runtime.files import write_atomically
from transformer_mt.training import event_files, resume, workers
from transformer_mt.training.advice import advice
from transformer_mt.training.plan import Plan
from transformer_mt.training.processes import Processes, is_one_of_several, own_device
from transformer_mt.training.run_directory import RunDirectory
from transformer_mt.training.state import Progress
from transformer_mt.training.trainer import Trainer, run_on_several_machines, seconds_per_step


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
            resume.require_resumable(directory, config)
    event_files.require_packages(config.training.log_to)
    used = devices.use(device)
    devices.require_precision(config.training.precision, used)
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


def train(config: Config, device: str | None, restart: bool) -> None:
    """Trains, or resumes a run that was stopped, and then scores the test set.

    If Paddle's launcher has started this process as one of several, on several machines, it trains
    together with the others.

    Raises:
        UserError: something is wrong with the data or the model directory.
        Interrupted: a signal arrived, and a checkpoint was saved.
    """
    started = time.monotonic()
    event_files.require_packages(config.training.log_to)
    used = devices.use(own_device(device) if is_one_of_several() else device)
    devices.require_precision(config.training.precision, used)
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
        workers.clear_work_folder(directory)
        count = 1 if processes.connected else devices.processes(config.training.devices, used)
        config, data, resumed, has_ended, trainer = _begin(
            config, directory, restart, processes, trains_here=count == 1
        )
        if processes.connected:
            processes.wait()
            run_on_several_machines(trainer, directory)
        elif has_ended:
            say(f"this run has reached its end; {_how_to_go_on(config, resumed)}")
        else:
            where = used if count == 1 else f"{count} processes"
            say(f"training into {directory.path} on {where}; Ctrl-C saves and stops")
            if count == 1:
                trainer.run(directory)
            else:
                workers.run_workers(make_trainer, config, data, directory, used, count, resumed)
        finish(config, data, directory)
        _write_report(directory)
        _write_card(directory)
        say(f"done in {duration(time.monotonic() - started)}")
        _next_steps(directory)
    finally:
        directory.release()


def _begin(
    config: Config, directory: RunDirectory, restart: bool, processes: Processes, trains_here: bool
) -> tuple[Config, PreparedData, Path | None, bool, Trainer | None]:
    """Reads and checks all input, and then prepares the directory for a new or a resumed run.

    The directory is not changed before all checks have passed.

    Args:
        trains_here: whether this process trains, and not workers that it starts.

    Returns:
        config: the config with the settings that the text decides.
        data: the data to train on.
        resumed: the checkpoint to resume from, if any.
        has_ended: whether the run had already reached its end.
        trainer: a started trainer; None if other processes train.
    """
    _require_other_model(config, directory)
    other = config.training.init_from
    resumed = None if restart else resume.checkpoint_to_resume(directory, config)
    subwords = directory.load_subwords() if resumed else subwords_to_keep(config)
    config, data = prepare_for(config, subwords, directory if resumed else None)
    _require_tunable(config, data)
    state = resume.checked_state(resumed, data, directory) if resumed else None
    trainer = None
    if trains_here or (other is not None and resumed is None):
        trainer = make_trainer(config, data, processes)
        trainer.start(resumed)
        plan = trainer.plan
    else:
        plan = make_plan(config, data, state.progress.plan if state else None)
    _report(config, data, plan, say)
    if state is None:
        directory.start(config, data.subwords, data.held_out_files)
    else:
        directory.resume(keep_choice(config, directory), state.progress, data.held_out_files)
        say(f"going on from {resumed}")
    directory.keep_terminal_log()
    data = data.with_held_out_in(directory.held_out)
    write_atomically(directory.path / DATA_FACTS, json.dumps(data.facts, ensure_ascii=False) + "\n")
    progress = state.progress if state else Progress(plan.batches)
    _record_start(config, data, directory, plan, progress)
    if data.dev_split is not None:
        _keep_dev_set(config, data, directory, progress)
    if trainer is not None:
        trainer.data = data
    has_ended = (
        state is not None
        and state.progress.is_finished(config.training, plan.total_steps)
        and not state.stopped  # if it was stopped, a validation may be due
    )
    return config, data, resumed, has_ended, trainer if trains_here else None


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


def _keep_dev_set(
    config: Config, data: PreparedData, directory: RunDirectory, progress: Progress
) -> None:
    """Writes the dev set into the directory, beside its translations, and logs the sentences whose
    translations are shown at every validation."""
    sources, references = data.dev_split.text
    directory.write_lines("dev/source", sources)
    directory.write_lines("dev/reference", references)
    chosen = spread(len(sources), config.evaluation.samples)
    texts = {"source": [sources[i] for i in chosen], "reference": [references[i] for i in chosen]}
    logged = [line for line in directory.logged() if line.get("kind") == "samples"]
    if not logged or not texts.items() <= logged[-1].items():
        directory.log(kind="samples", step=progress.step, seconds=progress.seconds, **texts)


def _record_start(
    config: Config, data: PreparedData, directory: RunDirectory, plan: Plan, progress: Progress
) -> None:
    """Logs the versions and the machine with which the run begins, or continues."""
    directory.log(
        kind="start",
        step=progress.step,
        seconds=progress.seconds,
        version=__version__,
        paddle=paddle.__version__,
        python=platform.python_version(),
        **devices.description(),
        parameters=_parameters(config, data),
        updates_per_epoch=plan.updates_per_epoch,
        total_steps=plan.total_steps,
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


def _write_report(directory: RunDirectory) -> None:
    try:
        write_report([directory.path], directory.own(REPORT))
    except (UserError, ModuleNotFoundError) as error:  # the model is complete without it
        warn(f"the report could not be written: {describe(error)}")


def _write_card(directory: RunDirectory) -> None:
    if directory.has_edited_card:
        say(f"{directory.path / MODEL_CARD} was edited, so it is kept; delete it to get a new one")
        return
    try:
        card = model_card.card_of(directory, directory.checkpoint().name)
        write_atomically(directory.own(MODEL_CARD), card)
    except UserError as error:  # the model is complete without it
        warn(f"the model card could not be written: {error}")


def _next_steps(directory: RunDirectory) -> None:
    path = quoted(directory.path)
    show("\nNext:")
    show(f"  bash scripts/translate.sh {path} FILE   # translate a text, line by line")
    show(f"  bash scripts/evaluate.sh {path} SOURCE REFERENCE   # score it")
    if (directory.path / REPORT).is_file():
        show(f"  {quoted(directory.path / REPORT)}   # open it in a browser: how the run went")

"""A whole training run, from a config to a trained model and the score of its test set."""

from __future__ import annotations

import json
import os
import platform
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path

import paddle

from transformer_mt import __version__, kernels
from transformer_mt.config import file as config_file
from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.config.problems import printable
from transformer_mt.config.schema import SECTIONS, Config
from transformer_mt.data.facts import Facts
from transformer_mt.data.prepare import PreparedData, prepare
from transformer_mt.data.shortlist import learn
from transformer_mt.data.subword import Subwords
from transformer_mt.model.adapters import adapted_layers
from transformer_mt.model.costs import VocabularySizes, parts
from transformer_mt.model_directory import DATA_FACTS, SHORTLIST, ModelDirectory, subwords_to_keep
from transformer_mt.scoring.groups import spread
from transformer_mt.scoring.metrics import require_tokenizer
from transformer_mt.training import launch, tune
from transformer_mt.training.adapters import keep_base
from transformer_mt.training.advice import advice
from transformer_mt.training.checkpoint import State, newest_whole
from transformer_mt.training.event_files import require_packages
from transformer_mt.training.expectation import expectation
from transformer_mt.training.fine_tuning import choose_mix, tell_changes
from transformer_mt.training.folder import RunDirectory
from transformer_mt.training.loop import Trainer, seconds_per_step
from transformer_mt.training.parallel import (
    Processes,
    is_one_of_several,
    own_device,
    trained_parameters,
)
from transformer_mt.training.progress import Plan, Progress
from transformer_mt.training.settings import require_resumable
from transformer_mt.training.validate import choose_average, score_test
from transformer_mt.utils import device as devices
from transformer_mt.utils.console import duration, on_terminal, quoted, say, show, table, warn
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.files import write_atomically

# If more than this share of the lines has several sentences, the model has learnt to translate
# several together.
SEVERAL_SENTENCES = 0.25


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
        launch.run_on_several_machines(Trainer(config, data, processes), directory)
        return
    require_tokenizer(config)
    directory.claim(restart)
    try:
        _train(config, directory, used, restart, processes)
        finished(directory)
    finally:
        directory.release()


def _train(
    config: Config, directory: RunDirectory, used: str, restart: bool, processes: Processes
) -> None:
    """Does everything for which `train` has locked the directory, in the first process."""
    # 1. All input is read and checked. Nothing but the cache is written before that.
    _require_other_model(config, directory)
    resumed, state = None, None
    if not restart:
        require_resumable(directory, config)
        resumed = newest_whole(directory)
    if resumed is None:
        config, data = prepare_for(config, subwords_to_keep(config))
    else:
        config, data = prepare_for(config, directory.load_subwords(), directory)
        state = _checked_state(resumed, data, directory)
    plan = Plan.of(config, data, state.progress.plan if state else None)
    progress = state.progress if state else Progress(plan.batches)
    # Held-out pairs are read from the directory, once they are there.
    data = data.with_held_out_in(directory.held_out)
    count = 1 if processes.connected else devices.processes(config.training.devices, used)
    trainer = None
    # The weights of training.init_from, and the patterns of their names, are checked here, even if
    # other processes will train.
    if (
        count == 1
        or (config.training.init_from is not None and resumed is None)
        or config.training.freeze
        or config.training.learning_rate_factors
        or config.adapter.is_on
    ):
        trainer = Trainer(config, data, processes, plan)
        trainer.start(resumed)
    _report(config, data, plan, say, trainer)

    # 2. The directory is made ready, and the model is trained.
    if state is None:
        directory.start(config, data.subwords, data.held_out_files)
        if config.adapter.is_on:
            keep_base(directory, trainer.model, trainer.started_from)
    else:
        directory.resume(tune.keep_choice(config, directory), progress, data.held_out_files)
        say(f"going on from {resumed}")
    directory.keep_terminal_log()
    facts = json.dumps(data.facts, ensure_ascii=False)
    write_atomically(directory.path / DATA_FACTS, f"{facts}\n")
    _record_start(config, data, directory, plan, progress)
    # If a run was stopped, a validation may be due after its last update.
    is_over = (
        state is not None
        and not state.stopped
        and progress.is_finished(config.training, plan.total_steps)
    )
    if processes.connected:
        processes.wait()
        launch.run_on_several_machines(trainer, directory)
    elif is_over:
        say(f"this run has reached its end; {_how_to_go_on(config, progress)}")
    else:
        where = used if count == 1 else f"{count} processes"
        say(f"training into {directory.path} on {where}; Ctrl-C saves and stops")
        if count == 1:
            trainer.run(directory)
        else:
            launch.run_workers(config, data, directory, used, count, resumed)

    # 3. The model and its decoding settings are chosen, and scored.
    if config.decoding.shortlist and not directory.own(SHORTLIST).is_file():
        shortlist, tested = learn(data.train, data.subwords)
        directory.write_shortlist(shortlist, data.subwords)
        say(f"shortlist: {tested}")
    if config.training.average_last is not None:
        choose_average(config, data, directory)
    if config.training.interpolate:
        choose_mix(config, data, directory)
    if config.decoding.tune:
        tune.choose(directory, threads=len(os.sched_getaffinity(0)), device=paddle.get_device())
    splits = list(filter(None, (data.test_split, data.general_test_split)))
    translations = [score_test(config, split, directory) for split in splits]
    if config.training.init_from is not None:
        tell_changes(config, splits, translations, directory)


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
    processes = devices.processes(config.training.devices, used)
    trainer = Trainer(config, data, Processes(world_size=processes))
    trainer.start()
    # Everything has been read by now, so no error comes after what is printed.
    _report(config, data, trainer.plan, show, trainer)
    show(f"\n{config_file.dump(config) if verbose else _changed_settings(config)}\n")
    say("timing some steps ...")
    seconds = seconds_per_step(trainer)
    estimate = duration(seconds * trainer.plan.total_steps)
    where = used if processes == 1 else f"{processes} processes on {used}"
    print(f"estimated time  {estimate} of training, {seconds:.2f} s per step ({where})")
    if config.training.init_from is None:
        epochs = trainer.plan.total_steps / trainer.plan.updates_per_epoch
        print(f"expectation     {expectation(data.facts['pairs'], epochs)}")


# ---------------------------------------------------------------------------- reading and checking


def has_bfloat16(used: str) -> bool:
    """Whether a device, by its name, can train in bfloat16."""
    try:
        kernels.require_precision("bfloat16", used)
    except UsageError:
        return False
    return True


def _use_device(config: Config, device: str | None) -> str:
    """Sets Paddle's device, and returns its name.

    Raises:
        UserError: there is no such device, it can't compute in training.precision, or a package
            that training.log_to needs is missing.
    """
    require_packages(config.training.log_to)
    used = devices.use(device)
    kernels.require_precision(config.training.precision, used)
    return used


def _require_other_model(config: Config, directory: RunDirectory) -> None:
    """
    Raises:
        UsageError: the model to start from lies in the directory that training writes to.
    """
    other = config.training.init_from
    if other is not None and Path(other).resolve() == directory.path.resolve():
        raise UsageError(f"training.init_from: {other} is model_dir itself; give another model_dir")


def prepare_for(
    config: Config, subwords: Subwords | None = None, resumed: ModelDirectory | None = None
) -> tuple[Config, PreparedData]:
    """Calls `prepare` with the word alignments that attention is guided by, if it is.

    Args:
        resumed: the directory of a run that is resumed; the model training.init_from is not needed
            then.

    Returns: the config, with the decoding settings that the text decides, and the data.

    Raises:
        UserError: something is wrong with the data, or decoding.tune or training.interpolate can
            choose nothing.
    """
    alignments = config.guided_attention.alignments
    data = prepare(config, subwords, None if alignments is None else Path(alignments))
    if config.decoding.tune:
        tune.require_tunable(config, data.dev_split is not None, "decoding.tune")
    if config.training.interpolate and data.dev_split is None:
        raise UsageError(
            "training.interpolate: there is no dev set to choose a mix on: give data.dev or "
            "data.held_out"
        )
    earlier = DecodingConfig()
    if config.training.init_from is not None:
        earlier = (resumed or ModelDirectory(config.training.init_from)).load_config().decoding
    decoding = decided(config.decoding, data.facts, earlier)
    return config.model_copy(update={"decoding": decoding}), data


def decided(decoding: DecodingConfig, facts: Facts, earlier: DecodingConfig) -> DecodingConfig:
    """Returns the settings with those in place of null that follow from the training text.

    Args:
        facts: those about the text.
        earlier: the settings of the model that training starts from, which has seen other text.
    """
    source = facts["source"]
    values = {
        "max_length_ratio": max(facts["length_ratio"], earlier.max_length_ratio or 0.0),
        "split_sentences": source["several_sentences"] <= SEVERAL_SENTENCES,
        "max_source_length": max(source["longest"], earlier.max_source_length or 0),
    }
    missing = {key: value for key, value in values.items() if getattr(decoding, key) is None}
    return decoding.model_copy(update=missing)


def _checked_state(checkpoint: Path, data: PreparedData, directory: ModelDirectory) -> State:
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


# ------------------------------------------------------------------------- what the user is told


def _how_to_go_on(config: Config, progress: Progress) -> str:
    """Returns what the user can do after the end of a run."""
    keys = ["max_steps", "max_epochs", "patience"]
    decay_steps = config.training.decay_steps
    if decay_steps is not None and progress.step >= decay_steps:
        keys = []  # the rate is 0 from there on
    keys = [f"training.{key}" for key in keys if getattr(config.training, key)]
    how = f"raise {' or '.join(keys)}"
    if not keys:
        how = f"start a run with training.init_from={quoted(config.model_dir)} model_dir=FOLDER"
    return f"to continue, {how}; to train again from the beginning, add --restart"


def _record_start(
    config: Config, data: PreparedData, directory: RunDirectory, plan: Plan, progress: Progress
) -> None:
    """Logs the versions and the machine with which the run begins, or continues. Writes the dev set
    beside its translations, and logs the sentences that every validation shows."""
    place = {"step": progress.step, "seconds": progress.seconds}
    directory.log(
        kind="start",
        **place,
        version=__version__,
        paddle=paddle.__version__,
        python=platform.python_version(),
        **devices.description(),
        parameters=_parameters(config, data),
        updates_per_epoch=plan.updates_per_epoch,
        total_steps=plan.total_steps,
    )
    other = config.training.init_from
    if other is not None and progress.step == 0:
        for line in ModelDirectory(other).logged():
            if line.get("kind") == "origin":
                directory.log(**line)
    if data.dev_split is None:
        return
    sources, references = data.dev_split.text
    directory.write_lines("dev/source", sources)
    directory.write_lines("dev/reference", references)
    chosen = spread(len(sources), config.evaluation.samples)
    texts = {"source": [sources[i] for i in chosen], "reference": [references[i] for i in chosen]}
    logged = [line for line in directory.logged() if line.get("kind") == "samples"]
    if not logged or not texts.items() <= logged[-1].items():
        directory.log(kind="samples", **place, **texts)


def _parameters(config: Config, data: PreparedData) -> int:
    sizes = VocabularySizes.of(data.subwords)
    return sum(part.parameters for part in parts(config.model, sizes))


def _trained(trainer: Trainer | None) -> str:
    """Says how many parameters are trained, if some are frozen."""
    if trainer is None:
        return ""
    trained = trained_parameters(trainer.model)
    if len(trained) == len(trainer.model.parameters()):
        return ""
    what = "of adapters are trained beside them" if adapted_layers(trainer.model) else "are trained"
    return f"; {sum(p.size for p in trained.values()):,} {what}"


def _report(
    config: Config,
    data: PreparedData,
    plan: Plan,
    output: Callable[[str], None],
    trainer: Trainer | None,
) -> None:
    """Outputs what is trained on and what is trained, and warns of what is odd about it.

    Args:
        trainer: None if it would tell nothing, because all weights are trained.
    """
    count, tokens = plan.batches[:2]
    lines = [
        *data.report(),
        f"model           {_parameters(config, data):,} parameters{_trained(trainer)}",
        f"an update       {count} x {tokens:,} padded target tokens; "
        f"{plan.updates_per_epoch:,} per epoch, {plan.total_steps:,} in all",
    ]
    output("\n".join(lines))
    on_gpu = paddle.get_device() != "cpu"
    for message in advice(config, data.facts, plan.total_steps, on_gpu):
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

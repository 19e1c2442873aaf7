"""A whole training run: from a config to a trained model and the score of its test set."""

import sys
import time
from pathlib import Path

import paddle

from transformer_mt.assembly.data import prepare_for
from transformer_mt.assembly.training import make_plan, make_trainer
from transformer_mt.assembly.translator import Translator
from transformer_mt.config import file as config_file
from transformer_mt.config.schema import Config
from transformer_mt.data.prepare import PreparedData
from transformer_mt.evaluation.metrics import Scores
from transformer_mt.evaluation.scoring import score_for
from transformer_mt.inspect.parameters import VocabularySizes, parts
from transformer_mt.model_directory import subwords_to_keep
from transformer_mt.runtime import device as devices
from transformer_mt.runtime.console import duration, progress, quoted, say, visible, warn
from transformer_mt.runtime.errors import UsageError
from transformer_mt.runtime.files import atomic
from transformer_mt.training import checkpoint, resume, workers
from transformer_mt.training.plan import Plan
from transformer_mt.training.processes import Processes, is_one_of_several, own_device
from transformer_mt.training.run_directory import RunDirectory
from transformer_mt.training.schedule import SCHEDULES
from transformer_mt.training.trainer import Trainer, run_on_several_machines, seconds_per_step


def check(config: Config, device: str | None, verbose: bool = False) -> None:
    """Prints facts about the data and the plan of a run, warnings, the settings that differ from
    their defaults, and an estimate of the run's duration.

    Only the cache is written.

    Args:
        verbose: whether the whole config is printed.

    Raises:
        UserError: something that training would read is wrong.
    """
    used = devices.use(device)
    devices.require_precision(config.training.precision, used)
    data = prepare_for(config, subwords_to_keep(config))
    processes = devices.processes(config.training.devices, used)
    trainer = make_trainer(config, data, Processes(world_size=processes))
    trainer.start()
    # Everything has been read and has the right form, so no error comes after what is printed here.
    _report(config, data, trainer.plan, sys.stdout)
    _report_config(config, verbose)
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
    used = devices.use(own_device(device) if is_one_of_several() else device)
    devices.require_precision(config.training.precision, used)
    # This comes before anything that can fail, because connected processes notice at once if one of
    # them ends.
    processes = Processes.join()
    directory = RunDirectory(config.model_dir)
    if not processes.is_first:
        processes.wait()  # until the first process has prepared the directory
        data = prepare_for(config, directory.load_subwords())
        run_on_several_machines(make_trainer(config, data, processes), directory)
        return
    directory.claim(restart)
    try:
        workers.clear_work_folder(directory)
        count = 1 if processes.connected else devices.processes(config.training.devices, used)
        data, resumed, has_ended, trainer = _begin(
            config, directory, restart, processes, trains_here=count == 1
        )
        if processes.connected:
            processes.wait()
            run_on_several_machines(trainer, directory)
        elif has_ended:
            say(f"this run has reached its end; {_how_to_go_on(config)}")
        else:
            where = used if count == 1 else f"{count} processes"
            say(f"training into {directory.path} on {where}; Ctrl-C saves and stops")
            if count == 1:
                trainer.run(directory)
            else:
                workers.run_workers(make_trainer, config, data, directory, used, count, resumed)
        _finish(config, data, directory)
        say(f"done in {duration(time.monotonic() - started)}")
        _next_steps(directory)
    finally:
        directory.release()


def _begin(
    config: Config, directory: RunDirectory, restart: bool, processes: Processes, trains_here: bool
) -> tuple[PreparedData, Path | None, bool, Trainer | None]:
    """Reads and checks all input, and then prepares the directory for a new or a resumed run.

    The directory is not changed before all checks have passed.

    Args:
        trains_here: whether this process trains, and not workers that it starts.

    Returns:
        data: the data to train on.
        resumed: the checkpoint to resume from, if any.
        has_ended: whether the run had already reached its end.
        trainer: a started trainer; None if other processes train.
    """
    other = config.training.init_from
    if other is not None and Path(other).resolve() == directory.path.resolve():
        raise UsageError(f"training.init_from: {other} is model_dir itself; give another model_dir")
    resumed = None if restart else resume.checkpoint_to_resume(directory, config)
    data = prepare_for(config, directory.load_subwords() if resumed else subwords_to_keep(config))
    state = resume.checked_state(resumed, data, directory) if resumed else None
    trainer = None
    if trains_here or (other is not None and resumed is None):
        trainer = make_trainer(config, data, processes)
        trainer.start(resumed)
        plan = trainer.plan
    else:
        plan = make_plan(config, data, state.progress.plan if state else None)
    _report(config, data, plan, sys.stderr)
    if state is None:
        directory.start(config, data.subwords, data.held_out_files)
    else:
        directory.resume(config, state.progress, data.held_out_files)
        say(f"going on from {resumed}")
    data = data.with_held_out_in(directory.held_out)
    write_atomically(directory.path / FACTS, json.dumps(data.facts, ensure_ascii=False) + "\n")
    if trainer is not None:
        trainer.data = data
    has_ended = (
        state is not None
        and state.progress.is_finished(config.training, plan.total_steps)
        and not state.stopped  # if it was stopped, a validation may be due
    )
    return data, resumed, has_ended, trainer if trains_here else None


def _how_to_go_on(config: Config) -> str:
    """Returns what the user can do after the end of a run."""
    keys = ["patience"]
    if not SCHEDULES[config.training.schedule].uses_total_steps:  # else the length is fixed
        keys = ["max_steps", "max_epochs", "patience"]
    keys = [f"training.{key}" for key in keys if getattr(config.training, key)]
    how = f"raise {' or '.join(keys)}"
    if not keys:
        how = f"start a run with training.init_from={quoted(config.model_dir)} model_dir=FOLDER"
    return f"to continue, {how}; to train again from the beginning, add --restart"


def _finish(config: Config, data: PreparedData, directory: RunDirectory) -> None:
    """Averages checkpoints, if the config asks for it, and scores the test set."""
    asked = config.training.average_last
    if asked is not None:
        count = min(asked, len(directory.saved_checkpoints()))
        if count < asked:
            warn(
                f"training.average_last: {asked}: only {count} checkpoints exist; using those. "
                "After a short training, the average can be worse than the best checkpoint"
            )
        path = checkpoint.average(directory, "last", count)
        directory.set_best(path)
        if data.dev_split is not None:
            scores = _score(config, data.dev_split, directory, "dev set")[0]
            directory.log(kind="average", checkpoint=path.name, **scores.as_dict())
            say(f"dev set, {path.name}: {scores}")
    if data.test_split is not None:
        score_test(config, data, directory)


def score_test(config: Config, data: PreparedData, directory: RunDirectory) -> None:
    """Translates the test set with the best checkpoint and prints the score and some samples."""
    scores, sources, hypotheses, references = _score(config, data.test_split, directory, "test set")
    with atomic(directory.path / "test.hypothesis") as file:
        file.writelines(f"{hypothesis}\n" for hypothesis in hypotheses)
    chosen = directory.checkpoint()
    directory.log(kind="test", checkpoint=chosen.name, **scores.as_dict())
    # The samples are spread over the test set, because it may be sorted.
    shown = min(config.evaluation.samples, len(sources))
    for index in (len(sources) * i // shown for i in range(shown)):
        print(f"source      {visible(sources[index])}")
        print(f"translation {visible(hypotheses[index])}")
        print(f"reference   {visible(references[index])}\n")
    print(f"test set, {chosen.name}: {scores}")


def _score(
    config: Config, split, directory: RunDirectory, title: str
) -> tuple[Scores, list[str], list[str], list[str]]:
    """Translates a split with the best checkpoint.

    Returns: the scores, and the sources, hypotheses and references.
    """
    sources, references = split.text
    translator = Translator.load(directory.path, device=paddle.get_device())
    with progress(total=len(sources), title=title, unit="lines") as bar:
        hypotheses = list(translator.translate(sources, bar.update))
    return score_for(config, hypotheses, references), sources, hypotheses, references


def _report(config: Config, data: PreparedData, plan: Plan, file: TextIO) -> None:
    """Prints facts about the data and the plan into a file, and warnings to stderr."""
    print(visible("\n".join(data.report())), file=file)
    sizes = VocabularySizes.of(data.subwords)
    parameters = sum(part.parameters for part in parts(config.model, sizes))
    count, tokens = plan.batches
    print(f"model           {parameters:,} parameters", file=file)
    print(
        f"an update       {count} x {tokens:,} padded target tokens; "
        f"{plan.updates_per_epoch:,} updates per epoch, {plan.total_steps:,} in all",
        file=file,
        flush=True,
    )
    for message in advice(config, data.facts, plan.total_steps):
        warn(message)


def _report_config(config: Config, verbose: bool) -> None:
    """Prints the values of all keys as YAML, or only of those that differ from the defaults."""
    if verbose:
        print(f"\n{visible(config_file.dump(config))}")
        return
    changed = config_file.changed(config)
    print("\nsettings that differ from the defaults (--verbose shows all):")
    rows = [(key, printable(shown_as_yaml(value), 44)) for key, value in changed.items()]
    print("\n".join(table(rows, "<<", indent="  ")) + "\n")


def _next_steps(directory: RunDirectory) -> None:
    path = quoted(directory.path)
    print("\nNext:")
    print(visible(f"  bash scripts/translate.sh {path} FILE   # translate a text, line by line"))
    print(visible(f"  bash scripts/evaluate.sh {path} SOURCE REFERENCE   # score it"))

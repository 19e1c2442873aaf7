"""The verb `train`: from a config to a trained model and its score."""

from __future__ import annotations

import sys
import time

from transformer_mt import config as config_schema
from transformer_mt import device as devices
from transformer_mt.config import Config
from transformer_mt.console import duration, progress, say
from transformer_mt.data.prepare import PreparedData, prepare
from transformer_mt.decoding.translator import Translator
from transformer_mt.evaluation.metrics import score_for
from transformer_mt.files import atomic
from transformer_mt.model_directory import ModelDirectory
from transformer_mt.training import launch
from transformer_mt.training.processes import Processes
from transformer_mt.training.trainer import Trainer, batch_plan, seconds_per_step


def check(config: Config, device: str | None) -> None:
    """Prints what would be trained, and for how long; writes nothing but the cache."""
    used = devices.use(device)
    print(config_schema.dump(config))
    data = prepare(config)
    _report(data, sys.stdout)
    processes = devices.processes(config.training.devices, used)
    trainer = Trainer(config, data, Processes(world_size=processes))
    _report_plan(trainer, sys.stdout)
    say("timing some steps ...")
    seconds = seconds_per_step(trainer)
    print(
        f"estimated time  {duration(seconds * trainer.total_steps())} of training on {used} with "
        f"{processes} process(es), validations not counted ({seconds:.2f} s a step)"
    )


def train(config: Config, device: str | None, restart: bool) -> None:
    """Trains, then scores the test set.

    Raises:
        UserError: anything wrong with the data or the model directory.
        Interrupted: after saving a checkpoint.
    """
    started = time.monotonic()
    used = devices.use(device)
    directory = ModelDirectory(config.model_dir)
    directory.claim(restart)
    try:
        data = prepare(config)
        _report(data, sys.stderr)
        directory.start(config, data.subwords, data.held_out_files)
        data = data.with_held_out_in(directory.held_out)
        trainer = Trainer(config, data, Processes())
        _report_plan(trainer, sys.stderr)
        processes = devices.processes(config.training.devices, used)
        where = used if processes == 1 else f"{processes} processes"
        say(f"training into {directory.path} on {where}; Ctrl-C saves and stops")
        if processes == 1:
            trainer.run(directory)
        else:
            launch.run_workers(config, data, directory, used, processes)
        if data.test_split is not None:
            score_test(config, data, directory)
        say(f"done in {duration(time.monotonic() - started)}")
        _next_steps(directory)
    finally:
        directory.release()


def score_test(config: Config, data: PreparedData, directory: ModelDirectory) -> None:
    """Translates the test set with the best checkpoint and prints the score and some samples."""
    sources = [source for source, _ in data.test_split]
    references = data.test_split.references()
    translator = Translator.load(directory.path)
    with progress(total=len(sources), title="test set", unit="lines") as bar:
        hypotheses = list(translator.translate(sources, bar.update))
    with atomic(directory.path / "test.hypothesis") as file:
        file.writelines(f"{hypothesis}\n" for hypothesis in hypotheses)
    scores = score_for(config, hypotheses, references)
    chosen = directory.checkpoint()
    directory.log(kind="test", checkpoint=chosen.name, **scores.as_dict())
    # Spread over the test set, so that a sorted one shows more than its beginning.
    shown = min(config.evaluation.samples, len(sources))
    for index in (len(sources) * i // shown for i in range(shown)):
        print(f"source      {sources[index]}")
        print(f"translation {hypotheses[index]}")
        print(f"reference   {references[index]}\n")
    print(f"test set, {chosen.name}: {scores}")


def _report(data: PreparedData, file) -> None:
    for line in data.report():
        print(line, file=file)


def _report_plan(trainer: Trainer, file) -> None:
    parameters = sum(int(parameter.size) for parameter in trainer.model.parameters())
    count, tokens = batch_plan(trainer.config.training)
    steps = len(trainer.epoch_updates(0))
    print(f"model           {parameters:,} parameters", file=file)
    print(
        f"an update       {count} x {tokens:,} padded target tokens; {steps:,} updates an epoch, "
        f"{trainer.total_steps():,} in all",
        file=file,
    )


def _next_steps(directory: ModelDirectory) -> None:
    print("\nNext:")
    print(f"  bash scripts/translate.sh {directory.path} FILE   # translate a text, line by line")
    print(f"  bash scripts/evaluate.sh {directory.path} SOURCE REFERENCE   # score it")

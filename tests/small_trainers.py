"""Trainers of tiny models on real sentences, for tests."""

import json

import pytest

from tests.support import demo_pairs, make_config, prepared, train_subwords
from transformer_mt.assembly import training as assembly
from transformer_mt.data.subword import Subwords
from transformer_mt.training.folder import RunDirectory

PAIRS = demo_pairs(160)
TRAIN, DEV = PAIRS[:120], PAIRS[120:]
# The settings of a short run.
SHORT = {
    "max_steps": 12, "batch_tokens": 300, "device_tokens": 300, "log_every": 2,
    "validate_every": 4, "save_every": 3, "keep_last": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def subwords() -> Subwords:
    return train_subwords(PAIRS)


@pytest.fixture
def make_trainer(tmp_path, subwords):
    def make(dev=False, model=None, evaluation=None, **training):
        sections = {"model": model or {}, "training": training}
        config = make_config(tmp_path, **sections)
        data = prepared(config, TRAIN, subwords, DEV if dev else None)
        return assembly.make_trainer(config, data)

    return make


@pytest.fixture
def run_in(tmp_path):
    def run(trainer):
        directory = RunDirectory(tmp_path / "run")
        directory.claim()
        directory.start(trainer.config, trainer.data.subwords, [])
        trainer.run(directory)
        directory.release()
        lines = (directory.path / "metrics.jsonl").read_text().splitlines()
        return directory, [json.loads(line) for line in lines]

    return run


def weights(trainer):
    return {name: value.numpy() for name, value in trainer.model.named_parameters()}


def update_once(trainer, batches):
    return trainer.updater.apply(trainer.read(0, 0, batches), 1)


def set_losses(trainer, values):
    """Makes the losses of some steps what they are said to be; returns the list of all steps."""
    losses, update, steps = trainer.updater.losses, trainer.updater.apply, []

    def watched(*arguments):
        loss, nll = losses(*arguments)
        factor = values.get(steps[-1], 1.0)
        return loss * factor, nll * factor

    trainer.updater.losses = watched
    trainer.updater.apply = lambda read, step: steps.append(step) or update(read, step)
    return steps

"""Trainers of tiny models on real sentences, for tests."""

import json
from functools import cache

import numpy as np
import pytest

from tests.support import demo_pairs, make_config, prepared, train_subwords, with_links
from transformer_mt.data.batches import Batch, encoded_rows
from transformer_mt.data.subword import Subwords
from transformer_mt.training.folder import RunDirectory
from transformer_mt.training.loop import Trainer
from transformer_mt.training.parallel import ALONE

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
    def make(dev=False, model=None, **training):
        sections = {"model": model or {}, "training": training}
        return trainer_of(tmp_path, subwords=subwords, dev=DEV if dev else None, **sections)

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


@cache
def own_subwords() -> Subwords:
    """Of the training text, for all trainers of this process."""
    return train_subwords(TRAIN)


def trainer_of(folder, pairs=TRAIN, subwords=None, dev=None, processes=ALONE, **sections):
    """A trainer, with the sections of its config; the first words of all pairs are aligned."""
    config = make_config(folder, **sections)
    data = prepared(config, pairs, subwords or own_subwords(), dev)
    if config.guided_attention.by == "alignment":
        data = with_links(data, folder)
    return Trainer(config, data, processes)


def batch_of(subwords, sources, targets) -> Batch:
    """Of ids without eos."""
    source, target = subwords.source, subwords.target
    said = encoded_rows(targets, target.pad, target.eos)
    read = np.roll(said, 1, axis=1)
    read[read == target.eos] = target.pad
    read[:, 0] = target.bos
    tokens = int((said != target.pad).sum())
    return Batch(encoded_rows(sources, source.pad, source.eos), read, said, tokens)


def assert_same_weights(found, expected, tolerance=0.0):
    """Of trainers or of dictionaries of arrays; to the last bit unless a tolerance is given."""
    found, expected = (x if isinstance(x, dict) else weights(x) for x in (found, expected))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance, err_msg=name)


def assert_same_outcomes(found, expected):
    """But for sums in another order."""
    for outcome, other in zip(found, expected, strict=True):
        assert outcome.loss == pytest.approx(other.loss, rel=1e-4)
        assert outcome.nll == pytest.approx(other.nll, rel=1e-4)
        assert outcome.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-3)


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

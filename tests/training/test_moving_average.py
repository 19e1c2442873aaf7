"""The exponential moving average of the weights, against NumPy in float64."""

import numpy as np
import pytest

from tests.small_trainers import SHORT, assert_same_weights, weights
from tests.support import take_steps
from transformer_mt.weights import read_weights

EMA = {**SHORT, "ema": 0.9}


def averaged(trainer):
    with trainer.updater.final_weights():
        return weights(trainer)


def test_the_formula(make_trainer):
    trainer = make_trainer(**EMA)
    expected = {name: value.astype(np.float64) for name, value in weights(trainer).items()}
    update = trainer.read(0, 0, trainer.plan.epoch_updates(0)[0])
    for step in range(1, 9):
        trainer.updater.apply(update, step)
        decay = min(0.9, (1 + step) / (10 + step))
        for name, value in weights(trainer).items():
            expected[name] = decay * expected[name] + (1 - decay) * value
    assert_same_weights(averaged(trainer), expected, 1e-6)


def test_training_is_that_without_an_average(make_trainer):
    plain, other = make_trainer(**SHORT), make_trainer(**EMA)
    take_steps(plain, 5)
    take_steps(other, 5)
    with pytest.raises(KeyError), other.updater.final_weights():
        raise KeyError  # the weights are put back even then
    assert_same_weights(other, plain)


def test_checkpoints_hold_the_average_and_a_run_goes_on_exactly(make_trainer, run_in, tmp_path):
    unbroken = make_trainer(**EMA)
    directory, lines = run_in(unbroken)
    saved = read_weights(directory.checkpoint("step_12"))
    assert_same_weights(saved, averaged(unbroken))
    name = "generator.weight" if "generator.weight" in saved else "target_embedding.weight"
    assert not np.array_equal(saved[name], weights(unbroken)[name])
    (tmp_path / "run").rename(tmp_path / "whole")
    resumed = make_trainer(**EMA)
    resumed.start(tmp_path / "whole" / "checkpoints" / "step_9")
    _, later = run_in(resumed)
    assert_same_weights(saved, averaged(resumed))
    losses = [[x["loss"] for x in log if x["kind"] == "train"] for log in (lines, later)]
    assert losses[1] == losses[0][-len(losses[1]) :]

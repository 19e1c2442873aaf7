"""The exponential moving average of the weights, against NumPy in float64."""

import numpy as np
import paddle
import pytest

from tests.small_trainers import SHORT, weights
from tests.support import take_steps
from transformer_mt.training.update import MovingAverage
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
    for name, value in averaged(trainer).items():
        np.testing.assert_allclose(value, expected[name], atol=1e-6, err_msg=name)


def test_training_is_that_without_an_average(make_trainer):
    plain, other = make_trainer(**SHORT), make_trainer(**EMA)
    take_steps(plain, 5)
    take_steps(other, 5)
    averaged(other)  # which puts the weights back
    for name, value in weights(plain).items():
        np.testing.assert_array_equal(value, weights(other)[name])


def test_checkpoints_hold_the_average_and_a_run_goes_on_exactly(make_trainer, run_in, tmp_path):
    unbroken = make_trainer(**EMA)
    directory, lines = run_in(unbroken)
    saved = read_weights(directory.checkpoint("step_12"))
    for name, value in averaged(unbroken).items():
        np.testing.assert_array_equal(saved[name], value)
        assert name.endswith("bias") or not np.array_equal(value, weights(unbroken)[name])
    (tmp_path / "run").rename(tmp_path / "whole")
    resumed = make_trainer(**EMA)
    resumed.start(tmp_path / "whole" / "checkpoints" / "step_9")
    _, later = run_in(resumed)
    for name, value in averaged(resumed).items():
        np.testing.assert_array_equal(saved[name], value)
    losses = [[x["loss"] for x in log if x["kind"] == "train"] for log in (lines, later)]
    assert losses[1] == losses[0][-len(losses[1]) :]


def test_an_error_leaves_the_weights(make_trainer):
    trainer = make_trainer(**EMA)
    take_steps(trainer, 2)
    before = weights(trainer)
    with pytest.raises(KeyError), trainer.updater.final_weights():
        raise KeyError
    for name, value in weights(trainer).items():
        np.testing.assert_array_equal(value, before[name])


def test_one_layer_by_hand():
    layer = paddle.nn.Linear(1, 1, bias_attr=False)
    layer.weight.set_value(np.float32([[0.0]]))
    average = MovingAverage(layer, 0.5)
    layer.weight.set_value(np.float32([[1.0]]))
    average.update(100)
    with average.in_model():
        assert float(layer.weight) == 0.5
    assert float(layer.weight) == 1.0

"""training.freeze and training.learning_rate_factors, on the CPU's path and on that of a GPU."""

import numpy as np
import pytest

from tests.device_path import use_device_path
from tests.small_trainers import SHORT, assert_same_weights, trainer_of, update_once, weights
from tests.support import take_steps
from transformer_mt.training.update import read
from transformer_mt.utils.errors import UsageError

OPTIMIZERS = {
    "adam": {},
    "adamw": {"weight_decay": 0.01},
    "muon": {"weight_decay": 0.01, "clip_norm": 0.5},
    "sgd": {"momentum": 0.5},
}
FREEZE = {
    "embeddings": ["*embedding*"],
    "encoder": ["encoder.*"],
    "only one matrix is left": ["[!e]*", "encoder.layers.0.[!f]*", "*bias", "*outp*", "*norm*"],
    "only vectors are left": ["*embedding*", "*projection.weight"],
}


@pytest.fixture(params=["host", "device"])
def path(request, monkeypatch):
    if request.param == "device":
        use_device_path(monkeypatch)
    return request.param


def frozen_names(trainer):
    return {name for name, p in trainer.model.named_parameters() if p.stop_gradient}


@pytest.mark.parametrize("freeze", FREEZE)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_frozen_weights_stay_and_have_no_state(tmp_path, path, optimizer, freeze):
    training = {"optimizer": optimizer, **OPTIMIZERS[optimizer], "freeze": FREEZE[freeze]}
    trainer = trainer_of(tmp_path, training={**training, "ema": 0.9})
    before, frozen = weights(trainer), frozen_names(trainer)
    assert 0 < len(frozen) < len(before)
    take_steps(trainer, 3)
    for name, value in weights(trainer).items():
        assert np.array_equal(value, before[name]) == (name in frozen), name
    owners = {key.rpartition("/")[0] for key in trainer.updater.state()}
    assert owners == before.keys() - frozen
    assert all(p.grad is None for p in trainer.model.parameters() if p.stop_gradient)


def test_the_others_are_trained_as_ever(tmp_path, path):
    """One update; and the norm is that of their gradient alone. Sums of float32 differ by 1e-6."""
    sgd = {"optimizer": "sgd", "momentum": 0.0, "warmup_steps": 1, "schedule": "constant"}
    rate = 0.5
    whole = trainer_of(tmp_path, training={**sgd, "learning_rate": rate})
    trainer = trainer_of(
        tmp_path, training={**sgd, "learning_rate": rate, "freeze": ["decoder.*", "*norm*"]}
    )
    before, frozen = weights(trainer), frozen_names(trainer)
    batches = whole.plan.epoch_updates(0)[0]
    update_once(whole, batches)
    (outcome,) = read([update_once(trainer, batches)])
    expected = weights(whole) | {name: before[name] for name in frozen}
    assert_same_weights(weights(trainer), expected, 1e-6)
    changes = [(value - before[name]) / rate for name, value in weights(trainer).items()]
    norm = np.sqrt(sum(np.square(change, dtype=np.float64).sum() for change in changes))
    assert outcome.gradient_norm == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_factors_of_the_learning_rate(tmp_path, path, optimizer):
    """The first update of each weight is so many times as large. A quarter is exact in float32, and
    so are biases, which were 0; a change of other weights is rounded to theirs, near 1e-8."""
    factors = {"encoder.layers.0.*": 0.25, "*embedding*": 0.5, "encoder*": 2.0}
    training = {"optimizer": optimizer, **OPTIMIZERS[optimizer]}
    plain = trainer_of(tmp_path, training=training)
    trainer = trainer_of(tmp_path, training={**training, "learning_rate_factors": factors})
    before, batches = weights(plain), plain.plan.epoch_updates(0)[0]
    update_once(plain, batches)
    update_once(trainer, batches)
    changes, found = weights(plain), weights(trainer)
    for name, value in found.items():
        factor = 0.25 if name.startswith("encoder.layers.0.") else 1.0
        factor = 0.5 if "embedding" in name else 2.0 if name.startswith("encoder.norm") else factor
        expected = (changes[name] - before[name]) * np.float32(factor)
        exact = optimizer == "sgd" and name.endswith("bias") and not before[name].any()
        tolerance = 0.0 if exact else 2e-7
        np.testing.assert_allclose(value - before[name], expected, tolerance and 1e-5, tolerance)


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_a_run_goes_on_exactly(make_trainer, run_in, tmp_path, optimizer):
    training = {**SHORT, "optimizer": optimizer, "freeze": ["decoder.layers.0.*"], "ema": 0.9}
    training["learning_rate_factors"] = {"*embedding*": 0.5, "*bias": 3.0}
    unbroken = make_trainer(**training)
    run_in(unbroken)
    (tmp_path / "run").rename(tmp_path / "whole")
    resumed = make_trainer(**training)
    resumed.start(tmp_path / "whole" / "checkpoints" / "step_9")
    run_in(resumed)
    assert_same_weights(resumed, unbroken)


def test_a_checkpoint_of_one_path_goes_on_in_the_other(tmp_path, make_trainer, monkeypatch):
    training = {"learning_rate_factors": {"*embedding*": 0.5}, "freeze": ["encoder.*"]}
    host = trainer_of(tmp_path, training=training)
    take_steps(host, 2)
    use_device_path(monkeypatch)
    device = trainer_of(tmp_path, training=training)
    for name, parameter in device.model.named_parameters():
        parameter.set_value(weights(host)[name])
    state = host.updater.state()
    device.updater.load({name: value.copy() for name, value in state.items()})
    found = device.updater.state()
    assert found.keys() == state.keys()
    for name, value in state.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize(("training", "words"), [
    ({"freeze": ["encoder.layer.*"]}, r"freeze: 'encoder.layer.\*' fits no weight.*encoder\."),
    ({"freeze": ["embed"]}, r"'embed' fits no weight.* target_embedding\.weight"),
    ({"freeze": ["*"]}, "all weights are frozen"),
    ({"learning_rate_factors": {"*embedings*": 0.5}}, r"factors: .*nearest.*embedding"),
    (
        {"learning_rate_factors": {"*embedding*": 0.5}, "freeze": ["*embedding*"]},
        r"factors: '\*embedding\*' fits no weight that is trained",
    ),
])  # fmt: skip
def test_patterns_that_fit_nothing(tmp_path, path, training, words):
    with pytest.raises(UsageError, match=words):
        trainer_of(tmp_path, training=training)

"""Averages of checkpoints, against NumPy."""

import json

import numpy as np
import pytest

from tests.reference import SMALL, build
from transformer_mt.model.transformer import Transformer
from transformer_mt.training import checkpoint
from transformer_mt.training.checkpoint import State, average
from transformer_mt.training.folder import RunDirectory
from transformer_mt.training.progress import Progress
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.weights import load_weights, read_tensors

STEPS = (2, 4, 6, 10)
BEST = [(9.0, 4), (8.0, 10), (7.0, 2)]


def small_model():
    return build(Transformer, 20, 20, **SMALL)


@pytest.fixture
def directory(tmp_path):
    made = RunDirectory(tmp_path / "run")
    made.checkpoints.mkdir(parents=True)
    for step in STEPS:
        model = small_model()
        known = [item for item in BEST if item[1] <= step]
        state = State(Progress((1, 100), step=step, best=known))
        checkpoint.save(made.checkpoints / f"step_{step}", model, {}, state)
    return made


def weights(path):
    return read_tensors(path / "model.safetensors")


@pytest.mark.parametrize(
    ("kind", "count", "steps"),
    [("last", 3, [4, 6, 10]), ("best", 1, [4]), ("best", 3, [2, 4, 10])],
)
def test_the_mean_of_the_chosen(directory, kind, count, steps):
    made = average(directory, kind, count)
    assert made == directory.checkpoints / f"average_{kind}_{count}"
    parts = [weights(directory.checkpoints / f"step_{step}") for step in steps]
    found = weights(made)
    assert found.keys() == parts[0].keys()
    for name, value in found.items():
        mean = np.mean([part[name].astype("float64") for part in parts], axis=0)
        np.testing.assert_array_equal(value, mean.astype("float32"), err_msg=name)
    of = json.loads((made / "state.json").read_text())["average_of"]
    assert sorted(of) == sorted(f"step_{step}" for step in steps)


def test_it_is_a_checkpoint_to_translate_with_and_no_step(directory):
    made = average(directory, "last", 2)
    load_weights(made, small_model())
    assert directory.checkpoint("average_last_2") == made
    assert directory.checkpoint("last").name == "step_10"
    directory.set_best(made)
    assert directory.checkpoint() == made
    # Averaging again is the same again: no average is averaged.
    before = weights(made)
    for name, value in weights(average(directory, "last", 2)).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_too_few_or_a_damaged_one(directory):
    for kind in ("last", "best"):
        with pytest.raises(UsageError, match=f"keep_{kind}"):
            average(directory, kind, 5)
    (directory.checkpoints / "step_6" / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"step_6/model.safetensors: damaged"):
        average(directory, "last", 3)
    assert not (directory.checkpoints / "average_last_3").exists()

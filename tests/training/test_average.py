"""Averages of checkpoints and mixes of two, against NumPy."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from tests.reference import SMALL, build
from tests.support import make_config
from transformer_mt.model.transformer import Transformer
from transformer_mt.scoring.metrics import Scores
from transformer_mt.training import checkpoint, fine_tuning
from transformer_mt.training.checkpoint import State, average
from transformer_mt.training.folder import RunDirectory
from transformer_mt.training.progress import Progress
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.folders import write_checksums
from transformer_mt.weights import load_weights, read_tensors, write_tensors

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


@pytest.mark.parametrize("percent", [0, 20, 60, 100])
def test_a_mix_is_what_numpy_interpolates(directory, percent):
    """In float64, rounded to float32 once; 0 % and 100 % are the two models, bit for bit."""
    before, after = (directory.checkpoints / f"step_{step}" for step in (2, 10))
    # The fixture's models are equal; as after training, one has moved.
    moved = {
        key: value
        + np.float32(0.1) * np.cos(np.arange(value.size, dtype="float32")).reshape(value.shape)
        for key, value in weights(after).items()
    }
    write_tensors(after / "model.safetensors", moved)
    write_checksums(after)
    made = checkpoint.mix(directory, before, after, percent)
    assert (
        made == directory.checkpoints / f"mix_{percent}" and made in directory.named_checkpoints()
    )
    share, first = percent / 100, weights(before)
    for name, value in weights(made).items():
        mixed = (1 - share) * first[name].astype("float64") + share * moved[name].astype("float64")
        np.testing.assert_allclose(value, mixed, rtol=1e-7, atol=1e-9, err_msg=name)
    if percent in (0, 100):
        for name, value in weights(made).items():
            np.testing.assert_array_equal(value, (moved if percent else first)[name])
    directory.set_best(made)
    assert directory.checkpoint() == made


@pytest.mark.parametrize(
    ("domain", "general", "chosen"),
    [
        # Without general text, the best of the dev set; of equal ones, the most of the tuned model.
        ([10, 20, 31, 30, 31, 29], None, "mix_80"),
        ([10, 12, 14, 16, 18, 20], None, "step_10"),
        # With it, a point is worth the same in both, whatever the scores are.
        ([10, 20, 28, 30, 31, 31], [60, 59, 58, 50, 40, 30], "mix_40"),
        ([10, 11, 11, 11, 11, 12], [60, 58, 50, 40, 30, 20], "step_2"),
    ],
)
def test_the_mix_that_is_chosen(directory, monkeypatch, tmp_path, domain, general, chosen):
    """The weights of the chosen one are kept, and every score is logged."""
    monkeypatch.setattr(fine_tuning, "START", "step_2")
    directory.set_best(directory.checkpoints / "step_10")
    names = ["step_2", "mix_20", "mix_40", "mix_60", "mix_80", "step_10"]
    sets = {"dev": domain} | ({"general_dev": general} if general else {})

    def scored(config, split, directory, name, beam_size):
        assert (directory.checkpoints / name).is_dir() and beam_size == 1
        return Scores({"bleu": sets[split][names.index(name)]}, {"bleu": ""}, None, 1), []

    monkeypatch.setattr(fine_tuning, "scored", scored)
    data = SimpleNamespace(dev_sets={name: SimpleNamespace(split=name) for name in sets})
    fine_tuning.choose_mix(make_config(tmp_path), data, directory)
    assert directory.checkpoint().name == chosen
    kept = {path.name for path in directory.named_checkpoints() if path.name.startswith("mix")}
    assert kept == {chosen} & set(names[1:-1])
    logged = [(line["set"], line["checkpoint"], line["bleu"]) for line in directory.logged()]
    assert sorted(logged) == sorted(
        (name, own, value)
        for name, values in sets.items()
        for own, value in zip(names, values, strict=True)
    )


def test_too_few_or_a_damaged_one(directory):
    for kind in ("last", "best"):
        with pytest.raises(UsageError, match=f"keep_{kind}"):
            average(directory, kind, 5)
    (directory.checkpoints / "step_6" / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"step_6/model.safetensors: damaged"):
        average(directory, "last", 3)
    assert not (directory.checkpoints / "average_last_3").exists()

"""Checkpoints: what is saved comes back, what is damaged is refused, what fails harms nothing."""

import pickle
import re

import numpy as np
import paddle
import pytest

from tests.reference import SMALL, build
from tests.small_trainers import assert_same_weights
from tests.support import run_python
from transformer_mt.config.schema import TrainingConfig
from transformer_mt.model.transformer import Transformer
from transformer_mt.training import checkpoint
from transformer_mt.training.checkpoint import State
from transformer_mt.training.folder import RunDirectory
from transformer_mt.training.optimizers import make_optimizer
from transformer_mt.training.parallel import ALONE, Gradients
from transformer_mt.training.progress import Meter, Progress
from transformer_mt.utils.errors import UserError
from transformer_mt.utils.folders import verify, write_checksums
from transformer_mt.weights import load_weights, read_tensors, write_tensors

VOCABULARY = 50


def small_model(layers=1, vocabulary=VOCABULARY, tied=True):
    layers = {"num_encoder_layers": layers, "num_decoder_layers": layers}
    sharing = {"tie_embeddings": tied, "share_source_embedding": tied}
    return build(Transformer, vocabulary, vocabulary, **SMALL | layers | sharing)


def optimizer_of(model):
    return make_optimizer(TrainingConfig(max_steps=1), model)


@pytest.fixture
def directory(tmp_path):
    made = RunDirectory(tmp_path / "run")
    made.checkpoints.mkdir(parents=True)
    return made


def state_of(step):
    return State(Progress((1, 100), step=step))


def save(directory, step, model=None, optimizer=None):
    model = model or small_model()
    path = directory.checkpoints / f"step_{step}"
    checkpoint.save(path, model, (optimizer or optimizer_of(model)).state(), state_of(step))
    return path


def logits(model):
    model.eval()
    ids = paddle.to_tensor([[4, 5, 6], [7, 8, 0]])
    return model(ids, ids).numpy()


@pytest.mark.parametrize("tied", [True, False])
def test_what_is_saved_comes_back_and_tied_weights_stay_tied(directory, tied):
    model, other = small_model(tied=tied), small_model(tied=tied)
    saved = save(directory, 3, model)
    assert saved == directory.checkpoints / "step_3"
    stored = read_tensors(saved / "model.safetensors")
    shapes = [list(value.shape) for value in stored.values()]
    assert shapes.count([VOCABULARY, 8]) == (1 if tied else 3)
    load_weights(saved, other)
    np.testing.assert_array_equal(logits(model), logits(other))
    # One update moves all three, if they are one.
    embeddings = other.generator.weight, other.source_embedding.weight
    trained_steps(other, optimizer_of(other), 1)
    assert np.array_equal(*(weight.numpy() for weight in embeddings)) == tied
    assert not np.array_equal(embeddings[0].numpy(), model.generator.weight.numpy())


def damage(path, how):
    whole = path.read_bytes()
    middle = len(whole) // 2
    path.write_bytes(
        {
            "missing": b"",
            "empty": b"",
            "text": b"weights!\n",
            "cut": whole[:middle],
            "flipped": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
            "numbers": pickle.dumps({"generator.weight": 3}),
        }[how]
    )
    if how == "missing":
        path.unlink()


@pytest.mark.parametrize("how", ["missing", "empty", "text", "cut", "numbers"])
def test_a_damaged_file_is_named(directory, how):
    saved, model = save(directory, 3), small_model()
    damage(saved / "model.safetensors", how)
    before = logits(model)
    with pytest.raises(UserError, match=re.escape(str(saved / "model.safetensors"))):
        load_weights(saved, model)
    np.testing.assert_array_equal(logits(model), before)


@pytest.mark.parametrize(("file", "bad"), [("model", np.nan), ("optimizer", np.inf)])
def test_a_checkpoint_that_holds_no_numbers_is_refused(directory, file, bad):
    """Checksums are right: training itself, or another program, wrote it."""
    saved = save(directory, 3)
    path = saved / f"{file}.safetensors"
    write_tensors(path, read_tensors(path) | {"one": np.array([1, bad], np.float32)})
    write_checksums(saved)
    model = small_model()
    with pytest.raises(UserError, match=re.escape(f"{path}: damaged (one holds NaN")):
        checkpoint.restore(saved, optimizer_of(model))


def test_all_that_does_not_fit_is_listed(directory):
    saved = save(directory, 3, small_model(layers=2))
    model = small_model(vocabulary=VOCABULARY + 1, tied=False)
    before = logits(model)
    with pytest.raises(UserError) as raised:
        load_weights(saved, model)
    problems = str(raised.value).split(": ", 2)[-1]
    assert f"target_embedding.weight is [{VOCABULARY}, 8], the model's is [51, 8]" in problems
    assert "generator.weight is missing" in problems
    assert "source_embedding.weight is missing" in problems
    # The layers that the config has forgotten: translating without them is no translating.
    assert re.search(r"encoder\.layers\.1\.\S+ is not in the model", problems)
    assert re.search(r"decoder\.layers\.1\.\S+ is not in the model", problems)
    assert "layers.0" not in problems
    np.testing.assert_array_equal(logits(model), before)


# The kernel refuses to let a file of this process grow beyond a limit, as a full disk would.
SAVE_WITH_LITTLE_ROOM = """
import sys
import paddle
from pathlib import Path
from transformer_mt.training import checkpoint
from transformer_mt.training.checkpoint import State
from transformer_mt.training.progress import Progress
try:
    state = State(Progress((1, 100)))
    checkpoint.save(Path(sys.argv[1]) / "step_6", paddle.nn.Linear(100, 100), {}, state)
except checkpoint.UserError as error:
    sys.exit(f"refused: {error}")
"""


def test_a_failure_to_write_leaves_the_earlier_ones_whole(directory):
    earlier = save(directory, 3)
    done = run_python("-c", SAVE_WITH_LITTLE_ROOM, directory.checkpoints, file_size=20_000)
    assert done.returncode == 1 and "refused: " in done.stderr and "step_6" in done.stderr
    assert [path.name for path in directory.checkpoints.iterdir()] == ["step_3"]
    assert verify(earlier) is None


def names(directory):
    return [path.name for path in directory.saved_checkpoints()]


def test_the_last_and_the_best_stay(directory):
    for step in (1, 2, 10, 9, 30):
        save(directory, step)
    checkpoint.remove_old(directory, 2, [2, 1])
    assert names(directory) == ["step_1", "step_2", "step_10", "step_30"]
    # Once others are better, an old best goes as any other.
    checkpoint.remove_old(directory, 2, [30, 2])
    assert names(directory) == ["step_2", "step_10", "step_30"]
    checkpoint.remove_old(directory, 5, [])
    assert names(directory) == ["step_2", "step_10", "step_30"]


def test_what_was_never_finished_is_no_checkpoint(directory):
    assert checkpoint.newest_whole(directory) is None
    save(directory, 5)
    (directory.checkpoints / ".step_7.tmp").mkdir()
    assert directory.checkpoint("last").name == "step_5"


# ---- The state of the optimiser ----


def trained_steps(model, optimizer, steps):
    """Deterministic updates of all weights."""
    model.eval()
    ids = paddle.to_tensor([[4, 5, 6], [7, 8, 9]])
    gradients = Gradients(model, ALONE)
    for _ in range(steps):
        loss = model(ids, ids).square().mean()
        loss.backward()
        optimizer.apply(gradients, loss.detach(), 0.01)
    return {name: value.numpy().copy() for name, value in model.named_parameters()}


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd", "muon"])
def test_going_on_is_as_if_never_stopped(directory, kind):
    """In this process the restored model's tensors have other numbers in Paddle's own names."""
    config = TrainingConfig(max_steps=1, optimizer=kind)
    model, other = small_model(), small_model()
    optimizer = make_optimizer(config, model)
    trained_steps(model, optimizer, 3)
    saved = save(directory, 3, model, optimizer)
    expected = trained_steps(model, optimizer, 3)
    fresh = make_optimizer(config, other)
    assert checkpoint.restore(saved, fresh) == state_of(3)
    assert_same_weights(trained_steps(other, fresh, 3), expected)


# ---- What is damaged ----


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.safetensors", "state.json", "SHA256SUMS"]
)
@pytest.mark.parametrize("how", ["flipped", "cut", "missing"])
def test_any_damage_is_noticed_and_passed_over(directory, capsys, name, how):
    earlier, newer = save(directory, 3), save(directory, 5)
    assert checkpoint.newest_whole(directory) == newer
    damage(newer / name, how)
    assert checkpoint.newest_whole(directory) == earlier
    said = capsys.readouterr().err
    assert str(newer) in said and (name in said or name == "SHA256SUMS")
    assert names(directory) == ["step_3"]
    assert (directory.checkpoints / "step_5.damaged").is_dir()


def test_a_deletion_that_is_cut_short_leaves_no_half_checkpoint(directory, monkeypatch):
    save(directory, 3), save(directory, 5)
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)  # killed before a file was gone
    checkpoint.remove_old(directory, 1, [])
    assert names(directory) == ["step_5"]


# ---- The state of training ----

PROGRESS = Progress(
    *((2, 300), 20, 1, 3, 2, 1, 15, [([9.5, 40.0, -1.0], 10), ([9.0, 41.0, -1.5], 20)], 1),
    meter=Meter(1.5, 1.25, 0.5, 100, 2.0, 300, 20),
    losses=[(5.0, 4.5)],
    loss_since=7.0,
    tokens_since=30,
    seconds=12.5,
)


@pytest.fixture
def newest(tmp_path):
    for step in (10, 20):
        (tmp_path / f"step_{step}").mkdir()
    return tmp_path / "step_20"


@pytest.mark.parametrize("more", [{}, {"stopped": True}, {"average_of": ["step_10", "step_20"]}])
def test_a_state_that_is_saved_comes_back(newest, more):
    state = State(PROGRESS, {"scale": [1024.0], "incr_count": 3}, "text", **more)
    state.save(newest)
    write_checksums(newest)
    assert State.restore(newest) == state


@pytest.mark.parametrize(
    "text",
    ["", "3", "[]", "{}", '{"progress": 3}', '{"progress": {"plan": 3, "best": [], "meter": {}}}'],
)
def test_what_is_no_state_is_refused(newest, text):
    (newest / "state.json").write_text(text)
    write_checksums(newest)
    with pytest.raises(UserError, match=r"step_20/state\.json: it is no state of training"):
        State.restore(newest)

"""The training code for a GPU, run on a CPU: it reads nothing on the host between the lines of the
log, and trains the same model."""

import json

import numpy as np
import pytest

from tests.device_path import counted_host_reads, use_device_path
from tests.small_trainers import SHORT, assert_same_outcomes, set_losses, trainer_of, weights
from tests.support import take_steps
from transformer_mt.decoding.paddle_engine import PaddleEngine
from transformer_mt.training import update, validate

# Half of the words are predicted from the first step on.
PREDICTED = {"decay": "linear", "k": 0.5}
LAYER_DROPOUT = {"num_layers": 2, "layer_dropout": 0.5}
SAMPLED = {"scheduled_sampling": {**PREDICTED, "mixing": "sampled", "passes": 3}}
TOP_K = {"scheduled_sampling": {**PREDICTED, "mixing": "top_k", "backpropagate": True}}
DIAGONAL = {"guided_attention": {"by": "diagonal"}}
ALIGNMENT = {"guided_attention": {"by": "alignment", "alignments": "links"}}
MECHANISMS = {
    "plain": {},
    "adamw and clipping": {"training": {"optimizer": "adamw", "clip_norm": 0.1}},
    "sgd": {"training": {"optimizer": "sgd"}},
    "several batches": {"training": {"device_tokens": 100}},
    "recompute": {"training": {"recompute": True}},
    "pre-norm": {"model": {"norm": "pre"}},
    # With this seed, the first step leaves out layers that later ones train.
    "layer dropout": {"model": LAYER_DROPOUT, "training": {"seed": 2}},
    "layer dropout, adamw": {"model": LAYER_DROPOUT, "training": {"seed": 2, "optimizer": "adamw"}},
    "subword sampling": {"subword": {"sampling": 0.1}},
    "guided, diagonal": DIAGONAL,
    "scheduled, argmax": {"scheduled_sampling": {**PREDICTED, "mixing": "argmax"}},
    "scheduled, sampled": SAMPLED,
    "scheduled, top_k": TOP_K,
    "guided, alignment": ALIGNMENT,
    "copying": {"model": {"copying": True}},
    "non-autoregressive, length": {"model": {"non_autoregressive": "length"}},
    "non-autoregressive, end": {"model": {"non_autoregressive": "end"}},
}


@pytest.mark.parametrize("name", MECHANISMS)
def test_no_update_reads_the_device(tmp_path, monkeypatch, name):
    """And the losses are those of the CPU's way: sums in another order differ by some 1e-6."""
    monkeypatch.chdir(tmp_path)
    expected = take_steps(trainer_of(tmp_path, **MECHANISMS[name]), 4)
    use_device_path(monkeypatch)
    trainer = trainer_of(tmp_path, **MECHANISMS[name])
    with counted_host_reads() as reads:
        outcomes = take_steps(trainer, 4)
    assert sum(reads.values()) == 0, reads
    assert all(outcome.unread is not None for outcome in outcomes)
    assert_same_outcomes(update.read(outcomes), expected)


def log_of(lines):
    kept = ("kind", "step", "epoch", "loss", "nll", "gradient_norm", "skipped", "what", "pairs")
    return [{key: line[key] for key in kept if key in line} for line in lines]


def test_a_run_logs_what_the_host_would(make_trainer, run_in, monkeypatch, tmp_path):
    """With two updates that are not finite: their losses are in no mean, and the log says which
    they were, though they are read later."""
    broken = {3: np.inf, 8: np.nan}
    logs = []
    for is_device in (False, True):
        if is_device:
            (tmp_path / "run").rename(tmp_path / "host")
            use_device_path(monkeypatch)
        trainer = make_trainer(**SHORT)
        set_losses(trainer, broken)
        directory, lines = run_in(trainer)
        logs.append(lines)
    expected, found = logs
    assert [line["step"] for line in found if line["kind"] == "skipped"] == [3, 8]
    for line, own in zip(log_of(found), log_of(expected), strict=True):
        assert line.pop("kind") == own.pop("kind")
        for key, value in own.items():
            exact = isinstance(value, list | str)
            assert line[key] == (value if exact else pytest.approx(value, rel=1e-4)), key
    # What was saved goes on, on the host too.
    state = json.loads((directory.checkpoint("last") / "state.json").read_text())
    assert state["progress"]["skipped"] == 2


def test_a_run_reads_once_per_line_of_the_log(make_trainer, run_in, monkeypatch):
    """The losses of all updates since the last line in one read; and what a checkpoint copies."""
    use_device_path(monkeypatch)
    trainer = make_trainer(**{**SHORT, "log_every": 4, "save_every": 12})
    with counted_host_reads() as reads:
        run_in(trainer)
    assert reads["tolist"] == 12 / 4
    assert not any(reads[name] for name in ("__float__", "__int__", "__bool__", "item"))


@pytest.mark.parametrize(
    ("optimizer", "first"),
    [
        ("adam", "host"),
        ("adam", "device"),
        ("adamw", "device"),
        ("sgd", "host"),
        ("muon", "device"),
    ],
)
def test_checkpoints_go_from_one_to_the_other(make_trainer, monkeypatch, run_in, optimizer, first):
    """Saved by the CPU's way and resumed by a GPU's, and the other way round."""

    def made(way, steps):
        with pytest.MonkeyPatch.context() as patch:
            if way == "device":
                use_device_path(patch)
            return make_trainer(**{**SHORT, "optimizer": optimizer, "max_steps": steps})

    whole = made(first, 12)
    take_steps(whole, 8)
    directory, _ = run_in(made(first, 4))
    other = made("device" if first == "host" else "host", 12)
    other.start(directory.checkpoint("last"))
    plan = list(enumerate(other.plan.epoch_updates(0)))
    for step in range(4, 8):
        other.updater.apply(other.read(0, *plan[step]), step + 1)
    for name, value in weights(other).items():
        if "key_projection.bias" not in name:  # its gradient is 0 but for rounding
            np.testing.assert_allclose(value, weights(whole)[name], atol=1e-4, err_msg=name)


def test_a_validation_takes_as_many_lines_as_fit_into_the_memory(make_trainer, monkeypatch):
    """On a GPU. The translations are those of a CPU."""
    trainer = make_trainer(dev=True, **SHORT)
    trainer.updater.model.eval()
    batches = []
    search = PaddleEngine.search

    def recorded(self, sentences, settings):
        batches.append(len(sentences))
        return search(self, sentences, settings)

    monkeypatch.setattr(PaddleEngine, "search", recorded)
    sources = trainer.data.dev_split.text[0]
    arguments = trainer.config, sources, trainer.data.subwords, trainer.updater
    expected = validate.dev_hypotheses(*arguments)
    on_cpu = len(batches)
    monkeypatch.setattr("paddle.get_device", lambda: "gpu:0")
    for memory, count in ((0, len(expected)), (10**10, 1)):
        monkeypatch.setattr("transformer_mt.utils.device.free_memory", lambda free=memory: free)
        batches.clear()
        assert validate.dev_hypotheses(*arguments) == expected
        assert len(batches) == count
    assert on_cpu < len(expected)

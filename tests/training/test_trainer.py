"""The training loop, on tiny models and real sentences."""

import math
import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import paddle
import pytest

from tests.device_path import use_device_path
from tests.small_trainers import (
    DEV,
    SHORT,
    TRAIN,
    assert_same_weights,
    set_losses,
    trainer_of,
    update_once,
    weights,
)
from tests.support import log_softmax, take_steps
from transformer_mt.training import optimizers
from transformer_mt.training.loop import seconds_per_step
from transformer_mt.training.parallel import Processes
from transformer_mt.training.progress import Meter, perplexity
from transformer_mt.training.update import LossScale
from transformer_mt.training.validate import dev_loss
from transformer_mt.utils import signals
from transformer_mt.utils.errors import Interrupted, UserError

# ---- The same again ----


def test_the_same_seed_gives_the_same_weights_bit_by_bit(make_trainer):
    def trained(seed):
        # Each is made just before it is trained, as in a process of its own: dropout draws from
        # Paddle's one generator, which a trainer seeds when it is made.
        trainer = make_trainer(model={"dropout": 0.3}, seed=seed, max_steps=6)
        take_steps(trainer, 6)
        return weights(trainer)

    first, second, other = trained(5), trained(5), trained(6)
    assert_same_weights(second, first)
    assert not np.array_equal(first["target_embedding.weight"], other["target_embedding.weight"])


# ---- One update ----

# Plain gradient descent with a rate of 1 subtracts the gradient itself from the weights.
PLAIN = {"optimizer": "sgd", "momentum": 0.0, "schedule": "constant", "warmup_steps": 0}


def gradient(trainer, batches):
    """The gradient that an update has used."""
    before = weights(trainer)
    update_once(trainer, batches)
    after = weights(trainer)
    return {name: before[name] - after[name] for name in before}


def assert_same_gradient(found, expected):
    """Weights of at most 1 keep their differences to 6e-8; sums of some hundred terms, in another
    order, agree to 1e-6 of the largest."""
    largest = max(1.0, *(float(np.abs(value).max()) for value in expected.values()))
    assert_same_weights(found, expected, 2e-6 * largest)


def test_accumulated_gradients_are_those_of_the_whole_batch(make_trainer):
    sentences = np.arange(40)
    parts = [sentences[:13], sentences[13:30], sentences[30:]]
    rate = {"learning_rate": 1.0, **PLAIN}
    whole = gradient(make_trainer(**rate), [sentences])
    assert max(np.abs(value).max() for value in whole.values()) > 0.01
    assert_same_gradient(gradient(make_trainer(**rate), parts), whole)
    # A part taken twice weighs twice: the parts are no means of means.
    twice = gradient(make_trainer(**rate), [sentences, sentences[:5]])
    assert not np.allclose(
        twice["target_embedding.weight"], whole["target_embedding.weight"], atol=1e-4
    )


def test_the_gradient_is_that_of_the_mean_over_target_tokens(make_trainer):
    """A small step of gradient descent lowers the mean loss by rate times squared gradient; that
    of a sum or of a mean over sentences would by another amount. The second order of the step, of
    size 1e-4, is some per cent of it at the most."""
    sentences = np.arange(30)

    def mean_loss(trainer):
        trainer.model.eval()
        losses = [loss_of_pair(trainer, index) for index in sentences]
        return sum(loss for loss, _ in losses) / sum(tokens for _, tokens in losses)

    rate = 1e-2
    trainer = make_trainer(learning_rate=rate, label_smoothing=0.0, **PLAIN)
    before = mean_loss(trainer)
    step = gradient(trainer, [sentences[:11], sentences[11:]])
    squared = sum(float((value.astype("float64") ** 2).sum()) for value in step.values()) / rate**2
    assert before - mean_loss(trainer) == pytest.approx(rate * squared, rel=0.1)


def loss_of_pair(trainer, index):
    """Negative log-likelihood of a pair of the training text, and its tokens."""
    corpus = trainer.data.train
    nll, _, tokens = pair_losses(trainer, corpus.source[index], corpus.target[index])
    return nll, tokens


def pair_losses(trainer, source, target):
    """Of a pair alone, without padding, in float64: its negative log-likelihood; the same if at
    each place all of the vocabulary were wanted alike; and its tokens."""
    subwords = trainer.data.subwords
    source = np.array([[*source, subwords.source.eos]])
    read = np.array([[subwords.target.bos, *target]])
    wanted = np.array([*target, subwords.target.eos])
    with paddle.no_grad():
        logits = trainer.model(paddle.to_tensor(source), paddle.to_tensor(read))
    log_probs = log_softmax(logits.numpy()[0])
    nll = -log_probs[np.arange(len(wanted)), wanted].sum()
    return nll, -log_probs.mean(axis=1).sum(), len(wanted)


def test_an_update_reports_the_loss_before_it(make_trainer):
    trainer = make_trainer(label_smoothing=0.1)
    batches = trainer.plan.epoch_updates(0)[0]
    trainer.model.eval()
    pairs = [loss_of_pair(trainer, index) for batch in batches for index in batch]
    tokens = sum(tokens for _, tokens in pairs)
    update = trainer.read(0, 0, batches)
    assert update.target_tokens == tokens
    outcome = trainer.updater.apply(update, 1)
    expected = sum(nll for nll, _ in pairs)
    assert outcome.nll == pytest.approx(expected, rel=1e-5)
    assert outcome.loss != outcome.nll
    meter = Meter(seconds=2.0)
    meter.add(outcome, update)
    line = meter.line()
    assert line["nll"] == pytest.approx(expected / tokens, rel=1e-5)
    assert line["perplexity"] == pytest.approx(math.exp(expected / tokens), rel=1e-4)
    assert line["tokens_per_second"] == tokens / 2.0
    rows = [side for batch in update.batches for side in (batch.source, batch.target_output)]
    padding = sum(int((side == 0).sum()) for side in rows) / sum(side.size for side in rows)
    assert line["padding"] == pytest.approx(padding) and 0 < padding < 1


def test_an_epoch_trains_on_every_pair_once(make_trainer):
    trainer = make_trainer(batch_tokens=600, device_tokens=200)
    orders = []
    for epoch in (0, 1, 0):
        batches = [batch for update in trainer.plan.epoch_updates(epoch) for batch in update]
        orders.append(np.concatenate(batches).tolist())
        assert sorted(orders[-1]) == list(range(len(TRAIN)))
    assert orders[0] == orders[2] != orders[1]


# ---- The dev set ----


def test_the_dev_sets_losses_and_the_perplexity_of_the_unsmoothed_one(make_trainer):
    trainer = make_trainer(dev=True, label_smoothing=0.2)
    take_steps(trainer, 3)
    nll, loss = dev_loss(trainer.config, trainer.data.dev, trainer.data.subwords, trainer.updater)
    trainer.model.eval()
    subwords = trainer.data.subwords
    losses = [
        pair_losses(trainer, subwords.source.encode(source), subwords.target.encode(target))
        for source, target in DEV
    ]
    plain, blind, tokens = np.sum(losses, axis=0)
    # Sums of a thousand float32 terms.
    assert nll == pytest.approx(plain / tokens, rel=1e-5)
    assert perplexity(nll) == pytest.approx(math.exp(plain / tokens), rel=1e-4)
    assert loss == pytest.approx((0.8 * plain + 0.2 * blind) / tokens, rel=1e-5)
    assert abs(loss - nll) > 1e-3  # which rounding is far below
    assert math.isfinite(perplexity(1e6))


# ---- Clipping ----


@pytest.mark.parametrize(("limit", "bias"), [(0.05, True), (0.05, False), (1000.0, True)])
def test_clipping_is_paddles(make_trainer, limit, bias):
    """Without biases, Paddle gives some gradients that cannot be written to while gradients are
    recorded."""
    rate = {"model": {"bias": bias}, "learning_rate": 1.0, **PLAIN}
    sentences = np.arange(40)
    plain, clipped = (
        gradient(make_trainer(clip_norm=clip, **rate), [sentences]) for clip in (None, limit)
    )
    pairs = [(paddle.to_tensor(value), paddle.to_tensor(value)) for value in plain.values()]
    expected = [clip.numpy() for _, clip in paddle.nn.ClipGradByGlobalNorm(limit)(pairs)]
    assert_same_gradient(clipped, dict(zip(plain, expected, strict=True)))
    norm = math.sqrt(sum((value.astype("float64") ** 2).sum() for value in clipped.values()))
    assert norm == pytest.approx(limit, rel=1e-3) or norm < limit == 1000


# ---- float16 ----


@pytest.fixture
def scaling(monkeypatch):
    """Makes trainers that scale their loss as for float16, on the path of the code for a GPU."""

    def make(make_trainer, **options):
        use_device_path(monkeypatch)
        trainer = make_trainer(**options)
        trainer.updater.scale = LossScale()
        trainer.updater.scale.load({"scale": [1024.0], "incr_count": 0})
        return trainer

    return make


def test_a_scaled_loss_is_clipped_after_unscaling(make_trainer, scaling):
    rate = {"learning_rate": 1.0, "clip_norm": 0.05, **PLAIN}
    sentences = np.arange(40)
    expected = gradient(make_trainer(**rate), [sentences[:20], sentences[20:]])
    trainer = scaling(make_trainer, **rate)
    found = gradient(trainer, [sentences[:20], sentences[20:]])
    assert_same_gradient(found, expected)


def test_the_scale_falls_when_a_gradient_overflows_and_is_saved(make_trainer, scaling, run_in):
    trainer = scaling(make_trainer, **SHORT)
    set_losses(trainer, {2: np.inf, 3: np.inf})
    directory, lines = run_in(trainer)
    assert [line["step"] for line in lines if line["kind"] == "skipped"] == [2, 3]
    assert float(trainer.updater.scale.value) == 1024 / 4
    other = scaling(make_trainer, seed=9, **SHORT)
    other.start(directory.checkpoint("last"))
    # 9 good updates came since.
    assert other.updater.scale.state() == {"scale": [1024 / 4], "incr_count": 9}
    assert_same_weights(other, trainer)


def test_the_scale_is_that_of_paddles_scaler(monkeypatch):
    monkeypatch.setattr(optimizers, "GROWS_AFTER", 3)
    scale = LossScale()
    sizes = []
    for is_finite in (False, True, True, True, True, True, False, True, True, True):
        scale.update(paddle.to_tensor(is_finite))
        sizes.append(float(scale.value) / optimizers.FIRST_SCALE)
    assert sizes == [0.5, 0.5, 0.5, 1, 1, 1, 0.5, 0.5, 0.5, 1]


# ---- Memory ----


def test_out_of_memory_names_what_to_lower(make_trainer):
    trainer = make_trainer()

    def too_large(*arguments):
        raise RuntimeError("(External) ResourceExhaustedError: Out of memory error on GPU 0.")

    trainer.updater.losses = too_large
    with pytest.raises(UserError, match=r"out of memory at step 1.*device_tokens \(400\)"):
        update_once(trainer, trainer.plan.epoch_updates(0)[0])


def test_fewer_device_tokens_keep_the_updates(make_trainer):
    """A run that goes on with less memory has the same updates, in more pieces. A batch of fewer
    pairs than pieces does not shift those that follow."""
    for batch_tokens, before, now, batches in ((800, 800, 300, (1, 800)), (1000, 50, 15, (20, 50))):
        plan = make_trainer(batch_tokens=batch_tokens, device_tokens=before).plan.epoch_updates(0)
        trainer = make_trainer(batch_tokens=batch_tokens, device_tokens=now)
        trainer.plan = replace(trainer.plan, batches=batches)
        lengths = trainer.data.train.target.lengths + 1
        for update, whole in zip(trainer.plan.epoch_updates(0), plan, strict=True):
            assert list(np.concatenate(update)) == list(np.concatenate(whole))
            for piece in update:
                assert (len(piece) - 1) * lengths[piece].max() <= now


# ---- Whether to stop ----


@pytest.mark.parametrize("batch_tokens", [300, 900], ids=["one batch", "several batches"])
def test_processes_stop_together(tmp_path, monkeypatch, batch_tokens):
    """If any of them was asked, none changes the weights. All send the same messages whether they
    stop or not, so that none waits for another. The other process is made up here."""
    asked = {"here": False, "elsewhere": False}
    messages = []

    def all_reduce(tensor, sync_op=True):
        messages.append(tensor.shape)
        if tensor.shape == [3]:  # loss, nll, and how many were asked to stop
            tensor[2] += float(asked["elsewhere"])
        return SimpleNamespace(wait=lambda: None)

    monkeypatch.setattr("paddle.distributed.all_reduce", all_reduce)
    monkeypatch.setattr(
        "transformer_mt.utils.signals.pending", lambda: signal.SIGINT if asked["here"] else None
    )
    processes = Processes(rank=0, world_size=2, connected=True)
    training = {**SHORT, "batch_tokens": batch_tokens}
    trainer = trainer_of(tmp_path, processes=processes, training=training)

    def updated(here, elsewhere):
        asked.update(here=here, elsewhere=elsewhere)
        messages.clear()
        (outcome,) = take_steps(trainer, 1)
        # Paddle clears a gradient by making it 0 when it is next read.
        assert not any(p.grad is not None and p.grad.any() for p in trainer.model.parameters())
        return outcome.stopping, list(messages)

    before = weights(trainer)
    for where in ((True, False), (False, True), (True, True)):
        is_stopping, sent = updated(*where)
        assert is_stopping
        assert sent == [[sum(value.size for value in before.values())], [3]]
        assert_same_weights(trainer, before)
    assert updated(False, False) == (False, sent)
    assert any(not np.array_equal(v, before[name]) for name, v in weights(trainer).items())


def test_a_signal_while_steps_are_timed_waits_for_the_end_of_the_step(make_trainer):
    trainer = make_trainer()
    weight = next(iter(trainer.model.parameters()))
    weight.register_hook(lambda gradient: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted), signals.raised():
        seconds_per_step(trainer)

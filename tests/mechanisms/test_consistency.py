"""Consistency training against NumPy in float64, and against two passes one after the other."""

import numpy as np
import paddle
import pytest

from tests.small_trainers import assert_same_outcomes, trainer_of
from tests.support import log_softmax, take_steps
from transformer_mt.data.batches import collate
from transformer_mt.kernels.cpu import CpuOperations
from transformer_mt.model import operations
from transformer_mt.training.terms.consistency import Consistency, ConsistencyLoss

METHODS = ("r_drop", "sim_cut", "cutoff")
EPSILON, WEIGHT = 0.1, 2.5


def kl(log_p, log_q):
    return (np.exp(log_p) * (log_p - log_q)).sum()


def expected(logits, targets, method):
    """The formulas of the papers, as they are written there: float64 (loss, nll)."""
    log_probs = log_softmax(logits)
    half = len(logits) // 2
    log_p, log_q = log_probs[:half], log_probs[half:]
    nll = -log_probs[np.arange(len(targets)), targets]
    smoothed = (1 - EPSILON) * nll - EPSILON * log_probs.mean(1)
    if method == "r_drop":
        divergence = (kl(log_p, log_q) + kl(log_q, log_p)) / 2
        return smoothed.sum() + WEIGHT * divergence, nll.sum()
    if method == "cutoff":
        log_m = np.log((np.exp(log_p) + np.exp(log_q)) / 2)
        divergence = (kl(log_p, log_m) + kl(log_q, log_m)) / 2
        return smoothed.sum() + WEIGHT * divergence, nll.sum()
    # The formula has one sum over the targets; the loss counts them twice.
    return 2 * (smoothed[:half].sum() + WEIGHT * kl(log_p, log_q)), 2 * nll[:half].sum()


@pytest.mark.parametrize("way", ["device", "cpu", "cpu in parts"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scale", [0.01, 20.0])
def test_value_and_gradient(monkeypatch, method, scale, way):
    if way == "cpu in parts":  # of 5 targets
        monkeypatch.setattr(CpuOperations, "block_rows", 2)
    if way != "device":
        operations.use(CpuOperations())
    random = np.random.default_rng(1)
    logits, targets = scale * random.normal(size=(10, 7)), np.tile(random.integers(1, 7, 5), 2)
    given = paddle.to_tensor(logits.astype("float32"), stop_gradient=False)
    loss, nll = ConsistencyLoss(EPSILON, 0, method, WEIGHT)(given, paddle.to_tensor(targets))
    value, nll_value = expected(logits, targets, method)
    assert float(loss) == pytest.approx(value, rel=1e-5)
    assert float(nll) == pytest.approx(nll_value, rel=1e-5)
    (3 * loss).backward()
    step, slopes = 1e-6, np.empty_like(logits)
    for place in np.ndindex(logits.shape):
        moved = [logits.copy(), logits.copy()]
        moved[0][place] += step
        moved[1][place] -= step
        up, down = (expected(one, targets, method)[0] for one in moved)
        slopes[place] = 3 * (up - down) / (2 * step)
    # float32 keeps about 7 digits; the differences of float64 about 8.
    assert np.abs(given.grad.numpy() - slopes).max() <= 2e-5 * max(1.0, np.abs(slopes).max())


@pytest.mark.parametrize(
    ("method", "copying"),
    [("r_drop", False), ("sim_cut", False), ("cutoff", True)],
)
def test_without_noise_the_loss_is_the_plain_one(tmp_path, method, copying):
    """Both passes are then the same, so the divergence is 0 and the loss is that of one pass."""
    model = {"copying": copying}
    plain = trainer_of(tmp_path, model=model)
    other = trainer_of(tmp_path, model=model, consistency={"method": method, "cut": 0.0})
    assert_same_outcomes(take_steps(other, 3), take_steps(plain, 3))


def test_the_second_pass_is_cut_and_the_first_is_not(tmp_path):
    trainer = trainer_of(tmp_path, consistency={"method": "sim_cut", "cut": 0.3})
    (term,) = trainer.updater.objective.terms
    assert isinstance(term, Consistency)
    update = trainer.read(0, 0, trainer.plan.epoch_updates(0)[0])
    batch = term.batch(update.batches[0], 1)
    rows = len(update.batches[0].source)
    assert len(batch.source) == 2 * rows
    assert np.array_equal(batch.source[:rows], batch.source[rows:])
    assert np.array_equal(batch.target_output[:rows], batch.target_output[rows:])
    np.random.seed(1)
    for mask, ids in zip(term.dropped(batch), (batch.source, batch.target_input), strict=True):
        assert mask.shape == ids.shape and not mask[:rows].any()
        assert 0.2 < mask[rows:].mean() < 0.4


@pytest.mark.parametrize("method", METHODS)
def test_the_shares_of_processes_add_up_to_the_whole(tmp_path, monkeypatch, method):
    """What is cut follows from the ids here, so that a row is cut alike in every batch."""

    def cut_by_id(self, ids):
        return (ids % 3 == 0) & (np.arange(len(ids)) >= len(ids) // 2)[:, np.newaxis]

    monkeypatch.setattr(Consistency, "_cut", cut_by_id)
    section = {"method": method, "cut": 0.3}
    trainer = trainer_of(tmp_path, consistency=section)
    (sentences,) = trainer.plan.epoch_updates(0)[0]
    parameters = trainer.model.parameters()

    def gradient(batches):
        for rows in batches:
            batch = collate(trainer.data.train, rows, trainer.data.subwords)
            trainer.updater.losses(batch, 1)[0].backward()
        found = np.concatenate([p.grad.numpy().ravel() for p in parameters])
        trainer.updater.gradients.clear()
        return found

    whole, parts = gradient([sentences]), gradient([sentences[0::2], sentences[1::2]])
    assert np.abs(whole).max() > 1
    np.testing.assert_allclose(parts, whole, atol=1e-4 * np.abs(whole).max())


def test_with_sampled_subwords_both_passes_read_the_same_ones(tmp_path):
    trainer = trainer_of(tmp_path, subword={"sampling": 0.3}, consistency={"method": "r_drop"})
    (term,) = trainer.updater.objective.terms
    update = trainer.read(0, 0, trainer.plan.epoch_updates(0)[0])
    assert sum(batch.target_tokens for batch in update.batches) == update.target_tokens
    for batch in update.batches:
        repeated = term.batch(batch, 1)
        np.testing.assert_array_equal(repeated.source, np.tile(batch.source, (2, 1)))
    assert all(outcome.is_finite for outcome in take_steps(trainer, 3))

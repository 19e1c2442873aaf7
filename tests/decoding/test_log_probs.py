"""The best continuations, found by blocks, against sorting all of them in float64."""

import numpy as np
import paddle
import pytest

from tests.support import log_softmax
from transformer_mt.decoding.device_log_probs import DeviceLogProbs, device_mixture
from transformer_mt.decoding.log_probs import LogProbs, mixture

KINDS = pytest.mark.parametrize(
    "kind",
    [LogProbs, lambda logits, never: DeviceLogProbs(paddle.to_tensor(logits), never)],
    ids=["host", "device"],
)


# 33,708 and 8,001 do not fill their last block; 31 and 5 are less than one block.
@KINDS
@pytest.mark.parametrize("vocabulary", [5, 31, 32, 33, 100, 1000, 8001, 33_708])
@pytest.mark.parametrize("count", [1, 4, 50])
@pytest.mark.parametrize("scale", [1.0, 60.0])
def test_best_are_the_best(kind, vocabulary, count, scale):
    random = np.random.default_rng(vocabulary + count)
    logits = (scale * random.standard_normal((3, 4, vocabulary))).astype(np.float32)
    scores = -5 * random.random((3, 4))
    scores[1, 2] = -np.inf
    never = (0, 1, 3, vocabulary - 1)
    before = logits.copy()
    totals, parents, ids = kind(logits, never).best(scores, count)
    np.testing.assert_array_equal(logits, before)

    every = log_softmax(logits) + scores[:, :, np.newaxis]
    every[:, :, list(never)] = -np.inf
    assert min(count, 4 * vocabulary) <= totals.shape[1] <= count
    expected = np.full((3, max(count, 4 * vocabulary)), -np.inf)
    expected[:, : 4 * vocabulary] = -np.sort(-every.reshape(3, -1), axis=1)
    expected = expected[:, : totals.shape[1]]
    # Sums of float32 exponentials of up to 33,708 terms.
    np.testing.assert_allclose(totals, expected, rtol=1e-6, atol=2e-5)
    real = np.isfinite(totals)
    rows = np.broadcast_to(np.arange(3)[:, np.newaxis], ids.shape)
    found = every[rows[real], parents[real], ids[real]]
    np.testing.assert_allclose(found, totals[real], rtol=1e-6, atol=2e-5)
    pairs = {(row, p, i) for row, p, i in zip(rows[real], parents[real], ids[real], strict=True)}
    assert len(pairs) == real.sum()  # none twice
    assert ((ids >= 0) & (ids < vocabulary)).all()


@KINDS
def test_of_one_id(kind):
    random = np.random.default_rng(3)
    logits = (9 * random.standard_normal((2, 3, 77))).astype(np.float32)
    ids = random.integers(0, 77, (2, 3))
    expected = np.take_along_axis(log_softmax(logits), ids[:, :, np.newaxis], axis=2)[:, :, 0]
    np.testing.assert_allclose(kind(logits, (1, 2)).of(ids), expected, atol=1e-5)


@KINDS
def test_equal_ones_come_in_the_order_of_hypotheses_and_ids(kind):
    logits = np.zeros((1, 2, 70), np.float32)
    _, parents, ids = kind(logits, (0,)).best(np.array([[-1.0, -0.5]]), 3)
    assert parents.tolist() == [[1, 1, 1]]
    assert ids.tolist() == sorted(ids.tolist())


@KINDS
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_a_number_is_nothing_to_offer(kind, bad):
    logits = np.random.default_rng(1).standard_normal((2, 2, 40)).astype(np.float32)
    logits[0, 1, 7] = bad
    totals, parents, _ = kind(logits, ()).best(np.zeros((2, 2)), 30)
    assert (parents[0][np.isfinite(totals[0])] == 0).all()
    assert np.isfinite(totals[1]).all()


def test_a_mixture_is_the_mean_of_probabilities():
    random = np.random.default_rng(2)
    several = [(4 * random.standard_normal((2, 3, 50))).astype(np.float32) for _ in range(3)]
    expected = np.log(np.mean([np.exp(log_softmax(logits)) for logits in several], axis=0))
    np.testing.assert_allclose(log_softmax(mixture(several)), expected, atol=1e-5)
    on_device = device_mixture([paddle.to_tensor(logits) for logits in several])
    np.testing.assert_allclose(log_softmax(on_device.numpy()), expected, atol=1e-5)

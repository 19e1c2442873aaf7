"""The best continuations, found by blocks, against sorting all of them in float64."""

import numpy as np
import paddle
import pytest

from tests.support import log_softmax
from transformer_mt.kernels.scores import DeviceLogProbs, LogProbs, device_mixture, mixture

KIND_OF = {
    "host": LogProbs,
    "device": lambda logits, never: DeviceLogProbs(paddle.to_tensor(logits), never),
}
KINDS = pytest.mark.parametrize("kind", KIND_OF.values(), ids=KIND_OF)


# 33,708 and 8,001 do not fill their last block; 31 and 5 are less than one block.
@KINDS
@pytest.mark.parametrize("vocabulary", [5, 31, 32, 33, 1000, 8001, 33_708])
@pytest.mark.parametrize(("count", "scale"), [(1, 60.0), (4, 1.0), (50, 60.0)])
def test_best_are_the_best(kind, vocabulary, count, scale):
    random = np.random.default_rng(vocabulary + count)
    logits = (scale * random.standard_normal((3, 4, vocabulary))).astype(np.float32)
    scores = -5 * random.random((3, 4))
    scores[1, 2] = -np.inf
    never = (0, 1, 3, vocabulary - 1)
    before = logits.copy()
    asked = random.integers(0, vocabulary, (3, 4))
    totals, parents, ids, of_asked = kind(logits, never).best(scores, count, asked)
    np.testing.assert_array_equal(logits, before)

    every = log_softmax(logits)
    expected = np.take_along_axis(every, asked[:, :, np.newaxis], axis=2)[:, :, 0]
    np.testing.assert_allclose(of_asked, expected, rtol=1e-6, atol=2e-5)
    np.testing.assert_allclose(kind(logits, never).of(asked), expected, rtol=1e-6, atol=2e-5)
    every += scores[:, :, np.newaxis]
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
def test_equal_ones_come_in_the_order_of_hypotheses_and_ids(kind):
    logits = np.zeros((1, 2, 70), np.float32)
    scores = np.array([[-1.0, -0.5]])
    _, parents, ids, _ = kind(logits, (0,)).best(scores, 3, np.zeros((1, 2), np.int64))
    assert parents.tolist() == [[1, 1, 1]]
    assert ids.tolist() == sorted(ids.tolist())


@KINDS
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_a_number_is_nothing_to_offer(kind, bad):
    logits = np.random.default_rng(1).standard_normal((2, 2, 40)).astype(np.float32)
    logits[0, 1, 7] = bad
    zeros = np.zeros((2, 2), np.int64)
    totals, parents, _, _ = kind(logits, ()).best(zeros.astype(float), 30, zeros)
    assert (parents[0][np.isfinite(totals[0])] == 0).all()
    assert np.isfinite(totals[1]).all()


@KINDS
def test_the_most_probable_id(kind):
    logits = np.random.default_rng(5).standard_normal((40, 1, 60)).astype(np.float32)
    found = np.asarray(kind(logits, (3, 4)).most_probable())
    allowed = log_softmax(logits)[:, 0]
    allowed[:, [3, 4]] = -np.inf
    assert found[:, 0].tolist() == allowed.argmax(axis=1).tolist()
    np.testing.assert_allclose(found[:, 1], allowed.max(axis=1), atol=1e-5)


@pytest.mark.parametrize("vocabulary", [12, 8001])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("top_k, top_p", [(None, 1.0), (5, 1.0), (None, 0.6), (50, 0.9)])
def test_a_device_draws_what_the_host_draws(vocabulary, temperature, top_k, top_p):
    """A number may fall between two roundings of a sum, so one of 1,000 draws may differ."""
    random = np.random.default_rng(vocabulary)
    shape = (20, 50)
    logits = (3 * random.standard_normal((*shape, vocabulary))).astype(np.float32)
    logits[:, :, 2] = 0.99 * logits.max(axis=2)  # the id that is banned is often drawn elsewhere
    uniform = random.random(shape)
    banned = random.random(shape) < 0.5
    fixed = np.where(random.random(shape) < 0.1, random.integers(0, vocabulary, shape), -1)
    options = (uniform, temperature, top_k, top_p, banned, 2, fixed)
    host, device = (kind(logits, (0, 1, 2, 3)).draw(*options) for kind in KIND_OF.values())
    same = host[0] == device[0]
    assert (~same).sum() <= 1
    np.testing.assert_allclose(host[1][same], device[1][same], rtol=1e-6, atol=1e-4)
    free = fixed < 0
    assert (device[0][~free] == fixed[~free]).all()
    assert not np.isin(device[0][free], (0, 1, 3)).any()
    assert (device[0][free & banned] != 2).all()
    assert (device[0][free & ~banned] == 2).any()


def test_a_mixture_is_the_mean_of_probabilities():
    random = np.random.default_rng(2)
    several = [(4 * random.standard_normal((2, 3, 50))).astype(np.float32) for _ in range(3)]
    expected = np.log(np.mean([np.exp(log_softmax(logits)) for logits in several], axis=0))
    np.testing.assert_allclose(log_softmax(mixture(several)), expected, atol=1e-5)
    on_device = device_mixture([paddle.to_tensor(logits) for logits in several])
    np.testing.assert_allclose(log_softmax(on_device.numpy()), expected, atol=1e-5)

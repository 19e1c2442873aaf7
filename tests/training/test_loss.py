"""The loss against its definition: a dense target distribution, in NumPy's float64.

Logits of standard normal values give losses of about 3 nats a row, of which float32 keeps 7 digits
and a sum of 12 rows 6: values agree to 1e-5 relatively, gradients, of at most 1, to 1e-6.
"""

import numpy as np
import paddle
import pytest
from paddle.base import core

from tests.support import log_softmax, onednn_operations
from transformer_mt.kernels.cpu import CpuOperations
from transformer_mt.kernels.gpu import GpuOperations
from transformer_mt.model import operations
from transformer_mt.training.objective import LabelSmoothedCrossEntropy

PAD = 3


@pytest.fixture(autouse=True, params=["plain", "cpu", "onednn", "gpu"])
def kind(request, plain_operations):
    """Each kind of operations; all of them compute on the CPU here."""
    made = {"plain": operations.Operations, "cpu": CpuOperations, "gpu": GpuOperations}
    made["onednn"] = onednn_operations
    operations.use(made[request.param]())
    return request.param


def dense(logits, targets, epsilon):
    """Loss, negative log-likelihood and gradient by their definitions, with the dense target."""
    vocabulary = logits.shape[1]
    log_probs = log_softmax(logits)
    one_hot = np.eye(vocabulary)[targets]
    wanted = (1 - epsilon) * one_hot + epsilon / vocabulary
    is_real = (targets != PAD).astype("float64")
    loss = -(wanted * log_probs).sum(axis=1) @ is_real
    nll = -(one_hot * log_probs).sum(axis=1) @ is_real
    return loss, nll, (np.exp(log_probs) - wanted) * is_real[:, None]


def computed(logits, targets, epsilon, factor=1.0):
    tensor = paddle.to_tensor(logits, stop_gradient=False)
    loss, nll = LabelSmoothedCrossEntropy(epsilon, PAD)(tensor, paddle.to_tensor(targets))
    (loss * factor).backward()
    return float(loss), float(nll), tensor.grad.numpy()


@pytest.fixture
def some(rng):
    logits = rng.standard_normal((12, 17)).astype("float32")
    targets = rng.integers(0, 17, 12)
    targets[[2, 7, 8]] = PAD
    return logits, targets


@pytest.fixture
def rng():
    return np.random.default_rng(512)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("extreme", [False, True])
def test_value_and_gradient_are_those_of_the_dense_definition(rng, some, epsilon, extreme):
    """A probability of exp(-200) is a loss of 200, not infinity nor where a softmax gives up. The
    gradient takes the factor of what follows, as of dividing by the tokens of an update."""
    if extreme:
        logits = rng.choice([-100.0, 0.0, 100.0], (40, 17)).astype("float32")
        some = logits, rng.integers(0, 17, 40)
    loss, nll, gradient = computed(*some, epsilon, factor=-0.125)
    expected_loss, expected_nll, expected_gradient = dense(*some, epsilon)
    expected_gradient = -0.125 * expected_gradient
    assert not extreme or nll > 2000
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert nll == pytest.approx(expected_nll, rel=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=0, atol=1e-6)


def test_the_reported_loss_is_not_smoothed_and_has_no_gradient(some):
    assert computed(*some, 0.3)[1] == computed(*some, 0.0)[0]
    logits = paddle.to_tensor(some[0], stop_gradient=False)
    _, nll = LabelSmoothedCrossEntropy(0.1, PAD)(logits, paddle.to_tensor(some[1]))
    assert nll.stop_gradient


def test_padding_counts_for_nothing(some):
    logits, targets = some
    is_real = targets != PAD
    loss, nll, gradient = computed(logits, targets, 0.1)
    without = computed(logits[is_real], targets[is_real], 0.1)
    # The same rows are added up, in an order that may differ.
    assert (loss, nll) == pytest.approx(without[:2], rel=1e-6)
    assert (gradient[~is_real] == 0).all()
    np.testing.assert_allclose(gradient[is_real], without[2], rtol=0, atol=1e-7)
    elsewhere = logits.copy()
    elsewhere[~is_real] = 1e4
    assert computed(elsewhere, targets, 0.1)[:2] == pytest.approx((loss, nll), rel=1e-6)
    # Nothing but padding.
    loss, nll, gradient = computed(logits, np.full(12, PAD), 0.1)
    assert (loss, nll) == (0, 0) and (gradient == 0).all()


def test_any_shape_and_half_precision(some):
    """(batch, target_len, vocabulary), and logits as mixed precision gives them."""
    logits, targets = some
    half = logits.astype("float16")
    tensor = paddle.to_tensor(half.reshape(3, 4, 17), stop_gradient=False)
    loss, nll = LabelSmoothedCrossEntropy(0.1, PAD)(tensor, paddle.to_tensor(targets.reshape(3, 4)))
    loss.backward()
    expected_loss, expected_nll, expected_gradient = dense(half, targets, 0.1)
    assert loss.dtype == paddle.float32
    assert float(loss) == pytest.approx(expected_loss, rel=1e-5)
    assert float(nll) == pytest.approx(expected_nll, rel=1e-5)
    assert tensor.grad.dtype == paddle.float16
    # float16 keeps eleven bits: 5e-4 of a gradient of at most 1.
    np.testing.assert_allclose(
        tensor.grad.numpy().reshape(12, 17), expected_gradient, rtol=0, atol=5e-4
    )


def test_no_one_hot_is_built(kind):
    """Beside the logits, no more than one tensor of their size: the forward pass makes the
    probabilities, and the backward pass turns these into the gradient."""
    rows, vocabulary = 500, 4000
    logits = paddle.randn([rows, vocabulary])
    logits.stop_gradient = False
    targets = paddle.randint(PAD + 1, vocabulary, [rows])
    criterion = LabelSmoothedCrossEntropy(0.1, PAD)
    core.host_memory_stat_reset_peak_value("Allocated", 0)
    before = core.host_memory_stat_current_value("Allocated", 0)
    loss, _ = criterion(logits, targets)
    loss.backward()
    peak = core.host_memory_stat_peak_value("Allocated", 0)
    size = rows * vocabulary * 4
    if kind != "plain":
        most = 1.5 if kind == "cpu" else 3.5  # a GPU's own frees nothing before its last operation
        assert size <= peak - before < most * size

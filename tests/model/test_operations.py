"""The faster operations against NumPy in float64 and against Paddle's own.

Values are of the order of 1, sums of at most some hundreds of terms: float32 keeps 1e-5 of them.
"""

import numpy as np
import paddle
import pytest

from tests.support import onednn_operations
from transformer_mt.kernels.cpu import CpuOperations
from transformer_mt.model.operations import PLAIN

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(params=["paddle", "onednn"])
def operations(request):
    """Each of the operations that a CPU may compute with."""
    return CpuOperations() if request.param == "paddle" else onednn_operations()


def float64(x):
    return np.asarray(x, dtype="float64")


def gradients(output, slope, *inputs):
    paddle.autograd.backward([output], [slope])
    return [x.grad.numpy() for x in inputs]


@pytest.fixture
def variable(normal):
    """A function that gives a tensor of the shape asked for which takes a gradient."""

    def make(*shape):
        x = normal(*shape)
        x.stop_gradient = False
        return x

    return make


@pytest.mark.parametrize("lead", [(5,), (2, 3, 5)])
class TestAnyShape:
    def test_linear(self, operations, normal, variable, lead):
        x, weight, bias = variable(*lead, 7), variable(7, 4), variable(4)
        slope = normal(*lead, 4)
        y = operations.linear(x, weight, bias)
        np.testing.assert_allclose(y, float64(x) @ float64(weight) + float64(bias), **TOLERANCE)
        dx, weight_gradient, bias_gradient = gradients(y, slope, x, weight, bias)
        rows, slopes = float64(x).reshape(-1, 7), float64(slope).reshape(-1, 4)
        np.testing.assert_allclose(dx, float64(slope) @ float64(weight).T, **TOLERANCE)
        np.testing.assert_allclose(weight_gradient, rows.T @ slopes, **TOLERANCE)
        np.testing.assert_allclose(bias_gradient, slopes.sum(0), **TOLERANCE)

    def test_logits(self, operations, normal, variable, lead):
        hidden, weight = variable(*lead, 4), variable(9, 4)
        slope = normal(*lead, 9)
        y = operations.logits(hidden, weight)
        np.testing.assert_allclose(y, float64(hidden) @ float64(weight).T, **TOLERANCE)
        hidden_gradient, weight_gradient = gradients(y, slope, hidden, weight)
        rows, slopes = float64(hidden).reshape(-1, 4), float64(slope).reshape(-1, 9)
        np.testing.assert_allclose(hidden_gradient, float64(slope) @ float64(weight), **TOLERANCE)
        np.testing.assert_allclose(weight_gradient, slopes.T @ rows, **TOLERANCE)

    def test_layer_norm(self, operations, normal, variable, lead):
        x, weight, bias = variable(*lead, 6), variable(6), variable(6)
        slope = normal(*lead, 6)
        y = operations.layer_norm(x, weight, bias, 1e-5)
        rows, slopes = float64(x).reshape(-1, 6), float64(slope).reshape(-1, 6)
        deviation = np.sqrt(rows.var(1) + 1e-5)
        normed = (rows - rows.mean(1, keepdims=True)) / deviation[:, None]
        expected = normed * float64(weight) + float64(bias)
        np.testing.assert_allclose(y, expected.reshape(y.shape), **TOLERANCE)
        dx, weight_gradient, bias_gradient = gradients(y, slope, x, weight, bias)
        np.testing.assert_allclose(weight_gradient, (slopes * normed).sum(0), **TOLERANCE)
        np.testing.assert_allclose(bias_gradient, slopes.sum(0), **TOLERANCE)
        # The matrix of the derivatives of a row's normed values, entry by entry.
        for row in range(len(rows)):
            centring = np.eye(6) - 1 / 6
            derivatives = (centring - np.outer(normed[row], normed[row]) / 6) / deviation[row]
            expected = derivatives @ (slopes[row] * float64(weight))
            np.testing.assert_allclose(dx.reshape(-1, 6)[row], expected, **TOLERANCE)


def test_layer_norm_of_rows_far_from_zero(operations, normal, variable):
    """As Paddle's: the mean is taken off before anything is squared."""
    x = variable(3, 64)
    far = x.detach() + 1000.0
    far.stop_gradient = False
    weight, bias, slope = variable(64), variable(64), normal(3, 64)
    near_gradient, *_ = gradients(operations.layer_norm(x, weight, bias, 1e-5), slope, x)
    far_gradient, *_ = gradients(operations.layer_norm(far, weight, bias, 1e-5), slope, far)
    equal = paddle.full([2, 64], 3.0)
    equal.stop_gradient = False
    output = operations.layer_norm(equal, weight, bias, 1e-5)
    assert np.isfinite(gradients(output, paddle.ones([2, 64]), equal)[0]).all()
    # Of 1,000 float32 keeps 6e-5.
    np.testing.assert_allclose(far_gradient, near_gradient, rtol=0, atol=1e-3)


@pytest.mark.parametrize("rows", [1, 37])
@pytest.mark.parametrize("by_numpy", [True, False])
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_log_sum_exp_and_softmax_of_rows(normal, rows, by_numpy, scale):
    operations = CpuOperations() if by_numpy else PLAIN
    x, logits, factor = normal(rows, 9), normal(rows, 9) * scale, normal(rows, 1)
    log_total = operations.log_sum_exp(logits)
    expected = np.logaddexp.reduce(float64(logits), axis=1, keepdims=True)
    np.testing.assert_allclose(log_total, expected, rtol=1e-6, atol=1e-6)
    ours = operations.plus_softmax(x, logits, log_total, factor)
    # Of logits of some hundreds float32 keeps 3e-5.
    softmax = np.exp(float64(logits) - expected)
    np.testing.assert_allclose(ours, float64(x) + float64(factor) * softmax, rtol=0, atol=1e-4)


@pytest.mark.parametrize("frozen", [0, 1, 2])
@pytest.mark.parametrize("name", ["linear", "layer_norm", "logits"])
def test_an_input_that_takes_no_gradient(operations, variable, name, frozen):
    inputs = [variable(3, 4), variable(4, 4), variable(4)]
    if name == "layer_norm":
        inputs[1] = variable(4)
    if name == "logits":
        inputs.pop()
        frozen = min(frozen, 1)
    inputs[frozen].stop_gradient = True
    rest = (1e-5,) if name == "layer_norm" else ()
    getattr(operations, name)(*inputs, *rest).sum().backward()
    assert [x.grad is None for x in inputs] == [n == frozen for n in range(len(inputs))]


class TestDropout:
    @pytest.fixture
    def operations(self):
        return CpuOperations()

    @pytest.mark.parametrize("rate", [0.0, 0.1, 0.9])
    def test_rate_and_mean(self, operations, rate):
        output = operations.dropout(paddle.ones([1000, 1001]), rate).numpy()
        # A million draws: five standard deviations of the share are at most 0.0025.
        assert (output == 0.0).mean() == pytest.approx(rate, abs=0.0025)
        kept = output[output != 0.0]
        assert kept.min() == kept.max() == pytest.approx(1 / (1 - rate), rel=2e-4)
        # The mean is exactly that of the rounded rate.
        assert kept.max() == pytest.approx(65536 / (65536 - int(65536 * rate)), rel=1e-6)

    def test_elements_are_independent_of_their_neighbours(self, operations):
        dropped = operations.dropout(paddle.ones([2**20]), 0.5).numpy() == 0.0
        # Two elements share an integer; the correlation of 2^20 pairs has a deviation of 0.001.
        for distance in (1, 2, 3, 128):
            pairs = np.corrcoef(dropped[:-distance], dropped[distance:])[0, 1]
            assert abs(pairs) < 0.005
        halves = np.corrcoef(dropped[0::2], dropped[1::2])[0, 1]
        assert abs(halves) < 0.007

    def test_gradient_goes_where_the_value_went(self, operations, normal, variable):
        x, slope = variable(3, 5, 7), normal(3, 5, 7)  # an odd number of elements
        output = operations.dropout(x, 0.5)
        (dx,) = gradients(output, slope, x)
        np.testing.assert_allclose(dx, slope.numpy() * (output / x).numpy(), rtol=1e-6)

    def test_paddles_generator_decides(self, operations):
        def mask(seed):
            paddle.seed(seed)
            return operations.dropout(paddle.ones([50, 50]), 0.5).numpy()

        np.testing.assert_array_equal(mask(1), mask(1))
        assert not np.array_equal(mask(1), mask(2))
        paddle.seed(1)
        first, second = (operations.dropout(paddle.ones([50, 50]), 0.5).numpy() for _ in range(2))
        assert not np.array_equal(first, second)

"""Adapters against NumPy in float64 (Hu et al. 2021, arXiv 2106.09685, section 4.1)."""

import numpy as np
import paddle
import pytest

from transformer_mt import kernels
from transformer_mt.config.schema import ModelConfig
from transformer_mt.model import operations
from transformer_mt.model.adapters import (
    AdaptedLinear,
    adapted_layers,
    add_adapters,
    linear_layers,
    merged,
)
from transformer_mt.model.layers import Linear
from transformer_mt.model.transformer import Transformer

IN, OUT, RANK, SCALE = 24, 40, 3, 1.5
# Sums of 24 products in float32.
TOLERANCE = 2e-5


@pytest.fixture(params=["plain", "chosen"])
def adapted_linear(request):
    """A layer whose arrays are drawn, computed by Paddle alone and by the kernels of the device."""
    before = operations.current
    operations.use(operations.PLAIN) if request.param == "plain" else kernels.choose()
    layer = AdaptedLinear(Linear(IN, OUT), RANK, SCALE)
    random = np.random.default_rng(1)
    for _, parameter in layer.named_parameters():
        parameter.set_value(random.standard_normal(parameter.shape).astype("float32"))
    yield layer
    operations.use(before)


def test_forward_and_gradients(adapted_linear):
    layer, random = adapted_linear, np.random.default_rng(2)
    layer.weight.stop_gradient = layer.bias.stop_gradient = True
    x, slope = random.standard_normal((2, 5, IN)), random.standard_normal((2, 5, OUT))
    inputs = paddle.to_tensor(x, "float32", stop_gradient=False)
    output = layer(inputs)
    paddle.sum(output * paddle.to_tensor(slope, "float32")).backward()
    w, b, a, c = (
        p.numpy().astype(np.float64)
        for p in (layer.weight, layer.bias, layer.adapter_a, layer.adapter_b)
    )
    rows, slopes = x.reshape(-1, IN), slope.reshape(-1, OUT)
    expected = {
        "output": (output, x @ w + b + SCALE * (x @ a) @ c),
        "dx": (inputs.grad, slope @ (w + SCALE * a @ c).T),
        "dA": (layer.adapter_a.grad, SCALE * rows.T @ slopes @ c.T),
        "dB": (layer.adapter_b.grad, SCALE * (rows @ a).T @ slopes),
    }
    for name, (found, value) in expected.items():
        error = np.abs(found.numpy() - value).max() / np.abs(value).max()
        assert error < TOLERANCE, name
    assert layer.weight.grad is None
    assert layer.bias.grad is None


def test_the_first_gradient_is_that_of_b_alone(adapted_linear):
    """With B = 0, the layer is what it was, and A has no influence yet."""
    layer = adapted_linear
    layer.adapter_b.set_value(np.zeros((RANK, OUT), np.float32))
    x = paddle.to_tensor(np.random.default_rng(3).standard_normal((4, IN)), "float32")
    output = layer(x)
    plain = operations.current.linear(x, layer.weight, layer.bias)
    assert np.array_equal(output.numpy(), plain.numpy())
    output.sum().backward()
    assert not layer.adapter_a.grad.numpy().any()
    assert layer.adapter_b.grad.numpy().any()


def test_dropout_is_on_the_adapters_input_alone():
    layer = AdaptedLinear(Linear(IN, OUT), RANK, SCALE, dropout=0.5)
    layer.adapter_b.set_value(np.ones((RANK, OUT), np.float32))
    x = paddle.ones([64, IN])
    layer.eval()
    expected = layer(x).numpy()
    plain = expected - SCALE * (x.numpy() @ layer.adapter_a.numpy()).sum(1, keepdims=True)
    layer.train()
    paddle.seed(1)
    found = layer(x).numpy()
    assert len({*found[:, 0].tolist()}) > 32  # each row drops others
    # Of one row, all outputs have got the same from the adapter.
    np.testing.assert_allclose((found - plain).std(axis=1), 0.0, atol=1e-5)
    np.testing.assert_allclose(plain, (x @ layer.weight + layer.bias).numpy(), atol=1e-5)


@pytest.fixture
def model():
    paddle.seed(3)
    config = ModelConfig(num_layers=2, d_model=16, num_heads=2, d_ff=32, dropout=0.0)
    return Transformer(config, 30, 30, share_source_embedding=True)


def randomise(model, seed=4):
    random = np.random.default_rng(seed)
    for layer in adapted_layers(model):
        for matrix in (layer.adapter_a, layer.adapter_b):
            matrix.set_value(0.3 * random.standard_normal(matrix.shape).astype("float32"))


def test_only_adapters_are_trained_and_names_stay(model):
    names = [name for name, _ in model.named_parameters()]
    layers = linear_layers(model)
    # Four in each attention, of which there are 2 * 1 + 2 * 2, and two in each of 4 feed-forwards.
    assert len(layers) == 4 * 6 + 2 * 4
    assert all(name in names for name in layers)
    chosen = [name for name in layers if "value_projection" in name or "feed_forward" in name]
    add_adapters(model, chosen, rank=2, scale=2.0)
    found = dict(model.named_parameters())
    assert [name for name in found if "adapter" not in name] == names
    trained = [name for name, parameter in found.items() if not parameter.stop_gradient]
    ends = (".adapter_a", ".adapter_b")
    expected = [name.removesuffix(".weight") + end for name in chosen for end in ends]
    assert sorted(trained) == sorted(expected)


def test_merged_is_unmerged_up_to_rounding_and_is_undone_bit_for_bit(model):
    add_adapters(model, linear_layers(model), rank=3, scale=0.7)
    randomise(model)
    model.eval()
    random = np.random.default_rng(5)
    ids = [paddle.to_tensor(random.integers(3, 30, (2, 7))) for _ in range(2)]
    before = {name: p.numpy() for name, p in model.named_parameters()}
    unmerged = model(*ids).numpy()
    with pytest.raises(KeyError), merged(model):
        found = model(*ids).numpy()
        changed = model.encoder.layers[0].self_attention.query_projection.weight.numpy()
        raise KeyError  # the weights are put back even then
    assert np.abs(found - unmerged).max() < 1e-4 * np.abs(unmerged).max()
    name = "encoder.layers.0.self_attention.query_projection.weight"
    assert not np.array_equal(changed, before[name])
    for name, parameter in model.named_parameters():
        assert np.array_equal(parameter.numpy(), before[name]), name
    assert np.array_equal(model(*ids).numpy(), unmerged)

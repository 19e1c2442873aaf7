"""Operations of model and loss on a GPU, value and gradient, beside NumPy in float64.

Where there is no GPU, the code takes the way of a GPU, and Paddle computes on the CPU.
"""

import contextlib

import numpy as np
import paddle
import pytest

from tests.device_path import use_device_path
from transformer_mt.commands.check_device import Device, relative_error
from transformer_mt.kernels import gpu
from transformer_mt.model import operations
from transformer_mt.model.attention import ScaledDotProductAttention
from transformer_mt.model.layers import Dropout, PositionalEncoding, ResidualNorm, TokenEmbedding
from transformer_mt.model.variants import mixture
from transformer_mt.training.objective import LabelSmoothedCrossEntropy
from transformer_mt.utils import device as devices

HAS_GPU = paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count() > 0
# The largest error, as a share of the largest expected number. TF32 rounds factors to 10 bits.
LIMITS = {"float32": 1e-5, "TF32": 3e-3, "float16": 5e-3, "bfloat16": 3e-2}
PAD = 0
STEP = 1e-5  # of differences, which are wrong by about its square and by float64's rounding


@pytest.fixture(scope="module")
def device():
    found = Device(devices.use("gpu" if HAS_GPU else "cpu"))
    yield found
    paddle.set_device("cpu")


@pytest.fixture(params=["float32", "bfloat16", "float16"] if HAS_GPU else ["float32"])
def precision(request, device, monkeypatch):
    """Each precision of training that the device has."""
    if HAS_GPU:
        operations.use(gpu.GpuOperations())
    else:
        use_device_path(monkeypatch)
    return request.param


def drawn(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).standard_normal(shape)


def softmax(x):
    exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def norm(x, weight, bias):
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    return centred / deviation * weight + bias


def casting(precision):
    """Computes as training does with this value of training.precision."""
    if precision == "float32":
        return contextlib.nullcontext()
    return paddle.amp.auto_cast(dtype=precision, level="O1")


def compare(device, precision, operation, expected, inputs, factor=1.0):
    """The value, and the gradients of a sum with random weights, whose expected values are central
    differences."""
    value = np.asarray(expected(**inputs), np.float64)
    slopes = np.random.default_rng(3).standard_normal(value.shape)
    tensors = {
        name: paddle.to_tensor(x.astype("float32"), stop_gradient=False)
        for name, x in inputs.items()
    }
    with casting(precision):
        found = operation(**tensors)
    (found.astype("float32") * paddle.to_tensor(slopes.astype("float32"))).sum().backward()
    limit = factor * LIMITS[device.rounding[precision]]
    assert relative_error(found.astype("float32").numpy(), value) < limit
    for name, tensor in tensors.items():
        arrays = {key: x.astype(np.float64) for key, x in inputs.items()}
        gradient = np.zeros(arrays[name].shape)
        for place in np.ndindex(gradient.shape):
            before = arrays[name][place]
            sums = []
            for step in (STEP, -STEP):
                arrays[name][place] = before + step
                sums.append((expected(**arrays) * slopes).sum())
            arrays[name][place] = before
            gradient[place] = (sums[0] - sums[1]) / (2 * STEP)
        assert relative_error(tensor.grad.astype("float32").numpy(), gradient) < limit, name


def test_linear_and_output_layer(device, precision):
    inputs = {"x": drawn(3, 5, 16), "weight": drawn(16, 24), "bias": drawn(24)}
    linear = operations.current.linear
    compare(device, precision, linear, lambda x, weight, bias: x @ weight + bias, inputs)
    inputs = {"hidden": drawn(3, 5, 16), "weight": drawn(40, 16)}
    logits = operations.current.logits
    compare(device, precision, logits, lambda hidden, weight: hidden @ weight.T, inputs)


@pytest.mark.parametrize("width", [128, 512, 1024])  # a GPU has a kernel for each range
def test_layer_norm(device, precision, width):
    inputs = {"x": 3 + 2 * drawn(2, width), "weight": drawn(width), "bias": drawn(width)}

    def operation(x, weight, bias):
        return operations.current.layer_norm(x, weight, bias, 1e-5)

    compare(device, precision, operation, norm, inputs)


@pytest.mark.parametrize("kind", ["post", "pre"])
def test_residual_connection(device, precision, kind):
    layer = ResidualNorm(24, 0.0, kind)
    scale, offset = 1 + 0.1 * drawn(24, seed=1), drawn(24, seed=2)
    layer.norm.weight.set_value(scale.astype("float32"))
    layer.norm.bias.set_value(offset.astype("float32"))

    def expected(x, output):
        if kind == "post":
            return norm(x + x * output, scale, offset)
        return x + norm(x, scale, offset) * output

    def operation(x, output):
        return layer.leave(x, layer.enter(x) * output)

    inputs = {"x": drawn(2, 3, 24), "output": drawn(2, 3, 24, seed=3)}
    compare(device, precision, operation, expected, inputs)


@pytest.mark.parametrize("kind", ["post", "pre"])
def test_residual_connection_with_dropout(device, precision, kind):
    """A GPU may compute it with its norm in one operation. Elements without a gradient were
    dropped; their share may differ from the rate by five standard deviations."""
    rate, width = 0.3, 128
    x, output, slopes = (drawn(8, 64, width, seed=seed).astype("float32") for seed in range(3))
    layer = ResidualNorm(width, rate, kind)
    layer.train()
    given = paddle.to_tensor(output, stop_gradient=False)
    result = layer.leave(paddle.to_tensor(x), given)
    (result * paddle.to_tensor(slopes)).sum().backward()
    kept = given.grad.numpy() != 0
    expected = x + output * kept / (1 - rate)
    if kind == "post":
        expected = norm(expected, np.ones(width), np.zeros(width))
    assert abs(1 - kept.mean() - rate) < 5 * np.sqrt(rate * (1 - rate) / kept.size)
    assert relative_error(result.numpy(), expected) < 1e-3


def attention_of(query, key, value, mask):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    mask = np.broadcast_to(mask, scores.shape)
    return np.where(mask, 0.0, softmax(np.where(mask, -1e30, scores))) @ value


def masks(length, rows=2):
    """The kinds of masks that recipes use; True forbids."""
    padded = np.zeros((rows, 1, 1, length), bool)
    padded[-1, ..., length // 2 :] = True
    nothing = padded.copy()
    nothing[0] = True  # a sentence without any key: its outputs are 0
    return {"padding": padded, "later": ~np.tri(length, dtype=bool), "everything": nothing}


@pytest.mark.parametrize("width", [16, 32, 64])  # those of the recipes
@pytest.mark.parametrize("kind", ["padding", "later", "everything"])
def test_attention(device, precision, width, kind):
    layer, mask = ScaledDotProductAttention(), masks(4)[kind]

    def operation(query, key, value):
        return layer(query, key, value, paddle.to_tensor(mask))[0]

    parts = enumerate(("query", "key", "value"))
    inputs = {part: drawn(2, 1, 4, width, seed=number) for number, part in parts}
    compare(device, precision, operation, lambda **own: attention_of(**own, mask=mask), inputs)


@pytest.mark.skipif(not HAS_GPU, reason="fused attention needs a GPU")
@pytest.mark.parametrize("half", ["bfloat16", "float16"])
@pytest.mark.parametrize("width", [16, 32, 64])
@pytest.mark.parametrize("kind", ["padding", "later", "everything"])
def test_fused_attention_is_the_plain_one(device, precision, half, width, kind):
    mask = masks(64)[kind]
    mask = paddle.to_tensor(mask.reshape(*(1,) * (4 - mask.ndim), *mask.shape))
    arrays = [drawn(2, 64, 4 * width, seed=seed).astype("float32") for seed in range(4)]

    def fused(*given):
        return operations.current.fused_attention(*given, 4, mask, 0.0, True)

    def plain(*given):
        heads = (x.reshape([0, 0, 4, width]).transpose([0, 2, 1, 3]) for x in given)
        return ScaledDotProductAttention()(*heads, mask)[0].transpose([0, 2, 1, 3]).flatten(2)

    found = []
    # The plain one computes in float32 with the same inputs.
    for attention, dtype in ((plain, "float32"), (fused, half)):
        given = [paddle.to_tensor(x).astype(half).astype(dtype) for x in arrays[:3]]
        for tensor in given:
            tensor.stop_gradient = False
        output = attention(*given)
        (output.astype("float32") * paddle.to_tensor(arrays[3])).sum().backward()
        found.append([output, *(tensor.grad for tensor in given)])
    for plain, fused in zip(*found, strict=True):
        assert relative_error(fused.astype("float32").numpy(), plain.numpy()) < LIMITS[half]


def test_embedding_and_positions(device, precision):
    """The embedding of ids, of which some occur several times, with positions added."""
    ids = np.array([[5, 7, 5, PAD], [7, 7, 2, 5]])
    layer, positions = TokenEmbedding(9, 16), PositionalEncoding(16, 4)
    weight, slopes = drawn(9, 16), drawn(2, 4, 16)
    layer.weight.set_value(weight.astype("float32"))
    angles = np.arange(4)[:, np.newaxis] / 10000.0 ** (np.arange(0, 16, 2) / 16)
    table = np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(4, 16)
    gradient = np.zeros(weight.shape)
    np.add.at(gradient, ids, 4 * slopes)  # sqrt(16) is the scale of the embedding
    with casting(precision):
        found = positions(layer(paddle.to_tensor(ids)))
    (found.astype("float32") * paddle.to_tensor(slopes.astype("float32"))).sum().backward()
    limit = LIMITS[device.rounding[precision]]
    assert relative_error(found.astype("float32").numpy(), 4 * weight[ids] + table) < limit
    assert relative_error(layer.weight.grad.numpy(), gradient) < limit


def test_loss(device, precision):
    """With padding, and with a probability below e^-64."""
    labels = np.array([4, 7, PAD, 9, 1, PAD, 30])
    hidden = 2 * drawn(len(labels), 40)
    hidden[3, 9] = -90.0

    def expected(logits):
        log_probs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        right = log_probs[np.arange(len(labels)), labels]
        losses = -0.9 * right - 0.1 * log_probs.mean(axis=1)
        return (losses * (labels != PAD)).sum()

    def operation(logits):
        return LabelSmoothedCrossEntropy(0.1, PAD)(logits, paddle.to_tensor(labels))[0]

    compare(device, precision, operation, expected, {"logits": hidden})


def test_mixture_of_copying(device, precision):
    ids = np.array([[4, 7, PAD], [5, 9, 11]])

    def expected(logits, gate, copied):
        total = np.logaddexp.reduce(logits, axis=1, keepdims=True)
        pointed = np.zeros(logits.shape)
        np.add.at(pointed, (np.arange(2)[:, np.newaxis], ids), copied)
        return np.log(np.exp(logits) + np.exp(total - gate) * pointed)

    def operation(logits, gate, copied):
        # Logits in float32 are overwritten, so a copy is given.
        return mixture(logits * 1.0, gate, copied, paddle.to_tensor(ids))

    copied = softmax(drawn(2, 3, seed=8))
    inputs = {"logits": drawn(2, 14), "gate": drawn(2, 1), "copied": copied}
    compare(device, precision, operation, expected, inputs, factor=2.0)


@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_dropout(device, precision, rate):
    """The share of zeros, the scale of the others, the mask of the gradient, and the seed."""
    count = 2**18

    def dropped():
        paddle.seed(11)
        x = paddle.ones([count], dtype=precision)
        x.stop_gradient = False
        result = Dropout(rate)(x)
        result.sum().backward()
        return result.astype("float32").numpy(), x.grad.astype("float32").numpy()

    value, gradient = dropped()
    share = (value == 0).mean()
    assert abs(share - rate) < 5 * np.sqrt(rate * (1 - rate) / count) + 1 / 65536
    assert relative_error(value[value != 0], 1 / (1 - rate)) < 5e-3
    assert ((value == 0) == (gradient == 0)).all()
    assert (dropped()[0] == value).all()

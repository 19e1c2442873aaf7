"""What oneDNN computes in the model: against Paddle's own operations in float64, at the edges, and
where the library is missing or wrong.

Values are of the order of 1, sums of at most some hundreds of terms: float32 keeps 1e-5 of them.
"""

import ctypes
import os
import threading

import numpy as np
import paddle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.small_trainers import assert_same_weights, trainer_of
from tests.support import emulate_bfloat16, onednn_operations, run_python, take_steps, widened
from transformer_mt import kernels
from transformer_mt.kernels import cpu_onednn, mkl, onednn
from transformer_mt.kernels.cpu import CpuOperations
from transformer_mt.kernels.cpu_onednn import OneDnnOperations
from transformer_mt.kernels.recorded import Panels, exp
from transformer_mt.model import operations
from transformer_mt.model.attention import MultiHeadAttention, ScaledDotProductAttention
from transformer_mt.model.operations import PLAIN
from transformer_mt.utils.errors import UsageError

TOLERANCE = 1e-5
SIZES = st.integers(1, 9)


@pytest.fixture(scope="module")
def own():
    return onednn_operations()


def drawn(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype("float32")


def results(function, inputs, slope=None):
    """The value, and the gradients of sum(value * slope), which is drawn if it is not given."""
    inputs = [paddle.to_tensor(x, stop_gradient=False) for x in inputs]
    value = function(*inputs)
    slope = drawn(*value.shape, seed=9) if slope is None else slope
    gradients = paddle.grad([value], inputs, [paddle.to_tensor(slope, value.dtype)])
    return [x.numpy() for x in (value, *gradients)]


def assert_close(found, expected, tolerance=TOLERANCE):
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def compare(own, name, inputs, *rest, tolerance=TOLERANCE):
    """Compares an operation and its gradients with Paddle's in float64."""
    found = results(lambda *x: getattr(own, name)(*x, *rest), inputs)
    doubled = [x.astype("float64") for x in inputs]
    assert_close(found, results(lambda *x: getattr(PLAIN, name)(*x, *rest), doubled), tolerance)


# ---- Each operation ----


@given(SIZES, SIZES, SIZES, SIZES)
def test_linear_and_logits(own, batch, length, width, out):
    x, weight, bias = drawn(batch, length, width), drawn(width, out), drawn(out)
    compare(own, "linear", [x, weight, bias])
    found = results(lambda x, weight: own.linear(x, weight, None), [x, weight])
    doubled = [x.astype("float64"), weight.astype("float64")]
    assert_close(found, results(lambda x, weight: PLAIN.linear(x, weight, None), doubled))
    compare(own, "logits", [x, drawn(out, width)])


@given(SIZES, SIZES, st.integers(2, 40), st.sampled_from([0.0, 100.0]))
def test_layer_norm(own, batch, length, width, mean):
    x = drawn(batch, length, width)
    # A row of few elements may have a small deviation, by which errors are divided. Of 100, float32
    # keeps 4e-6.
    x = x / (x.std(axis=-1, keepdims=True) + 1e-3) + np.float32(mean)
    inputs = [x, drawn(width), drawn(width, seed=1)]
    compare(own, "layer_norm", inputs, 1e-5, tolerance=2e-4 if mean else 3e-5)


def plain_attention(query, key, value, heads, mask):
    def split(x):
        return x.reshape([*x.shape[:2], heads, -1]).transpose([0, 2, 1, 3])

    layer = ScaledDotProductAttention()
    output, _ = layer(split(query), split(key), split(value), mask)
    return output.transpose([0, 2, 1, 3]).flatten(2)


MASKS = [
    None,
    lambda b, h, m, n: (1, 1, m, n),
    lambda b, h, m, n: (b, 1, 1, n),
    lambda b, h, m, n: (b, 1, m, n),
    lambda b, h, m, n: (b, h, m, n),
]


@given(SIZES, SIZES, SIZES, st.integers(1, 3), SIZES, SIZES, st.sampled_from(MASKS), st.booleans())
def test_attention(own, batch, queries, keys, heads, d_k, d_v, shape, has_empty_row):
    sizes = (queries, heads * d_k), (keys, heads * d_k), (keys, heads * d_v)
    inputs = [drawn(batch, *size, seed=number) for number, size in enumerate(sizes)]
    mask = None
    if shape is not None:
        mask = np.random.default_rng(keys).random(shape(batch, heads, queries, keys)) < 0.3
        if has_empty_row:  # a query, or a sentence, all of whose keys are forbidden
            mask[0, :, 0] = True
        mask = paddle.to_tensor(mask)

    def fused(query, key, value):
        return own.fused_attention(query, key, value, heads, mask, 0.0, True)

    found = results(fused, inputs)
    doubled = [x.astype("float64") for x in inputs]
    assert_close(found, results(lambda *x: plain_attention(*x, heads, mask), doubled))
    if mask is not None:
        nothing = np.broadcast_to(mask.numpy().all(axis=-1).any(axis=1), (batch, queries))
        if mask.shape[1] == 1:
            assert (found[0][nothing] == 0.0).all() and (found[1][nothing] == 0.0).all()


@pytest.mark.parametrize("rate", [0.1, 0.6])
def test_dropout_of_attention_drops_the_same_weights_in_both_directions(own, rate):
    heads, shape = 2, (3, 2, 4, 5)
    inputs = [drawn(3, 4, 6), drawn(3, 5, 6), drawn(3, 5, 8)]
    paddle.seed(3)
    kept, scale = own.kept(shape, rate)
    factors = paddle.to_tensor(kept * scale)

    def composed(query, key, value):
        def split(x):
            return x.reshape([*x.shape[:2], heads, -1]).transpose([0, 2, 1, 3])

        scores = paddle.matmul(split(query), split(key), transpose_y=True) / 3**0.5
        weights = paddle.nn.functional.softmax(scores) * factors.astype(scores.dtype)
        return paddle.matmul(weights, split(value)).transpose([0, 2, 1, 3]).flatten(2)

    def fused(query, key, value):
        paddle.seed(3)
        return own.fused_attention(query, key, value, heads, None, rate, True)

    expected = results(composed, [x.astype("float64") for x in inputs])
    assert_close(results(fused, inputs), expected)
    # Without training, nothing is dropped.
    tensors = [paddle.to_tensor(x) for x in inputs]
    found = own.fused_attention(*tensors, heads, None, rate, False)
    assert_close([found], [plain_attention(*tensors, heads, None)])


def test_the_layer_uses_it_and_gives_the_same(own):
    attention = MultiHeadAttention(8, 2)
    x, memory = paddle.to_tensor(drawn(2, 5, 8)), paddle.to_tensor(drawn(2, 3, 8))
    mask = paddle.to_tensor([[[True, False, False]], [[False, False, True]]])
    expected, weights = attention(x, memory, memory, mask)
    operations.use(own)
    found, nothing = attention(x, memory, memory, mask, need_weights=False)
    assert nothing is None and weights is not None
    assert_close([found], [expected])
    with pytest.raises(TypeError, match="must be bool"):
        attention(x, memory, memory, mask.astype("float32"), need_weights=False)


def test_softmax(own):
    x = drawn(7, 300) * 30
    expected = paddle.nn.functional.log_softmax(paddle.to_tensor(x, "float64")).exp()
    assert_close([own.softmax(paddle.to_tensor(x))], [expected])


# ---- The edges ----


def test_exponentials(own):
    special = np.array([0, -0.0, 88, 89, -104, np.inf, -np.inf, np.nan], np.float32)
    for x in (special, drawn(5, 7) * 20, drawn(7, 5).T):
        found = exp(x, np.empty(x.shape, np.float32))
        with np.errstate(over="ignore"):
            np.testing.assert_allclose(found, np.exp(x), rtol=3e-7)


@pytest.mark.parametrize("columns", [1, 15, 16, 17, 50])
def test_panels(own, columns):
    x, matrix, out = drawn(5, 8), drawn(8, columns), np.empty((5, columns), np.float32)
    recorder = onednn.Recorder(onednn.library(), has_fixed_rows=True)
    Panels(matrix).record(recorder, x, out)
    for values in (drawn(5, 8, seed=1), drawn(5, 8, seed=2)):
        x[:] = values
        make(recorder.calls_of(5))
        np.testing.assert_allclose(out, values.astype(float) @ matrix, atol=TOLERANCE)


def test_products_of_few_sentences_and_keys(own):
    """Nothing else is written."""
    sentences, heads, width, keys = 4, 3, 2, 6
    query, key = drawn(sentences, heads, width, 5), drawn(sentences, heads, keys, 5)
    scores = np.zeros((sentences, heads, width, keys), np.float32)
    mixed = np.zeros_like(query)
    recorder = onednn.Recorder(onednn.library(), has_fixed_rows=False)
    recorder.products(query, key.swapaxes(2, 3), scores, mkl.COLUMNS)
    recorder.products(scores, key, mixed, mkl.INNER)
    for count, used in ((3, 4), (4, 1), (2, 6)):
        scores[:], mixed[:] = np.nan, np.nan
        make(recorder.calls_of(count * width, used))
        expected = np.full_like(scores, np.nan)
        expected[:count, ..., :used] = query[:count] @ key[:count, :, :used].swapaxes(2, 3)
        np.testing.assert_allclose(scores, expected, atol=TOLERANCE)
        expected = np.full_like(mixed, np.nan)
        expected[:count] = scores[:count, ..., :used] @ key[:count, :, :used]
        np.testing.assert_allclose(mixed, expected, rtol=TOLERANCE, atol=TOLERANCE)


def make(calls):
    for function, arguments in calls:
        function(*arguments)


def test_without_rows_or_keys_paddle_computes(own):
    x = paddle.zeros([0, 3, 4])
    assert own.linear(x, paddle.ones([4, 2]), paddle.ones([2])).shape == [0, 3, 2]
    assert own.logits(x, paddle.ones([2, 4])).shape == [0, 3, 2]
    assert own.fused_attention(x, x, x, 2, None, 0.0, True) is None
    queries = paddle.ones([2, 3, 4])
    assert own.fused_attention(queries, *[paddle.zeros([2, 0, 4])] * 2, 2, None, 0.0, True) is None


def test_tensors_of_other_types_are_left_to_paddle(own):
    x, weight = drawn(3, 4).astype("float64"), drawn(4, 4).astype("float64")
    assert own.linear(paddle.to_tensor(x), paddle.to_tensor(weight), None).dtype == paddle.float64
    x = paddle.to_tensor(x[None])
    assert own.fused_attention(x, x, x, 2, None, 0.0, True) is None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so(own, value):
    x, weight, bias = drawn(200, 4), drawn(4, 4), drawn(4)
    x[3, 1] = value
    for name, rest in {"linear": [weight, bias], "layer_norm": [bias, bias]}.items():
        inputs = [paddle.to_tensor(array) for array in (x, *rest)]
        more = [1e-5] if name == "layer_norm" else []
        found = getattr(own, name)(*inputs, *more).numpy()
        expected = getattr(PLAIN, name)(*inputs, *more).numpy()
        np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected))
    query, key = paddle.to_tensor(x[None, :9]), paddle.to_tensor(x[None, 10:20])
    found = own.fused_attention(query, key, key, 2, None, 0.0, True).numpy()
    assert not np.isfinite(found[0, 3, :2]).any() and np.isfinite(found[0, 4]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("bits", ["float32", "bfloat16"])
def test_training_finds_that_weights_are_not_finite(tmp_path, request, bits, value):
    if bits == "bfloat16":
        request.getfixturevalue("emulated")
    trainer = trainer_of(tmp_path, training={"precision": bits})
    weight = trainer.model.encoder.layers[0].self_attention.query_projection.weight
    changed = weight.numpy()
    changed[0, 0] = value
    weight.set_value(changed)
    (outcome,) = take_steps(trainer, 1)
    assert not outcome.is_finite


def test_tensors_that_are_not_contiguous(own):
    """Paddle makes such tensors if its strided views are switched on."""
    code = """
import numpy as np, paddle
from tests.support import onednn_operations
from transformer_mt.model.operations import PLAIN
own = onednn_operations()
x = paddle.arange(24, dtype="float32").reshape([2, 3, 4]).transpose([0, 2, 1])
assert not x.is_contiguous()
weight, bias = paddle.rand([3, 3]), paddle.rand([3])
x.stop_gradient = weight.stop_gradient = False
for name, rest in {"linear": (weight, bias), "logits": (weight,)}.items():
    for made in (own, PLAIN):
        x.clear_gradient(), weight.clear_gradient()
        y = getattr(made, name)(x, *rest)
        y.transpose([0, 2, 1]).sum().backward()
        found = [y.numpy(), x.grad.numpy(), weight.grad.numpy()]
        if made is own:
            ours = found
    for a, b in zip(ours, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
norm = own.layer_norm(x, bias, bias, 1e-5).numpy()
np.testing.assert_allclose(norm, PLAIN.layer_norm(x, bias, bias, 1e-5).numpy(), atol=1e-5)
"""
    environment = {**os.environ, "FLAGS_use_stride_kernel": "1"}
    done = run_python("-c", code, env=environment, is_fresh=True)
    assert done.returncode == 0, done.stderr


def test_the_same_twice(tmp_path):
    outcomes = []
    for _ in range(2):
        trainer = trainer_of(tmp_path, model={"dropout": 0.2, "attention_dropout": 0.1})
        outcomes.append((take_steps(trainer, 2), trainer))
    assert outcomes[0][0] == outcomes[1][0]
    assert_same_weights(outcomes[0][1], outcomes[1][1])


# ---- Threads and processes ----


def test_several_threads_at_once(own):
    inputs = [drawn(4, 6, 8, seed=seed) for seed in range(3)]
    weight, bias = paddle.to_tensor(drawn(8)), paddle.to_tensor(drawn(8))

    def compute():
        tensors = [paddle.to_tensor(x) for x in inputs]
        mixed = own.fused_attention(*tensors, 2, None, 0.0, False)
        return own.layer_norm(own.linear(mixed, *square), weight, bias, 1e-5).numpy()

    square = paddle.to_tensor(drawn(8, 8)), bias
    expected, wrong = compute(), []

    def repeat():
        for _ in range(100):
            if not np.array_equal(compute(), expected):
                wrong.append(1)

    threads = [threading.Thread(target=repeat) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forked_process_computes_the_same(own):
    x = [paddle.to_tensor(drawn(4, 6, 8, seed=seed)) for seed in range(3)]

    def compute():
        mixed = own.fused_attention(*x, 2, None, 0.0, False)
        return own.logits(mixed, x[0][0]).numpy()

    expected = compute()
    process = os.fork()
    if not process:
        os._exit(0 if np.array_equal(compute(), expected) else 1)
    assert os.waitpid(process, 0)[1] == 0


# ---- bfloat16 ----


@pytest.fixture
def emulated(monkeypatch):
    emulate_bfloat16(monkeypatch)


def test_rounding():
    library = onednn_operations()._library
    halfway = np.float32(1 + 2**-8)  # between 1 and 1 + 2^-7: to the even one
    x = np.array([1, halfway, 1 + 3 * 2**-8, -2.5, np.nan, np.inf, -np.inf, 0], np.float32)
    found = widened(onednn.Operations(library).round(x))
    np.testing.assert_array_equal(found, [1, 1, 1 + 2**-6, -2.5, np.nan, np.inf, -np.inf, 0])


def test_a_product_of_bfloat16_is_that_of_the_rounded_factors(own, emulated):
    x, weight, bias = drawn(2, 30, 7), drawn(7, 5), drawn(5)
    slope = drawn(2, 30, 5, seed=4)
    rounded = [widened(own._own.round(array)) for array in (x, weight, slope)]
    with own.in_precision("bfloat16"):
        found = results(own.linear, [x, weight, bias], slope)
        found += results(own.logits, [x, weight.T.copy()], slope)
    double = [array.astype("float64") for array in (*rounded[:2], bias)]
    expected = results(lambda x, w, b: PLAIN.linear(x, w, b), double, rounded[2])
    expected[3] = slope.sum(axis=(0, 1))  # the bias is not rounded
    value, dx, dw = expected[:3]
    assert_close(found, [*expected, value - bias, dx, dw.T])


def test_the_precision_holds_within_the_block_and_the_thread(own, emulated):
    x, weight = paddle.to_tensor(drawn(2, 200, 7)), paddle.to_tensor(drawn(7, 5))
    exact = own.linear(x, weight, None).numpy()
    found = []
    with own.in_precision("bfloat16"):
        rounded = own.linear(x, weight, None).numpy()
        thread = threading.Thread(target=lambda: found.append(own.linear(x, weight, None).numpy()))
        thread.start()
        thread.join()
    assert not np.array_equal(rounded, exact)
    np.testing.assert_array_equal(found[0], exact)
    np.testing.assert_array_equal(own.linear(x, weight, None), exact)


@pytest.mark.parametrize("training", [{}, {"recompute": True}])
def test_gradients_in_bfloat16(tmp_path, emulated, training):
    """Each product rounds its factors by up to 2^-9 = 0.2 % of each number. The errors of a sum are
    independent, so they stay at that share of it, and those of the products on the way through the
    layers add up to about 1 % of the largest gradient."""
    found = {}
    for precision in ("float32", "bfloat16"):
        trainer = trainer_of(tmp_path, training={"precision": precision, **training})
        batch = trainer.read(0, 0, trainer.plan.epoch_updates(0)[0]).batches[0]
        trainer.model.train()
        with operations.current.in_precision(precision):
            loss, _ = trainer.updater.losses(batch, 1)
            loss.backward()
        named = trainer.model.named_parameters()
        found[precision] = {name: p.grad.numpy() for name, p in named} | {"loss": float(loss)}
    expected = found["float32"]
    largest = max(np.abs(x).max() for name, x in expected.items() if name != "loss")
    for name, gradient in expected.items():
        share = largest if name != "loss" else expected["loss"]
        difference = np.abs(found["bfloat16"][name] - gradient).max() / share
        assert difference < 0.02, name
    assert found["bfloat16"]["loss"] != expected["loss"]


def test_recompute_computes_the_same_in_bfloat16(tmp_path, emulated):
    """To the last bit: the layers are computed again in the same precision."""
    trainers = []
    for recompute in (False, True):
        training = {"precision": "bfloat16", "recompute": recompute}
        trainers.append(trainer_of(tmp_path, training=training))
        take_steps(trainers[-1], 2)
    assert_same_weights(*trainers)


def test_a_device_that_has_no_bfloat16_refuses_it(monkeypatch):
    library = onednn_operations()._library
    monkeypatch.setattr(library, "has_bfloat16", False)
    with pytest.raises(UsageError, match="bfloat16 needs a GPU or a processor with AVX512_BF16"):
        kernels.require_precision("bfloat16", "cpu")
    assert kernels.cpu_products().endswith("without bfloat16")
    monkeypatch.setattr(library, "has_bfloat16", True)
    kernels.require_precision("bfloat16", "cpu")
    assert kernels.cpu_products().endswith("with bfloat16")
    with pytest.raises(UsageError, match="float16 needs a GPU"):
        kernels.require_precision("float16", "cpu")


# ---- A library that cannot be used ----


@pytest.fixture
def messages(monkeypatch):
    """What the module says; the library is looked for as in a new process."""
    said = []
    monkeypatch.setattr(onednn, "say", said.append)
    onednn._found.cache_clear()
    yield said
    onednn._found.cache_clear()


class Version(ctypes.Structure):
    _fields_ = [("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int)]


def wrong_version(monkeypatch):
    monkeypatch.setattr(onednn, "MAJOR", 4)


def no_mkl(monkeypatch):
    monkeypatch.setattr(mkl, "FILE", "libmklml_intel.so.99")


def no_file(monkeypatch):
    monkeypatch.setattr(onednn, "FILE", "libdnnl.so.99")


def wrong_products(monkeypatch):
    plain = onednn.Library.product

    def product(self, a, b, out, add=False):
        plain(self, a, b, out, add)
        out[0, 0] += 0.1

    monkeypatch.setattr(onednn.Library, "product", product)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (no_mkl, "no usable libmklml_intel.so.99"),
        (no_file, "no usable libdnnl.so.99"),
        (wrong_version, "its version is 3"),
        (wrong_products, "its test failed (a product differs by 0.1"),
    ],
)
def test_training_goes_on_with_paddles_operations(tmp_path, monkeypatch, messages, fault, reason):
    onednn_operations()
    messages.clear()
    onednn._found.cache_clear()
    expected = take_steps(trainer_of(tmp_path), 3)
    assert type(operations.current) is OneDnnOperations
    onednn._found.cache_clear()
    fault(monkeypatch)
    found = take_steps(trainer_of(tmp_path), 3)
    kernels.choose()
    assert type(operations.current) is CpuOperations
    (message,) = messages
    assert message.startswith("oneDNN is not used") and reason in message
    assert reason in kernels.cpu_products() and "Paddle's own" in kernels.cpu_products()
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)


def test_it_can_be_switched_off(monkeypatch, messages):
    monkeypatch.setenv(onednn.SWITCH, "0")
    kernels.choose()
    assert type(operations.current) is CpuOperations and messages == []
    assert kernels.cpu_products() == "Paddle's own (TRANSFORMER_MT_ONEDNN is 0)"
    with pytest.raises(UsageError, match=r"needs oneDNN \(TRANSFORMER_MT_ONEDNN is 0"):
        kernels.require_precision("bfloat16", "cpu")


def test_few_rows_without_a_gradient_are_left_to_paddle(own, monkeypatch):
    calls = []
    plain = cpu_onednn._Product.apply
    monkeypatch.setattr(cpu_onednn._Product, "apply", lambda *x: calls.append(x) or plain(*x))
    weight = paddle.ones([4, 2])
    with paddle.no_grad():
        for rows in (1, cpu_onednn.FEW_ROWS - 1, cpu_onednn.FEW_ROWS):
            own.linear(paddle.ones([rows, 4]), weight, None)
    assert len(calls) == 1

"""Fused operations: their self-tests against correct and wrong operations, and the fallback.

There is no GPU here. Paddle's attention runs on a CPU in its plain form; the other operation has no
CPU kernel, so stand-ins for it are tested, of which one is right.
"""

from types import SimpleNamespace

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from transformer_mt.config.schema import takes_head_width
from transformer_mt.kernels import gpu
from transformer_mt.model import operations
from transformer_mt.model.attention import MultiHeadAttention
from transformer_mt.model.layers import ResidualNorm


@pytest.fixture
def warnings(monkeypatch) -> list[str]:
    """What the module warns of; every operation is as in a new process, on a pretended GPU."""
    messages = []
    monkeypatch.setattr(gpu, "warn", messages.append)
    monkeypatch.setattr(gpu, "is_on_gpu", lambda x: True)
    operations.use(gpu.GpuOperations())
    for name in ("ATTENTION", "DROPOUT_ADD_NORM"):
        old = getattr(gpu, name)
        monkeypatch.setattr(gpu, name, gpu.Operation(old.name, old._self_test))
    return messages


def plain_norm(x, residual, ln_scale, ln_bias, dropout_rate, ln_epsilon, training):
    """What the documentation says of fused_bias_dropout_residual_layer_norm."""
    total = residual + F.dropout(x, dropout_rate, training=training)
    return F.layer_norm(total, ln_scale.shape, ln_scale, ln_bias, ln_epsilon)


def raising(*arguments, **options):
    raise RuntimeError("no kernel\nfor this")


@pytest.fixture
def use_norm(monkeypatch):
    return lambda function: monkeypatch.setattr(
        gpu.incubate, "fused_bias_dropout_residual_layer_norm", function
    )


# ---- Attention ----


@pytest.mark.parametrize("width", [8, 16, 32, 64, 128, 256])
def test_attention_passes_its_self_test(warnings, width):
    # 16 (toy), 32 (most recipes) and 64 (base and big) are in use. Masks: causal with padding and
    # a query without keys, and none with more keys than queries.
    assert gpu._test_attention(paddle.float32, width) == ""


REAL_ATTENTION = F.scaled_dot_product_attention
WRONG_ATTENTION = [
    (lambda *qkv, **o: REAL_ATTENTION(*qkv, **o | {"attn_mask": None}), "value"),
    (lambda *qkv, **o: REAL_ATTENTION(*qkv, **o | {"is_causal": True}), "value"),
    (lambda *qkv, **o: REAL_ATTENTION(*qkv, **o | {"dropout_p": 0.3}), "value"),
    (lambda q, k, v, **o: REAL_ATTENTION(q, k.detach() + 0 * k, v, **o), "gradient of K"),
]


@pytest.mark.parametrize(("wrong", "word"), WRONG_ATTENTION)
def test_a_wrong_attention_fails(warnings, monkeypatch, wrong, word):
    monkeypatch.setattr(F, "scaled_dot_product_attention", wrong)
    assert word in gpu._test_attention(paddle.float32, 8)


def test_the_widths_are_those_of_paddle():
    """Paddle's own check, for every width."""
    from paddle.nn.functional import sdpa

    for width in range(1, 600):
        parameters = SimpleNamespace(head_dim=(width,) * 3)
        assert takes_head_width(width) == sdpa.check_head_dim_size_flash(parameters)


def test_attention_without_a_kernel_is_computed_by_plain_operations(warnings, monkeypatch, normal):
    monkeypatch.setattr(gpu, "can_attend", lambda query: True)
    monkeypatch.setattr(F, "scaled_dot_product_attention", raising)
    layer, x = MultiHeadAttention(16, 2), normal(2, 3, 16)
    for _ in range(2):
        output, _ = layer(x, x, x, need_weights=False)
        np.testing.assert_array_equal(output, layer(x, x, x)[0])
    (message,) = warnings
    assert "RuntimeError: no kernel for this" in message and "attention" in message


# ---- Dropout, residual sum and norm ----


def test_the_documented_norm_passes(warnings, use_norm):
    use_norm(plain_norm)
    for width in (64, 1024):
        assert gpu._test_dropout_add_norm(paddle.float32, width) == ""


def same_elements_twice(*arguments, **options):
    paddle.seed(1)
    return plain_norm(*arguments, **options)


WRONG = [
    (raising, "RuntimeError"),
    (lambda x, y, **o: plain_norm(x, y, **o | {"dropout_rate": 0.2}), "dropout of 0.0"),
    (
        lambda x, y, **o: plain_norm(x * (1 - o["dropout_rate"]), y, **o),
        "dropout of 0.5, the value",
    ),
    (lambda x, y, **o: plain_norm(x.detach() + 0 * x, y, **o), "dropout of 0.0, the value"),
    (lambda x, y, **o: plain_norm(y, x, **o), "the value"),
    (same_elements_twice, "twice"),
]


@pytest.mark.parametrize(("function", "words"), WRONG)
def test_a_wrong_norm_fails(warnings, use_norm, function, words):
    use_norm(function)
    x = paddle.ones([1, 16])
    assert not gpu.DROPOUT_ADD_NORM.works(x, 16)
    (message,) = warnings
    assert words in message


def test_the_layer_uses_it_in_training_only(warnings, use_norm, normal):
    layer, x, output = ResidualNorm(16, 0.4), normal(2, 5, 16), normal(2, 5, 16)
    use_norm(plain_norm)
    paddle.seed(7)
    ours = layer.leave(x, output)
    assert warnings == []
    paddle.seed(7)  # the self-test has restored the random state
    expected = layer.norm(x + F.dropout(output, 0.4))
    np.testing.assert_allclose(ours, expected, atol=1e-5)
    use_norm(raising)
    layer.eval()
    np.testing.assert_array_equal(layer.leave(x, output), layer.norm(x + output))
    # Recompute drops the same elements without gradients as with them.
    layer.train()
    with paddle.no_grad():
        assert gpu.has_dropout_add_norm(x)


# ---- The decision ----


def test_the_self_test_runs_once_per_width_and_dtype_and_a_failure_is_final():
    calls, messages = [], []

    def self_test(dtype, width):
        calls.append((dtype, width))
        paddle.rand([3])
        return "" if width < 100 else "it differs"

    operation = gpu.Operation("it", self_test)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "warn", messages.append)
        x = paddle.ones([1])
        paddle.seed(3)
        expected = paddle.rand([2]).numpy()
        paddle.seed(3)
        for _ in range(2):
            assert operation.works(x, 8) and operation.works(x, 16)
            assert operation.works(x.astype("float16"), 8)
        np.testing.assert_array_equal(paddle.rand([2]), expected)
        assert len(calls) == 3 and messages == []
        assert not operation.works(x, 128) and not operation.works(x, 256)
        assert not operation.works(x, 8)  # for the rest of the process
    assert len(calls) == 4 and len(messages) == 1

"""Attention against Paddle's own layer and against NumPy in float64; masks; caches.

Values are of the order of 1 and go through a few float32 sums of at most some tens of terms, whose
rounding is some 1e-7 each: two correct computations agree to 1e-5, and no wrong one does.
"""

import numpy as np
import paddle
import pytest

from tests.reference import assert_close, attention_pairs, random_mask
from transformer_mt.kernels import gpu
from transformer_mt.model import operations
from transformer_mt.model.attention import (
    MultiHeadAttention,
    ScaledDotProductAttention,
    causal_mask,
)


def numpy_attention(query, key, value, mask=None):
    """Formula (1) in float64; `mask` True where forbidden, already of a shape that broadcasts."""
    query, key, value = (np.asarray(x, dtype="float64") for x in (query, key, value))
    scores = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1])
    if mask is not None:
        scores = np.where(mask, -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights @ value, weights


class TestScaledDotProductAttention:
    @pytest.mark.parametrize(
        ("lead", "mask_shape", "broadcast_shape"),
        [
            ((2,), None, None),
            ((2,), (3, 6), (3, 6)),
            ((2,), (2, 3, 6), (2, 3, 6)),
            ((2, 4), None, None),
            ((2, 4), (3, 6), (3, 6)),
            ((2, 4), (2, 3, 6), (2, 1, 3, 6)),
            # With as many heads as sentences a wrong broadcast would go unseen in the shapes.
            ((2, 2), (2, 3, 6), (2, 1, 3, 6)),
            ((2, 4), (2, 4, 3, 6), (2, 4, 3, 6)),
            ((2, 4), (2, 1, 1, 6), (2, 1, 1, 6)),
        ],
    )
    def test_equals_numpy(self, rng, normal, lead, mask_shape, broadcast_shape):
        query, key, value = normal(*lead, 3, 8), normal(*lead, 6, 8), normal(*lead, 6, 5)
        mask = numpy_mask = None
        if mask_shape:
            bools = random_mask(rng, *mask_shape)
            numpy_mask = bools.reshape(broadcast_shape)
            mask = paddle.to_tensor(bools)
        output, weights = ScaledDotProductAttention()(query, key, value, mask)
        expected_output, expected_weights = numpy_attention(query, key, value, numpy_mask)
        assert_close(output, expected_output)
        assert_close(weights, expected_weights)
        if numpy_mask is not None:
            assert np.all(weights.numpy()[np.broadcast_to(numpy_mask, weights.shape)] == 0.0)

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_row_with_all_keys_forbidden_is_zero_and_not_nan(self, normal, dtype):
        query, key, value = (normal(1, 2, 4).astype(dtype) for _ in range(3))
        for tensor in (query, key, value):
            tensor.stop_gradient = False
        mask = paddle.to_tensor([[True, True], [False, True]])
        output, weights = ScaledDotProductAttention()(query, key, value, mask)
        np.testing.assert_array_equal(weights, [[[0.0, 0.0], [1.0, 0.0]]])
        np.testing.assert_array_equal(output, [[np.zeros(4), value[0, 0]]])
        output.sum().backward()
        for tensor in (query, key, value):
            assert bool(paddle.isfinite(tensor.grad).all())

    def test_scores_however_low_do_not_let_forbidden_keys_through(self, normal):
        query, value = paddle.full([1, 1, 4], 1e3), normal(1, 3, 4)
        key = paddle.to_tensor([-1e3, 1e3, -1.001e3]).reshape([1, 3, 1]).expand([1, 3, 4])
        mask = paddle.to_tensor([[False, True, False]])
        output, weights = ScaledDotProductAttention()(query, key, value, mask)
        np.testing.assert_allclose(weights, [[[1.0, 0.0, 0.0]]], atol=1e-6)
        assert_close(output[:, 0], value[:, 0])

    def test_gradient_of_forbidden_keys_is_exactly_zero(self, normal):
        query, key, value = normal(1, 3, 4), normal(1, 5, 4), normal(1, 5, 4)
        key.stop_gradient = value.stop_gradient = False
        mask = paddle.to_tensor([[False, True, False, True, False]])
        output, _ = ScaledDotProductAttention()(query, key, value, mask)
        (output * normal(1, 3, 4)).sum().backward()
        for gradient in (key.grad.numpy()[0], value.grad.numpy()[0]):
            assert np.all(gradient[[1, 3]] == 0.0)
            assert np.all(gradient[[0, 2, 4]] != 0.0)

    def test_weights_are_as_before_dropout(self, normal):
        query, key, value = normal(2, 3, 4), normal(2, 6, 4), normal(2, 6, 5)
        attention = ScaledDotProductAttention(dropout=0.5)
        output, weights = attention(query, key, value)
        attention.eval()
        expected_output, expected_weights = attention(query, key, value)
        np.testing.assert_array_equal(weights, expected_weights)
        assert not np.allclose(output, expected_output, atol=1e-3)
        np.testing.assert_allclose(expected_output, weights @ value, atol=1e-6)

    def test_bad_masks_are_refused(self, normal):
        x = normal(2, 3, 4)
        for dtype in ("int64", "float32"):  # of which nobody knows what 1 is to mean
            with pytest.raises(TypeError, match="must be bool"):
                ScaledDotProductAttention()(x, x, x, paddle.ones([3, 3], dtype=dtype))


class TestMultiHeadAttention:
    @pytest.mark.parametrize("masked", [False, True])
    def test_equals_paddles(self, rng, normal, randomise, masked):
        ours = randomise(MultiHeadAttention(12, 3))
        theirs = paddle.nn.MultiHeadAttention(12, 3, need_weights=True)
        for linear, their_linear in attention_pairs(ours, theirs):
            their_linear.set_state_dict(linear.state_dict())
        query, key, value = normal(2, 3, 12), normal(2, 4, 12), normal(2, 4, 12)
        mask = their_mask = None
        if masked:
            bools = random_mask(rng, 2, 3, 4)
            mask, their_mask = paddle.to_tensor(bools), paddle.to_tensor(~bools[:, np.newaxis])
        output, weights = ours(query, key, value, mask)
        expected_output, expected_weights = theirs(query, key, value, their_mask)
        assert weights.shape == [2, 3, 3, 4]
        assert_close(output, expected_output)
        assert_close(weights, expected_weights)
        assert ours(query, key, value, mask, need_weights=False)[1] is None

    def test_head_widths_of_their_own_equal_numpy_head_by_head(self, normal, randomise):
        heads, d_k, d_v = 3, 5, 2
        attention = randomise(MultiHeadAttention(10, heads, d_k=d_k, d_v=d_v))
        query, memory = normal(2, 3, 10), normal(2, 4, 10)
        output, weights = attention(query, memory, memory)

        def projected(name, x):
            linear = getattr(attention, f"{name}_projection")
            return np.asarray(x, "float64") @ linear.weight.numpy() + linear.bias.numpy()

        projections = [projected("query", query)]
        projections += [projected(name, memory) for name in ("key", "value")]
        outputs = []
        for parts in zip(*(np.split(x, heads, axis=-1) for x in projections), strict=True):
            head_output, head_weights = numpy_attention(*parts)
            assert_close(weights[:, len(outputs)], head_weights)
            outputs.append(head_output)
        expected = projected("output", np.concatenate(outputs, -1))
        assert_close(output, expected)

    def test_d_model_that_the_heads_do_not_divide(self, normal):
        with pytest.raises(ValueError, match=r"d_model \(10\) must be a multiple of num_heads \(3"):
            MultiHeadAttention(10, 3)
        x = normal(1, 2, 10)
        attention = MultiHeadAttention(10, 3, d_k=4, d_v=4)
        assert attention.query_projection.weight.shape == [10, 12]
        assert attention(x, x, x)[0].shape == [1, 2, 10]


def test_causal_mask_hides_what_comes_later():
    np.testing.assert_array_equal(causal_mask(3), np.triu(np.ones((3, 3), bool), 1))


def test_fused_attention_drops_in_training_only(monkeypatch, normal):
    """Its values and gradients: see test_fused.py."""
    x, attention = normal(2, 3, 8), MultiHeadAttention(8, 2, dropout=0.5)
    assert not gpu.has_attention(x, x, 2)  # on a CPU
    operations.use(gpu.GpuOperations())
    monkeypatch.setattr(gpu, "has_attention", lambda query, value, num_heads: True)
    dropped, weights = attention(x, x, x, need_weights=False)
    attention.eval()
    plain, _ = attention(x, x, x, need_weights=False)
    assert weights is None and not np.allclose(dropped, plain, atol=1e-3)
    assert_close(plain, attention(x, x, x)[0])

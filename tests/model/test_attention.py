"""Attention against Paddle's own layer and against NumPy in float64; masks; caches.

Values are of the order of 1 and go through a few float32 sums of at most some tens of terms, whose
rounding is some 1e-7 each: two correct computations agree to 1e-5, and no wrong one does.
"""

import numpy as np
import paddle
import pytest

from tests.reference import attention_pairs, random_mask
from transformer_mt.kernels import gpu as fused_operations
from transformer_mt.model.attention import (
    KeyValueCache,
    MultiHeadAttention,
    ScaledDotProductAttention,
    causal_mask,
    padding_mask,
)

TOLERANCE = 1e-5


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
        np.testing.assert_allclose(output, expected_output, atol=TOLERANCE)
        np.testing.assert_allclose(weights, expected_weights, atol=TOLERANCE)
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
        np.testing.assert_allclose(output[:, 0], value[:, 0], atol=TOLERANCE)

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
        with pytest.raises(ValueError, match="does not fit"):
            ScaledDotProductAttention()(x, x, x, paddle.ones([2, 1, 3, 3], dtype="bool"))


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
        np.testing.assert_allclose(output, expected_output, atol=TOLERANCE)
        np.testing.assert_allclose(weights, expected_weights, atol=TOLERANCE)
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
            np.testing.assert_allclose(weights[:, len(outputs)], head_weights, atol=TOLERANCE)
            outputs.append(head_output)
        expected = projected("output", np.concatenate(outputs, -1))
        np.testing.assert_allclose(output, expected, atol=TOLERANCE)

    def test_d_model_that_the_heads_do_not_divide(self, normal):
        with pytest.raises(ValueError, match=r"d_model \(10\) must be a multiple of num_heads \(3"):
            MultiHeadAttention(10, 3)
        x = normal(1, 2, 10)
        attention = MultiHeadAttention(10, 3, d_k=4, d_v=4)
        assert attention.query_projection.weight.shape == [10, 12]
        assert attention(x, x, x)[0].shape == [1, 2, 10]


def test_padding_mask_is_of_the_keys_and_its_own_pad_id():
    query_ids = paddle.to_tensor([[7, 9], [9, 9]])
    key_ids = paddle.to_tensor([[0, 7, 9], [0, 9, 9]])
    mask = padding_mask(query_ids, key_ids, pad_id=9)
    np.testing.assert_array_equal(mask, [[[False, False, True]] * 2, [[False, True, True]] * 2])


class TestKeyValueCache:
    def test_growing_step_by_step_equals_causal_attention(self, normal, randomise):
        attention = randomise(MultiHeadAttention(8, 2))
        x = normal(3, 5, 8)
        expected, expected_weights = attention(x, x, x, causal_mask(5))
        cache = KeyValueCache()
        for position in range(5):
            step = x[:, position : position + 1]
            output, weights = attention(step, step, step, cache=cache)
            assert cache.length == position + 1
            np.testing.assert_allclose(output[:, 0], expected[:, position], atol=TOLERANCE)
            np.testing.assert_allclose(
                weights[:, :, 0], expected_weights[:, :, position, : position + 1], atol=TOLERANCE
            )

    def test_static_projects_once(self, normal, randomise):
        attention = randomise(MultiHeadAttention(8, 2))
        query, memory = normal(2, 1, 8), normal(2, 4, 8)
        calls = []
        for linear in (attention.key_projection, attention.value_projection):
            linear.register_forward_post_hook(lambda *_: calls.append(1))
        cache = KeyValueCache(static=True)
        assert not cache.is_complete
        first, _ = attention(query, memory, memory, cache=cache)
        second, _ = attention(query, None, None, cache=cache)
        assert len(calls) == 2
        assert cache.length == 4
        np.testing.assert_array_equal(first, second)
        np.testing.assert_array_equal(first, attention(query, memory, memory)[0])
        with pytest.raises(ValueError, match="only once"):
            cache.update(normal(1, 2, 3, 4), normal(1, 2, 3, 4))

    @pytest.mark.parametrize("index", [[2, 0, 1], [1, 1, 0, 0, 2], [2]])
    def test_select(self, normal, index):
        cache = KeyValueCache()
        cache.select(paddle.to_tensor(index))  # nothing to do while empty
        assert cache.length == 0
        key, value = normal(3, 2, 4, 5), normal(3, 2, 4, 6)
        cache.update(key, value)
        cache.select(paddle.to_tensor(index))
        np.testing.assert_array_equal(cache.key, key.numpy()[index])
        np.testing.assert_array_equal(cache.value, value.numpy()[index])


class TestFusedAttention:
    """Paddle's own fused operation, whose plain form on a CPU is to be had for any dtype."""

    @pytest.fixture
    def both(self, monkeypatch):
        """A function that attends in both ways."""
        attention = ScaledDotProductAttention()

        def attend(*arguments):
            plain, _ = attention(*arguments)
            monkeypatch.setattr(fused_operations, "has_attention", lambda query, value: True)
            fused, weights = attention(*arguments, need_weights=False)
            assert weights is None
            return fused, plain

        return attend

    @pytest.mark.parametrize(
        ("is_causal", "mask_shape"),
        [
            (True, None),
            (True, (2, 1, 1, 5)),
            (False, (2, 5, 5)),
            (False, (2, 3, 5, 5)),
        ],
    )
    def test_equals_ours_with_its_gradients(self, rng, normal, both, is_causal, mask_shape):
        inputs = [normal(2, 3, 5, 8) for _ in range(3)]
        for x in inputs:
            x.stop_gradient = False
        mask = causal_mask(5) if is_causal else None
        if mask_shape:
            padding = paddle.to_tensor(random_mask(rng, *mask_shape))
            mask = padding if mask is None else paddle.logical_or(mask, padding)
        slope, found = normal(2, 3, 5, 8), []
        for output in both(*inputs, mask):
            paddle.autograd.backward([output], [slope])
            found.append([output.numpy(), *(x.grad.numpy() for x in inputs)])
            for x in inputs:
                x.clear_gradient()
        for fused, plain in zip(*found, strict=True):
            np.testing.assert_allclose(fused, plain, atol=TOLERANCE)

    def test_a_query_all_of_whose_keys_are_forbidden_gets_zero(self, normal, both):
        x = normal(2, 2, 3, 4)
        x.stop_gradient = False
        mask = paddle.to_tensor([[False, False, True], [True, True, True], [False, True, True]])
        fused, plain = both(x, x, x, mask)
        np.testing.assert_allclose(fused, plain, atol=TOLERANCE)
        assert np.all(fused.numpy()[:, :, 1] == 0.0)
        fused.sum().backward()
        assert bool(paddle.isfinite(x.grad).all())

    def test_dropout_only_in_training(self, monkeypatch, normal):
        monkeypatch.setattr(fused_operations, "has_attention", lambda query, value: True)
        x = normal(2, 2, 3, 4)
        attention = ScaledDotProductAttention(dropout=0.5)
        dropped, _ = attention(x, x, x, need_weights=False)
        attention.eval()
        plain, _ = attention(x, x, x, need_weights=False)
        assert not np.allclose(dropped, plain, atol=1e-3)
        np.testing.assert_array_equal(plain, attention(x, x, x, need_weights=False)[0])
        monkeypatch.undo()
        assert not fused_operations.has_attention(x, x)  # on a CPU

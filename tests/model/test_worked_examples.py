"""Worked examples that can be followed with a pocket calculator, as they stand in course notes.

Their numbers were worked out by hand or by NumPy in float64, and are given to six places. Our own
are float32, and rounded by some 1e-7: they agree to 1e-6.
"""

import math

import numpy as np
import paddle
import pytest

from transformer_mt.model.attention import (
    MultiHeadAttention,
    ScaledDotProductAttention,
    causal_mask,
    padding_mask,
)
from transformer_mt.model.layers import PositionalEncoding

TOLERANCE = 1e-6


def tensor(*rows):
    """The rows of one sentence: float32 (1, rows, width)."""
    return paddle.to_tensor([rows], dtype="float32")


class TestScoresToWeightsToOutput:
    """Four queries over four keys whose scores are given: keys that are the unit vectors make the
    scores those of the query itself. Attention divides by the root of d_k = 4, so it is doubled."""

    SCORES = (
        [1.2, 0.5, 1.8, 0.3],
        [0.6, 1.4, 0.7, 0.9],
        [1.1, 0.4, 1.5, 0.2],
        [0.9, 1.1, 0.3, 1.7],
    )
    VALUES = ([0.1, 0.2, 0.3], [0.2, 0.4, 0.6], [0.3, 0.5, 0.7], [0.4, 0.6, 0.8])

    def test_weights_and_output(self):
        query, key = 2.0 * tensor(*self.SCORES), paddle.eye(4).unsqueeze(0)
        output, weights = ScaledDotProductAttention()(query, key, tensor(*self.VALUES))
        expected = [
            [0.268437, 0.133302, 0.489123, 0.109138],
            [0.176039, 0.391781, 0.194553, 0.237627],
            [0.294553, 0.146270, 0.439421, 0.119756],
            [0.200170, 0.244488, 0.109856, 0.445486],
        ]
        np.testing.assert_allclose(weights[0], expected, atol=TOLERANCE)
        expected = [
            [0.243896, 0.417053, 0.590209],
            [0.249377, 0.431773, 0.614169],
            [0.238438, 0.408983, 0.579528],
            [0.280066, 0.460049, 0.640032],
        ]
        np.testing.assert_allclose(output[0], expected, atol=TOLERANCE)


class TestUnscaledAttention:
    """An example without the division by the root of d_k = 3. Ours always divides, so the query is
    multiplied by it."""

    QUERY, KEY = tensor([1, 0, 2]), tensor([0, 1, 1], [4, 4, 0], [2, 3, 1])
    VALUE = tensor([1, 2, 3], [2, 8, 0], [2, 6, 3])

    def test_scores_and_output(self):
        output, weights = ScaledDotProductAttention()(
            math.sqrt(3) * self.QUERY, self.KEY, self.VALUE
        )
        # The scores are 2, 4, 4. Of them the weights tell the differences: a softmax has no more.
        logarithms = np.log(weights.numpy()[0, 0])
        np.testing.assert_allclose(logarithms - logarithms[0] + 2.0, [2.0, 4.0, 4.0], atol=1e-5)
        np.testing.assert_allclose(output, [[[1.936621, 6.683105, 1.595068]]], atol=TOLERANCE)

    def test_output_with_the_weights_rounded(self):
        # The notes round the weights to 0, 1/2, 1/2: what comes of them if the first is forbidden.
        mask = paddle.to_tensor([[True, False, False]])
        output, weights = ScaledDotProductAttention()(self.QUERY, self.KEY, self.VALUE, mask)
        np.testing.assert_allclose(weights, [[[0.0, 0.5, 0.5]]], atol=TOLERANCE)
        np.testing.assert_allclose(output, [[[2.0, 7.0, 1.5]]], atol=TOLERANCE)


class TestMasks:
    def test_padding_mask(self):
        ids = paddle.to_tensor([[1, 1, 1, 0, 0, 0]])
        mask = padding_mask(ids, ids, pad_id=0)
        assert mask.dtype == paddle.bool
        assert mask.shape == [1, 6, 6]
        np.testing.assert_array_equal(mask, [[[False] * 3 + [True] * 3] * 6])

    def test_causal_mask(self):
        mask = causal_mask(4)
        assert mask.dtype == paddle.bool
        np.testing.assert_array_equal(mask[2], [False, False, False, True])
        np.testing.assert_array_equal(mask, np.triu(np.ones((4, 4), dtype=bool), 1))

    def test_two_padded_keys_get_no_weight_at_all(self, normal):
        ids = paddle.to_tensor([[5, 6, 7, 0, 0]])
        mask = padding_mask(ids, ids, pad_id=0)
        x = normal(1, 5, 8)
        for attention in (ScaledDotProductAttention(), MultiHeadAttention(8, 2)):
            weights = attention(x, x, x, mask)[1].numpy()
            assert np.all(weights[..., 3:] == 0.0)  # and not only nearly
            assert np.all(weights[..., :3] > 0.0)
            np.testing.assert_allclose(weights.sum(-1), 1.0, atol=TOLERANCE)


class TestShapes:
    @pytest.mark.parametrize(("query_len", "key_len"), [(2, 2), (3, 4)])
    def test_heads_over_ones(self, query_len, key_len):
        # d_k is 2. With two keys as well, a key that was not transposed would go unseen.
        attention = MultiHeadAttention(d_model=10, num_heads=5, d_k=2)
        query, key = paddle.ones([1, query_len, 10]), paddle.ones([1, key_len, 10])
        output, weights = attention(query, key, key)
        assert output.shape == [1, query_len, 10]
        # All keys are alike: (1, 5, 2, 2) of 1/2, or (1, 5, 3, 4) of 1/4.
        expected = np.full((1, 5, query_len, key_len), 1 / key_len)
        np.testing.assert_allclose(weights, expected, atol=TOLERANCE)

    def test_heads_whose_values_have_another_width_than_their_keys(self, normal):
        attention = MultiHeadAttention(d_model=10, num_heads=3, d_k=4, d_v=5)
        output, weights = attention(normal(4, 2, 10), normal(4, 3, 10), normal(4, 3, 10))
        assert output.shape == [4, 2, 10]
        assert weights.shape == [4, 3, 2, 3]


class TestPositions:
    """Vaswani et al. 2017, section 3.5."""

    @staticmethod
    def positions(length, d_model):
        encoding = PositionalEncoding(d_model, max_len=length)
        return encoding(paddle.zeros([1, length, d_model]))[0].numpy()

    # Where d_model is odd, the last sine has no cosine. Of the last positions an angle in float32
    # would be wrong by 2e-5.
    @pytest.mark.parametrize(("length", "d_model"), [(60, 7), (60, 512), (10_000, 8)])
    def test_equal_the_formula(self, length, d_model):
        expected = np.empty((length, d_model))
        for dimension in range(d_model):
            i = dimension // 2
            angles = np.arange(length, dtype="float64") / 10000 ** (2 * i / d_model)
            expected[:, dimension] = np.sin(angles) if dimension % 2 == 0 else np.cos(angles)
        np.testing.assert_allclose(self.positions(length, d_model), expected, atol=TOLERANCE)

    @pytest.mark.parametrize(("k", "d_model"), [(1, 8), (30, 512)])
    def test_of_later_ones_are_a_linear_function_of_earlier_ones(self, k, d_model):
        # PE(pos + k) = PE(pos) R: a rotation of each pair of sine and cosine by k times its
        # frequency, by the addition theorems. R depends on k and not on pos.
        rotation = np.zeros((d_model, d_model))
        for i in range(0, d_model, 2):
            angle = k / 10000.0 ** (i / d_model)
            cos, sin = math.cos(angle), math.sin(angle)
            rotation[i : i + 2, i : i + 2] = [[cos, -sin], [sin, cos]]
        np.testing.assert_allclose(rotation @ rotation.T, np.eye(d_model), atol=1e-12)
        table = self.positions(60, d_model).astype("float64")
        np.testing.assert_allclose(table[:-k] @ rotation, table[k:], atol=TOLERANCE)

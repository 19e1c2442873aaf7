"""Token embedding, and how positions are added; their formula is in test_worked_examples.py."""

import numpy as np
import paddle
import pytest

from transformer_mt.model.embedding import PositionalEncoding, TokenEmbedding

# The table is float32 with values of at most 1: rounding to it costs less than 1e-7.
TOLERANCE = 1e-6


def positions_of(encoding, length, d_model, offset=0):
    return encoding(paddle.zeros([1, length, d_model]), offset)[0].numpy()


class TestTokenEmbedding:
    def test_only_the_row_of_the_padding_starts_as_zero(self):
        rows = np.abs(TokenEmbedding(5, 8, pad_id=2).weight.numpy()).max(-1) > 0.0
        np.testing.assert_array_equal(rows, [True, True, False, True, True])
        assert np.all(np.abs(TokenEmbedding(5, 8).weight.numpy()).max(-1) > 0.0)


class TestPositionalEncoding:
    def test_is_added_to_each_sentence_from_an_offset_on(self, normal):
        x = normal(3, 4, 6)
        encoding = PositionalEncoding(6, 10)
        for offset in (0, 4):
            expected = x.numpy() + positions_of(encoding, 10, 6)[offset : offset + 4]
            np.testing.assert_allclose(encoding(x, offset), expected, atol=TOLERANCE)

    def test_is_no_part_of_a_checkpoint_and_keeps_the_dtype(self):
        encoding = PositionalEncoding(6, 4)
        assert encoding(paddle.zeros([1, 9, 6], "float64")).dtype == paddle.float64
        assert not encoding.state_dict() and not encoding.parameters()

    def test_dropout_is_of_the_sum(self):
        encoding = PositionalEncoding(64, 20, dropout=0.25)
        x = paddle.full([4, 20, 64], 5.0)  # no element of the sum is 0
        output = encoding(x).numpy()
        encoding.eval()
        total = encoding(x).numpy()
        dropped = output == 0.0
        assert dropped.mean() == pytest.approx(0.25, abs=0.03)
        np.testing.assert_allclose(output[~dropped], (total / 0.75)[~dropped], rtol=1e-5)
        np.testing.assert_allclose(total, 5.0 + positions_of(encoding, 20, 64)[None].repeat(4, 0))

"""Layers against Paddle's own, with the same weights, and against the formulas.

Outputs are of the order of 1 after a norm and sums of some tens of float32 products between, each
rounded by some 1e-7: two correct computations agree to 1e-5.
"""

import numpy as np
import paddle
import pytest

from tests.reference import assert_close, attention_pairs, random_mask, sizes
from transformer_mt.model.attention import causal_mask
from transformer_mt.model.layers import (
    PositionalEncoding,
    PositionwiseFeedForward,
    ResidualNorm,
    TokenEmbedding,
)
from transformer_mt.model.transformer import DecoderLayer, EncoderLayer

D_MODEL, HEADS, D_FF = 12, 3, 20


class TestPositionwiseFeedForward:
    def test_dropout_is_after_the_activation(self, normal):
        layer = PositionwiseFeedForward(8, 8, dropout=0.5)
        for linear in (layer.inner_projection, layer.output_projection):
            linear.weight.set_value(paddle.eye(8))
            linear.bias.set_value(paddle.full([8], 1.0))
        x = normal(4, 5, 8).abs()
        # relu(x + 1), dropped or doubled, + 1: the last bias is always there
        output = layer(x).numpy() - 1.0
        dropped = np.abs(output) < 1e-6
        assert 0.3 < dropped.mean() < 0.7
        np.testing.assert_allclose(output[~dropped], 2.0 * (x.numpy() + 1.0)[~dropped], rtol=1e-5)


class TestResidualNorm:
    def test_dropout_is_of_the_sublayer_only(self, normal):
        residual = ResidualNorm(64, dropout=0.25, norm="pre")
        x = normal(4, 5, 64)
        added = (residual(x, paddle.ones_like) - x).numpy()
        dropped = np.abs(added) < 1e-5
        assert dropped.mean() == pytest.approx(0.25, abs=0.06)
        np.testing.assert_allclose(added[~dropped], 1.0 / 0.75, atol=1e-5)
        residual.eval()
        np.testing.assert_array_equal(residual(x, paddle.ones_like), x + 1.0)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("is_decoder", [False, True])
def test_layers_equal_paddles(rng, normal, randomise, norm, masked, is_decoder):
    kind, theirs = EncoderLayer, paddle.nn.TransformerEncoderLayer
    if is_decoder:
        kind, theirs = DecoderLayer, paddle.nn.TransformerDecoderLayer
    ours = randomise(kind(sizes(D_MODEL, HEADS, D_FF, norm=norm)))
    theirs = theirs(D_MODEL, HEADS, D_FF, dropout=0.0, normalize_before=norm == "pre")
    sublayers = ["self_attention", *["cross_attention"] * is_decoder, "feed_forward"]
    pairs = attention_pairs(ours.self_attention, theirs.self_attn)
    if is_decoder:
        pairs += attention_pairs(ours.cross_attention, theirs.cross_attn)
    pairs += [
        (ours.feed_forward.inner_projection, theirs.linear1),
        (ours.feed_forward.output_projection, theirs.linear2),
        *(
            (getattr(ours, f"{name}_residual").norm, getattr(theirs, f"norm{number}"))
            for number, name in enumerate(sublayers, 1)
        ),
    ]
    for layer, their_layer in pairs:
        their_layer.set_state_dict(layer.state_dict())
    x, memory = normal(2, 5, D_MODEL), normal(2, 4, D_MODEL)
    inputs, masks = ((x, memory), (2, 1, 4)) if is_decoder else ((x,), (2, 5, 5))
    our_masks, their_masks = (), (None,) * len(inputs)
    if masked:
        mask = random_mask(rng, *masks)
        our_masks, their_masks = (paddle.to_tensor(mask),), (paddle.to_tensor(~mask[:, None]),)
        if is_decoder:
            our_masks = (causal_mask(5), *our_masks)
            their_masks = (~causal_mask(5), *their_masks)
    output, *weights = ours(*inputs, *our_masks, need_weights=True)
    assert_close(output, theirs(*inputs, *their_masks))
    shapes = [[2, HEADS, 5, 5], [2, HEADS, 5, 4]]
    assert [own.shape for own in weights] == shapes[: len(inputs)]
    assert not any(ours(*inputs, *our_masks)[1:])


# ---- Embeddings and positions; their formula is in test_worked_examples.py ----

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

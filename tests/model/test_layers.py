"""Layers against Paddle's own, with the same weights, and against the formulas.

Outputs are of the order of 1 after a norm and sums of some tens of float32 products between, each
rounded by some 1e-7: two correct computations agree to 1e-5.
"""

import numpy as np
import paddle
import pytest

from tests.reference import attention_pairs, random_mask, sizes
from transformer_mt.model.attention import causal_mask
from transformer_mt.model.layers import (
    DecoderLayer,
    EncoderLayer,
    LayerCache,
    PositionwiseFeedForward,
    ResidualNorm,
)

TOLERANCE = 1e-5
D_MODEL, HEADS, D_FF = 12, 3, 20


def numpy_norm(x, norm):
    x = x.astype("float64")
    scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return scaled * norm.weight.numpy() + norm.bias.numpy()


class TestPositionwiseFeedForward:
    def test_equals_the_formula(self, normal, randomise):
        layer = randomise(PositionwiseFeedForward(6, 15))
        x = normal(2, 3, 6)
        inner = x.numpy().astype("float64") @ layer.inner_projection.weight.numpy()
        inner = np.maximum(inner + layer.inner_projection.bias.numpy(), 0.0)
        expected = inner @ layer.output_projection.weight.numpy()
        expected += layer.output_projection.bias.numpy()
        np.testing.assert_allclose(layer(x), expected, atol=TOLERANCE)

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
    @pytest.mark.parametrize("norm", ["post", "pre"])
    def test_equals_the_formula(self, normal, randomise, norm):
        residual = randomise(ResidualNorm(8, norm=norm))
        x = normal(2, 3, 8).numpy()
        post, pre = numpy_norm(x + 3.0 * x, residual.norm), x + 3.0 * numpy_norm(x, residual.norm)
        ours = residual(paddle.to_tensor(x), lambda y: 3.0 * y)
        np.testing.assert_allclose(ours, post if norm == "post" else pre, atol=TOLERANCE)

    def test_dropout_is_of_the_sublayer_only(self, normal):
        residual = ResidualNorm(64, dropout=0.25, norm="pre")
        x = normal(4, 5, 64)
        added = (residual(x, paddle.ones_like) - x).numpy()
        dropped = np.abs(added) < 1e-5
        assert dropped.mean() == pytest.approx(0.25, abs=0.06)
        np.testing.assert_allclose(added[~dropped], 1.0 / 0.75, atol=1e-5)
        residual.eval()
        np.testing.assert_array_equal(residual(x, paddle.ones_like), x + 1.0)

    @pytest.mark.parametrize("options", [{"dropout": 30.0}, {"norm": "middle"}])
    def test_bad_options(self, options):
        with pytest.raises(ValueError, match=r"dropout rate|\"post\" or \"pre\""):
            ResidualNorm(8, **options)


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
    np.testing.assert_allclose(output, theirs(*inputs, *their_masks), atol=TOLERANCE)
    shapes = [[2, HEADS, 5, 5], [2, HEADS, 5, 4]]
    assert [own.shape for own in weights] == shapes[: len(inputs)]
    assert not any(ours(*inputs, *our_masks)[1:])


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_decoder_layer_with_a_cache_equals_all_at_once(normal, randomise, norm):
    layer = randomise(DecoderLayer(sizes(D_MODEL, HEADS, D_FF, norm=norm)))
    x, memory = normal(2, 4, D_MODEL), normal(2, 5, D_MODEL)
    expected, _, _ = layer(x, memory, causal_mask(4))
    cache = LayerCache()
    for position in range(4):
        known_memory = memory if position == 0 else None
        output, _, _ = layer(x[:, position : position + 1], known_memory, cache=cache)
        np.testing.assert_allclose(output[:, 0], expected[:, position], atol=TOLERANCE)
    assert cache.self_attention.length == 4
    assert cache.cross_attention.length == 5


@pytest.mark.parametrize(
    ("rate_name", "in_attention", "in_feed_forward"),
    [
        ("dropout", False, False),
        ("attention_dropout", True, False),
        ("feed_forward_dropout", False, True),
    ],
)
@pytest.mark.parametrize("layer_class", [EncoderLayer, DecoderLayer])
def test_each_dropout_acts_in_its_own_place(
    normal, layer_class, rate_name, in_attention, in_feed_forward
):
    layer = layer_class(sizes(8, 2, 16, **{rate_name: 0.5}))
    x = normal(2, 6, 8)
    arguments = (x,) if layer_class is EncoderLayer else (x, x)
    attentions = [sub for name, sub in layer.named_children() if name.endswith("_attention")]
    assert len(attentions) == len(arguments)

    def outputs():
        return (
            [attention(x, x, x)[0].numpy() for attention in attentions],
            layer.feed_forward(x).numpy(),
            layer(*arguments)[0].numpy(),
        )

    attended, fed_forward, whole = outputs()
    layer.eval()
    plain_attended, plain_fed_forward, plain_whole = outputs()
    for output, plain_output in zip(attended, plain_attended, strict=True):
        assert np.array_equal(output, plain_output) is not in_attention
    assert np.array_equal(fed_forward, plain_fed_forward) is not in_feed_forward
    assert not np.allclose(whole, plain_whole, atol=1e-3)

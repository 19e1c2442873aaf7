"""Layers against Paddle's own, with the same weights, and against the formulas.

Outputs are of the order of 1 after a norm and sums of some tens of float32 products between, each
rounded by some 1e-7: two correct computations agree to 1e-5.
"""

import numpy as np
import paddle
import pytest

from tests.reference import sizes
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


def copy_weights(pairs):
    for source, target in pairs:
        target.set_state_dict(source.state_dict())


def attention_pairs(ours, theirs):
    return [
        (ours.query_projection, theirs.q_proj),
        (ours.key_projection, theirs.k_proj),
        (ours.value_projection, theirs.v_proj),
        (ours.output_projection, theirs.out_proj),
    ]


def feed_forward_pairs(ours, theirs):
    return [(ours.inner_projection, theirs.linear1), (ours.output_projection, theirs.linear2)]


def numpy_norm(x, norm):
    x = x.astype("float64")
    scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return scaled * norm.weight.numpy() + norm.bias.numpy()


def random_mask(rng, *shape):
    mask = rng.random(shape) < 0.4
    mask[..., 0] = False  # something is allowed in every row
    return mask


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

    def test_without_bias(self):
        assert len(PositionwiseFeedForward(4, 8, bias=False).parameters()) == 2


class TestResidualNorm:
    def test_post(self, normal, randomise):
        residual = randomise(ResidualNorm(8, norm="post"))
        x = normal(2, 3, 8)
        expected = numpy_norm((x + 3.0 * x).numpy(), residual.norm)
        np.testing.assert_allclose(residual(x, lambda y: 3.0 * y), expected, atol=TOLERANCE)

    def test_pre(self, normal, randomise):
        residual = randomise(ResidualNorm(8, norm="pre"))
        x = normal(2, 3, 8)
        expected = x.numpy() + 3.0 * numpy_norm(x.numpy(), residual.norm)
        np.testing.assert_allclose(residual(x, lambda y: 3.0 * y), expected, atol=TOLERANCE)

    def test_dropout_is_of_the_sublayer_only(self, normal):
        residual = ResidualNorm(64, dropout=0.25, norm="pre")
        x = normal(4, 5, 64)
        added = (residual(x, paddle.ones_like) - x).numpy()
        dropped = np.abs(added) < 1e-5
        assert dropped.mean() == pytest.approx(0.25, abs=0.06)
        np.testing.assert_allclose(added[~dropped], 1.0 / 0.75, atol=1e-5)
        residual.eval()
        np.testing.assert_array_equal(residual(x, paddle.ones_like), x + 1.0)

    @pytest.mark.parametrize("rate", [-0.1, 1.0, 30.0])
    def test_bad_rate(self, rate):
        with pytest.raises(ValueError, match="dropout rate"):
            ResidualNorm(8, dropout=rate)

    def test_unknown_norm(self):
        with pytest.raises(ValueError, match='"post" or "pre", not \'middle\''):
            ResidualNorm(8, norm="middle")


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("masked", [False, True])
def test_encoder_layer_equals_paddles(rng, normal, randomise, norm, masked):
    ours = randomise(EncoderLayer(sizes(D_MODEL, HEADS, D_FF, norm=norm)))
    theirs = paddle.nn.TransformerEncoderLayer(
        D_MODEL, HEADS, D_FF, dropout=0.0, normalize_before=norm == "pre"
    )
    copy_weights(
        attention_pairs(ours.self_attention, theirs.self_attn)
        + feed_forward_pairs(ours.feed_forward, theirs)
        + [
            (ours.self_attention_residual.norm, theirs.norm1),
            (ours.feed_forward_residual.norm, theirs.norm2),
        ]
    )
    x = normal(2, 5, D_MODEL)
    mask = their_mask = None
    if masked:
        bools = random_mask(rng, 2, 5, 5)
        mask, their_mask = paddle.to_tensor(bools), paddle.to_tensor(~bools[:, np.newaxis])
    output, weights = ours(x, mask, need_weights=True)
    np.testing.assert_allclose(output, theirs(x, their_mask), atol=TOLERANCE)
    assert weights.shape == [2, HEADS, 5, 5]
    assert ours(x, mask)[1] is None


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("masked", [False, True])
def test_decoder_layer_equals_paddles(rng, normal, randomise, norm, masked):
    ours = randomise(DecoderLayer(sizes(D_MODEL, HEADS, D_FF, norm=norm)))
    theirs = paddle.nn.TransformerDecoderLayer(
        D_MODEL, HEADS, D_FF, dropout=0.0, normalize_before=norm == "pre"
    )
    copy_weights(
        attention_pairs(ours.self_attention, theirs.self_attn)
        + attention_pairs(ours.cross_attention, theirs.cross_attn)
        + feed_forward_pairs(ours.feed_forward, theirs)
        + [
            (ours.self_attention_residual.norm, theirs.norm1),
            (ours.cross_attention_residual.norm, theirs.norm2),
            (ours.feed_forward_residual.norm, theirs.norm3),
        ]
    )
    x, memory = normal(2, 3, D_MODEL), normal(2, 5, D_MODEL)
    masks, their_masks = (None, None), (None, None)
    if masked:
        self_mask, memory_mask = causal_mask(3), random_mask(rng, 2, 1, 5)
        masks = (self_mask, paddle.to_tensor(memory_mask))
        their_masks = (~self_mask, paddle.to_tensor(~memory_mask[:, np.newaxis]))
    output, self_weights, cross_weights = ours(x, memory, *masks, need_weights=True)
    np.testing.assert_allclose(output, theirs(x, memory, *their_masks), atol=TOLERANCE)
    assert self_weights.shape == [2, HEADS, 3, 3]
    assert cross_weights.shape == [2, HEADS, 3, 5]
    assert ours(x, memory, *masks)[1:] == (None, None)


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


@pytest.mark.parametrize("layer_class", [EncoderLayer, DecoderLayer])
def test_layers_without_bias_keep_only_those_of_their_norms(layer_class):
    names = [name for name, _ in layer_class(sizes(8, 2, 16, bias=False)).named_parameters()]
    biases = [name for name in names if name.endswith(".bias")]
    assert biases
    assert all(name.endswith("_residual.norm.bias") for name in biases)


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

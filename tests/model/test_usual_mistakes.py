"""The usual mistakes of a first Transformer, each with a test that fails where it is made.

Most of them raise no error: the shapes fit, the model trains, and is worse than it could be.
Numbers are of the order of 1 and go through a few float32 operations, whose rounding is some 1e-7
each: two correct computations agree to 1e-5.
"""

import math

import numpy as np
import paddle
import pytest

from tests.reference import assert_close, build, sizes, with_weights
from transformer_mt.model.attention import (
    MultiHeadAttention,
    ScaledDotProductAttention,
    causal_mask,
)
from transformer_mt.model.layers import LayerNorm, PositionalEncoding, ResidualNorm
from transformer_mt.model.transformer import DecoderLayer, EncoderLayer, Transformer

PAD, BOS = 0, 1


def small_model(**options):
    sizes = {"d_model": 8, "num_heads": 2, "d_ff": 16}
    layers = {"num_encoder_layers": 2, "num_decoder_layers": 2}
    return build(Transformer, 11, 11, **{**sizes, **layers, "dropout": 0.0, **options})


def numpy_norm(x):
    """Layer norm in float64, as a fresh one is: with a weight of 1 and a bias of 0."""
    x = np.asarray(x, dtype="float64")
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


# ---- Attention ----


def test_scores_are_divided_by_the_root_of_d_k_and_not_of_d_model():
    """d_model is 16, and d_k 4: each head has 2 ln 3 / sqrt(4) = ln 3 and 0 for its two scores, so
    3/4 and 1/4 for weights. The root of d_model would halve the scores: 0.63 and 0.37."""
    attention = MultiHeadAttention(d_model=16, num_heads=4)
    for projection in (attention.query_projection, attention.key_projection):
        projection.weight.set_value(paddle.eye(16))
    first_of_each_head = paddle.to_tensor([1.0, 0.0, 0.0, 0.0] * 4)
    query = (2.0 * math.log(3.0) * first_of_each_head).reshape([1, 1, 16])
    keys = paddle.stack([first_of_each_head, paddle.zeros([16])]).unsqueeze(0)  # (1, 2, 16)
    _, weights = attention(query, keys, keys)
    assert_close(weights, [[[[0.75, 0.25]]] * 4])


def test_scores_are_scaled_before_the_softmax():
    """After it, the weights would be 0.9 and 0.1, both halved: no average of the values."""
    query = paddle.to_tensor([[[2.0 * math.log(3.0), 0.0, 0.0, 0.0]]])
    keys = paddle.to_tensor([[[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]])
    output, weights = ScaledDotProductAttention()(query, keys, paddle.ones([1, 2, 3]))
    assert_close(weights, [[[0.75, 0.25]]])
    assert_close(output, np.ones((1, 1, 3)))


def test_the_key_is_transposed():
    """Two keys of width 2 multiply with the query either way. Both are at right angles to it."""
    query = paddle.to_tensor([[[1.0, 0.0]]])
    keys = paddle.to_tensor([[[0.0, 3.0], [0.0, 0.0]]])
    _, weights = ScaledDotProductAttention()(query, keys, keys)
    assert_close(weights, [[[0.5, 0.5]]])


# ---- Dropout ----


def test_the_rate_of_dropout_is_what_is_dropped_and_not_what_is_kept():
    """Everywhere in the model. Of 40,000 elements the share dropped has a deviation of 0.002."""
    names = ("dropout", "embedding", "attention", "feed_forward", "projection", "output")
    names = [name if name == "dropout" else f"{name}_dropout" for name in names]
    ends = ("_residual.dropout", "positional_encoding.dropout", "_attention.attention.dropout")
    ends += ("feed_forward.dropout", "projection_dropout", "output_dropout")
    rates = (0.1, 0.15, 0.2, 0.25, 0.3, 0.35)
    model = small_model(**dict(zip(names, rates, strict=True)))
    layers = [
        (name, layer)
        for name, layer in model.named_sublayers()
        if isinstance(layer, paddle.nn.Dropout)
    ]
    # In each layer of the encoder 2 residuals, an attention with 2 and a feed-forward; in the
    # decoder 3, 2 attentions and one; that of the embeddings on both sides, and of the output.
    assert len(layers) == 2 * (2 + 2 + 1) + 2 * (3 + 4 + 1) + 2
    ones = paddle.ones([200, 200])
    for name, layer in layers:
        (rate,) = (rate for end, rate in zip(ends, rates, strict=True) if name.endswith(end))
        output = layer(ones).numpy()
        assert (output == 0.0).mean() == pytest.approx(rate, abs=0.02), name
        # What is kept grows to make up for it (to a multiple of 2^-16 of the rate).
        np.testing.assert_allclose(output[output != 0.0], 1.0 / (1.0 - rate), rtol=1e-4)


# ---- Layer norm ----


def gradient_of(norm, x, slope):
    x = paddle.to_tensor(x, dtype="float32", stop_gradient=False)
    paddle.autograd.backward([norm(x)], [paddle.to_tensor(slope, dtype="float32")])
    return x.grad.numpy()


def numpy_gradient(x, slope, step):
    """The gradient of sum(slope * numpy_norm(x)), by central differences."""
    gradient = np.empty_like(x)
    for index in np.ndindex(x.shape):
        moved = np.zeros_like(x)
        moved[index] = step
        difference = numpy_norm(x + moved) - numpy_norm(x - moved)
        gradient[index] = (slope * difference).sum() / (2.0 * step)
    return gradient


def test_layer_norm_is_over_the_last_dimension_and_not_over_the_batch(rng, normal):
    norm, x = LayerNorm(8), 3.0 * normal(4, 5, 8) + 2.0
    output = norm(x).numpy()
    assert_close(output.mean(-1), np.zeros((4, 5)))
    np.testing.assert_allclose(output.std(-1), np.ones((4, 5)), atol=1e-4)
    # A position is the same whatever stands beside it, and takes no gradient from there.
    assert_close(norm(x[1:2, 2:3]), output[1:2, 2:3])
    slope = np.zeros((4, 5, 8))
    slope[1, 2] = rng.standard_normal(8)
    gradient = gradient_of(norm, x.numpy(), slope)
    assert np.all(gradient[1, 2] != 0.0)
    gradient[1, 2] = 0.0
    assert np.all(gradient == 0.0)


def test_layer_norm_divides_by_the_biased_deviation(rng):
    """Of 4 elements, the unbiased one is larger by a factor of sqrt(4 / 3)."""
    row = paddle.to_tensor([[3.0, -1.0, 3.0, -1.0]])
    assert_close(LayerNorm(4)(row), [[1.0, -1.0, 1.0, -1.0]])
    x, slope = rng.standard_normal((3, 4)), rng.standard_normal((3, 4))
    expected = numpy_gradient(x, slope, step=1e-5)
    np.testing.assert_allclose(gradient_of(LayerNorm(4), x, slope), expected, atol=1e-4)


def test_layer_norms_epsilon_is_under_the_root(rng):
    """Of a row whose variance is 1e-6: with 1e-5 beside the root its deviation would be 1.01e-3 and
    not 3.3e-3."""
    row = paddle.to_tensor([[1e-3, -1e-3, 1e-3, -1e-3]])
    expected = np.array([[1.0, -1.0, 1.0, -1.0]]) / math.sqrt(11.0)
    assert_close(LayerNorm(4)(row), expected)
    x, slope = 1e-3 * rng.standard_normal((3, 4)), rng.standard_normal((3, 4))
    expected = numpy_gradient(x, slope, step=1e-8)  # of the order of 300
    np.testing.assert_allclose(gradient_of(LayerNorm(4), x, slope), expected, rtol=1e-4, atol=0.01)


@pytest.mark.parametrize(("norm", "count"), [("post", 2 * 2 + 2 * 3), ("pre", 2 * 2 + 2 * 3 + 2)])
def test_layer_norms_are_trained(randomise, norm, count):
    """One that is created inside forward is always fresh: no optimiser knows its weights."""
    model = randomise(small_model(norm=norm))
    before = {
        name: parameter.numpy() for name, parameter in model.named_parameters() if "norm" in name
    }
    assert len(before) == 2 * count
    sgd = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    target_ids = paddle.to_tensor([[BOS, 3, 4, 5]])
    (model(paddle.to_tensor([[3, 4, 5]]), target_ids) ** 2).mean().backward()
    sgd.step()
    for name, parameter in model.named_parameters():
        if name in before:
            assert np.all(parameter.numpy() != before[name]), name


# ---- Residual connections ----


def test_pre_norm_is_of_what_the_sublayer_reads_and_not_of_what_it_returns(normal):
    """x + sublayer(norm(x)), and not x + norm(sublayer(x))."""
    read = []

    def sublayer(y):
        read.append(y.numpy())
        return 100.0 * y

    x = 3.0 * normal(2, 3, 8) + 1.0
    output = ResidualNorm(8, norm="pre")(x, sublayer)
    assert_close(read[0], numpy_norm(x))
    np.testing.assert_allclose(output, x.numpy() + 100.0 * numpy_norm(x), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("layer_class", [EncoderLayer, DecoderLayer])
def test_attention_reads_the_right_tensors_inside_its_residual(
    normal, randomise, layer_class, norm
):
    """Self-attention has one tensor three times: x, or with pre-norm its norm, and neither the norm
    for the query alone, nor the memory. Attention over the memory has the memory twice, as it is.

    The layer once more with norms by NumPy, around its own attentions. The feed-forward network's
    output is zero.
    """
    layer = layer_class(sizes(8, 2, 16, norm=norm))
    for attention in ("self_attention", "cross_attention"):
        if hasattr(layer, attention):
            randomise(getattr(layer, attention))
    layer.feed_forward.output_projection.weight.set_value(paddle.zeros([16, 8]))

    def tensor(values):
        return paddle.to_tensor(values, dtype="float32")

    def enter(x):
        return tensor(numpy_norm(x)) if norm == "pre" else x

    def leave(x, output):
        return x + output if norm == "pre" else tensor(numpy_norm(x + output))

    # Neither has a mean of 0 and a deviation of 1, so that a norm more or less is seen.
    x, memory = 3.0 * normal(2, 3, 8) + 1.0, 2.0 * normal(2, 5, 8) - 1.0
    inner = enter(x)
    expected = leave(x, layer.self_attention(inner, inner, inner)[0])
    if layer_class is DecoderLayer:
        attended, _ = layer.cross_attention(enter(expected), memory, memory)
        expected = leave(expected, attended)
    expected = leave(expected, paddle.zeros_like(x))
    output = layer(x, memory)[0] if layer_class is DecoderLayer else layer(x)[0]
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)


# ---- Positions ----


def test_the_exponent_of_the_frequency_is_divided_and_not_the_power():
    """10000^(2i / d_model), and not 10000^(2i) / d_model. Of width 4, the frequencies are 1 and
    1/100."""
    encoding = PositionalEncoding(4, max_len=101)
    table = encoding(paddle.zeros([1, 101, 4]))[0]
    expected = [0.841471, 0.540302, 0.010000, 0.999950]  # sin 1, cos 1, sin 0.01, cos 0.01
    np.testing.assert_allclose(table[1], expected, atol=1e-6)
    expected = [-0.506366, 0.862319, 0.841471, 0.540302]  # sin 100, cos 100, sin 1, cos 1
    np.testing.assert_allclose(table[100], expected, atol=1e-6)


# ---- Masks ----


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_target_mask_leaves_something_in_every_row(randomise, norm):
    """A mask of the padded *queries* forbids all of their row, whose softmax is then NaN. And where
    there is no way around it, for a source that is all padding, nothing becomes NaN."""
    model = randomise(small_model(norm=norm))
    source_ids = paddle.to_tensor([[3, 4, 5], [PAD, PAD, PAD]])
    target_ids = paddle.to_tensor([[BOS, 3, PAD, PAD], [BOS, 6, 7, 8]])
    logits, weights = with_weights(model, source_ids, target_ids)
    for layer_weights in weights.decoder:
        sums = layer_weights.sum(-1)
        assert_close(sums, np.ones((2, 2, 4)))  # padding included
    assert bool(paddle.isfinite(logits).all())
    (logits**2).mean().backward()
    for name, parameter in model.named_parameters():
        assert bool(paddle.isfinite(parameter.grad).all()), name


def test_the_look_ahead_mask_ends_right_behind_the_diagonal(randomise):
    """One too many, and the first position sees nothing; one too few, and each sees its answer."""
    F, T = False, True
    np.testing.assert_array_equal(causal_mask(1), [[F]])
    np.testing.assert_array_equal(causal_mask(3), [[F, T, T], [F, F, T], [F, F, F]])

    model = randomise(small_model())
    source_ids, target_ids = paddle.to_tensor([[3, 4, 5]]), paddle.to_tensor([[BOS, 3, 4, 5]])
    before, weights = with_weights(model, source_ids, target_ids)
    for layer_weights in weights.decoder:
        seen = np.broadcast_to(np.tril(np.ones((4, 4), dtype=bool)), layer_weights.shape)
        np.testing.assert_array_equal(layer_weights.numpy() > 0.0, seen)
    for position in range(4):
        changed = target_ids.clone()
        changed[0, position] = 9
        after = model(source_ids, changed)
        differs = np.abs((after - before).numpy()[0]).max(-1)
        assert np.all(differs[:position] == 0.0)
        assert np.all(differs[position:] > 1e-4)

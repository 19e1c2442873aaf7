"""The model that sees the whole target: against NumPy in float64, and what it must not depend on.

As in test_transformer, two correct computations of these logits agree to 1e-5.
"""

import numpy as np
import paddle
import pytest

from tests.reference import (
    PAD,
    SMALL,
    SOURCE_VOCABULARY,
    TARGET_VOCABULARY,
    NumpyTransformer,
    assert_all_parameters_get_a_gradient,
    assert_close,
    assert_no_gradient_from_padding,
    assert_no_influence_of_padding,
    build,
)
from transformer_mt.kernels.cpu_decoder import CpuDecoder
from transformer_mt.model.transformer import Transformer
from transformer_mt.model.variants import NonAutoregressiveTransformer

MASK = 1
LONGEST = 30


def small_model(predicts_length=True, **options):
    return build(
        NonAutoregressiveTransformer,
        SOURCE_VOCABULARY,
        TARGET_VOCABULARY,
        longest=LONGEST if predicts_length else None,
        **{**SMALL, **options},
    )


@pytest.fixture
def source_ids():
    return paddle.to_tensor([[3, 4, 5, 6, 2], [7, 8, 2, PAD, PAD], [9, 2, PAD, PAD, PAD]])


@pytest.fixture
def target_ids():
    return paddle.to_tensor([[MASK, 3, MASK, 5], [6, MASK, MASK, PAD], [MASK, 8, PAD, PAD]])


class NumpyNonAutoregressive(NumpyTransformer):
    """All keys are seen, and the token LENGTH comes before the source, without a position."""

    def attention(self, name, query, memory=None, causal=False):
        return super().attention(name, query, memory)

    def encode(self, source_ids):
        x = self.embed("source_embedding", source_ids)
        if "length_embedding.weight" not in self.weights:
            return self.stack("encoder", x), None
        table = self.weights["length_embedding.weight"]
        token = table[:1] * np.sqrt(table.shape[1])
        encoded = self.stack("encoder", np.concatenate([token, x]))
        return encoded[1:], table[1:] @ encoded[0]

    def logits(self, source_ids, target_ids):
        memory, _ = self.encode(source_ids)
        hidden = self.stack("decoder", self.embed("target_embedding", target_ids), memory)
        return hidden @ self.weights["generator.weight"].T


@pytest.mark.parametrize("predicts_length", [True, False])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_equals_numpy(randomise, source_ids, target_ids, norm, predicts_length):
    model = randomise(small_model(predicts_length, norm=norm))
    logits = model(source_ids, target_ids)
    assert logits.shape == [3, 4, TARGET_VOCABULARY]
    reference = NumpyNonAutoregressive(model, num_heads=2, is_pre_norm=norm == "pre")
    memory, length_logits = model.encode_with_lengths(source_ids)
    np.testing.assert_array_equal(memory, model.encode(source_ids))
    assert (length_logits is None) == (not predicts_length)
    for row in range(3):
        source, target = source_ids[row].numpy(), target_ids[row].numpy()
        source, target = source[source != PAD], target[target != PAD]
        assert_close(logits[row, : len(target)], reference.logits(source, target))
        expected, expected_lengths = reference.encode(source)
        assert_close(memory[row, : len(source)], expected)
        if predicts_length:
            # Sums of products with rows as wide as randomise makes them, up to 10.
            assert_close(length_logits[row], expected_lengths)


@pytest.mark.parametrize("predicts_length", [True, False])
def test_independence_of_padding(randomise, source_ids, target_ids, predicts_length):
    """Equality is exact here: what is masked out must not enter the sums at all."""
    model = randomise(small_model(predicts_length, tie_embeddings=False))
    assert_no_influence_of_padding(model, source_ids, target_ids)
    assert_no_gradient_from_padding(model, source_ids, target_ids)


@pytest.mark.parametrize("predicts_length", [True, False])
def test_every_position_sees_the_whole_target(randomise, source_ids, target_ids, predicts_length):
    """Before it and after it, and itself; of its own sentence alone."""
    model = randomise(small_model(predicts_length))
    before = model(source_ids, target_ids).numpy()
    for column in range(4):
        changed = target_ids.clone()
        changed[0, column] = 9
        after = model(source_ids, changed).numpy()
        assert np.all(np.abs(after[0] - before[0]).max(-1) > 1e-3)
        np.testing.assert_array_equal(after[1:], before[1:])


def test_all_parameters_get_a_gradient(randomise, source_ids, target_ids):
    model = randomise(small_model(tie_embeddings=False))
    memory, length_logits = model.encode_with_lengths(source_ids)
    logits = model.logits(target_ids, memory, source_ids)
    ((logits**2).mean() + (length_logits**2).mean()).backward()
    assert_all_parameters_get_a_gradient(model)
    # The token's own row, the embedding of no length.
    assert float(model.length_embedding.weight.grad[0].abs().max()) > 1e-6


def test_the_weights_are_those_of_the_source_alone(randomise, source_ids):
    model = randomise(small_model())
    memory, weights = model.encode(source_ids, need_weights=True)
    np.testing.assert_array_equal(memory, model.encode(source_ids))
    assert [w.shape for w in weights] == [[3, 2, 5, 5]] * 2
    sums = weights[0].sum(-1).numpy()
    assert np.all((sums > 0) & (sums < 1))  # LENGTH has the rest


def test_it_has_no_steps(source_ids):
    model = small_model()
    for start in (model.start_cache, lambda *_: CpuDecoder(model)):
        with pytest.raises(TypeError, match="step by step"):
            start(model.encode(source_ids), source_ids)


def test_common_weights_have_the_names_of_the_autoregressive_model():
    """So that it can begin with a teacher's."""
    plain = build(Transformer, SOURCE_VOCABULARY, TARGET_VOCABULARY, **SMALL).state_dict()
    assert small_model().state_dict().keys() ^ plain.keys() == {"length_embedding.weight"}

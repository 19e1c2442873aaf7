"""FLOPs against counts made by hand, and against what the layers of a running model are given."""

import numpy as np
import paddle
import pytest

from tests.reference import build
from transformer_mt.config.decoding import LONGEST_TARGET
from transformer_mt.config.schema import ModelConfig
from transformer_mt.model import operations
from transformer_mt.model.attention import Linear, ScaledDotProductAttention
from transformer_mt.model.costs import FlopCounter, Flops
from transformer_mt.model.transformer import Transformer
from transformer_mt.model.variants import NonAutoregressiveTransformer

TINY = ModelConfig(num_layers=1, d_model=2, d_ff=3, num_heads=1)
SIZES = {"num_encoder_layers": 2, "num_decoder_layers": 3, "d_model": 8, "num_heads": 2, "d_ff": 12}
VOCAB_SIZE = 11


class Multiplications:
    """Counts those of the matrix products of a model, as it runs: each linear layer's by the shapes
    that it meets, attention's one by one, and the logits' wherever they are asked for."""

    def __init__(self, monkeypatch, *models):
        self.count = 0
        self._plain_logits = operations.current.logits
        monkeypatch.setattr(operations.current, "logits", self._logits)
        for layer in (sub for model in models for sub in model.sublayers(include_self=True)):
            if isinstance(layer, Linear | paddle.nn.Linear):
                layer.register_forward_post_hook(self._linear)
            elif isinstance(layer, ScaledDotProductAttention):
                layer.register_forward_post_hook(self._attention)
            elif isinstance(layer, paddle.nn.MultiHeadAttention):
                layer.register_forward_post_hook(self._paddles_attention)

    def _logits(self, hidden, weight, bias=None):
        # Of the vocabulary, and of a target's lengths.
        self.count += int(hidden.size // hidden.shape[-1] * weight.size)
        return self._plain_logits(hidden, weight, bias)

    def _linear(self, layer, inputs, _):
        self.count += int(inputs[0].size // inputs[0].shape[-1] * layer.weight.size)

    def _attention(self, _, inputs, __):
        (batch, heads, query_len, d_k), (_, _, key_len, d_v) = inputs[0].shape, inputs[2].shape
        # A score, and a value that is weighted.
        self.count += batch * heads * query_len * key_len * (d_k + d_v)

    def _paddles_attention(self, layer, inputs, _):
        pairs = inputs[0].shape[1] * inputs[1].shape[1]
        self.count += pairs * 2 * layer.num_heads * layer.head_dim


def model(**options):
    paddle.seed(1)
    return build(Transformer, VOCAB_SIZE, VOCAB_SIZE, dropout=0.0, **SIZES, **options)


def ids(*shape):
    return paddle.to_tensor(np.random.default_rng(1).integers(4, VOCAB_SIZE, shape))


# ---- Training ----


def test_copying_by_hand():
    """The gate is a product of width 2 with 2 numbers; attention to each of 5 source tokens is
    added up by a product with a matrix of 5 x 5, which has no gradient."""
    copying = TINY.model_copy(update={"copying": True})
    other, plain = FlopCounter(copying, 5, 5, 3), FlopCounter(TINY, 5, 5, 3)
    more = [
        other.training().generator - plain.training().generator,
        other.decoding().generator - plain.decoding().generator,
    ]
    gate, added_up = 3 * (2 * 2), 3 * (2 * 5 * 5)
    assert more == [3 * gate + 2 * added_up, gate + added_up]
    assert other.training().decoder == plain.training().decoder


def test_earlier_passes_of_scheduled_sampling():
    """Only the decoder and the generator go through the target again; backwards by request."""
    once = FlopCounter(TINY, 5, 2, 3).training()
    forward = FlopCounter(TINY, 5, 2, 3).predictions(passes=2, backpropagate=False)
    assert forward == Flops(0, 2 * once.decoder / 3, 2 * once.generator / 3)
    both = FlopCounter(TINY, 5, 2, 3).predictions(passes=2, backpropagate=True)
    assert both == Flops(0, 2 * once.decoder, 2 * once.generator)


def test_training_is_that_of_paddles_own_layers(monkeypatch):
    source_len, target_len = 5, 7
    sizes = {"num_encoder_layers": 2, "num_decoder_layers": 3, "dim_feedforward": SIZES["d_ff"]}
    theirs = paddle.nn.Transformer(SIZES["d_model"], SIZES["num_heads"], **sizes)
    generator = paddle.nn.Linear(SIZES["d_model"], VOCAB_SIZE)
    counted = Multiplications(monkeypatch, theirs, generator)
    shapes = [1, source_len, SIZES["d_model"]], [1, target_len, SIZES["d_model"]]
    generator(theirs(*map(paddle.ones, shapes)))
    forward = 2 * counted.count  # each with an addition
    flops = FlopCounter(ModelConfig(**SIZES), VOCAB_SIZE, source_len, target_len).training()
    assert flops.total == 3 * forward


def test_recompute_goes_through_the_layers_once_more(monkeypatch):
    """But through those whose attention is read."""
    source_ids, target_ids = ids(1, 5), ids(1, 7)
    counts = []
    for recompute in (False, True):
        transformer = model(recompute=recompute)
        counted = Multiplications(monkeypatch, transformer)
        transformer.train()
        transformer(source_ids, target_ids).sum().backward()
        counts.append(counted.count)
    counter = FlopCounter(ModelConfig(**SIZES), VOCAB_SIZE, 5, 7)
    again = counter.recomputed()
    assert again.total == 2 * (counts[1] - counts[0]) > 0
    assert counter.recomputed(1) == again._replace(decoder=again.decoder * 2 / 3)


# ---- Decoding ----


def test_decoding_is_what_the_model_computes_step_by_step(monkeypatch):
    """Without the positions for which buffers are allocated, but which no step has filled yet."""
    for module in ("cache", "transformer"):
        monkeypatch.setattr(f"transformer_mt.model.{module}.capacity", lambda positions: positions)
    transformer = model()
    transformer.eval()
    counted = Multiplications(monkeypatch, transformer)
    source_ids, steps = ids(1, 5), 4
    with paddle.no_grad():
        cache = transformer.start_cache(transformer.encode(source_ids), source_ids)
        for _ in range(steps):
            transformer.decode_step(ids(1, 1), np.zeros((1, 1), np.int64), cache)
    counter = FlopCounter(ModelConfig(**SIZES), VOCAB_SIZE, 5, steps)
    flops = counter.decoding()
    assert flops.total == 2 * counted.count
    assert counter.decoding(beam_size=4).generator == 4 * flops.generator


# ---- All positions at once ----


@pytest.mark.parametrize("kind", ["length", "end"])
def test_filling_in_is_what_the_model_computes(monkeypatch, kind):
    """A training step's forward pass, and a search of three iterations with two candidates."""
    config = ModelConfig(**SIZES, non_autoregressive=kind)
    longest = LONGEST_TARGET if kind == "length" else None
    paddle.seed(1)
    transformer = build(
        NonAutoregressiveTransformer, VOCAB_SIZE, VOCAB_SIZE, dropout=0.0, longest=longest, **SIZES
    )
    transformer.eval()
    counted = Multiplications(monkeypatch, transformer)
    source_ids, target_ids = ids(1, 5), ids(1, 7)

    def encode():
        if kind == "end":
            return transformer.encode(source_ids)
        return transformer.encode_with_lengths(source_ids)[0]

    def masked(count):
        return paddle.arange(count)

    with paddle.no_grad():
        # Of 7 masks there are 4 on the average.
        transformer.logits(target_ids, encode(), source_ids, masked(4))
        flops = FlopCounter(config, VOCAB_SIZE, 5, 7).mask_prediction()
        assert flops.total == 3 * 2 * counted.count

        counted.count = 0
        memory = encode()
        for count in (7, 4, 2):  # 7 * 3 / 3, 7 * 2 / 3, 7 / 3, rounded down
            for _ in range(2):
                transformer.logits(target_ids, memory, source_ids, masked(count))
    flops = FlopCounter(config, VOCAB_SIZE, 5, 7).mask_predict(iterations=3, candidates=2)
    assert flops.total == 2 * counted.count

"""The whole model: against NumPy in float64, its masks, its incremental decoding, its options.

Logits of the small models here are of the order of 1 to 10, at the end of some twenty float32
operations of relative rounding 1e-7 each: two correct computations agree to 1e-5.
"""

import itertools
import random

import numpy as np
import paddle
import pytest

from tests.reference import (
    BOS,
    PAD,
    SMALL,
    SOURCE_VOCABULARY,
    TARGET_VOCABULARY,
    NumpyTransformer,
    assert_all_parameters_get_a_gradient,
    assert_close,
    assert_no_gradient_from_padding,
    assert_no_influence_of_padding,
    assert_recompute_changes_nothing,
    build,
    with_weights,
)
from transformer_mt.config.schema import ModelConfig
from transformer_mt.kernels import onednn
from transformer_mt.kernels.cpu_decoder import CpuDecoder, CpuDecoderState
from transformer_mt.model.transformer import Transformer
from transformer_mt.model.variants import CopyingTransformer, NonAutoregressiveTransformer

KINDS = [Transformer, CopyingTransformer, NonAutoregressiveTransformer]


def small_model(**options):
    return build(Transformer, SOURCE_VOCABULARY, TARGET_VOCABULARY, **{**SMALL, **options})


def assert_logits(reference, model, source_ids, target_ids):
    logits = model(source_ids, target_ids)
    assert logits.shape == [3, 4, TARGET_VOCABULARY]
    for row in range(3):
        source = source_ids[row].numpy()
        target = target_ids[row].numpy()
        source, target = source[source != PAD], target[target != PAD]
        assert_close(logits[row, : len(target)], reference.logits(source, target))


@pytest.fixture
def source_ids():
    return paddle.to_tensor([[3, 4, 5, 6, 2], [7, 8, 2, PAD, PAD], [9, 2, PAD, PAD, PAD]])


@pytest.fixture
def target_ids():
    return paddle.to_tensor([[BOS, 3, 4, 5], [BOS, 6, 7, PAD], [BOS, 8, PAD, PAD]])


class TestForward:
    @pytest.mark.parametrize("norm", ["post", "pre"])
    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("tie_embeddings", [True, False])
    def test_equals_numpy(self, randomise, source_ids, target_ids, norm, bias, tie_embeddings):
        model = randomise(small_model(norm=norm, bias=bias, tie_embeddings=tie_embeddings))
        reference = NumpyTransformer(model, num_heads=2, is_pre_norm=norm == "pre")
        assert_logits(reference, model, source_ids, target_ids)

    @pytest.mark.parametrize("activation", ["relu", "swish", "gelu", "reglu", "swiglu", "geglu"])
    def test_forms_of_other_programs(self, activation, randomise, source_ids, target_ids):
        others = {"output_bias": True, "norm_epsilon": 1e-3, "positions": "marian"}
        model = randomise(small_model(activation=activation, **others))
        reference = NumpyTransformer(model, 2, False, activation, epsilon=1e-3, is_marian=True)
        assert_logits(reference, model, source_ids, target_ids)

    def test_weights_on_request(self, source_ids, target_ids):
        model = small_model(num_encoder_layers=1, num_decoder_layers=3)
        logits, weights = with_weights(model, source_ids, target_ids)
        np.testing.assert_array_equal(logits, model(source_ids, target_ids))
        memory = model.encode(source_ids)
        _, *some = model.decode(target_ids, memory, source_ids, need_weights=(2, 0))
        for every, those in zip((weights.decoder, weights.cross), some, strict=True):
            assert those[1] is None
            for layer in (0, 2):
                np.testing.assert_array_equal(those[layer], every[layer])
        assert [w.shape for w in weights.encoder] == [[3, 2, 5, 5]]
        assert [w.shape for w in weights.decoder] == [[3, 2, 4, 4]] * 3
        assert [w.shape for w in weights.cross] == [[3, 2, 4, 5]] * 3
        padded, later = source_ids.numpy() == PAD, np.triu(np.ones((4, 4), bool), 1)
        for forbidden, some in (
            (padded[:, None, None], weights.encoder + weights.cross),
            (later, weights.decoder),
        ):
            for own in some:
                expected = np.broadcast_to(forbidden, own.shape)
                np.testing.assert_array_equal(own.numpy() == 0.0, expected)
                np.testing.assert_allclose(own.sum(-1), 1.0, atol=1e-6)

    def test_source_has_a_pad_id_of_its_own(self, randomise):
        model = randomise(small_model(pad_id=3, source_pad_id=5))
        target_ids = paddle.to_tensor([[BOS, 3, 4]])
        short = model(paddle.to_tensor([[0, 3, 2]]), target_ids)
        padded = model(paddle.to_tensor([[0, 3, 2, 5, 5]]), target_ids)
        assert_close(padded, short)
        # The target's pad id is nothing special in the source.
        other = model(paddle.to_tensor([[0, 3, 2, 3, 3]]), target_ids)
        assert not np.allclose(other, short, atol=1e-2)

    def test_all_parameters_get_a_gradient(self, randomise, source_ids, target_ids):
        model = randomise(small_model(tie_embeddings=False))
        (model(source_ids, target_ids) ** 2).mean().backward()
        assert_all_parameters_get_a_gradient(model)


@pytest.mark.parametrize("norm", ["post", "pre"])
class TestIndependence:
    """Equality is exact here: what is masked out must not enter the sums at all. Of later words:
    see test_usual_mistakes.py."""

    def test_of_the_embedding_of_padding(self, randomise, source_ids, target_ids, norm):
        model = randomise(small_model(norm=norm, tie_embeddings=False))
        assert_no_influence_of_padding(model, source_ids, target_ids)
        assert_no_gradient_from_padding(model, source_ids, target_ids)

    def test_of_more_padding(self, randomise, source_ids, target_ids, norm):
        model = randomise(small_model(norm=norm))
        before = model(source_ids, target_ids).numpy()
        padding = paddle.full([3, 6], PAD, "int64")
        longer = [paddle.concat([ids, padding], 1) for ids in (source_ids, target_ids)]
        # Sums of another length may be added up in another order.
        assert_close(model(*longer)[:, :4], before)


class OnDevice:
    """Decoding by Paddle's layers."""

    def __init__(self, model, memory, source_ids):
        self.model, self.cache = model, model.start_cache(memory, source_ids)
        self.select = self.cache.select

    def step(self, ids, parents):
        return self.model.decode_step(paddle.to_tensor(ids), parents, self.cache).numpy()


def on_cpu(model, memory, source_ids):
    """Decoding by recorded calls."""
    return CpuDecoderState(CpuDecoder(model), memory, source_ids)


@pytest.fixture(params=["Paddle", "oneDNN", "NumPy"])
def start(request, monkeypatch):
    if request.param == "NumPy":
        monkeypatch.setattr(onednn, "library", lambda: None)
    decoding = OnDevice if request.param == "Paddle" else on_cpu

    def start(model, source_ids):
        with paddle.no_grad():
            return decoding(model, model.encode(source_ids), source_ids)

    return start


def assert_steps_equal_all_at_once(decoding, model, source_ids, target_ids):
    first = np.zeros((len(target_ids), 1), np.int64)
    steps = [decoding.step(ids[:, np.newaxis], first) for ids in target_ids.numpy().T]
    expected = model(source_ids, target_ids)
    assert_close(np.concatenate(steps, axis=1), expected)


class TestIncrementalDecoding:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"norm": "pre"},
            {"norm": "pre", "bias": False, "tie_embeddings": False},
            {"bias": False},
            {"tie_embeddings": False},
            {"max_len": 2},
            {"recompute": True},
        ],
    )
    def test_equals_all_at_once(self, start, randomise, source_ids, target_ids, options):
        model = randomise(small_model(**options))
        for ids in (source_ids, source_ids[:, :2]):  # also without padding
            assert_steps_equal_all_at_once(start(model, ids), model, ids, target_ids)

    @pytest.mark.parametrize("norm", ["post", "pre"])
    @pytest.mark.parametrize("kind", [Transformer, CopyingTransformer])
    def test_beams_that_fork_and_sentences_that_leave(
        self, start, rng, randomise, source_ids, kind, norm
    ):
        """Every hypothesis' logits are those of its own ids read all at once. Enough steps for the
        host's buffers to grow."""
        vocabulary = SOURCE_VOCABULARY
        model = randomise(build(kind, vocabulary, vocabulary, **SMALL, norm=norm))
        decoding = start(model, source_ids)
        sentences = np.arange(3)
        histories = np.zeros((3, 1, 0), np.int64)  # (sentences, width, length)
        for step in range(40):
            width = 1 if step == 0 else 4
            parents = rng.integers(0, histories.shape[1], (len(sentences), width))
            ids = rng.integers(2, vocabulary, parents.shape)
            histories = np.take_along_axis(histories, parents[:, :, None], axis=1)
            histories = np.concatenate([histories, ids[:, :, None]], axis=2)
            logits = decoding.step(ids, parents)
            if step % 5 == 0:
                rows = paddle.to_tensor(histories.reshape(-1, step + 1))
                own_sources = paddle.to_tensor(np.repeat(source_ids.numpy()[sentences], width, 0))
                expected = model(own_sources, rows)[:, -1].numpy()
                assert_close(logits.reshape(expected.shape), expected, str(step))
            if step in (3, 20):
                kept = np.array([2, 0]) if step == 3 else np.array([1])
                decoding.select(kept)
                sentences, histories = sentences[kept], histories[kept]

    def test_the_source_is_projected_once(self, start, randomise, source_ids, target_ids):
        model = randomise(small_model())
        expected, decoding = model(source_ids, target_ids), start(model, source_ids)
        for layer in model.decoder.layers:  # what comes from here on would be noticed
            for linear in (
                layer.cross_attention.key_projection,
                layer.cross_attention.value_projection,
            ):
                linear.weight.set_value(linear.weight * float("nan"))
        first = decoding.step(target_ids.numpy()[:, :1], np.zeros((3, 1), np.int64))
        assert_close(first[:, 0], expected[:, 0])


class TestRecompute:
    """The backward pass computes the same again, dropout included."""

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize(("norm", "rate"), [("post", 0.3), ("pre", 0.3), ("pre", 0.0)])
    def test_same_logits_and_gradients(self, randomise, source_ids, target_ids, kind, norm, rate):
        rates = dict.fromkeys(("dropout", "attention_dropout", "feed_forward_dropout"), rate)
        plain, recomputing = (
            build(kind, 13, 13, **SMALL | rates, norm=norm, recompute=recompute)
            for recompute in (False, True)
        )
        assert_recompute_changes_nothing(randomise(plain), recomputing, source_ids, target_ids)

    def test_computes_each_layer_twice_in_training_but_those_whose_weights_are_needed(
        self, source_ids, target_ids
    ):
        model, calls = small_model(recompute=True), []
        for name, layer in model.named_sublayers():
            if ".layers." in name and name.count(".") == 2:
                layer.register_forward_post_hook(lambda *_, name=name: calls.append(name[0]))

        def called(is_training=True, **options):
            calls.clear()
            model.train() if is_training else model.eval()
            memory = model.encode(source_ids)
            output = model.logits(target_ids, memory, source_ids, **options)
            (output[0] if options else output).sum().backward()
            return "".join(calls)

        assert called() == "eedd" + "ddee"
        assert called(need_weights=(1,)) == "eedd" + "dee"
        assert called(is_training=False) == "eedd"


class TestOptions:
    def test_defaults_are_the_base_model_of_the_paper(self):
        """Table 3; the dropout of section 5.4 is that of sublayers and of embeddings."""
        config = ModelConfig()
        assert (config.encoder_layers, config.decoder_layers, config.num_heads) == (6, 6, 8)
        assert (config.d_model, config.d_ff, config.dropout) == (512, 2048, 0.1)
        model = build(Transformer, 5, 5, num_layers=1)
        assert model.positional_encoding.table.shape == [1024, 512]
        rates = {
            name: layer.p
            for name, layer in model.named_sublayers()
            if isinstance(layer, paddle.nn.Dropout) and layer.p
        }
        assert set(rates.values()) == {0.1} and len(rates) == 1 + 2 + 3
        assert all(name.startswith("positional") or "_residual." in name for name in rates)

    @pytest.mark.parametrize("tied", [True, False])
    @pytest.mark.parametrize("shared", [True, False])
    def test_tying_and_sharing(self, tied, shared):
        options = {"tie_embeddings": tied, "share_source_embedding": shared}
        model = build(Transformer, 11, 11, **SMALL, **options)
        assert (model.generator.weight is model.target_embedding.weight) == tied
        assert (model.source_embedding.weight is model.target_embedding.weight) == shared
        matrices = [p for p in model.parameters() if p.shape == [11, 8]]
        assert len(matrices) == 3 - tied - shared

    def test_tied_weight_learns_from_both_ends(self, randomise, source_ids, target_ids):
        tied, untied = randomise(small_model()), small_model(tie_embeddings=False)
        untied.set_state_dict(tied.state_dict())
        for model in (tied, untied):
            (model(source_ids, target_ids) ** 2).mean().backward()
        both = untied.target_embedding.weight.grad + untied.generator.weight.grad
        np.testing.assert_allclose(tied.generator.weight.grad, both, rtol=1e-4, atol=1e-5)

    def test_layer_dropout_leaves_out_whole_layers(self, source_ids, target_ids):
        """Against the same model with those layers taken out by hand. A layer whose attention is
        needed stays."""
        model = small_model(layer_dropout=0.5)
        encoder, decoder = model.encoder.layers, model.decoder.layers
        by_hand = {}
        for kept in itertools.product((False, True), repeat=4):
            model.eval()
            model.encoder.layers = paddle.nn.LayerList(itertools.compress(encoder, kept[:2]))
            model.decoder.layers = paddle.nn.LayerList(itertools.compress(decoder, kept[2:]))
            by_hand[kept] = model(source_ids, target_ids).numpy()
            model.encoder.layers, model.decoder.layers = encoder, decoder
        model.train()
        random.seed(1)
        kept_layers = []
        for _ in range(80):
            logits = model(source_ids, target_ids).numpy()
            matches = [k for k, other in by_hand.items() if np.allclose(logits, other, atol=1e-5)]
            # Without a layer of the decoder, nothing reads the source: four ways look the same.
            assert len(matches) == (1 if any(matches[0][2:]) else 4)
            kept_layers.append(matches[0])
        logits, _ = with_weights(model, source_ids, target_ids)
        np.testing.assert_allclose(logits, by_hand[(True,) * 4], atol=1e-5)
        # Each layer was kept in half of the passes, within 4 standard deviations.
        decoder_kept = np.array([kept[2:] for kept in kept_layers])
        encoder_kept = np.array([kept[:2] for kept in kept_layers if any(kept[2:])])
        for kept in (decoder_kept, encoder_kept):
            np.testing.assert_allclose(kept.mean(0), 0.5, atol=4 * 0.5 / len(kept) ** 0.5)

    def test_embedding_dropout_follows_dropout_unless_given(self):
        assert small_model(dropout=0.25).positional_encoding.dropout.p == 0.25
        assert small_model(dropout=0.25, embedding_dropout=0.0).positional_encoding.dropout.p == 0.0

    def test_initial_values(self):
        model = small_model(d_model=64, d_ff=128, tie_embeddings=False)
        for name, parameter in model.named_parameters():
            values = parameter.numpy()
            if name.endswith("bias"):
                assert np.all(values == 0.0), name
            elif "norm" in name:
                assert np.all(values == 1.0), name
            elif "embedding" in name:
                assert np.all(values[PAD] == 0.0)
                assert values[1:].std() == pytest.approx(1 / 8, rel=0.1), name
            else:
                bound = np.sqrt(6.0 / sum(values.shape))
                assert 0.9 * bound < np.abs(values).max() <= bound, name

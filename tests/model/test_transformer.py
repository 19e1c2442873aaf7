"""The whole model: against NumPy in float64, its masks, its incremental decoding, its options.

Logits of the small models here are of the order of 1 to 10, at the end of some twenty float32
operations of relative rounding 1e-7 each: two correct computations agree to 1e-5.
"""

import itertools
import random

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from tests.reference import (
    BOS,
    PAD,
    SMALL,
    SOURCE_VOCABULARY,
    TARGET_VOCABULARY,
    TOLERANCE,
    NumpyTransformer,
    assert_no_gradient_from_padding,
    assert_no_influence_of_padding,
    build,
)
from transformer_mt.kernels.cpu_decoder import CpuDecoder, CpuDecoderState
from transformer_mt.model.attention import causal_mask
from transformer_mt.model.transformer import AttentionWeights, Generator, Transformer


def small_model(**options):
    return build(Transformer, SOURCE_VOCABULARY, TARGET_VOCABULARY, **{**SMALL, **options})


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
        logits = model(source_ids, target_ids)
        assert logits.shape == [3, 4, TARGET_VOCABULARY]
        reference = NumpyTransformer(model, num_heads=2, is_pre_norm=norm == "pre")
        for row in range(3):
            source = source_ids[row].numpy()
            target = target_ids[row].numpy()
            source, target = source[source != PAD], target[target != PAD]
            np.testing.assert_allclose(
                logits[row, : len(target)], reference.logits(source, target), atol=TOLERANCE
            )

    def test_is_encode_decode_generate(self, source_ids, target_ids):
        model = small_model()
        memory = model.encode(source_ids)
        assert memory.shape == [3, 5, 8]
        hidden = model.decode(target_ids, memory, source_ids)
        assert hidden.shape == [3, 4, 8]
        np.testing.assert_array_equal(model.generator(hidden), model(source_ids, target_ids))

    def test_weights_of_some_layers_on_request(self, source_ids, target_ids):
        model = small_model(num_decoder_layers=3)
        memory = model.encode(source_ids)
        _, self_weights, cross_weights = model.decode(
            target_ids, memory, source_ids, need_weights=True
        )
        hidden, *some = model.decode(target_ids, memory, source_ids, need_weights=(2, 0))
        np.testing.assert_array_equal(hidden, model.decode(target_ids, memory, source_ids))
        for every, those in zip((self_weights, cross_weights), some, strict=True):
            assert those[1] is None
            for layer in (0, 2):
                np.testing.assert_array_equal(those[layer], every[layer])

    def test_weights_on_request(self, source_ids, target_ids):
        model = small_model(num_encoder_layers=1, num_decoder_layers=3)
        logits, weights = model(source_ids, target_ids, need_weights=True)
        np.testing.assert_array_equal(logits, model(source_ids, target_ids))
        assert isinstance(weights, AttentionWeights)
        assert [w.shape for w in weights.encoder] == [[3, 2, 5, 5]]
        assert [w.shape for w in weights.decoder] == [[3, 2, 4, 4]] * 3
        assert [w.shape for w in weights.cross] == [[3, 2, 4, 5]] * 3
        padded = source_ids.numpy() == PAD
        for layer_weights in weights.encoder + weights.cross:
            of_padding = np.broadcast_to(padded[:, None, None], layer_weights.shape)
            np.testing.assert_array_equal(layer_weights.numpy() == 0.0, of_padding)
        for layer_weights in weights.decoder:
            later = np.triu(np.ones((4, 4), dtype=bool), 1)
            np.testing.assert_array_equal(
                layer_weights.numpy() == 0.0, np.broadcast_to(later, layer_weights.shape)
            )
        for layer_weights in weights.encoder + weights.decoder + weights.cross:
            np.testing.assert_allclose(layer_weights.sum(-1), 1.0, atol=1e-6)

    def test_source_has_a_pad_id_of_its_own(self, randomise):
        model = randomise(small_model(pad_id=3, source_pad_id=5))
        target_ids = paddle.to_tensor([[BOS, 3, 4]])
        short = model(paddle.to_tensor([[0, 3, 2]]), target_ids)
        padded = model(paddle.to_tensor([[0, 3, 2, 5, 5]]), target_ids)
        np.testing.assert_allclose(padded, short, atol=TOLERANCE)
        # The target's pad id is nothing special in the source.
        other = model(paddle.to_tensor([[0, 3, 2, 3, 3]]), target_ids)
        assert not np.allclose(other, short, atol=1e-2)

    def test_longer_than_max_len(self, randomise, source_ids, target_ids):
        short, long = randomise(small_model(max_len=2)), small_model(max_len=50)
        long.set_state_dict(short.state_dict())
        np.testing.assert_array_equal(short(source_ids, target_ids), long(source_ids, target_ids))

    def test_can_learn(self, source_ids, target_ids):
        model = small_model(d_model=16)
        adam = paddle.optimizer.Adam(1e-2, parameters=model.parameters())
        labels = paddle.concat([target_ids[:, 1:], paddle.full([3, 1], 2, "int64")], axis=1)
        losses = []
        for _ in range(40):
            loss = F.cross_entropy(model(source_ids, target_ids), labels)
            loss.backward()
            adam.step()
            adam.clear_grad()
            losses.append(float(loss))
        assert losses[0] > 2.0
        assert losses[-1] < 0.1

    def test_all_parameters_get_a_gradient(self, randomise, source_ids, target_ids):
        model = randomise(small_model(tie_embeddings=False))
        (model(source_ids, target_ids) ** 2).mean().backward()
        for name, parameter in model.named_parameters():
            assert bool(paddle.isfinite(parameter.grad).all()), name
            # The same term added to all scores of a row is lost in the softmax.
            if not name.endswith("key_projection.bias"):
                assert float(parameter.grad.abs().max()) > 1e-6, name


@pytest.mark.parametrize("norm", ["post", "pre"])
class TestIndependence:
    """Equality is exact here: what is masked out must not enter the sums at all."""

    def test_of_the_embedding_of_padding(self, randomise, source_ids, target_ids, norm):
        model = randomise(small_model(norm=norm, tie_embeddings=False))
        assert_no_influence_of_padding(model, source_ids, target_ids)

    def test_of_more_padding(self, randomise, source_ids, target_ids, norm):
        model = randomise(small_model(norm=norm))
        before = model(source_ids, target_ids).numpy()
        padding = paddle.full([3, 6], PAD, "int64")
        after = model(
            paddle.concat([source_ids, padding], 1), paddle.concat([target_ids, padding], 1)
        )
        # Sums of another length may be added up in another order.
        np.testing.assert_allclose(after[:, :4], before, atol=TOLERANCE)

    def test_of_later_positions(self, randomise, source_ids, target_ids, norm):
        model = randomise(small_model(norm=norm))
        before = model(source_ids, target_ids).numpy()
        changed = target_ids.clone()
        changed[:, 2:] = 9
        after = model(source_ids, changed).numpy()
        np.testing.assert_array_equal(after[:, :2], before[:, :2])
        assert np.all(np.abs(after[:, 2:] - before[:, 2:]).max(-1) > 1e-3)

    def test_of_gradients_from_padding_in_the_encoder(self, normal, randomise, source_ids, norm):
        model = randomise(small_model(norm=norm))
        x = normal(3, 5, 8)
        x.stop_gradient = False
        is_padding = source_ids == PAD
        memory, _ = model.encoder(x, is_padding.unsqueeze(1))
        (memory * normal(3, 5, 8))[~is_padding].sum().backward()
        gradient, is_padding = x.grad.numpy(), is_padding.numpy()
        assert np.all(gradient[is_padding] == 0.0)
        assert np.all(np.abs(gradient[~is_padding]).max(-1) > 0.0)

    def test_of_gradients_from_padding_in_the_memory(
        self, normal, randomise, source_ids, target_ids, norm
    ):
        model = randomise(small_model(norm=norm))
        memory = normal(3, 5, 8)
        memory.stop_gradient = False
        hidden = model.decode(target_ids, memory, source_ids)
        (hidden * normal(3, 4, 8)).sum().backward()
        is_padding = source_ids.numpy() == PAD
        assert np.all(memory.grad.numpy()[is_padding] == 0.0)
        assert np.all(np.abs(memory.grad.numpy()[~is_padding]).max(-1) > 0.0)

    def test_of_gradients_from_later_positions(self, normal, randomise, norm):
        model = randomise(small_model(norm=norm))
        for position in range(4):
            x = normal(1, 4, 8)
            x.stop_gradient = False
            hidden, _, _ = model.decoder(x, normal(1, 5, 8), causal_mask(4))
            (hidden[:, position] * normal(1, 8)).sum().backward()
            gradient = np.abs(x.grad.numpy()[0]).max(-1)
            assert np.all(gradient[position + 1 :] == 0.0)
            assert np.all(gradient[: position + 1] > 0.0)

    def test_of_gradients_of_the_padding_row(self, randomise, source_ids, target_ids, norm):
        model = randomise(small_model(norm=norm, tie_embeddings=False))
        assert_no_gradient_from_padding(model, source_ids, target_ids)


class OnDevice:
    """Decoding by Paddle's layers."""

    def __init__(self, model, memory, source_ids):
        self.model, self.cache = model, model.start_cache(memory, source_ids)
        self.select = self.cache.select

    def step(self, ids, parents):
        return self.model.decode_step(paddle.to_tensor(ids), parents, self.cache)


class OnCpu:
    """Decoding by NumPy."""

    def __init__(self, model, memory, source_ids):
        self.decoding = CpuDecoderState(CpuDecoder(model), memory, source_ids)
        self.select = self.decoding.select

    def step(self, ids, parents):
        return self.decoding.step(ids, parents)


def take_steps(decoding, target_ids):
    """Logits (rows, target_len, vocabulary) of reading `target_ids` one position at a time."""
    first = np.zeros((len(target_ids), 1), np.int64)
    steps = [decoding.step(ids[:, np.newaxis], first) for ids in target_ids.numpy().T]
    return np.concatenate([np.array(logits) for logits in steps], axis=1)


@pytest.fixture(params=[OnDevice, OnCpu])
def start(request):
    def start(model, source_ids):
        with paddle.no_grad():
            return request.param(model, model.encode(source_ids), source_ids)

    return start


class TestIncrementalDecoding:
    @pytest.mark.parametrize("norm", ["post", "pre"])
    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("tie_embeddings", [True, False])
    def test_equals_all_at_once(
        self, start, randomise, source_ids, target_ids, norm, bias, tie_embeddings
    ):
        model = randomise(small_model(norm=norm, bias=bias, tie_embeddings=tie_embeddings))
        logits = take_steps(start(model, source_ids), target_ids)
        np.testing.assert_allclose(logits, model(source_ids, target_ids), atol=TOLERANCE)

    @pytest.mark.parametrize("norm", ["post", "pre"])
    def test_beams_that_fork_and_sentences_that_leave(
        self, start, rng, randomise, source_ids, norm
    ):
        """Every hypothesis' logits are those of its own ids read all at once. Enough steps for the
        host's buffers to grow."""
        model = randomise(small_model(norm=norm))
        decoding = start(model, source_ids)
        sentences = np.arange(3)
        histories = np.zeros((3, 1, 0), np.int64)  # (sentences, width, length)
        for step in range(40):
            width = 1 if step == 0 else 4
            parents = rng.integers(0, histories.shape[1], (len(sentences), width))
            ids = rng.integers(2, TARGET_VOCABULARY, parents.shape)
            histories = np.take_along_axis(histories, parents[:, :, None], axis=1)
            histories = np.concatenate([histories, ids[:, :, None]], axis=2)
            logits = np.array(decoding.step(ids, parents))
            if step % 5 == 0:
                rows = paddle.to_tensor(histories.reshape(-1, step + 1))
                own_sources = paddle.to_tensor(np.repeat(source_ids.numpy()[sentences], width, 0))
                expected = model(own_sources, rows)[:, -1].numpy()
                np.testing.assert_allclose(
                    logits.reshape(expected.shape), expected, atol=TOLERANCE, err_msg=str(step)
                )
            if step in (3, 20):
                kept = np.array([2, 0]) if step == 3 else np.array([1])
                decoding.select(kept)
                sentences, histories = sentences[kept], histories[kept]

    def test_the_source_is_projected_once(self, start, randomise, source_ids, target_ids):
        model = randomise(small_model())
        decoding = start(model, source_ids)
        for layer in model.decoder.layers:  # what comes from here on would be noticed
            for linear in (
                layer.cross_attention.key_projection,
                layer.cross_attention.value_projection,
            ):
                linear.register_forward_post_hook(lambda *_: pytest.fail("projected again"))
                if isinstance(decoding, OnCpu):
                    linear.weight.set_value(linear.weight * float("nan"))
        assert np.isfinite(take_steps(decoding, target_ids)).all()

    def test_goes_on_beyond_max_len(self, start, randomise, source_ids, target_ids):
        model = randomise(small_model(max_len=2))
        logits = take_steps(start(model, source_ids), target_ids)
        np.testing.assert_allclose(logits, model(source_ids, target_ids), atol=TOLERANCE)

    def test_without_padding_in_the_source(self, start, randomise, target_ids):
        source_ids = paddle.to_tensor([[3, 4, 2], [5, 3, 2], [4, 4, 2]])
        model = randomise(small_model())
        logits = take_steps(start(model, source_ids), target_ids)
        np.testing.assert_allclose(logits, model(source_ids, target_ids), atol=TOLERANCE)

    def test_a_cpu_decoder_is_for_float32(self):
        model = small_model()
        model.to(dtype="float16")
        with pytest.raises(ValueError, match="float32"):
            CpuDecoder(model)


def test_exported_graph_takes_any_shape(randomise, source_ids, target_ids, tmp_path):
    model = randomise(small_model(norm="pre"))
    model.eval()
    expected = model(source_ids, target_ids)
    # Two objects: Paddle writes a name into each.
    ids = [paddle.static.InputSpec([None, None], "int64") for _ in range(2)]
    paddle.jit.save(model, str(tmp_path / "model"), input_spec=ids)
    exported = paddle.jit.load(str(tmp_path / "model"))
    np.testing.assert_allclose(exported(source_ids, target_ids), expected, atol=TOLERANCE)
    for length in (1, 3):
        np.testing.assert_allclose(
            exported(source_ids[:2], target_ids[:2, :length]),
            expected[:2, :length],
            atol=TOLERANCE,
        )


class TestRecompute:
    """The backward pass computes the same again, dropout included."""

    @pytest.mark.parametrize("norm", ["post", "pre"])
    @pytest.mark.parametrize("rate", [0.0, 0.3])
    def test_same_logits_and_gradients(self, randomise, source_ids, target_ids, norm, rate):
        rates = dict.fromkeys(("dropout", "attention_dropout", "feed_forward_dropout"), rate)
        plain = randomise(small_model(norm=norm, **rates))
        recomputing = small_model(norm=norm, **rates, recompute=True)
        recomputing.set_state_dict(plain.state_dict())
        for model in (plain, recomputing):
            paddle.seed(3)
            logits = model(source_ids, target_ids)
            (logits**2).mean().backward()
            # The generator goes on from the same place too.
            model.results = [logits.numpy(), paddle.rand([4]).numpy()]
        for ours, theirs in zip(recomputing.results, plain.results, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        # Where gradients of several uses of a tensor meet, they are added in another order.
        for (name, ours), theirs in zip(
            recomputing.named_parameters(), plain.parameters(), strict=True
        ):
            np.testing.assert_allclose(
                ours.grad, theirs.grad, rtol=1e-5, atol=TOLERANCE, err_msg=name
            )

    def test_keeps_a_layer_whose_weights_are_needed(self, source_ids, target_ids):
        model = small_model(recompute=True)
        calls = []
        for name, layer in model.decoder.layers.named_children():
            layer.register_forward_post_hook(lambda *_, name=name: calls.append(name))
        memory = model.encode(source_ids)
        logits, cross_weights = model.logits(target_ids, memory, source_ids, need_weights=(1,))
        (logits.sum() + (cross_weights[1] ** 2).sum()).backward()
        assert calls == ["0", "1", "0"]

    def test_computes_each_layer_twice_in_training_only(self, source_ids, target_ids):
        model = small_model(recompute=True)
        calls = []
        for layer in [*model.encoder.layers, *model.decoder.layers]:
            layer.register_forward_post_hook(lambda *_: calls.append(1))
        output = model(source_ids, target_ids)
        assert len(calls) == 4
        output.sum().backward()
        assert len(calls) == 8
        model(source_ids, target_ids, need_weights=True)[0].sum().backward()
        assert len(calls) == 12
        model.eval()
        model(source_ids, target_ids).sum().backward()
        assert len(calls) == 16
        model.train()
        with paddle.no_grad():
            model(source_ids, target_ids)
        assert len(calls) == 20

    def test_decoding_step_by_step_is_as_ever(self, start, randomise, source_ids, target_ids):
        model = randomise(small_model(recompute=True))
        logits = take_steps(start(model, source_ids), target_ids)
        np.testing.assert_allclose(logits, model(source_ids, target_ids), atol=TOLERANCE)


class TestOptions:
    def test_defaults_are_the_base_model_of_the_paper(self):
        # Section 5.1 and table 3: 65 million parameters with a shared vocabulary of 37,000.
        model = build(Transformer, 37_000, 37_000, share_source_embedding=True)
        assert 60e6 < sum(parameter.size for parameter in model.parameters()) < 66e6
        assert len(model.encoder.layers) == len(model.decoder.layers) == 6
        assert model.positional_encoding.table.shape == [1024, 512]
        rates = {
            name: layer.p
            for name, layer in model.named_sublayers()
            if isinstance(layer, paddle.nn.Dropout) and layer.p
        }
        assert set(rates.values()) == {0.1}
        assert all(name.startswith("positional") or "_residual." in name for name in rates)
        assert len(rates) == 1 + 6 * 2 + 6 * 3

    def test_tying(self):
        tied, untied = small_model(), small_model(tie_embeddings=False)
        assert tied.generator.weight is tied.target_embedding.weight
        assert untied.generator.weight is not untied.target_embedding.weight
        assert tied.source_embedding.weight is not tied.target_embedding.weight

        def count(model):
            return sum(parameter.size for parameter in model.parameters())

        assert count(untied) - count(tied) == TARGET_VOCABULARY * 8

    @pytest.mark.parametrize("tie_embeddings", [True, False])
    def test_sharing_the_source_embedding(self, tie_embeddings):
        model = build(
            Transformer, 11, 11, **SMALL, tie_embeddings=tie_embeddings, share_source_embedding=True
        )
        assert model.source_embedding.weight is model.target_embedding.weight
        matrices = [p for p in model.parameters() if p.shape == [11, 8]]
        assert len(matrices) == (1 if tie_embeddings else 2)

    @pytest.mark.parametrize(
        ("sizes", "options"), [((12, 11), {}), ((11, 11), {"source_pad_id": 3})]
    )
    def test_sharing_needs_one_vocabulary(self, sizes, options):
        with pytest.raises(ValueError, match="one vocabulary"):
            build(Transformer, *sizes, **SMALL, share_source_embedding=True, **options)

    def test_tied_weight_learns_from_both_ends(self, randomise, source_ids, target_ids):
        tied, untied = randomise(small_model()), small_model(tie_embeddings=False)
        untied.set_state_dict(tied.state_dict())
        for model in (tied, untied):
            (model(source_ids, target_ids) ** 2).mean().backward()
        both = untied.target_embedding.weight.grad + untied.generator.weight.grad
        np.testing.assert_allclose(tied.generator.weight.grad, both, rtol=1e-4, atol=TOLERANCE)

    def test_state_dict_restores_the_model(self, randomise, source_ids, target_ids):
        model, other = randomise(small_model()), small_model()
        assert not any("positional" in name for name in model.state_dict())
        missing, unexpected = other.set_state_dict(model.state_dict())
        assert not missing
        assert not unexpected
        assert other.generator.weight is other.target_embedding.weight
        np.testing.assert_array_equal(other(source_ids, target_ids), model(source_ids, target_ids))

    def test_generator_weight_must_fit(self):
        with pytest.raises(ValueError, match=r"shape \[11, 8\], not \[8, 11\]"):
            Generator(8, 11, weight=paddle.zeros([8, 11]))

    def test_norm(self):
        post, pre = small_model(norm="post"), small_model(norm="pre")
        extra = {n for n, _ in pre.named_parameters()} - {n for n, _ in post.named_parameters()}
        assert extra == {
            f"{stack}.norm.{part}"
            for stack in ("encoder", "decoder")
            for part in ("weight", "bias")
        }
        norms = [sub for sub in pre.sublayers() if isinstance(sub, paddle.nn.LayerNorm)]
        assert len(norms) == 2 * 2 + 2 * 3 + 2
        assert {norm._epsilon for norm in norms} == {1e-5}
        with pytest.raises(ValueError, match="norm"):
            small_model(norm="none")

    def test_without_bias(self):
        biases = [
            name for name, _ in small_model(bias=False).named_parameters() if name.endswith("bias")
        ]
        assert biases
        assert all(name.endswith("norm.bias") for name in biases)
        assert "generator.bias" not in dict(small_model(bias=True).named_parameters())

    @pytest.mark.parametrize(
        "rate_name",
        [
            *("dropout", "embedding_dropout", "attention_dropout", "feed_forward_dropout"),
            *("projection_dropout", "output_dropout"),
        ],
    )
    def test_each_dropout_acts_only_where_it_should(self, source_ids, target_ids, rate_name):
        rates = {"dropout": 0.0, "embedding_dropout": 0.0, rate_name: 0.25}
        model = small_model(**rates)
        places = {
            "dropout": "_residual.dropout",
            "embedding_dropout": "positional_encoding.dropout",
            "attention_dropout": "_attention.attention.dropout",
            "feed_forward_dropout": "feed_forward.dropout",
            "projection_dropout": "projection_dropout",
            "output_dropout": "output_dropout",
        }
        for name, layer in model.named_sublayers():
            if isinstance(layer, paddle.nn.Dropout):
                assert layer.p == (0.25 if name.endswith(places[rate_name]) else 0.0), name
        training = model(source_ids, target_ids)
        model.eval()
        plain = model(source_ids, target_ids)
        assert not np.allclose(training, plain, atol=1e-3)
        np.testing.assert_array_equal(plain, model(source_ids, target_ids))

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
        for _ in range(200):
            logits = model(source_ids, target_ids).numpy()
            matches = [k for k, other in by_hand.items() if np.allclose(logits, other, atol=1e-5)]
            # Without a layer of the decoder, nothing reads the source: four ways look the same.
            assert len(matches) == (1 if any(matches[0][2:]) else 4)
            kept_layers.append(matches[0])
            logits, _ = model(source_ids, target_ids, need_weights=True)
            np.testing.assert_allclose(logits, by_hand[(True,) * 4], atol=1e-5)
        # Each layer was kept in half of the passes, within 4 standard deviations.
        decoder_kept = np.array([kept[2:] for kept in kept_layers])
        encoder_kept = np.array([kept[:2] for kept in kept_layers if any(kept[2:])])
        for kept in (decoder_kept, encoder_kept):
            np.testing.assert_allclose(kept.mean(0), 0.5, atol=4 * 0.5 / len(kept) ** 0.5)

    def test_embedding_dropout_follows_dropout_unless_given(self):
        assert small_model(dropout=0.25).positional_encoding.dropout.p == 0.25
        assert small_model(dropout=0.25, embedding_dropout=0.0).positional_encoding.dropout.p == 0.0

    @pytest.mark.parametrize(
        "options",
        [
            {"dropout": 1.0},
            {"embedding_dropout": -0.1},
            {"attention_dropout": 2},
            {"feed_forward_dropout": 1.5},
            {"projection_dropout": 1.0},
            {"output_dropout": -0.5},
            {"num_heads": 3},
        ],
    )
    def test_bad_options(self, options):
        with pytest.raises(ValueError, match=r"dropout|num_heads"):
            small_model(**options)

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

    def test_draws_from_the_generator_but_does_not_seed_it(self):
        def values_after(seed):
            paddle.seed(seed)
            weight = small_model().source_embedding.weight.numpy()
            return weight, paddle.rand([4]).numpy()

        (weight, draw), (same_weight, _), (other_weight, other_draw) = map(values_after, (1, 1, 2))
        np.testing.assert_array_equal(weight, same_weight)
        assert not np.array_equal(weight, other_weight)
        assert not np.array_equal(draw, other_draw)

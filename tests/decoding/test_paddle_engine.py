"""The search with real models: batches of any kind, force decoding, ensembles, devices.

The models were never trained, but their weights are wide (see support.wide_model): they are as sure
of what they say as trained ones.
"""

import numpy as np
import paddle
import pytest

from tests.support import demo_pairs, make_config, train_subwords, wide_model
from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.decoding.engine import Sentence
from transformer_mt.decoding.paddle_engine import PaddleEngine

PAIRS = demo_pairs(300)
# Sums of float32 log-probabilities: what two ways to compute one may differ by, relative to its
# size, which is up to some hundreds here.
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return make_config(tmp_path_factory.mktemp("engine"))


@pytest.fixture(scope="module")
def subwords():
    return train_subwords(PAIRS, 400)


@pytest.fixture(scope="module")
def model(config, subwords):
    return wide_model(config, subwords)


@pytest.fixture(scope="module")
def engine(model, subwords):
    return PaddleEngine([model], subwords)


@pytest.fixture(scope="module")
def sentences(subwords):
    rows = [subwords.source.encode(source) for source, _ in PAIRS[:128]]
    return [Sentence(row, number=number) for number, row in enumerate(rows)]


SETTINGS = DecodingConfig(beam_size=4, max_length_ratio=1.0, max_length_extra=5)


def search_in_batches(engine, sentences, settings, order, size):
    found = [None] * len(order)
    for start in range(0, len(order), size):
        batch = order[start : start + size]
        for index, own in zip(
            batch, engine.search([sentences[i] for i in batch], settings), strict=True
        ):
            found[index] = own
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"beam_size": 1},
        {"n_best": 4, "length_penalty_kind": "average"},
        {"sampling": True, "n_best": 2},
    ],
    ids=["beam", "greedy", "n-best", "sampling"],
)
def test_the_batch_does_not_matter(engine, sentences, changes):
    """Shuffled batches of 1 to 128 sentences. Where scores are tied within 1e-5, either may win;
    these are counted, and few."""
    settings = SETTINGS.model_copy(update=changes)
    random = np.random.default_rng(8)
    together = search_in_batches(engine, sentences, settings, np.arange(128), 128)
    different = 0
    # Small batches take long, so that fewer sentences are searched in them.
    for size, count in ((1, 20), (3, 48), (16, 128)):
        found = search_in_batches(engine, sentences, settings, random.permutation(count), size)
        for ours, theirs in zip(found, together[:count], strict=True):
            if [hypothesis.ids for hypothesis in ours] != [hypothesis.ids for hypothesis in theirs]:
                different += 1
                if settings.sampling:
                    continue  # a random number fell between two roundings of a probability
            np.testing.assert_allclose(
                [hypothesis.score for hypothesis in ours],
                [hypothesis.score for hypothesis in theirs],
                rtol=1e-5,
                atol=1e-5,
            )
    assert different <= 2
    assert len({tuple(own[0].ids) for own in together}) > 20  # they are told apart


def test_force_decoding_in_pieces(engine, sentences, subwords, monkeypatch):
    rows = [sentence.source for sentence in sentences[:9]]
    targets = [subwords.target.encode(target) for _, target in PAIRS[:9]]
    at_once = engine.log_probs(rows, targets)
    monkeypatch.setattr("transformer_mt.decoding.paddle_engine.LOGITS_AT_ONCE", 1)
    np.testing.assert_allclose(engine.log_probs(rows, targets), at_once, rtol=1e-5)


OUT_OF_MEMORY = [MemoryError(), RuntimeError("ResourceExhaustedError: ...")]


@pytest.mark.parametrize("error", [*OUT_OF_MEMORY, ValueError("wrong")])
def test_a_batch_that_does_not_fit_is_halved(engine, sentences, monkeypatch, capsys, error):
    expected = engine.search(sentences[:11], SETTINGS)
    stepper, tried = engine._stepper, []

    def narrow(rows):
        tried.append(len(rows))
        if len(rows) > 3:
            raise error
        return stepper(rows)

    monkeypatch.setattr(engine, "_stepper", narrow)
    if error not in OUT_OF_MEMORY:
        with pytest.raises(ValueError, match="wrong"):
            engine.search(sentences[:11], SETTINGS)
        return
    found = engine.search(sentences[:11], SETTINGS)
    assert tried == [11, 5, 2, 2, 2, 2, 2, 1]
    assert [own[0].ids for own in found] == [own[0].ids for own in expected]
    assert "memory ran out with 11 sentences" in capsys.readouterr().err


# ---- Ensembles ----


def test_an_ensemble_is_the_mean_of_the_probabilities(config, subwords, sentences):
    models = [wide_model(config, subwords, seed) for seed in (1, 2)]
    engines = [PaddleEngine([model], subwords) for model in models]
    both = PaddleEngine(models, subwords)
    row = sentences[0].source
    target = subwords.target.encode(PAIRS[0][1])

    for model in models:
        model.eval()
    source = paddle.to_tensor([[*row, subwords.source.eos]])
    read = paddle.to_tensor([[subwords.target.bos, *target]])
    probabilities = [
        paddle.nn.functional.softmax(model(source, read).astype("float64"), axis=-1).numpy()[0]
        for model in models
    ]
    mean = np.mean(probabilities, axis=0)
    expected = sum(np.log(mean[n, i]) for n, i in enumerate([*target, subwords.target.eos]))
    assert both.log_probs([row], [target])[0] == pytest.approx(expected, rel=1e-5)
    for engine in engines:
        assert engine.log_probs([row], [target])[0] != pytest.approx(expected, rel=1e-3)
    ((hypothesis,),) = both.search(sentences[:1], SETTINGS)
    forced = both.log_probs([row], [hypothesis.ids])
    assert [hypothesis.log_prob] == pytest.approx(forced, rel=1e-5, abs=TOLERANCE)


# ---- Prefixes, limits, modes, attention ----


@pytest.mark.parametrize("was_training", [True, False])
def test_the_model_goes_on_training_as_before(model, subwords, sentences, was_training):
    model.train() if was_training else model.eval()
    PaddleEngine([model], subwords).search(sentences[:1], SETTINGS)
    assert model.training is was_training


# ---- Attention of all layers and heads ----


def test_attention_of_the_first_layers(config, engine, model, subwords):
    """Against formula (1) of Vaswani et al. in float64, from the weights of the model. Weights are
    at most 1, and float32 has seven digits, of which the wide scores take two."""
    source, target = (subwords.source.encode(text) for text in PAIRS[1])
    got = engine.attention(source, target)
    assert got.source == [*source, subwords.source.eos]
    assert got.decoder_input == [subwords.target.bos, *target]
    assert got.labels == [*target, subwords.target.eos]
    matrix = {name: value.numpy().astype("float64") for name, value in model.named_parameters()}

    def expected(layer, ids):
        width, heads = config.model.d_model, config.model.num_heads
        angles = np.arange(len(ids))[:, None] / 10000 ** (np.arange(0, width, 2) / width)
        x = matrix["target_embedding.weight"][ids] * width**0.5
        x += np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(len(ids), width)
        x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)  # pre-norm
        size = width // heads
        for head in range(heads):
            own = slice(head * size, (head + 1) * size)
            query, key = (
                x @ matrix[f"{layer}.self_attention.{side}_projection.weight"][:, own]
                for side in ("query", "key")
            )
            exponentials = np.exp(query @ key.T / size**0.5)
            if layer.startswith("decoder"):
                exponentials = np.tril(exponentials)
            yield exponentials / exponentials.sum(1, keepdims=True)

    encoder = list(expected("encoder.layers.0", got.source))
    assert np.abs(got.encoder[0] - encoder).max() < 1e-4
    decoder = list(expected("decoder.layers.0", got.decoder_input))
    assert np.abs(got.decoder[0] - decoder).max() < 1e-4

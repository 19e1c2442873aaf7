"""Search and scores with models that copy, as with others: by NumPy and by Paddle, step by step and
at once, alone and in an ensemble.

The models were never trained, but their weights are wide (see support.wide_model), so that they are
as sure of what they say, and of when to copy, as trained ones.
"""

import numpy as np
import paddle
import pytest

from tests.support import demo_pairs, log_softmax, make_config, train_subwords, wide_model
from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.decoding.engine import Sentence
from transformer_mt.decoding.paddle_engine import PaddleEngine

PAIRS = demo_pairs(200)
# Of sums of float32 log-probabilities, see test_paddle_engine.py.
TOLERANCE = 1e-4
SETTINGS = DecodingConfig(beam_size=4, max_length_ratio=1.0, max_length_extra=5)


@pytest.fixture(scope="module")
def subwords():
    return train_subwords(PAIRS, 300)


@pytest.fixture(scope="module")
def make_model(tmp_path_factory, subwords):
    folder = tmp_path_factory.mktemp("copying")

    def make(copying, seed=7, subwords=subwords):
        config = make_config(folder, model={"copying": copying, "num_layers": 2})
        model = wide_model(config, subwords, seed)
        if copying:  # rather than generate
            model.gate.bias.set_value(paddle.full([1], -2.0))
        return model

    return make


@pytest.fixture(scope="module")
def model(make_model):
    return make_model(True)


@pytest.fixture(scope="module")
def sentences(subwords):
    rows = [subwords.source.encode(source) for source, _ in PAIRS[:24]]
    return [Sentence(row, number=number) for number, row in enumerate(rows)]


@pytest.mark.parametrize(
    "changes",
    [{"beam_size": 1}, {"n_best": 3}, {"sampling": True, "n_best": 2}],
    ids=["greedy", "n-best", "sampling"],
)
def test_numpy_finds_what_paddle_finds_and_scores_are_those_of_force_decoding(
    model, subwords, sentences, changes
):
    settings = SETTINGS.model_copy(update=changes)
    on_cpu = PaddleEngine([model], subwords)
    on_device = PaddleEngine([model], subwords)
    assert len(on_cpu._cpu_decoders) == 1
    on_device._cpu_decoders = []
    found = on_cpu.search(sentences, settings)
    different = 0
    for ours, theirs in zip(found, on_device.search(sentences, settings), strict=True):
        for one, other in zip(ours, theirs, strict=True):
            if one.ids != other.ids:
                different += 1  # a tie, or a random number between two roundings
            else:
                assert one.score == pytest.approx(other.score, rel=1e-5, abs=TOLERANCE)
    assert different <= 1
    sources = [sentence.source for sentence, own in zip(sentences, found, strict=True) for _ in own]
    hypotheses = [hypothesis for own in found for hypothesis in own]
    forced = on_cpu.log_probs(sources, [hypothesis.ids for hypothesis in hypotheses])
    for hypothesis, log_prob in zip(hypotheses, forced, strict=True):
        assert hypothesis.log_prob == pytest.approx(log_prob, rel=1e-5, abs=TOLERANCE)


def test_an_ensemble_with_a_plain_model(model, make_model, subwords, sentences):
    """The mean of the probabilities, of a model that copies and one that does not."""
    models = [model, make_model(False, 8)]
    both = PaddleEngine(models, subwords)
    target = subwords.target.encode(PAIRS[0][1])
    source = paddle.to_tensor([[*sentences[0].source, subwords.source.eos]])
    read = paddle.to_tensor([[subwords.target.bos, *target]])
    probabilities = []
    for one in models:
        probabilities.append(np.exp(log_softmax(one(source, read).numpy()[0])))
    mean = np.mean(probabilities, axis=0)
    expected = sum(np.log(mean[n, i]) for n, i in enumerate([*target, subwords.target.eos]))
    assert both.log_probs([sentences[0].source], [target])[0] == pytest.approx(expected, rel=1e-5)
    on_device = PaddleEngine(models, subwords)
    on_device._cpu_decoders = []
    for engine in (both, on_device):
        found = engine.search(sentences[:8], SETTINGS)
        forced = both.log_probs([s.source for s in sentences[:8]], [own[0].ids for own in found])
        for (hypothesis,), log_prob in zip(found, forced, strict=True):
            assert hypothesis.log_prob == pytest.approx(log_prob, rel=1e-5, abs=TOLERANCE)

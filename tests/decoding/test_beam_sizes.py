"""Every beam size that the schema allows works on every engine, and all engines agree.

The vocabulary is small, so that most beams are wider than it is.
"""

import numpy as np
import paddle
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support import make_config, wide_model
from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.data.subword import Subwords
from transformer_mt.data.vocabulary import WordVocabulary
from transformer_mt.decoding.engine import Sentence
from transformer_mt.decoding.paddle_engine import PaddleEngine
from transformer_mt.decoding.search import search
from transformer_mt.export import ctranslate2, paddle_inference
from transformer_mt.export.ctranslate2_engine import Ctranslate2Engine
from transformer_mt.export.paddle_inference import InferenceEngine
from transformer_mt.utils.folders import write_checksums

WORDS = [f"w{number}" for number in range(20)]
VOCABULARY = WordVocabulary(WORDS)
LARGEST = 1000
# Sums of float32 log-probabilities, computed in two ways.
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    folder = tmp_path_factory.mktemp("beams")
    config = make_config(folder)
    subwords = Subwords(VOCABULARY, VOCABULARY)
    model = wide_model(config, subwords)
    model.eval()
    folders = {name: folder / name for name in ("ctranslate2", "inference")}
    for path in folders.values():
        path.mkdir()
    ctranslate2.write_model(folders["ctranslate2"], model, config, subwords)
    paddle_inference.write_model(folders["inference"], model, config, subwords)
    for path in folders.values():
        subwords.save(path)
        write_checksums(path)
    on_device = PaddleEngine([model], subwords)
    on_device._cpu_decoders = []
    paddle.set_device("cpu")
    return {
        "host": PaddleEngine([model], subwords),
        "device": on_device,
        "inference": InferenceEngine(folders["inference"], subwords),
        "ctranslate2": Ctranslate2Engine(folders["ctranslate2"], subwords, 1),
    }


def sentences(lengths):
    """Of random words; the lengths are pairs (source, prefix)."""
    random = np.random.default_rng(5)
    words = VOCABULARY.encode(" ".join(WORDS))
    return [
        Sentence(*(random.choice(words, length).tolist() for length in pair)) for pair in lengths
    ]


def assert_alike(found, expected):
    """Where scores are tied, either output may win."""
    for ours, theirs in zip(found, expected, strict=True):
        scores = [hypothesis.score for hypothesis in theirs]
        assert [hypothesis.score for hypothesis in ours] == pytest.approx(scores, abs=TOLERANCE)
        if [hypothesis.ids for hypothesis in ours] != [hypothesis.ids for hypothesis in theirs]:
            assert min(np.abs(np.diff(scores)), default=0) < TOLERANCE


@settings(max_examples=6)
@given(
    beam_size=st.integers(1, LARGEST),
    lengths=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 10)), min_size=1, max_size=2),
    n_best=st.integers(1, 5),
    changes=st.sampled_from(
        [{}, {"length_penalty_kind": "average"}, {"sampling": True, "temperature": 0.8}]
    ),
)
@example(beam_size=34, lengths=[(3, 0)], n_best=1, changes={})
@example(beam_size=1, lengths=[(3, 0), (5, 2)], n_best=1, changes={})
@example(beam_size=2, lengths=[(3, 0), (5, 2)], n_best=2, changes={"sampling": True})
@example(beam_size=LARGEST, lengths=[(4, 0), (1, 5)], n_best=5, changes={})
# Long enough for positions to be forgotten that no hypothesis looks back on.
@example(beam_size=4, lengths=[(4, 0)], n_best=2, changes={"min_length_extra": 50})
def test_paddle_engines_find_the_same(engines, beam_size, lengths, n_best, changes):
    pair = sentences(lengths)
    most = 60 if "min_length_extra" in changes else 3
    limits = {"max_length_ratio": 1.0, "max_length_extra": most}
    n_best = min(n_best, beam_size)
    options = DecodingConfig(beam_size=beam_size, n_best=n_best, **limits, **changes)
    expected = engines["device"].search(pair, options)
    assert_alike(engines["host"].search(pair, options), expected)
    assert_alike(engines["inference"].search(pair, options), expected)


@pytest.mark.parametrize("prefix_length", [0, 2])
@pytest.mark.parametrize("beam_size", [33, 34, 40, 100, LARGEST])
def test_ctranslate2_finds_what_can_be_found(engines, beam_size, prefix_length):
    """With so wide a beam, all engines find the best output that there is, or nearly."""
    pair = sentences([(3, prefix_length), (5, prefix_length)])
    options = DecodingConfig(beam_size=beam_size, max_length_ratio=0.5, max_length_extra=1)
    found = engines["ctranslate2"].search(pair, options)
    assert_alike(found, engines["device"].search(pair, options))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [3]),
        ({"beam_size": 100}, [3]),
        ({"beam_size": 600}, [2, 1]),
        ({"beam_size": LARGEST}, [1, 1, 1]),
        ({"sampling": True, "n_best": 600}, [2, 1]),
    ],
)
def test_wide_beams_are_searched_for_few_sentences_at_once(engines, options, expected):
    """The memory of a batch grows with the square of the beam. What is found stays the same."""
    sizes = []

    def stepper(sources):
        sizes.append(len(sources))
        return engines["host"]._stepper(sources)

    options = DecodingConfig(**options, max_length_ratio=0.1, max_length_extra=2)
    three = sentences([(2, 0), (4, 0), (3, 0)])
    with paddle.no_grad():
        found = search(stepper, three, options, VOCABULARY)
    assert sizes == expected
    assert_alike(found, [engines["host"].search([one], options)[0] for one in three])
    assert search(stepper, [], options, VOCABULARY) == []

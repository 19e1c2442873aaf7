"""CTranslate2's engine against Paddle, with small models of every kind that can be exported."""

import json
import subprocess
import sys

import ctranslate2
import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from tests.support import ROOT, as_if_trained, make_config, wide_model
from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.data.batches import encoded_rows
from transformer_mt.data.subword import Subwords
from transformer_mt.data.vocabulary import WordVocabulary
from transformer_mt.decoding.engine import Sentence, length_limits, length_penalty
from transformer_mt.decoding.paddle_engine import PaddleEngine
from transformer_mt.export.ctranslate2 import write_model
from transformer_mt.export.ctranslate2_engine import POSITIONS, Ctranslate2Engine
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.folders import write_checksums

# Of sums of some twenty float32 log-probabilities, computed in two ways.
TOLERANCE = 1e-3
SETTINGS = DecodingConfig(beam_size=4, max_length_ratio=1.0, max_length_extra=6)
# Norm, tie_embeddings, one vocabulary for both sides, bias. tests/test_parity.py compares models of
# all other kinds with their exports too.
KINDS = {
    "pre": ("pre", True, True, True),
    "post, no bias, untied": ("post", False, True, False),
    "two vocabularies": ("pre", True, False, True),
}


class Exported:
    """A model, its export, and engines of both."""

    def __init__(self, folder, model, config, subwords, quantization=None):
        folder.mkdir()
        write_model(folder, model, config, subwords, quantization)
        subwords.save(folder)
        write_checksums(folder)
        self.folder, self.model, self.config, self.subwords = folder, model, config, subwords
        self.engine = Ctranslate2Engine(folder, subwords, 1)
        self.paddle = PaddleEngine([model], subwords)
        self.known = {}  # what next_log_probs has computed

    def sentences(self, count=20):
        random = np.random.default_rng(3)
        words = text_ids(self.subwords.source)
        return [
            Sentence(random.choice(words, 1 + random.integers(9)).tolist(), number=number)
            for number in range(count)
        ]


def text_ids(vocabulary):
    special = {vocabulary.pad, vocabulary.bos, vocabulary.eos, vocabulary.unk}
    return sorted(set(range(vocabulary.size)) - special)


def small_config(folder, kind, **sizes):
    """A config of a kind, and vocabularies of 20 words: few, so that an end is never unlikely."""
    norm, tied, joint, bias = KINDS[kind]
    sizes = {"num_encoder_layers": 2, "num_decoder_layers": 3, "num_heads": 4, **sizes}
    config = make_config(
        folder, model={"norm": norm, "tie_embeddings": tied, "bias": bias, **sizes}
    )
    source, target = (WordVocabulary([f"{side}{i}" for i in range(20)]) for side in ("s", "t"))
    return config, Subwords(target if joint else source, target)


def small_model(folder, kind):
    """As wide_model. Biases and norms are drawn too, for zeros and ones would hide mistakes."""
    config, subwords = small_config(folder, kind)
    model = wide_model(config, subwords)
    random = np.random.default_rng(5)
    for _, parameter in model.named_parameters():
        if len(parameter.shape) == 1:
            noise = 0.2 * random.standard_normal(tuple(parameter.shape))
            parameter.set_value((parameter.numpy() + noise).astype("float32"))
    return model, config, subwords


@pytest.fixture(scope="module", params=KINDS)
def every_kind(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kind")
    model, config, subwords = small_model(folder, request.param)
    return Exported(folder / "export", as_if_trained(model, subwords, 0.1), config, subwords)


@pytest.fixture(scope="module")
def one_kind(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    model, config, subwords = small_model(folder, "pre")
    return Exported(folder / "export", as_if_trained(model, subwords, 0.1), config, subwords)


# ---- Weights: log-probabilities, attention ----


def test_log_probs_are_the_models(every_kind):
    """Also of words that are not in the vocabulary."""
    random = np.random.default_rng(4)
    sources = [sentence.source for sentence in every_kind.sentences(50)]
    target = every_kind.subwords.target
    words = [*text_ids(target), target.unk]
    targets = [random.choice(words, random.integers(12)).tolist() for _ in sources]
    expected = every_kind.paddle.log_probs(sources, targets)
    found = every_kind.engine.log_probs(sources, targets)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
    assert np.std(expected) > 10  # the model does tell them apart
    assert every_kind.engine.log_probs([], []) == []


# ---- The search ----


def simple_search(exported, sentence, settings, patience=2):
    """What the engine's docstring says, for one sentence, without a thought for speed: pairs (ids,
    log-probability), the best first."""
    target = exported.subwords.target
    longest = length_limits(len(sentence.source), settings)[1]
    beam, ended = [((), 0.0)], {}
    for length in range(longest):
        after = next_log_probs(exported, sentence.source, [ids for ids, _ in beam])
        grown = [
            ((*ids, word), score + after[row, word])
            for row, (ids, score) in enumerate(beam)
            for word in [*text_ids(target), target.eos]
        ]
        grown.sort(key=lambda item: -item[1])
        best = grown[: settings.beam_size]
        ended |= {ids[:-1]: score for ids, score in best if ids[-1] == target.eos}
        if len(ended) >= patience * settings.beam_size:
            break
        beam = [item for item in grown if item[0][-1] != target.eos][: settings.beam_size]
        if length + 1 == longest:
            full = [item for item in best if item[0][-1] != target.eos]
            ends = next_log_probs(exported, sentence.source, [ids for ids, _ in full])
            for row, (ids, score) in enumerate(full):
                ended[ids] = score + ends[row, target.eos]
    if patience == 2 and max(map(len, ended)) >= longest - 1:
        return simple_search(exported, sentence, settings, patience=3)
    penalties = {ids: length_penalty(len(ids) + 1, settings) for ids in ended}
    ranked = sorted(ended, key=lambda ids: -ended[ids] / penalties[ids])
    return [(list(ids), ended[ids]) for ids in ranked]


def next_log_probs(exported, source, prefixes):
    """Log-probabilities of what may follow each prefix, of equal lengths: (prefixes, vocab).

    They are kept, because the search of every setting asks for much the same prefixes.
    """
    if not prefixes:
        return np.zeros((0, exported.subwords.target.size))
    key = tuple(source), tuple(map(tuple, prefixes))
    if key not in exported.known:
        exported.known[key] = computed_log_probs(exported, source, prefixes)
    return exported.known[key]


def computed_log_probs(exported, source, prefixes):
    vocabulary = exported.subwords.source
    sources = encoded_rows([source] * len(prefixes), vocabulary.pad, vocabulary.eos)
    read = np.array([[exported.subwords.target.bos, *prefix] for prefix in prefixes])
    with paddle.no_grad():
        logits = exported.model(paddle.to_tensor(sources), paddle.to_tensor(read))[:, -1]
    return F.log_softmax(logits.astype("float64"), axis=-1).numpy()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"length_penalty": 0.0},
        {"length_penalty_kind": "average"},
        {"length_penalty_kind": "average", "length_penalty": 1.5, "beam_size": 3},
        {"length_penalty_kind": "average", "n_best": 4},
    ],
    ids=["gnmt", "none", "average", "average 1.5", "n-best"],
)
def test_a_beam(every_kind, changes):
    """Of sentences whose outputs end by themselves, and of such as run into their limits."""
    settings = SETTINGS.model_copy(update=changes)
    sentences = every_kind.sentences(8)
    results = every_kind.engine.search(sentences, settings)
    for sentence, found in zip(sentences, results, strict=True):
        expected = simple_search(every_kind, sentence, settings)[: settings.n_best]
        assert [hypothesis.ids for hypothesis in found] == [ids for ids, _ in expected]
        for hypothesis, (_, log_prob) in zip(found, expected, strict=True):
            assert hypothesis.log_prob == pytest.approx(log_prob, abs=TOLERANCE)
            penalty = length_penalty(len(hypothesis.ids) + 1, settings)
            assert hypothesis.score == pytest.approx(hypothesis.log_prob / penalty)


def test_a_beam_of_one_is_greedy(every_kind):
    settings = SETTINGS.model_copy(update={"beam_size": 1})
    target = every_kind.subwords.target
    sentences = every_kind.sentences(10)
    full = 0
    results = every_kind.engine.search(sentences, settings)
    for sentence, (found,) in zip(sentences, results, strict=True):
        ids, log_prob = [], 0.0
        while True:
            (after,) = next_log_probs(every_kind, sentence.source, [ids])
            best = max([*text_ids(target), target.eos], key=lambda i: after[i])
            if best == target.eos or len(ids) == length_limits(len(sentence.source), settings)[1]:
                break
            log_prob += after[best]
            ids.append(best)
        full += best != target.eos
        assert found.ids == ids
        assert found.log_prob == pytest.approx(log_prob + after[target.eos], abs=TOLERANCE)
    assert full > 0


# ---- Limits, prefixes, ids that are never put out ----


@pytest.mark.parametrize("beam_size", [1, 4])
def test_lengths(one_kind, beam_size):
    """Each sentence has limits of its own."""
    limits = {"min_length_ratio": 0.5, "min_length_extra": 2, "max_length_ratio": 0.9}
    settings = SETTINGS.model_copy(
        update={"beam_size": beam_size, "n_best": beam_size, **limits, "max_length_extra": 1}
    )
    sentences = one_kind.sentences(40)
    lengths = set()
    for sentence, found in zip(sentences, one_kind.engine.search(sentences, settings), strict=True):
        shortest, longest = length_limits(len(sentence.source), settings)
        log_probs = one_kind.engine.log_probs(
            [sentence.source] * len(found), [hypothesis.ids for hypothesis in found]
        )
        for hypothesis, log_prob in zip(found, log_probs, strict=True):
            assert shortest <= len(hypothesis.ids) <= longest
            # That of eos included. On some processors, sums depend on the shape of the batch.
            assert hypothesis.log_prob == pytest.approx(log_prob, rel=1e-5)
            lengths.add(len(hypothesis.ids) - shortest)
    assert len(lengths) > 2


def test_no_room_for_an_output(one_kind):
    settings = SETTINGS.model_copy(update={"max_length_ratio": 0.01, "max_length_extra": 0})
    for (found,) in one_kind.engine.search(one_kind.sentences(5), settings):
        assert found.ids == [] and np.isfinite(found.log_prob) and found.attention is None


@pytest.mark.parametrize("beam_size", [1, 4])
def test_prefixes(one_kind, beam_size):
    """Those of some sentences change nothing for the others; one may be longer than the limit."""
    settings = SETTINGS.model_copy(update={"beam_size": beam_size, "max_length_extra": 3})
    random = np.random.default_rng(7)
    words = text_ids(one_kind.subwords.target)
    plain = one_kind.sentences()
    sentences = [
        Sentence(sentence.source, random.choice(words, (number % 3) * 4).tolist())
        for number, sentence in enumerate(plain)
    ]
    without = one_kind.engine.search(plain, settings)
    for number, found in enumerate(one_kind.engine.search(sentences, settings)):
        sentence = sentences[number]
        if not sentence.prefix:
            plain_ones = without[number]
            assert [own.ids for own in found] == [own.ids for own in plain_ones]
            scores = [own.score for own in plain_ones]
            assert [own.score for own in found] == pytest.approx(scores, rel=1e-5)
            continue
        ids = found[0].ids
        assert ids[: len(sentence.prefix)] == sentence.prefix
        longest = length_limits(len(sentence.source), settings)[1]
        assert len(ids) <= max(longest, len(sentence.prefix))
        (log_prob,) = one_kind.engine.log_probs([sentence.source], [ids])
        assert found[0].log_prob == pytest.approx(log_prob, rel=1e-5)


@pytest.mark.parametrize("beam_size", [1, 4, 30])
def test_pad_bos_and_unk_are_never_put_out(tmp_path, beam_size):
    """This model would like to say them. They keep their share of the probability."""
    exported = Exported(tmp_path / "export", *small_model(tmp_path, "pre"))
    target = exported.subwords.target
    sentences = exported.sentences()
    settings = SETTINGS.model_copy(update={"beam_size": beam_size, "n_best": beam_size})
    shares = np.exp(np.concatenate([next_log_probs(exported, s.source, [[]]) for s in sentences]))
    assert shares[:, [target.pad, target.bos, target.unk]].sum(axis=1).max() > 0.2
    for sentence, found in zip(sentences, exported.engine.search(sentences, settings), strict=True):
        outputs = [hypothesis.ids for hypothesis in found]
        assert all(set(ids) <= set(text_ids(target)) for ids in outputs)
        assert len({tuple(ids) for ids in outputs}) == len(outputs) > beam_size // 2
        expected = exported.engine.log_probs([sentence.source] * len(outputs), outputs)
        np.testing.assert_allclose([h.log_prob for h in found], expected, atol=TOLERANCE)


# ---- Sampling ----

SAMPLING = SETTINGS.model_copy(update={"sampling": True, "n_best": 5})


def test_samples(one_kind):
    sentences = one_kind.sentences()
    found = one_kind.engine.search(sentences, SAMPLING)
    for sentence, own in zip(sentences, found, strict=True):
        assert len(own) == 5
        log_probs = one_kind.engine.log_probs([sentence.source] * 5, [h.ids for h in own])
        np.testing.assert_allclose([h.log_prob for h in own], log_probs, atol=TOLERANCE)
        assert [h.score for h in own] == sorted((h.score for h in own), reverse=True)
        longest = length_limits(len(sentence.source), SAMPLING)[1]
        for hypothesis in own:
            assert len(hypothesis.ids) <= longest
            assert set(hypothesis.ids) <= set(text_ids(one_kind.subwords.target))
    assert one_kind.engine.search(sentences, SAMPLING) == found
    other_seed = SAMPLING.model_copy(update={"seed": 2})
    assert one_kind.engine.search(sentences, other_seed) != found


def test_samples_follow_the_probabilities(one_kind):
    sentence = one_kind.sentences(1)[0]
    (after,) = next_log_probs(one_kind, sentence.source, [[]])
    target = one_kind.subwords.target
    allowed = [*text_ids(target), target.eos]
    expected = np.exp(after[allowed]) / np.exp(after[allowed]).sum()
    settings = SAMPLING.model_copy(update={"n_best": 2000})
    (found,) = one_kind.engine.search([sentence], settings)
    firsts = [(hypothesis.ids or [target.eos])[0] for hypothesis in found]
    shares = [firsts.count(i) / 2000 for i in allowed]
    # Four standard deviations of a share of a half.
    np.testing.assert_allclose(shares, expected, atol=4 * (0.25 / 2000) ** 0.5)


# ---- Batches and threads ----


@pytest.mark.parametrize("changes", [{}, {"beam_size": 1}, {"sampling": True}])
def test_the_number_of_threads_changes_nothing(one_kind, changes):
    settings = SETTINGS.model_copy(update=changes)
    sentences = one_kind.sentences(300)  # more than a thread takes at once
    found = one_kind.engine.search(sentences, settings)
    engine = Ctranslate2Engine(one_kind.folder, one_kind.subwords, 3)
    assert engine.search(sentences, settings) == found


# ---- What can be wrong ----


def test_positions_end(one_kind):
    """An output ends before; a source that is longer can't be read."""
    positions = json.loads((one_kind.folder / "config.json").read_text())[POSITIONS]
    assert positions == 1024
    word = text_ids(one_kind.subwords.source)[0]
    settings = SETTINGS.model_copy(update={"beam_size": 1, "max_length_ratio": 10.0})
    (found,) = one_kind.engine.search([Sentence([word] * (positions - 1))], settings)
    assert len(found[0].ids) <= positions - 1
    for call in (
        lambda: one_kind.engine.search([Sentence([word] * positions)], settings),
        lambda: one_kind.engine.search([Sentence([word], [word] * positions)], settings),
        lambda: one_kind.engine.log_probs([[word]], [[word] * positions]),
    ):
        with pytest.raises(UserError, match=r"1024 subwords: .* exported for 1023 at most"):
            call()


def test_positions_are_as_many_as_the_config_needs(tmp_path):
    model, config, subwords = small_model(tmp_path, "post, no bias, untied")
    config = config.model_copy(update={"data": config.data.model_copy(update={"max_length": 1500})})
    config = config.model_copy(update={"decoding": DecodingConfig(max_length_ratio=2.0)})
    exported = Exported(tmp_path / "export", model, config, subwords)
    word = text_ids(subwords.source)[0]
    target = [[word] * 3020]
    np.testing.assert_allclose(
        exported.engine.log_probs([[word] * 1500], target),
        exported.paddle.log_probs([[word] * 1500], target),
        rtol=1e-4,
    )


@pytest.fixture
def copy(one_kind, tmp_path):
    """A copy of the export, to be damaged."""
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in one_kind.folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def seal(folder):
    """Whoever writes checksums can write them of anything."""
    (folder / "SHA256SUMS").unlink()
    write_checksums(folder)


def test_a_model_that_ctranslate2_can_not_load(one_kind, copy):
    content = (copy / "model.bin").read_bytes()
    for wrong in (content[:1000], (99).to_bytes(4, "little") + content[4:]):
        (copy / "model.bin").write_bytes(wrong)
        with pytest.raises(UserError, match=r"damaged .*model\.bin"):
            Ctranslate2Engine(copy, one_kind.subwords, 1)
        seal(copy)
        with pytest.raises(UserError, match=r"CTranslate2 .* can't load the model"):
            Ctranslate2Engine(copy, one_kind.subwords, 1)


def test_without_an_export_or_the_package(one_kind, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"is not an export .* export MODEL_DIR --format"):
        Ctranslate2Engine(tmp_path, one_kind.subwords, 1)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(UsageError, match=r"pip install -r requirements-ctranslate2\.txt"):
        Ctranslate2Engine(one_kind.folder, one_kind.subwords, 1)


def test_paddle_is_not_needed(one_kind):
    code = f"""
import sys
sys.modules["paddle"] = sys.modules["paddlenlp"] = None  # to import them is an error
from pathlib import Path
from transformer_mt.data.subword import Subwords
from transformer_mt.export.ctranslate2_engine import Ctranslate2Engine
from transformer_mt.decoding.engine import Sentence
from transformer_mt.config.schema import DecodingConfig

folder = Path({str(one_kind.folder)!r})
engine = Ctranslate2Engine(folder, Subwords.load(folder), 2)
print(engine.search([Sentence({one_kind.sentences(1)[0].source})], DecodingConfig())[0][0].ids)
"""
    output = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    (expected,) = one_kind.engine.search(one_kind.sentences(1), DecodingConfig())
    assert output == f"{expected[0].ids}\n"


# ---- Others may use the export too ----


def test_it_is_an_ordinary_model_of_ctranslate2(one_kind):
    translator = ctranslate2.Translator(str(one_kind.folder))
    sentences = one_kind.sentences()
    pieces = [one_kind.subwords.source.pieces(sentence.source) for sentence in sentences]
    results = translator.translate_batch(
        pieces, beam_size=1, max_decoding_length=5, min_decoding_length=0, disable_unk=True
    )
    settings = SETTINGS.model_copy(
        update={"beam_size": 1, "max_length_ratio": 0.01, "max_length_extra": 5}
    )
    found = one_kind.engine.search(sentences, settings)
    expected = [one_kind.subwords.target.pieces(own[0].ids) for own in found]
    assert [result.hypotheses[0] for result in results] == expected

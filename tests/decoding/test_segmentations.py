"""Translating from several segmentations of a source at once (Takase et al. 2022)."""

import numpy as np
import paddle
import pytest

from tests.device_path import use_device_path
from tests.support import (
    demo_pairs,
    log_softmax,
    make_config,
    make_model_directory,
    run_command,
    train_subwords,
    wide_model,
    write_lines,
)
from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.data.vocabulary import seeded
from transformer_mt.decoding import line_reader
from transformer_mt.decoding.engine import Hypothesis, Search, Sentence, default_at_once
from transformer_mt.decoding.line_translator import LineTranslator
from transformer_mt.decoding.paddle_engine import PaddleEngine
from transformer_mt.decoding.search import search
from transformer_mt.export import registry
from transformer_mt.kernels.scores import LogProbs
from transformer_mt.serving.batching import Limits, Ticket, Waiting
from transformer_mt.serving.models import serving
from transformer_mt.translator import Translator, translator_of
from transformer_mt.utils.errors import UsageError

PAIRS = demo_pairs(300)
LINES = [source for source, _ in PAIRS[:30]]
# Sums of float32 log-probabilities, as in test_paddle_engine.
TOLERANCE = 1e-4
SETTINGS = DecodingConfig(
    beam_size=3, segmentations=3, segmentation_rate=0.3, max_length_ratio=0.5, max_length_extra=3
)


@pytest.fixture(scope="module")
def subwords():
    return train_subwords(PAIRS, 250)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return make_config(tmp_path_factory.mktemp("segmentations"))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("directory")
    config = make_config(folder, subword={"vocab_size": 250, "sampling": 0.2})
    directory = make_model_directory(folder / "model", PAIRS, config)
    run_command("export", directory.path, format="paddle")
    return directory.path


class Recorder:
    """An engine that remembers its sentences, and finds nothing."""

    def __init__(self):
        self.sentences, self.sizes = [], []

    def search(self, sentences, settings):
        self.sentences += sentences
        self.sizes.append(len(sentences))
        return [[Hypothesis([], -1.0, -1.0)] for _ in sentences]


@pytest.fixture
def read_by(config, subwords):
    """A function that returns the engine that was asked to translate some lines."""

    def read_by(lines, max_length=200, **changes):
        engine = Recorder()
        data = config.data.model_copy(update={"max_length": max_length})
        settings = SETTINGS.model_copy(update=changes)
        changed = config.model_copy(update={"data": data, "decoding": settings})
        LineTranslator(engine, subwords, changed).translate(lines)
        return engine

    return read_by


# ---- The mean of the probabilities, against brute force ----


class BruteForce:
    """Implements `search.Stepper`. It runs the whole model anew for each hypothesis and each
    segmentation of its source, without padding, and averages in float64."""

    def __init__(self, models, subwords, sentences):
        self.models, self.subwords, self.sentences = models, subwords, sentences
        self.outputs = None

    def step(self, ids, parents):
        if self.outputs is None:
            self.outputs = [[[i] for i in row] for row in ids.tolist()]
        else:
            self.outputs = [
                [[*own[parent], i] for i, parent in zip(row, back, strict=True)]
                for own, row, back in zip(self.outputs, ids.tolist(), parents, strict=True)
            ]
        means = [
            [self.mean(sentence, output) for output in own]
            for sentence, own in zip(self.sentences, self.outputs, strict=True)
        ]
        return LogProbs(np.array(means, np.float32), self.subwords.target.special)

    def mean(self, sentence, output):
        """log(mean(p)) of what may follow an output."""
        log_probs = [
            self.log_probs(model, source, output)
            for source in (sentence.source, *sentence.others)
            for model in self.models
        ]
        return np.log(np.mean(np.exp(log_probs), axis=0))

    def log_probs(self, model, source, output):
        ids = paddle.to_tensor([[*source, self.subwords.source.eos]])
        with paddle.no_grad():
            logits = model(ids, paddle.to_tensor([output]))
        return log_softmax(logits.numpy()[0, -1])

    def select(self, sentences):
        self.outputs = [self.outputs[i] for i in sentences]
        self.sentences = [self.sentences[i] for i in sentences]


@pytest.fixture(scope="module")
def sentences(subwords):
    vocabulary = subwords.source

    def sample(text):
        return seeded((3,), lambda: [vocabulary.sample(text, 0.4) for _ in range(2)])

    return [
        Sentence(vocabulary.encode(line), number=number, others=sample(line))
        for number, line in enumerate(sorted(LINES, key=len)[:8])
    ]


@pytest.mark.parametrize(
    ("where", "changes", "models", "sizes"),
    [
        ("host", {}, 1, {}),
        ("host", {"sampling": True, "n_best": 2}, 1, {}),
        ("host", {}, 2, {"copying": True}),
        ("device", {"beam_size": 1}, 1, {}),
        ("device", {"n_best": 3, "length_penalty_kind": "average"}, 1, {}),
        ("device", {}, 2, {}),
    ],
)
def test_the_mean_of_the_probabilities(
    tmp_path, subwords, sentences, monkeypatch, where, changes, models, sizes
):
    config = make_config(tmp_path, model=sizes)
    networks = [wide_model(config, subwords, seed) for seed in range(models)]
    for network in networks:
        network.eval()
    settings = SETTINGS.model_copy(update=changes)
    prefixed = [*sentences, Sentence(sentences[0].source, [9, 12], 9, sentences[0].others)]
    expected = search(
        lambda some: BruteForce(networks, subwords, some), prefixed, settings, subwords.target
    )
    if where == "device":
        use_device_path(monkeypatch)
    found = PaddleEngine(networks, subwords).search(prefixed, settings)
    different = 0
    for ours, theirs in zip(found, expected, strict=True):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert one.score == pytest.approx(other.score, rel=1e-4, abs=TOLERANCE)
            different += one.ids != other.ids
    assert different <= 1  # a tie within float32
    assert found[-1][0].ids[:2] == [9, 12]


# ---- Which segmentations ----


def test_the_first_is_the_best_and_the_others_are_sampled(read_by, subwords):
    read = read_by(LINES).sentences
    assert len(read) == len(LINES)
    vocabulary = subwords.source
    for sentence in read:
        line = vocabulary.decode(sentence.source)
        assert sentence.source == vocabulary.encode(line) and len(sentence.others) == 2
        assert {vocabulary.decode(ids) for ids in sentence.others} == {line}
    assert sum(s.others[0] != s.source for s in read) > len(LINES) // 2
    assert sum(s.others[0] != s.others[1] for s in read) > len(LINES) // 2


def test_they_depend_on_the_seed_the_rate_and_the_text_only(read_by):
    def by_line(lines, **changes):
        read = read_by(lines, **changes).sentences
        return {tuple(s.source): s.others for s in read}

    expected = by_line(LINES)
    assert by_line(LINES[::-1]) == expected
    assert by_line(["Something else.", *LINES, *LINES]).items() >= expected.items()
    assert by_line(LINES, batch_tokens=50) == expected
    assert by_line(LINES, seed=2) != expected
    assert by_line(LINES, segmentation_rate=0.9) != expected
    # More segmentations begin with the same ones.
    more = by_line(LINES, segmentations=5)
    assert {source: others[:2] for source, others in more.items()} == expected


def test_segmentations_that_are_too_long_are_left_out(read_by, subwords, monkeypatch):
    monkeypatch.setattr(line_reader, "MAX_AT_ONCE", 1)
    longest = max(len(subwords.source.encode(line)) for line in LINES)
    read = read_by(LINES, max_length=longest).sentences
    assert all(s.length <= longest + 1 for s in read)
    assert any(s.others == 2 * [s.source] for s in read)


def test_batches_count_all_segmentations(read_by):
    engine = read_by(LINES, batch_tokens=600)
    start = 0
    for size in engine.sizes:
        own = engine.sentences[start : start + size]
        start += size
        assert size == 1 or 3 * size * max(s.length for s in own) <= 600
    assert len(engine.sizes) > len(read_by(LINES, batch_tokens=600, segmentations=1).sizes)
    assert default_at_once(SETTINGS, 10) == 68  # 2,048 / (3 * 10)
    search = Search([Sentence([5, 6], others=[[5, 7, 8], [5, 6]])], SETTINGS)
    assert Waiting(Ticket(), search).length == 3 * 4


# ---- Whole translators ----


def test_neither_order_nor_batches_nor_processes_matter(directory):
    translator = Translator.load(directory, device="cpu", segmentations=3)
    expected = translator.translate(LINES)
    # The rate of training is the default.
    assert expected == translator.translate(LINES, segmentation_rate=0.2)
    assert expected != translator.translate(LINES, segmentation_rate=0.9)
    assert expected != translator.translate(LINES, segmentations=1)
    assert translator.translate(LINES[::-1]) == expected[::-1]
    assert translator.translate(LINES, batch_tokens=1) == expected
    spec = registry.with_decoding(
        registry.find(directory, threads=2, device="cpu"), {"segmentations": 3, "batch_tokens": 300}
    )
    with translator_of(spec) as in_processes:
        assert in_processes.translate(LINES) == expected


def test_attention_is_that_of_the_best_segmentation(config, subwords, sentences):
    engine = PaddleEngine([wide_model(config, subwords)], subwords)
    found = Search(sentences, SETTINGS, need_attention=True)(engine)
    for sentence, (hypothesis,) in zip(sentences, found, strict=True):
        (alone,) = engine.cross_attention([sentence.source], [hypothesis.ids])
        assert alone.shape == (len(hypothesis.ids), len(sentence.source))
        np.testing.assert_allclose(hypothesis.attention, alone, atol=1e-5)


def test_paddle_inference_finds_the_same(directory):
    ours = Translator.load(directory, device="cpu", n_best=2, segmentations=3)
    theirs = Translator.load(
        directory / "export" / "paddle_inference", device="cpu", n_best=2, segmentations=3
    )
    for one, other in zip(ours.translate_full(LINES), theirs.translate_full(LINES), strict=True):
        assert [o.score for o in one.outputs] == pytest.approx(
            [o.score for o in other.outputs], rel=1e-4, abs=TOLERANCE
        )


def test_ctranslate2_reads_one_if_the_config_has_several(tmp_path, capsys):
    """`translate` and `serve` say so once, and translate as the model does with one."""
    pytest.importorskip("ctranslate2")
    decoding = {"segmentations": 3, "stop_loops": False}
    sections = {"subword": {"vocab_size": 250, "sampling": 0.2}, "decoding": decoding}
    path = make_model_directory(tmp_path / "model", PAIRS, make_config(tmp_path, **sections)).path
    run_command("export", path, format="ctranslate2")
    capsys.readouterr()
    found = Translator.load(path, engine="ctranslate2").translate(LINES)
    message = "segmentations: 3: CTranslate2 can't average"
    assert capsys.readouterr().err.count(message) == 1
    assert found == Translator.load(path, device="cpu", segmentations=1).translate(LINES)
    with serving([str(path / "export" / "ctranslate2")], Limits()) as models:
        (model,) = models.values()
        assert [one.text for one in model.translate(LINES[:3], Ticket())] == found[:3]
    assert capsys.readouterr().err.count(message) == 1
    with pytest.raises(UsageError, match="--segmentations: 3: CTranslate2 can't average"):
        run_command("translate", path, engine="ctranslate2", segmentations=3)


def test_a_model_that_was_trained_without_sampling(tmp_path):
    config = make_config(tmp_path, subword={"vocab_size": 250})
    path = make_model_directory(tmp_path / "model", PAIRS, config).path
    with pytest.raises(UsageError, match=r"not trained with subword\.sampling"):
        Translator.load(path, device="cpu", segmentations=3)
    translator = Translator.load(path, device="cpu", segmentations=3, segmentation_rate=0.2)
    assert len(translator.translate(LINES[:3])) == 3
    with pytest.raises(UsageError, match=r"not trained with subword\.sampling"):
        translator.translate(LINES[:3], segmentation_rate=None)
    with pytest.raises(UsageError, match=r"--segmentations: 3: .*give --segmentation-rate"):
        run_command("translate", path, write_lines(tmp_path / "in", LINES), segmentations=3)
    config = make_config(tmp_path, subword={"type": "word", "vocab_size": 250})
    path = make_model_directory(tmp_path / "words", PAIRS, config).path
    with pytest.raises(UsageError, match=r"needs subword\.type: bpe or unigram"):
        Translator.load(path, device="cpu", segmentations=2, segmentation_rate=0.1)

"""Mask-Predict against a plain one, sentence by sentence and id by id; then with real models."""

import numpy as np
import paddle
import pytest

from tests.device_path import counted_host_reads, use_device_path
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
from transformer_mt.decoding import mask_predict
from transformer_mt.decoding.engine import Sentence, length_limits, length_penalty
from transformer_mt.decoding.mask_predict import MaskPredictEngine, Predictor, best_lengths
from transformer_mt.decoding.paddle_engine import engine_of
from transformer_mt.translator import Translator
from transformer_mt.utils.errors import UsageError

PAIRS = demo_pairs(300)
KINDS = ["length", "end"]


class Ids:
    """A vocabulary of eight ids."""

    size, pad, unk, bos, eos = 8, 0, 1, 2, 3


class TableModel:
    """Probabilities that depend on the sentence, the place, and all ids that can be seen there."""

    def __init__(self, kind, sentences, seed=5):
        random = np.random.default_rng(seed)
        self.places = random.standard_normal((sentences, 40, Ids.size))
        # By how far away it is.
        self.seen = 0.3 * random.standard_normal((Ids.size, 81, Ids.size))
        self.lengths = log_softmax(random.standard_normal((sentences, 12)))
        self.kind = kind
        self.reads = []

    def log_probs(self, sentence, ids, place):
        """Of every id at one place of one target without padding: float64 (vocabulary,)."""
        logits = self.places[sentence, place].copy()
        for other, seen in enumerate(ids):
            logits += self.seen[seen, 40 + other - place]
        return log_softmax(logits)

    # ---- As mask_predict.Predictor ----

    def length_log_probs(self):
        return self.lengths if self.kind == "length" else None

    def best(self, sentences, ids, masked, may_end):
        assert ids.shape == masked.shape == may_end.shape and masked.any(axis=1).all()
        self.reads.append((sentences.copy(), ids.copy()))
        found, values = [], []
        for row, place in np.argwhere(masked):
            own = [i for i in ids[row] if i != Ids.pad]
            log_probs = self.log_probs(sentences[row], own, place)
            log_probs[[Ids.pad, Ids.unk, Ids.bos]] = -np.inf
            if not may_end[row, place]:
                log_probs[Ids.eos] = -np.inf
            found.append(log_probs.argmax())
            values.append(log_probs.max())
        return np.array(found), np.array(values)


def plain_fill(model, sentence, length, iterations, first_end):
    """Section 3.1 of the paper, for one target: its ids and their log-probabilities."""
    ids, values = [Ids.bos] * length, [0.0] * length
    for t in range(iterations):
        count = int(length * ((iterations - t) / iterations) + 1e-9)
        order = sorted(range(length), key=lambda place: values[place])
        masked = sorted(order[:count]) if t else list(range(length))
        visible = [Ids.bos if place in masked else ids[place] for place in range(length)]
        for place in masked:
            log_probs = model.log_probs(sentence, visible, place)
            allowed = [i for i in range(Ids.size) if i not in (Ids.pad, Ids.unk, Ids.bos)]
            if place < first_end:
                allowed.remove(Ids.eos)
            ids[place] = max(allowed, key=lambda i: log_probs[i])
            values[place] = log_probs[ids[place]]
    return ids, values


def settings_with(**changes):
    return DecodingConfig(**{"max_length_ratio": 1.5, "max_length_extra": 2, **changes})


def some_sentences(count, random):
    return [Sentence(random.integers(4, 8, random.integers(0, 8)).tolist()) for _ in range(count)]


@pytest.mark.parametrize("iterations", [1, 4, 10])
@pytest.mark.parametrize("kind", KINDS)
def test_against_a_plain_one(kind, iterations):
    sentences = some_sentences(20, np.random.default_rng(iterations))
    model = TableModel(kind, len(sentences))
    settings = settings_with(iterations=iterations, min_length_ratio=0.4, length_candidates=3)
    found = mask_predict.search(model, sentences, settings, Ids)
    repeated = 0
    for number, (sentence, [hypothesis]) in enumerate(zip(sentences, found, strict=True)):
        shortest, longest = length_limits(len(sentence.source), settings)
        if kind == "end":
            ids, values = plain_fill(model, number, longest, iterations, shortest)
            cut = ids.index(Ids.eos) if Ids.eos in ids else longest
            expected, log_prob = ids[:cut], sum(values[: cut + 1])
            repeated += cut < longest
        else:
            lengths = [n for n in range(1, 13) if shortest <= n <= longest]
            lengths.sort(key=lambda n: -model.lengths[number, n - 1])
            filled = [plain_fill(model, number, n, iterations, n) for n in lengths[:3]]
            # The words' log-probabilities and that of there being so many, for each word.
            expected, values = max(
                filled,
                key=lambda both: (
                    (sum(both[1]) + model.lengths[number, len(both[1]) - 1]) / len(both[1])
                ),
            )
            log_prob = sum(values)
            repeated += expected != filled[0][0]
        assert hypothesis.ids == expected
        assert hypothesis.log_prob == pytest.approx(log_prob, abs=1e-9)
        penalty = length_penalty(len(expected) + 1, settings)
        assert hypothesis.score == pytest.approx(log_prob / penalty, abs=1e-9)
    if iterations == 1:
        assert all(set(ids.ravel()) == {Ids.bos, Ids.pad} for _, ids in model.reads)
    assert repeated > 3  # outputs that were cut, or lengths that were not the most probable


@pytest.mark.parametrize(
    ("shortest", "longest", "count", "expected"),
    [
        (0, 9, 1, [3]),
        (0, 9, 3, [3, 5, 1]),
        (0, 9, 9, [3, 5, 1, 2, 4]),  # no more than there are
        (4, 9, 2, [5, 4]),
        (0, 2, 2, [1, 2]),
        (8, 9, 3, [5]),  # beyond what the model knows
        (0, 0, 3, [0]),  # no word is allowed
    ],
)
def test_which_lengths_are_tried(shortest, longest, count, expected):
    log_probs = np.log([0.2, 0.1, 0.4, 0.05, 0.25])
    assert best_lengths(log_probs, shortest, longest, count).tolist() == expected


@pytest.mark.parametrize("kind", KINDS)
def test_where_no_word_is_allowed(kind):
    settings = settings_with(max_length_ratio=0.1, max_length_extra=0)
    found = mask_predict.search(TableModel(kind, 2), [Sentence([4]), Sentence([])], settings, Ids)
    assert [(own[0].ids, own[0].log_prob) for own in found] == [([], 0.0), ([], 0.0)]


# ---- With real models ----


@pytest.fixture(scope="module")
def subwords():
    return train_subwords(PAIRS, 400)


def engine_of_kind(kind, folder, subwords):
    """The engine of a model that was never trained, but is as sure as trained ones are."""
    model = wide_model(make_config(folder, model={"non_autoregressive": kind}), subwords)
    if kind == "length":  # else one length wins, for all sources
        model.length_embedding.weight.set_value(0.2 * model.length_embedding.weight)
    return MaskPredictEngine(model, subwords)


@pytest.fixture(scope="module")
def engines(tmp_path_factory, subwords):
    return {kind: engine_of_kind(kind, tmp_path_factory.mktemp(kind), subwords) for kind in KINDS}


@pytest.fixture(scope="module")
def sentences(subwords):
    return [Sentence(subwords.source.encode(source)) for source, _ in PAIRS[:24]]


SETTINGS = settings_with(iterations=3)


@pytest.mark.parametrize("kind", KINDS)
def test_the_batch_does_not_matter(engines, sentences, kind):
    together = engines[kind].search(sentences, SETTINGS)
    order = np.random.default_rng(3).permutation(len(sentences))
    different = 0
    for size in (1, 9):
        for part in np.split(order, range(size, len(order), size)):
            found = engines[kind].search([sentences[i] for i in part], SETTINGS)
            for i, [hypothesis] in zip(part, found, strict=True):
                # A rounding may turn a tie, of two ids or of two places to mask.
                different += hypothesis.ids != together[i][0].ids
    assert different <= 2
    assert len({tuple(own[0].ids) for own in together}) > 15  # they are told apart


@pytest.mark.parametrize("kind", KINDS)
def test_an_iteration_on_a_device_reads_one_tensor(engines, sentences, monkeypatch, kind):
    """And finds what the host finds. The logits of a few positions are computed at a time."""
    on_cpu = engines[kind].search(sentences, SETTINGS)
    monkeypatch.setattr(mask_predict, "POSITIONS", 7)
    monkeypatch.setattr("transformer_mt.kernels.scores.is_float32_on_cpu", lambda x: False)
    use_device_path(monkeypatch)
    with counted_host_reads() as reads:
        on_device = engines[kind].search(sentences, SETTINGS)
    # The probabilities of the lengths are read once more.
    assert dict(reads) == {"numpy": SETTINGS.iterations + (kind == "length")}
    different = 0
    for [ours], [theirs] in zip(on_cpu, on_device, strict=True):
        different += ours.ids != theirs.ids
        if ours.ids == theirs.ids:
            assert ours.log_prob == pytest.approx(theirs.log_prob, rel=1e-4, abs=1e-4)
    assert different <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_predictor_gives_the_best_of_the_softmax(engines, sentences, subwords, kind):
    model, target = engines[kind]._model, subwords.target
    rows = [[*sentence.source[:6], subwords.source.eos] for sentence in sentences[:3]]
    sources = paddle.to_tensor(rows)
    source = sources[1:2]
    rows = np.array([[target.bos, 9, target.bos, 20, target.bos]])
    may_end = np.array([[False, False, False, True, True]])
    with paddle.no_grad():
        predictor = Predictor(model, sources, target)
        masked = rows == target.bos
        ids, log_probs = predictor.best(np.array([1]), rows, masked, may_end)
        logits = model(source, paddle.to_tensor(rows)).numpy()[0]
    expected = log_softmax(logits)
    expected[:, [target.pad, target.unk, target.bos]] = -np.inf
    expected[~may_end[0], target.eos] = -np.inf
    assert ids.tolist() == expected.argmax(axis=1)[masked[0]].tolist()
    np.testing.assert_allclose(log_probs, expected.max(axis=1)[masked[0]], rtol=1e-5, atol=1e-5)
    if kind == "length":
        lengths = log_softmax(model.encode_with_lengths(source)[1].numpy()[0])
        np.testing.assert_allclose(predictor.length_log_probs()[1], lengths, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_never_put_out(tmp_path, sentences, subwords, kind):
    """Also where the model would like nothing better; and eos is what outputs are cut at."""
    engine = engine_of_kind(kind, tmp_path, subwords)
    model, target = engine._model, subwords.target
    special = [target.pad, target.unk, target.bos, target.eos]
    # The first feature of what the generator reads is large, and it is theirs alone.
    model.decoder.norm.bias.set_value(np.eye(1, 16, dtype=np.float32)[0] * 100)
    weight = model.generator.weight.numpy()
    weight[:, 0] = 0.0
    weight[special, 0] = 10.0
    model.generator.weight.set_value(weight)
    for [hypothesis] in engine.search(sentences[:20], SETTINGS):
        assert not set(special) & set(hypothesis.ids)
        assert bool(hypothesis.ids) == (kind == "length")


def test_what_it_cannot_do_is_refused(engines, subwords):
    engine = engines["length"]
    sampled, several = (
        SETTINGS.model_copy(update=changes) for changes in ({"sampling": True}, {"n_best": 2})
    )
    for refused, reason in (
        (lambda: engine.search([Sentence([5])], sampled), "decoding.sampling: True: .*non-auto"),
        (lambda: engine.search([Sentence([5])], several), "decoding.n_best: 2: .*non-auto"),
        (lambda: engine.search([Sentence([5], [5])], SETTINGS), "non-auto.*--prefix"),
        (lambda: engine.log_probs([[5]], [[6]]), "no probability to a whole translation"),
        (lambda: engine.cross_attention([[5]], [[6]]), "attends from masks"),
        (lambda: engine_of([engine._model] * 2, subwords), "--ensemble: a non-autoregressive"),
    ):
        with pytest.raises(UsageError, match=reason):
            refused()


# ---- Refused by the config alone ----


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """Model directories of a non-autoregressive and of a plain model, whose checkpoints are empty:
    who loads them is told that, and not what is asked for here."""
    folder = tmp_path_factory.mktemp("directories")
    found = []
    for name, kind in (("masks", "length"), ("plain", None)):
        config = make_config(folder, model={"non_autoregressive": kind})
        found.append(make_model_directory(folder / name, PAIRS, config).path)
        for path in found[-1].glob("checkpoints/*/*"):
            path.unlink()
    write_lines(folder / "text", ["A dog."])
    return found


@pytest.mark.parametrize(("command", "flags", "reason"), [
    ("translate", {"n_best": 2}, "n.best: 2: .*non-autoregressive"),
    ("translate", {"sampling": True}, "sampling: True: .*non-autoregressive"),
    ("translate", {"prefix": "text"}, "non-autoregressive.*--prefix"),
    ("translate", {"alignment": True}, "non-autoregressive.*--alignment"),
    ("score", {"source": "text", "target": "text"}, "gives no probability"),
    ("align", {"source": "text", "target": "text"}, "attends from masks"),
    ("attention", {"text": "A dog."}, "from masks"),
    ("attention", {"text": "A", "target": "B"}, "from masks"),
])  # fmt: skip
def test_it_is_refused_before_the_model_is_loaded(directories, tmp_path, command, flags, reason):
    text = directories[0].parent / "text"
    flags = {name: text if value == "text" else value for name, value in flags.items()}
    if command == "translate":
        flags |= {"input": text, "format": "jsonl"}
    with pytest.raises(UsageError, match=reason):
        run_command(command, directories[0], output=tmp_path / "out", device="cpu", **flags)
    assert not list(tmp_path.iterdir())


def test_an_ensemble_is_refused_before_its_models_are_loaded(directories):
    for first, second in (directories, directories[::-1], directories[:1] * 2):
        with pytest.raises(UsageError, match="--ensemble: a non-autoregressive model can't"):
            run_command("translate", first, ensemble=second, device="cpu")
        with pytest.raises(UsageError, match="--ensemble: a non-autoregressive model can't"):
            Translator.load(first, ensemble=(str(second),), device="cpu")

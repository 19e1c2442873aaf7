"""What a non-autoregressive model is trained on: masks, lengths, losses; and that it learns."""

import numpy as np
import paddle
import pytest

from tests.small_trainers import DEV, TRAIN, batch_of, trainer_of
from tests.support import (
    LEARNER,
    LEARNING,
    learn,
    log_softmax,
    make_config,
    wide_model,
)
from transformer_mt.data.batches import collate
from transformer_mt.data.subword import Subwords
from transformer_mt.data.vocabulary import WordVocabulary
from transformer_mt.decoding.engine import length_limits
from transformer_mt.decoding.line_translator import LineTranslator
from transformer_mt.training import objective as objectives
from transformer_mt.training.objective import random_masks
from transformer_mt.training.update import seed_generators
from transformer_mt.weights import take_weights

KINDS = ["length", "end"]


@pytest.fixture
def make_trainer(tmp_path, subwords):
    def make(kind, **training):
        sections = {"model": {"non_autoregressive": kind}, "training": training}
        return trainer_of(tmp_path, subwords=subwords, dev=DEV, **sections)

    return make


# ---- Masks ----


def test_all_numbers_of_masks_are_equally_probable():
    """Of a row of 4: each number a quarter, and of each number all sets alike. 40,000 draws: six
    deviations of a share p are 6 * sqrt(p / 40,000)."""
    seed_generators(1)
    lengths = np.arange(9)
    masks = random_masks(lengths < lengths[:, np.newaxis])
    assert masks.any(axis=1).tolist() == [False] + [True] * 8  # whatever the length
    rows = 40_000
    masks = random_masks(np.tile([True] * 4 + [False] * 2, (rows, 1)))
    assert not masks[:, 4:].any()
    drawn, counts = np.unique(masks[:, :4], axis=0, return_counts=True)
    assert len(drawn) == 15  # all but none at all
    for mask, count in zip(drawn, counts, strict=True):
        sets = {1: 4, 2: 6, 3: 4, 4: 1}[int(mask.sum())]
        share = 1 / 4 / sets
        assert abs(count / rows - share) < 6 * np.sqrt(share / rows)


# ---- What is labels ----


def some_batch(trainer, count=6):
    return collate(trainer.data.train, np.arange(count), trainer.data.subwords)


@pytest.mark.parametrize("kind", KINDS)
def test_the_labels_hold_the_words(make_trainer, subwords, kind):
    """And with `end`, ends up to the greatest length."""
    trainer, target = make_trainer(kind), subwords.target
    labels = trainer.updater.objective.labels(some_batch(trainer, 40))
    longer = 0
    for own, (source, text) in zip(labels.tolist(), TRAIN, strict=False):
        ids = target.encode(text)
        length = len(ids)
        if kind == "end":
            limit = length_limits(len(subwords.source.encode(source)), trainer.config.decoding)[1]
            length = max(limit, len(ids) + 1)
            longer += length > limit
        ends = [target.eos] * (length - len(ids))
        assert own == ids + ends + [target.pad] * (len(own) - length)
    assert kind == "length" or 0 < longer < 40  # both cases are there


# ---- Losses ----


@pytest.mark.parametrize("step", [1, None])
@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_those_of_masked_tokens(make_trainer, subwords, monkeypatch, kind, step):
    """In float64, sentence by sentence without padding, with every second token masked; on the dev
    set, where there is no step, with all: -log p(length) - sum of log p(word), of the paper's
    section 2.2. However an update is cut into batches, each counts as much."""
    trainer = make_trainer(kind, label_smoothing=0.2)
    objective, target = trainer.updater.objective, subwords.target
    model = objective.model = wide_model(trainer.config, subwords)
    if kind == "length":
        model.length_embedding.weight.set_value(0.2 * model.length_embedding.weight)
    batch = some_batch(trainer)

    def every_second(is_real):
        return is_real & (np.arange(is_real.shape[1]) % 2 == 0)

    monkeypatch.setattr(objectives, "random_masks", every_second)
    loss, nll = objective.losses(batch, step)
    sums = np.zeros(3)  # smoothed, plain, of the length
    stride = 2 if step else 1
    for source, row in zip(batch.source, objective.labels(batch), strict=True):
        source, labels = source[source != subwords.source.pad], row[row != target.pad]
        read = labels.copy()
        read[::stride] = target.bos
        source = paddle.to_tensor(source[np.newaxis])
        log_probs = log_softmax(model(source, paddle.to_tensor(read[np.newaxis])).numpy()[0])
        for place in range(0, len(labels), stride):
            own = -log_probs[place, labels[place]]
            sums[:2] += 0.8 * own - 0.2 * log_probs[place].mean(), own
        if kind == "length":
            lengths = log_softmax(model.encode_with_lengths(source)[1].numpy())[0]
            sums[2] -= lengths[len(labels) - 1]
    # Float32 sums of some hundred numbers. Masked tokens stand for about as many that are not.
    assert float(loss) == pytest.approx(stride * (sums[0] + sums[2]), rel=1e-5)
    assert float(nll) == pytest.approx(stride * (sums[1] + sums[2]), rel=1e-5)
    first, rest = (
        objective.losses(collate(trainer.data.train, rows, subwords), step)
        for rows in (np.arange(1), np.arange(1, 6))
    )
    for whole, *parts in zip((loss, nll), first, rest, strict=True):
        assert float(whole) == pytest.approx(sum(map(float, parts)), rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_empty_targets_may_be_alone_in_a_batch(make_trainer, subwords, kind):
    """As they are in a dev set, whose pairs are sorted by length. Their length is then taken for 1,
    the least there is."""
    objective = make_trainer(kind).updater.objective
    objective.model.eval()
    alone, among = (batch_of(subwords, [[5, 6]] * len(t), t) for t in ([[], []], [[], [], [7]]))
    loss, nll = (float(value) for value in objective.losses(alone))
    assert 0 < nll < 100 and 0 < loss < 100
    if kind == "length":
        logits = objective.model.encode_with_lengths(paddle.to_tensor(alone.source))[1].numpy()
        assert nll == pytest.approx(-log_softmax(logits)[:, 0].sum(), rel=1e-5)
    assert float(objective.losses(among)[1]) > nll


@pytest.mark.parametrize("step", [1, None])
@pytest.mark.parametrize("kind", KINDS)
def test_the_decoder_reads_nothing_of_what_is_masked(make_trainer, subwords, kind, step):
    """Training masks some, measuring the dev set masks all, without drawing anything."""
    trainer = make_trainer(kind)
    objective = trainer.updater.objective
    labels = objective.labels(some_batch(trainer))
    reads = []
    logits = objective.model.logits

    def watched(target, memory, source, positions):
        reads.append((target.numpy(), positions.numpy()))
        return logits(target, memory, source, positions)

    objective.model.logits = watched
    seed_generators(5)
    objective.losses(some_batch(trainer), step)
    after = np.random.random_sample()
    seed_generators(5)
    assert (after == np.random.random_sample()) == (step is None)
    ((target, positions),) = reads
    masked = np.zeros(labels.size, bool)
    masked[positions] = True
    masked = masked.reshape(labels.shape)
    is_real = labels != subwords.target.pad
    assert not masked[~is_real].any()
    assert masked[is_real].all() == (step is None)
    np.testing.assert_array_equal(target[masked], subwords.target.bos)
    np.testing.assert_array_equal(target[~masked], labels[~masked])


# ---- A run ----


def test_it_begins_with_the_weights_of_a_teacher(make_trainer, run_in):
    teacher = make_trainer(None, max_steps=1)
    directory, _ = run_in(teacher)
    student = make_trainer("length", init_from=str(directory.path), seed=9)
    left = take_weights(directory.checkpoint("last"), student.model)
    assert left == ["length_embedding.weight is missing"]
    own = dict(student.model.named_parameters())
    for name, weight in teacher.model.named_parameters():
        np.testing.assert_array_equal(own[name], weight)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_learning(tmp_path, kind):
    """To copy three to five digits, all at once: how many, and which where."""
    random = np.random.default_rng(1)
    digits = [" ".join(map(str, random.integers(0, 10, n))) for n in [3, 4, 5] * 800]
    pairs = [(row, row) for row in dict.fromkeys(digits)]
    vocabulary = WordVocabulary([str(digit) for digit in range(10)])
    config = make_config(
        tmp_path,
        model={**LEARNER, "non_autoregressive": kind},
        training={**LEARNING, "max_steps": 300, "batch_tokens": 300, "device_tokens": 300},
        decoding={"iterations": 1, "length_candidates": 1},
    )
    subwords = Subwords(vocabulary, vocabulary)
    engine = learn(config, pairs[100:], subwords)
    translator = LineTranslator(engine, subwords, config)
    found = translator.translate(source for source, _ in pairs[:100])
    wrong = [pair for pair, output in zip(pairs, found, strict=False) if output != pair[1]]
    assert not wrong, f"{len(wrong)} of 100: {wrong[:5]}"

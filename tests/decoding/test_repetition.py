"""Guards against repetition, on toy models: tables of random logits for every prefix."""

import numpy as np
import pytest
from test_search import EOS, NEVER, Rows, Table, best_of

from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.decoding import guards
from transformer_mt.decoding.engine import Sentence
from transformer_mt.decoding.search import Task, beam_search, sample, search
from transformer_mt.kernels.scores import CandidateLogProbs, LogProbs, next_log_probs


def test_what_is_a_loop():
    def loop(*ids):
        return bool(guards.in_loop(np.array([ids]))[0])

    assert loop(9, *[5] * 16)
    assert not loop(9, *[5] * 15)
    assert loop(1, 2, *[5, 6, 7] * 6)
    assert not loop(*[5, 6, 7] * 5)
    assert loop(*[1, 2, 3, 4, 5, 6, 7, 8] * 4)
    assert not loop(*[1, 2, 3, 4, 5, 6, 7, 8] * 3)
    assert not loop(*[5] * 16, 9)
    assert not loop(*range(100))


def test_what_a_source_repeats():
    assert guards.has_loop([1, 5, 5, 5, 2])
    assert not guards.has_loop([1, 5, 5, 2, 5])
    assert guards.has_loop([1, *[5, 6] * 3])
    assert not guards.has_loop([*[5, 6] * 2, 7, 5, 6])
    assert not guards.has_loop([])


class Looping(Table):
    """A model that says 3 4 3 4 ... and hardly ever ends, but is not quite sure."""

    def logits(self, sentence, prefix):
        logits = super().logits(sentence, prefix)
        logits[3 + len(prefix) % 2] += 12.0
        logits[EOS] = -3.0
        return logits


def task_of(count, longest, **settings):
    settings = DecodingConfig(**settings)
    longest = np.full(count, longest)
    return Task(np.zeros(count, np.int64), longest, [[]] * count, 1, EOS, settings)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_loops_end(beam_size):
    table = Looping(8)
    lengths = {}
    for stop_loops in (True, False):
        task = task_of(5, 60, beam_size=beam_size, stop_loops=stop_loops)
        found = best_of(beam_search(Rows(table, range(5)), task))
        lengths[stop_loops] = [len(hypothesis.ids) for hypothesis in found]
    assert max(lengths[True]) < 40
    assert min(lengths[False]) > 40


def test_sampled_loops_end():
    task = task_of(3, 60, sampling=True, n_best=2, temperature=0.1)
    uniform = np.random.default_rng(5).random((3, 2, 61))
    found = sample(Rows(Looping(8), range(3)), task, uniform)
    assert all(len(hypothesis.ids) < 40 for own in found for hypothesis in own)


class Words:
    """The vocabulary of a table."""

    pad, bos, eos = NEVER


def test_what_the_source_repeats_may_be_repeated():
    def length(source):
        settings = DecodingConfig(beam_size=2, max_length_ratio=1.0, max_length_extra=40)
        rows = Rows(Looping(8), [0])
        (own,) = search(lambda _: rows, [Sentence(source)], settings, Words)
        return len(own[0].ids)

    assert length([5, 6, 5, 6, 5, 6, 5, 6]) > 40
    assert length([5, 6, 7, 5, 8, 6, 9, 5]) < 40


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_sequence_comes_twice(beam_size, size):
    table = Table(6, end=-6.0)
    task = task_of(10, 12, beam_size=beam_size, no_repeat_ngram=size, n_best=beam_size)
    for sentence, own in enumerate(beam_search(Rows(table, range(10)), task)):
        for hypothesis in own:
            ids = hypothesis.ids
            grams = [tuple(ids[at : at + size]) for at in range(len(ids) - size + 1)]
            assert len(grams) == len(set(grams))
            log_prob = table.log_prob(sentence, ids)  # that of the model
            assert hypothesis.log_prob == pytest.approx(log_prob, abs=1e-5)


def greedy_with_penalty(table, sentence, longest, penalty):
    ids = []
    while len(ids) < longest:
        log_probs = table.log_probs(sentence, ids).astype(np.float64)
        log_probs[[0, 1]] = -np.inf
        for i in set(ids):
            log_probs[i] *= penalty
        if log_probs.argmax() == EOS:
            break
        ids.append(int(log_probs.argmax()))
    return ids


def test_a_penalty_for_what_is_there_already():
    table = Table(12, end=-1.0)
    task = task_of(20, 10, beam_size=1, repetition_penalty=1.7)
    found = best_of(beam_search(Rows(table, range(20)), task))
    expected = [greedy_with_penalty(table, number, 10, 1.7) for number in range(20)]
    assert [hypothesis.ids for hypothesis in found] == expected
    assert expected != [greedy_with_penalty(table, number, 10, 1.0) for number in range(20)]


@pytest.mark.parametrize("factor", [2.5, np.inf])
def test_scaled_log_probs(factor):
    """On every kind of log-probabilities: the best ones, and those that are asked for."""
    import paddle

    from transformer_mt.kernels.scores import DeviceLogProbs

    random = np.random.default_rng(3)
    logits = random.standard_normal((3, 2, 70)).astype(np.float32)
    rows = np.array([[0, 0, 5], [0, 1, 5], [2, 1, 69], [1, 0, int(logits[1, 0].argmax())]])
    expected = logits.astype(np.float64)
    expected -= np.log(np.exp(expected).sum(axis=2, keepdims=True))
    for sentence, hypothesis, i in rows:
        scaled = expected[sentence, hypothesis, i] * factor
        expected[sentence, hypothesis, i] = scaled
    expected[:, :, list(NEVER)] = -np.inf
    everything = np.arange(70)
    kinds = [
        LogProbs(logits.copy(), NEVER),
        CandidateLogProbs(logits.copy(), NEVER, everything),
        DeviceLogProbs(paddle.to_tensor(logits), NEVER),
        next_log_probs([logits.copy()], NEVER),
    ]
    for own in kinds:
        own.scale(*rows.T, factor)
        asked = np.full((3, 2), 5)
        totals, parents, ids, of_asked = own.best(np.zeros((3, 2)), 4, asked)
        order = np.argsort(-expected.reshape(3, -1), axis=1)[:, :4]
        np.testing.assert_array_equal(parents * 70 + ids, order)
        best = np.take_along_axis(expected.reshape(3, -1), order, axis=1)
        np.testing.assert_allclose(totals, best, atol=1e-5)
        np.testing.assert_allclose(of_asked, expected[:, :, 5], atol=1e-5)


@pytest.mark.parametrize("kind", ["host", "candidates", "device"])
def test_the_best_of_each_hypothesis(kind):
    import paddle

    from transformer_mt.kernels.scores import DeviceLogProbs

    random = np.random.default_rng(4)
    logits = random.standard_normal((4, 3, 50)).astype(np.float32)
    expected = logits.astype(np.float64)
    expected -= np.log(np.exp(expected).sum(axis=2, keepdims=True))
    own = {
        "host": lambda: LogProbs(logits, NEVER),
        "candidates": lambda: CandidateLogProbs(logits, NEVER, np.arange(50)),
        "device": lambda: DeviceLogProbs(paddle.to_tensor(logits), NEVER),
    }[kind]()
    asked = random.integers(3, 50, (2, 3, 2))
    log_probs, ids, of_asked = own.of_each(np.array([1, 3]), 5, asked)
    free = expected[[1, 3]].copy()
    free[:, :, list(NEVER)] = -np.inf
    np.testing.assert_array_equal(ids, np.argsort(-free, axis=2)[:, :, :5])
    np.testing.assert_allclose(log_probs, -np.sort(-free, axis=2)[:, :, :5], atol=1e-5)
    its = np.take_along_axis(expected[[1, 3]], asked, axis=2)
    np.testing.assert_allclose(of_asked, its, atol=1e-5)

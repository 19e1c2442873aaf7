"""Beam search and sampling against brute force, on toy models: tables of random logits for every
prefix.

Log-probabilities are sums of at most 8 terms of float32 logits of size 1 to 10: they agree with
float64 ones to 1e-5.
"""

import itertools
from collections import Counter

import numpy as np
import pytest

from tests.support import log_softmax
from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.decoding.engine import length_limits, length_penalty
from transformer_mt.decoding.search import Task, beam_search, sample
from transformer_mt.kernels.scores import LogProbs

PAD, BOS, EOS = 0, 1, 2
NEVER = (PAD, BOS, EOS)


class Table:
    """A model of nothing: its logits are random, but fixed, for every sentence and prefix.

    `end` is added to the logit of eos, so that outputs are of several lengths.
    """

    def __init__(self, vocabulary, scale=2.0, end=-2.0, seed=0):
        self.vocabulary, self.scale, self.end, self.seed = vocabulary, scale, end, seed

    def logits(self, sentence, prefix):
        random = np.random.default_rng((self.seed, sentence, len(prefix), *prefix))
        logits = self.scale * random.standard_normal(self.vocabulary)
        logits[EOS] += self.end
        return logits.astype("float32")

    def log_probs(self, sentence, prefix):
        return log_softmax(self.logits(sentence, prefix))

    def log_prob(self, sentence, ids):
        whole = (*ids, EOS)
        return sum(self.log_probs(sentence, whole[:n])[whole[n]] for n in range(len(whole)))

    def score(self, sentence, ids, alpha):
        return self.log_prob(sentence, ids) / gnmt(len(ids) + 1, alpha)


def gnmt(length, alpha):
    return ((5 + length) / 6) ** alpha


class Rows:
    """The stepper of some sentences of a table."""

    def __init__(self, table, sentences, never=NEVER):
        self.table = table
        self.never = never
        self.open = [(sentence, None) for sentence in sentences]  # sentence, its prefixes
        self.steps = 0

    def step(self, ids, parents):
        self.steps += 1
        assert ids.shape == parents.shape and len(ids) == len(self.open)
        grown = []
        for (sentence, prefixes), own_ids, own_parents in zip(self.open, ids, parents, strict=True):
            if prefixes is None:
                assert (own_ids == BOS).all()
                grown.append((sentence, [()] * len(own_ids)))
                continue
            pairs = zip(own_ids, own_parents, strict=True)
            grown.append((sentence, [(*prefixes[parent], int(i)) for i, parent in pairs]))
        self.open = grown
        logits = [[self.table.logits(sentence, p) for p in own] for sentence, own in self.open]
        return LogProbs(np.array(logits), self.never)

    def select(self, sentences):
        self.open = [self.open[i] for i in sentences]


def task(longest, *, alpha=1.0, shortest=0, prefixes=None, **settings):
    settings["length_penalty"] = alpha
    longest = np.array(longest, np.int64)
    return Task(
        shortest=np.broadcast_to(shortest, longest.shape),
        longest=longest,
        prefixes=prefixes or [[] for _ in longest],
        bos=BOS,
        eos=EOS,
        # More outputs than a config may ask for are drawn below.
        settings=DecodingConfig().model_copy(update=settings),
    )


def search(table, sentences, longest, beam_size=5, **options):
    return beam_search(Rows(table, sentences), task(longest, beam_size=beam_size, **options))


def best_of(found):
    return [own[0] for own in found]


def brute_force(table, sentence, longest, alpha, shortest=0, prefix=()):
    """All sequences that may be put out, the best first."""
    words = [i for i in range(table.vocabulary) if i not in NEVER]
    every = itertools.chain.from_iterable(
        itertools.product(words, repeat=length) for length in range(shortest, longest + 1)
    )
    fitting = (ids for ids in every if ids[: len(prefix)] == tuple(prefix))
    return sorted(fitting, key=lambda ids: -table.score(sentence, ids, alpha))


def simple_beam(table, sentence, longest, beam_size, alpha):
    """Beam search as one would write it for one sentence, that stops only at twice as many outputs
    as the beam has hypotheses: the outputs that have ended, the best first."""
    beam, ended = [(0.0, ())], []
    for length in range(longest + 1):
        grown = []
        for score, ids in beam:
            log_probs = table.log_probs(sentence, ids)
            for word in range(table.vocabulary):
                if word == EOS or (word not in NEVER and length < longest):
                    grown.append((score + log_probs[word], (*ids, word)))
        grown.sort(key=lambda item: -item[0])
        ended += [
            (score / gnmt(length + 1, alpha), ids[:-1])
            for score, ids in grown[:beam_size]
            if ids[-1] == EOS
        ]
        if len(ended) >= 2 * beam_size:
            break
        beam = [item for item in grown if item[1][-1] != EOS][:beam_size]
    return sorted(ended, reverse=True)


# ---- The best of all ----


@pytest.mark.parametrize(("vocabulary", "alpha"), [(4, 1.0), (5, 0.0), (5, 0.6), (5, 2.0)])
def test_a_wide_beam_finds_what_brute_force_finds(vocabulary, alpha):
    """Among n-best lists too."""
    table = Table(vocabulary)
    sentences = range(8)
    longest = [0, 1, 2, 3, 4, 4, 4, 4]
    # Wider than there are sequences: 1 + 2 + 4 + 8 + 16 of two words. None is ever pruned.
    found = search(table, sentences, longest, 40, alpha=alpha, n_best=6)
    for sentence, most, own in zip(sentences, longest, found, strict=True):
        expected = brute_force(table, sentence, most, alpha)[:6]
        assert [tuple(hypothesis.ids) for hypothesis in own] == expected
        for hypothesis in own:
            log_prob = table.log_prob(sentence, hypothesis.ids)
            assert hypothesis.log_prob == pytest.approx(log_prob, abs=1e-5)
            score = table.score(sentence, hypothesis.ids, alpha)
            assert hypothesis.score == pytest.approx(score, abs=1e-5)


def test_length_penalties():
    settings = DecodingConfig(length_penalty=0.6)
    assert length_penalty(1, settings) == 1
    settings = DecodingConfig(length_penalty=1.0)
    assert length_penalty(7, settings) == 2
    np.testing.assert_allclose(length_penalty(np.array([1, 7]), settings), [1, 2])
    settings = DecodingConfig(length_penalty=0.5, length_penalty_kind="average")
    np.testing.assert_allclose(length_penalty(np.array([1, 4, 9]), settings), [1, 2, 3])


def test_length_limits():
    settings = DecodingConfig(max_length_ratio=1.5, max_length_extra=2)
    assert length_limits(3, settings) == (0, 6)
    settings = DecodingConfig(
        min_length_ratio=0.5, min_length_extra=1, max_length_ratio=1.0, max_length_extra=0
    )
    assert length_limits(10, settings) == (6, 10)
    assert length_limits(1, settings) == (1, 1)  # a minimum is no more than the maximum
    settings = DecodingConfig(max_length_ratio=None, max_length_extra=3)  # the usual ratio
    assert length_limits(10, settings) == (0, 23)


# ---- Narrow beams ----


@pytest.mark.parametrize("beam_size", [2, 3, 5])
@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("n_best", [1, 3])
def test_stopping_early_changes_nothing(beam_size, alpha, n_best):
    """Stopping as soon as nothing better can come; also with sentences that are done early and
    leave."""
    table = Table(9, end=0.0)
    sentences = range(12)
    longest = [2 + sentence % 6 for sentence in sentences]
    n_best = min(n_best, beam_size)
    rows = Rows(table, sentences)
    found = beam_search(rows, task(longest, alpha=alpha, n_best=n_best, beam_size=beam_size))
    for sentence, most, own in zip(sentences, longest, found, strict=True):
        expected = simple_beam(table, sentence, most, beam_size, alpha)[:n_best]
        assert [tuple(hypothesis.ids) for hypothesis in own] == [ids for _, ids in expected]
        for hypothesis, (score, _) in zip(own, expected, strict=True):
            assert hypothesis.score == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize("beam_size", [2, 4])
def test_a_search_ends_with_twice_as_many_results_as_the_beam_is_wide(beam_size):
    """The penalty for length is so low that a better result could always follow."""
    table, longest = Table(9, end=1.0), 20
    for sentence in range(6):
        rows = Rows(table, [sentence])
        options = {"alpha": 3.0, "n_best": beam_size, "beam_size": beam_size}
        (found,) = beam_search(rows, task([longest], **options))
        expected = simple_beam(table, sentence, longest, beam_size, 3.0)[:beam_size]
        assert [tuple(hypothesis.ids) for hypothesis in found] == [ids for _, ids in expected]
        assert rows.steps < longest


def greedy(table, sentence, longest):
    ids = []
    while len(ids) < longest:
        log_probs = table.log_probs(sentence, ids)
        log_probs[[PAD, BOS]] = -np.inf
        if log_probs.argmax() == EOS:
            break
        ids.append(int(log_probs.argmax()))
    return ids


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_beam_of_one_takes_the_best_at_every_step(alpha):
    table = Table(30, end=1.5)
    found = search(table, range(20), [11] * 20, 1, alpha=alpha)
    for sentence, (hypothesis,) in enumerate(found):
        assert hypothesis.ids == greedy(table, sentence, 11)
        expected = table.score(sentence, hypothesis.ids, alpha)
        assert hypothesis.score == pytest.approx(expected, abs=1e-5)
    assert len({len(hypothesis.ids) for (hypothesis,) in found}) > 3  # long and short ones alike


@pytest.mark.parametrize("beam_size", [3, 4, 9, 1000])
def test_a_beam_wider_than_the_vocabulary(beam_size):
    table = Table(4)
    for sentence, hypothesis in enumerate(best_of(search(table, range(5), [2] * 5, beam_size))):
        score, ids = simple_beam(table, sentence, 2, beam_size, 1.0)[0]
        assert (hypothesis.ids, pytest.approx(score, abs=1e-5)) == (list(ids), hypothesis.score)


# ---- What may be put out ----


@pytest.mark.parametrize("shortest", [1, 3])
def test_a_shortest_length_is_one_more_condition(shortest):
    table = Table(5, end=2.0)
    found = best_of(search(table, range(8), [4] * 8, 40, shortest=shortest))
    for sentence, hypothesis in enumerate(found):
        assert tuple(hypothesis.ids) == brute_force(table, sentence, 4, 1.0, shortest)[0]
    free = best_of(search(table, range(8), [4] * 8, 40))
    assert any(len(hypothesis.ids) < shortest for hypothesis in free)


def test_a_prefix_is_one_more_condition():
    """Sentences with long, short and no prefixes in one batch; its log-probability counts."""
    table = Table(5)
    # One that is longer than the longest output is the output.
    assert best_of(search(table, [0], [2], 4, prefixes=[[3, 4, 3]]))[0].ids == [3, 4, 3]
    prefixes = [[], [3], [4, 4], [3, 4, 3, 4], [4]]
    found = search(table, range(5), [4] * 5, 40, prefixes=prefixes, n_best=2)
    for sentence, (prefix, own) in enumerate(zip(prefixes, found, strict=True)):
        expected = brute_force(table, sentence, 4, 1.0, prefix=prefix)[:2]
        assert [tuple(hypothesis.ids) for hypothesis in own] == expected
        for hypothesis in own:
            log_prob = table.log_prob(sentence, hypothesis.ids)
            assert hypothesis.log_prob == pytest.approx(log_prob, abs=1e-5)


# ---- Sentences side by side ----


class Broken(Table):
    """Sentence 1 gives what is not a number, from its second step on."""

    def logits(self, sentence, prefix):
        logits = super().logits(sentence, prefix)
        return logits * np.float32("nan") if sentence == 1 and prefix else logits


@pytest.mark.parametrize("beam_size", [1, 3])
def test_what_is_not_a_number_does_no_harm_to_the_others(beam_size):
    found = search(Broken(6), range(3), [5] * 3, beam_size)
    sound = search(Table(6), [0, 2], [5] * 2, beam_size)
    assert [found[0], found[2]] == sound
    assert found[1][0].ids == []
    assert search(Table(5), [], [], beam_size) == []


# ---- Sampling ----


def draw(table, sentences, longest, uniform, **settings):
    return sample(Rows(table, sentences), task(longest, **settings), uniform)


def uniform_numbers(count, n_best, steps, seed=5):
    return np.random.default_rng(seed).random((count, n_best, steps))


def test_outputs_are_drawn_as_often_as_the_model_says():
    """4,000 draws of at most two words out of two: a share's standard deviation is below 0.008."""
    table = Table(5, scale=1.0, end=0.5)
    uniform = uniform_numbers(1, 4000, 3)
    (own,) = draw(table, [0], [2], uniform, n_best=4000)
    counts = Counter(tuple(hypothesis.ids) for hypothesis in own)

    def probability(prefix, id):
        log_probs = table.log_probs(0, prefix)
        allowed = [3, 4, EOS]
        return np.exp(log_probs[id]) / np.exp(log_probs[allowed]).sum()

    for ids in brute_force(table, 0, 2, 1.0):
        expected = np.prod([probability(ids[:n], ids[n]) for n in range(len(ids))])
        if len(ids) < 2:
            expected *= probability(ids, EOS)
        assert counts[ids] / 4000 == pytest.approx(expected, abs=0.03)


def test_draws_do_not_depend_on_the_other_sentences():
    table = Table(12, end=0.0)
    uniform = uniform_numbers(10, 2, 9)
    together = draw(table, range(10), [8] * 10, uniform, n_best=2)
    for sentence in range(10):
        own = uniform[sentence : sentence + 1]
        assert draw(table, [sentence], [8], own, n_best=2) == together[sentence : sentence + 1]
    assert len({tuple(own[0].ids) for own in together}) > 5


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-4}])
def test_the_narrowest_draw_is_greedy_search(options):
    table = Table(9)
    found = best_of(draw(table, range(10), [6] * 10, uniform_numbers(10, 1, 7), **options))
    for sentence, hypothesis in enumerate(found):
        assert hypothesis.ids == greedy(table, sentence, 6)


def test_top_k_and_top_p_leave_the_rest_out():
    table = Table(12, end=-9.0)
    uniform = uniform_numbers(1, 500, 1)
    log_probs = table.log_probs(0, ())
    order = [i for i in np.argsort(-log_probs) if i not in (PAD, BOS)]
    (own,) = draw(table, [0], [1], uniform, top_k=3, n_best=500)
    assert {hypothesis.ids[0] for hypothesis in own} == set(order[:3])
    share = np.exp(log_probs[order]) / np.exp(log_probs[order]).sum()
    enough = int(np.searchsorted(np.cumsum(share), 0.7)) + 1
    (own,) = draw(table, [0], [1], uniform, top_p=0.7, n_best=500)
    assert {hypothesis.ids[0] for hypothesis in own} == set(order[:enough])


def test_draws_keep_to_lengths_and_prefixes():
    table = Table(9, end=1.0)
    shortest = np.array([0, 2, 3, 0])
    prefixes = [[], [], [5, 4], [6]]
    uniform = uniform_numbers(4, 20, 5)
    found = draw(table, range(4), [4] * 4, uniform, shortest=shortest, prefixes=prefixes, n_best=20)
    for least, prefix, own in zip(shortest, prefixes, found, strict=True):
        assert len(own) == 20
        for hypothesis in own:
            assert least <= len(hypothesis.ids) <= 4
            assert hypothesis.ids[: len(prefix)] == prefix
            assert not set(hypothesis.ids) & set(NEVER)

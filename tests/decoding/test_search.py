"""Beam search against brute force, on toy models: tables of random logits for every prefix.

Log-probabilities are sums of at most 6 terms of float32 logits of size 1 to 10: they agree with
float64 ones to 1e-5.
"""

import itertools

import numpy as np
import paddle
import pytest

from transformer_mt.decoding.search import beam_search, length_penalty

PAD, BOS, EOS = 0, 1, 2


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
        logits = self.logits(sentence, prefix).astype("float64")
        shifted = logits - logits.max()
        return shifted - np.log(np.exp(shifted).sum())

    def score(self, sentence, ids, alpha):
        whole = [*ids, EOS]
        total = sum(self.log_probs(sentence, whole[:n])[whole[n]] for n in range(len(whole)))
        return total / ((5 + len(whole)) / 6) ** alpha


class Rows:
    """The stepper of some sentences of a table."""

    def __init__(self, table, sentences):
        self.table = table
        self.rows = [(sentence, None) for sentence in sentences]
        self.steps = 0

    def logits(self, ids):
        self.steps += 1
        assert len(ids) == len(self.rows)
        grown = []
        for (sentence, prefix), next_id in zip(self.rows, ids, strict=True):
            assert next_id == BOS or prefix is not None
            grown.append((sentence, () if prefix is None else (*prefix, int(next_id))))
        self.rows = grown
        return paddle.to_tensor(np.stack([self.table.logits(*row) for row in self.rows]))

    def reorder(self, index):
        self.rows = [self.rows[i] for i in index]


def search(table, sentences, max_lengths, **options):
    options = {"bos": BOS, "eos": EOS, "forbidden": (PAD, BOS), **options}
    return beam_search(Rows(table, sentences), np.array(max_lengths), **options)


def brute_force(table, sentence, max_length, alpha, forbidden=(PAD, BOS)):
    """The best of all sequences that may be put out."""
    words = [i for i in range(table.vocabulary) if i not in (*forbidden, EOS)]
    every = itertools.chain.from_iterable(
        itertools.product(words, repeat=length) for length in range(max_length)
    )
    return max(every, key=lambda ids: table.score(sentence, ids, alpha))


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("vocabulary", [4, 5])
def test_a_wide_beam_finds_what_brute_force_finds(vocabulary, alpha):
    table = Table(vocabulary)
    sentences = range(8)
    max_lengths = [1, 2, 3, 4, 5, 5, 5, 5]
    # Wider than there are sequences: 1 + 3 + 9 + 27 + 81 of three words. None is ever pruned.
    found = search(table, sentences, max_lengths, beam_size=200, alpha=alpha)
    for sentence, max_length, hypothesis in zip(sentences, max_lengths, found, strict=True):
        best = brute_force(table, sentence, max_length, alpha)
        assert hypothesis.ids == list(best)
        assert hypothesis.score == pytest.approx(table.score(sentence, best, alpha), abs=1e-5)


def test_the_length_penalty_makes_a_difference():
    """Otherwise the tests above would not see whether it is applied."""
    table = Table(5)
    lengths = [
        sum(len(brute_force(table, sentence, 5, alpha)) for sentence in range(8))
        for alpha in (0.0, 1.0, 2.0)
    ]
    assert lengths[0] < lengths[1] < lengths[2]


def test_length_penalty_is_wus():
    assert length_penalty(1, 0.6) == 1
    assert length_penalty(7, 1.0) == 2
    assert length_penalty(7, 0.0) == 1
    np.testing.assert_allclose(length_penalty(np.array([1, 7]), 2.0), [1, 4])


def greedy(table, sentence, max_length, forbidden=(PAD, BOS)):
    ids = []
    while len(ids) < max_length - 1:
        log_probs = table.log_probs(sentence, ids)
        log_probs[list(forbidden)] = -np.inf
        best = int(log_probs.argmax())
        if best == EOS:
            break
        ids.append(best)
    return ids


def test_a_beam_of_one_takes_the_best_at_every_step():
    table = Table(30, end=1.5)
    sentences = range(20)
    found = search(table, sentences, [12] * 20, beam_size=1, alpha=0.6)
    for sentence, hypothesis in zip(sentences, found, strict=True):
        expected = greedy(table, sentence, 12)
        assert hypothesis.ids == expected
        assert hypothesis.score == pytest.approx(table.score(sentence, expected, 0.6), abs=1e-5)
    assert len({len(hypothesis.ids) for hypothesis in found}) > 3  # long and short ones alike


def simple_beam(table, sentence, max_length, beam_size, alpha):
    """Beam search as one would write it for a single sentence, without a thought for speed."""
    beam, finished = [(0.0, ())], []
    for length in range(1, max_length + 1):
        grown = []
        for score, ids in beam:
            log_probs = table.log_probs(sentence, ids)
            for word in range(table.vocabulary):
                if word not in (PAD, BOS) and (word == EOS or length < max_length):
                    grown.append((score + log_probs[word], (*ids, word)))
        grown.sort(key=lambda item: -item[0])
        ended = [item for item in grown[:beam_size] if item[1][-1] == EOS]
        finished += [(score / ((5 + length) / 6) ** alpha, ids[:-1]) for score, ids in ended]
        beam = [item for item in grown if item[1][-1] != EOS][:beam_size]
        # Those that have finished end the search once they are many and the best one is among them.
        if not beam:
            break
        as_it_stands = beam[0][0] / ((5 + length) / 6) ** alpha
        if len(finished) >= beam_size and as_it_stands <= max(finished)[0]:
            break
    return max(finished)


@pytest.mark.parametrize("beam_size", [2, 3, 5])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_narrow_beam(beam_size, alpha):
    """Also with sentences that are done early, whose rows leave while others go on."""
    table = Table(9)
    sentences = range(12)
    max_lengths = [3 + sentence % 6 for sentence in sentences]
    found = search(table, sentences, max_lengths, beam_size=beam_size, alpha=alpha)
    for sentence, max_length, hypothesis in zip(sentences, max_lengths, found, strict=True):
        score, ids = simple_beam(table, sentence, max_length, beam_size, alpha)
        assert hypothesis.ids == list(ids)
        assert hypothesis.score == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_scores_are_those_of_the_output(beam_size):
    table = Table(11)
    for sentence, hypothesis in enumerate(search(table, range(10), [8] * 10, beam_size=beam_size)):
        expected = table.score(sentence, hypothesis.ids, 1.0)
        assert hypothesis.score == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_very_sure_models(beam_size):
    """Logits of hundreds: probabilities far below exp(-64) are told apart all the same."""
    table = Table(6, scale=150.0)
    for sentence, hypothesis in enumerate(search(table, range(30), [4] * 30, beam_size=beam_size)):
        expected = table.score(sentence, hypothesis.ids, 1.0)
        assert hypothesis.score == pytest.approx(expected, rel=1e-5, abs=1e-4)
        if beam_size > 1:
            assert hypothesis.ids == list(simple_beam(table, sentence, 4, beam_size, 1.0)[1])


@pytest.mark.parametrize("beam_size", [1, 4, 50])
def test_forbidden_ids_and_the_maximum_length(beam_size):
    table = Table(8)
    forbidden = (PAD, BOS, 5)
    max_lengths = [1 + sentence % 7 for sentence in range(21)]
    found = search(table, range(21), max_lengths, beam_size=beam_size, forbidden=forbidden)
    for max_length, hypothesis in zip(max_lengths, found, strict=True):
        assert len(hypothesis.ids) <= max_length - 1  # and eos
        assert not set(hypothesis.ids) & {*forbidden, EOS}
        assert np.isfinite(hypothesis.score)
    assert [hypothesis.ids for hypothesis in found[::7]] == [[], [], []]


@pytest.mark.parametrize("beam_size", [1, 4])
def test_an_output_ends_where_it_must(beam_size):
    table = Table(6, end=-300.0)
    (hypothesis,) = search(table, [0], [5], beam_size=beam_size)
    assert len(hypothesis.ids) == 4
    assert hypothesis.score == pytest.approx(table.score(0, hypothesis.ids, 1.0), rel=1e-5)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_sentences_do_not_meet(beam_size):
    table = Table(7)
    max_lengths = {sentence: 3 + sentence % 5 for sentence in range(15)}
    alone = {
        sentence: search(table, [sentence], [max_lengths[sentence]], beam_size=beam_size)[0]
        for sentence in max_lengths
    }
    for sentences in (range(15), range(14, -1, -1), [3, 3, 11, 0, 3], [8, 2]):
        lengths = [max_lengths[sentence] for sentence in sentences]
        found = search(table, sentences, lengths, beam_size=beam_size)
        assert found == [alone[sentence] for sentence in sentences]


@pytest.mark.parametrize("beam_size", [3, 4, 9, 1000])
def test_a_beam_wider_than_the_vocabulary(beam_size):
    table = Table(4)
    for sentence, hypothesis in enumerate(search(table, range(5), [3] * 5, beam_size=beam_size)):
        score, ids = simple_beam(table, sentence, 3, beam_size, 1.0)
        assert (hypothesis.ids, pytest.approx(score, abs=1e-5)) == (list(ids), hypothesis.score)


class Broken(Table):
    """Sentence 1 gives what is not a number, from its second step on."""

    def logits(self, sentence, prefix):
        logits = super().logits(sentence, prefix)
        return logits * np.float32("nan") if sentence == 1 and prefix else logits


@pytest.mark.parametrize("beam_size", [1, 3])
def test_what_is_not_a_number_does_no_harm_to_the_others(beam_size):
    found = search(Broken(6), range(3), [6] * 3, beam_size=beam_size)
    sound = search(Table(6), [0, 2], [6] * 2, beam_size=beam_size)
    assert [found[0], found[2]] == sound
    assert len(found[1].ids) <= 5


def test_no_sentence():
    assert search(Table(5), [], []) == []


def test_it_stops_when_nothing_better_can_come():
    """A hypothesis of probability near one makes every other one hopeless."""

    class Short(Table):
        def logits(self, sentence, prefix):
            logits = super().logits(sentence, prefix)
            logits[EOS] = 30.0 if prefix else -30.0
            return logits

    rows = Rows(Short(6), [0])
    beam_search(rows, np.array([50]), bos=BOS, eos=EOS, forbidden=(PAD, BOS), beam_size=4)
    assert rows.steps < 10


class EvenOdds(Table):
    """Ends at once, or says five words first: as probable, but longer, and so better."""

    def logits(self, sentence, prefix):
        logits = np.full(self.vocabulary, -30.0, "float32")
        if len(prefix) == 0:
            logits[[EOS, 3]] = 0.0
        else:
            logits[3 if len(prefix) < 5 else EOS] = 30.0
        return logits


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_it_goes_on_while_a_longer_output_can_win(alpha):
    """Though at every step an end of tiny probability is among the four best, and finishes."""
    (hypothesis,) = search(EvenOdds(5), [0], [20], beam_size=4, alpha=alpha)
    assert hypothesis.ids == [3] * 5
    assert hypothesis.score == pytest.approx(np.log(0.5) / (11 / 6) ** alpha, abs=1e-5)

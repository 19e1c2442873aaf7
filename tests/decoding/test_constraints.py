"""Constrained search against brute force, on toy models: tables of random logits for every prefix.

Log-probabilities are sums of at most 8 terms of float32 logits of size 1 to 10: they agree with
float64 ones to 1e-5.
"""

import itertools

import numpy as np
import pytest
from test_search import EOS, NEVER, Rows, Table, best_of, simple_beam

from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.decoding.constraints import ConstrainedBeam
from transformer_mt.decoding.engine import Constraint
from transformer_mt.decoding.search import Task, beam_search

# Of a vocabulary of 8: words, and symbols that come only where a constraint asks for them.
WORDS, SYMBOLS = (3, 4), (5, 6, 7)


def search(table, constraints, longest, beam_size, prefix=(), **settings):
    """The hypotheses of one sentence for each entry of `constraints`."""
    count = len(constraints)
    settings = DecodingConfig(beam_size=beam_size, **settings)
    needed = [sum(one.longest for one in own) for own in constraints]
    task = Task(
        np.zeros(count, np.int64),
        np.array(needed) + longest,
        [list(prefix)] * count,
        1,
        EOS,
        settings,
        ConstrainedBeam(constraints, beam_size) if any(constraints) else None,
    )
    return beam_search(Rows(table, range(count), (*NEVER, *SYMBOLS)), task)


def symbol(i, after=-1):
    return Constraint(((i,),), is_symbol=True, after=after, is_once=True)


def phrase(*forms, is_once=False):
    return Constraint(tuple(map(tuple, forms)), is_once=is_once)


def contains(ids, form):
    return any(ids[place : place + len(form)] == form for place in range(len(ids)))


def satisfies(ids, constraints):
    """By definition, and not step by step."""
    ids = tuple(ids)
    symbols = [one.forms[0][0] for one in constraints if one.is_symbol]
    if sorted(i for i in ids if i in SYMBOLS) != sorted(symbols):
        return False
    pairs = [
        (constraints[one.after].forms[0][0], one.forms[0][0])
        for one in constraints
        if one.after >= 0
    ]
    places = [(ids.index(opening), ids.index(closing)) for opening, closing in pairs]
    if any(opening > closing for opening, closing in places):
        return False
    for (a, b), (c, d) in itertools.combinations(places, 2):
        if a < c < b < d or c < a < d < b:
            return False
    for one in constraints:
        if not one.is_symbol and not any(contains(ids, form) for form in one.forms):
            return False
    return True


def every(longest, constraints):
    used = [*WORDS, *(one.forms[0][0] for one in constraints if one.is_symbol)]
    for length in range(longest + 1):
        for ids in itertools.product(used, repeat=length):
            if satisfies(ids, constraints):
                yield ids


CASES = {
    "a symbol": [symbol(5)],
    "two symbols": [symbol(5), symbol(6)],
    "a pair": [symbol(5), symbol(6, after=0)],
    "a pair and a symbol": [symbol(5), symbol(7), symbol(6, after=0)],
    "a phrase": [phrase((3, 4, 4))],
    "two forms": [phrase((4, 4, 4), (3, 3))],
    "a phrase and a symbol": [phrase((3, 4)), symbol(5)],
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_wide_beam_finds_what_brute_force_finds(name, alpha):
    """A phrase is found in every way that it can be in an output, because with so wide a beam no
    hypothesis leaves. Symbols too, because with such a beam every end is among the best."""
    constraints, table = CASES[name], Table(8)
    longest = 3
    needed = sum(one.longest for one in constraints)
    found = search(table, [constraints] * 6, longest, 400, length_penalty=alpha)
    for sentence, hypothesis in enumerate(best_of(found)):
        outputs = every(longest + needed, constraints)
        best = max(outputs, key=lambda ids: table.score(sentence, ids, alpha))
        assert tuple(hypothesis.ids) == best
        assert hypothesis.log_prob == pytest.approx(table.log_prob(sentence, best), abs=1e-5)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("beam_size", [1, 2, 5])
@pytest.mark.parametrize("end", [-4.0, 0.0, 4.0])
def test_every_output_satisfies_its_constraints(name, beam_size, end):
    """Whether the model would end early or never, and however narrow the beam."""
    constraints = CASES[name]
    for longest in (0, 1, 6):
        table = Table(8, end=end)
        found = search(table, [constraints] * 10, longest, beam_size, n_best=beam_size)
        for sentence, own in enumerate(found):
            assert own
            for hypothesis in own:
                assert satisfies(hypothesis.ids, constraints)
                log_prob = table.log_prob(sentence, hypothesis.ids)
                assert hypothesis.log_prob == pytest.approx(log_prob, abs=1e-5)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_constraints_do_not_touch_the_other_sentences(beam_size):
    """Bit for bit, beside sentences with symbols and with phrases that need a wider beam."""
    table, longest = Table(8, end=0.0), 8
    constraints = [[], [phrase((3, 4, 3, 4))], [], [symbol(5)], []]
    alone = search(table, [[]] * 5, longest, beam_size)
    together = search(table, constraints, longest, beam_size)
    for number in (0, 2, 4):
        assert together[number] == alone[number]


def test_what_the_prefix_has_counts():
    table = Table(8)
    found = search(table, [[symbol(5), phrase((3, 4))]] * 4, 5, 3, prefix=[3, 5, 3, 4])
    for hypothesis in best_of(found):
        assert hypothesis.ids[:4] == [3, 5, 3, 4]
        assert hypothesis.ids.count(5) == 1


def test_what_must_be_there_once_is_not_there_twice():
    table = Table(8, end=-4.0)
    constraint = phrase((3, 4), is_once=True)
    free = best_of(search(table, [[phrase((3, 4))]] * 20, 8, 3))
    once = best_of(search(table, [[constraint]] * 20, 8, 3))

    def times(hypothesis):
        return sum(pair == (3, 4) for pair in itertools.pairwise(hypothesis.ids))

    assert any(times(hypothesis) > 1 for hypothesis in free)
    assert all(times(hypothesis) == 1 for hypothesis in once)


class Sure(Table):
    """A model that is nearly sure to write its words, and the symbol 5 after the second of them."""

    def logits(self, sentence, prefix):
        order = [3, 4, 5, 3, EOS]
        logits = np.full(self.vocabulary, -8.0, "float32")
        logits[order[min(len(prefix), 4)]] = 8.0
        return logits


@pytest.mark.parametrize("beam_size", [1, 2, 5])
def test_a_symbol_stands_where_the_model_writes_it(beam_size):
    found = best_of(search(Sure(8), [[symbol(5)]], 10, beam_size))
    assert found[0].ids == [3, 4, 5, 3]


def test_without_constraints_no_symbol_is_written():
    """Even if the model is sure of it."""
    found = search(Sure(8), [[]], 4, 5, n_best=5)
    assert all(5 not in hypothesis.ids for hypothesis in found[0])
    expected = [hypothesis.ids for hypothesis in search(Table(5), [[]], 4, 5, n_best=5)[0]]
    assert expected == [list(ids) for _, ids in simple_beam(Table(5), 0, 4, 5, 1.0)[:5]]

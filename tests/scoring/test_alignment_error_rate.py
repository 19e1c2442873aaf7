"""The alignment error rate, against hand counts and a count link by link."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import write_lines
from transformer_mt.scoring.alignment_error_rate import read_gold, score
from transformer_mt.utils.errors import UserError

LINKS = st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8)


def test_a_case_counted_by_hand():
    """Four links found: one sure, two only possible, one wrong; of three sure ones one."""
    found = [{(0, 0), (1, 1), (1, 2), (2, 3)}]
    sure = {(0, 0), (2, 2), (3, 3)}
    scores = score(found, [(sure, sure | {(1, 1), (1, 2)})])
    assert scores.precision == pytest.approx(100 * 3 / 4)
    assert scores.recall == pytest.approx(100 * 1 / 3)
    assert scores.error_rate == pytest.approx(100 * (1 - (1 + 3) / (4 + 3)))
    assert str(scores) == (
        "AER 42.86   precision 75.00   recall 33.33   (1 lines, 4 links; the reference has 3 sure "
        "and 5 possible ones)"
    )


@given(lines=st.lists(st.tuples(LINKS, LINKS, LINKS), max_size=4))
def test_against_a_count_link_by_link(lines):
    """As matrices of 4 by 4 words, in which S lies within P."""
    found = [own for own, _, _ in lines]
    gold = [(sure, sure | more) for _, sure, more in lines]

    def matrices(sets):
        arrays = np.zeros((len(sets), 4, 4))
        for array, links in zip(arrays, sets, strict=True):
            for link in links:
                array[link] = 1
        return arrays

    a, s, p = (matrices(sets) for sets in (found, [g[0] for g in gold], [g[1] for g in gold]))
    if not (a + s).any():
        with pytest.raises(UserError, match="nothing to score"):
            score(found, gold)
        return
    scores = score(found, gold)
    expected = 1 - ((a * s).sum() + (a * p).sum()) / (a.sum() + s.sum())
    assert scores.error_rate == pytest.approx(100 * expected, abs=1e-9)
    assert scores.lines == len(lines)
    assert (scores.links, scores.sure, scores.possible) == (a.sum(), s.sum(), p.sum())
    if a.any():
        assert scores.precision == pytest.approx(100 * (a * p).sum() / a.sum())
    else:
        assert math.isnan(scores.precision)
    if s.any():
        assert scores.recall == pytest.approx(100 * (a * s).sum() / s.sum())
    else:
        assert math.isnan(scores.recall)


def test_all_sure_links_and_only_possible_ones_are_no_error():
    gold = [({(0, 0)}, {(0, 0), (1, 1)}), (set(), {(2, 2)}), (set(), set())]
    assert score([{(0, 0)}, {(2, 2)}, set()], gold).error_rate == 0
    assert score([{(0, 1)}, {(1, 2)}, set()], gold).error_rate == 100


def test_lines_count_by_their_links():
    """Not the mean of the lines' rates."""
    one, four = {(0, 0)}, {(0, 0), (1, 1), (2, 2), (3, 3)}
    scores = score([one, {(9, 9)} | four], [({(5, 5)}, {(5, 5)}), (four, four)])
    assert scores.error_rate == pytest.approx(100 * (1 - (4 + 4) / (6 + 5)))


def test_a_file_of_true_links(tmp_path):
    path = write_lines(tmp_path / "gold", ["0-0 1?1", "", "2p0"])
    assert read_gold(path) == [
        ({(0, 0)}, {(0, 0), (1, 1)}),
        (set(), set()),
        (set(), {(2, 0)}),
    ]
    write_lines(path, ["0-0", "0-0 (1,1)"])
    with pytest.raises(UserError, match=r"gold, line 2: '\(1,1\)' is no link; a line is as in"):
        read_gold(path)

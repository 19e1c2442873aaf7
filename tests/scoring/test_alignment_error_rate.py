"""The alignment error rate, against hand counts."""

import math

import pytest

from tests.support import write_lines
from transformer_mt.scoring.alignment_error_rate import read_gold, score
from transformer_mt.utils.errors import UserError


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


def test_links_count_over_all_lines_together():
    """Not the mean of the lines' rates; without links on a side, there is no share of them."""
    four = {(i, i) for i in range(4)}
    links, gold = [{(0, 0)}, {(9, 9), *four}], [({(5, 5)}, {(5, 5)}), (four, four)]
    assert score(links, gold).error_rate == pytest.approx(100 * (1 - (4 + 4) / (6 + 5)))
    assert score([{(1, 1)}], [(set(), {(1, 1)})]).error_rate == 0
    assert math.isnan(score([{(1, 1)}], [(set(), {(1, 1)})]).recall)
    assert math.isnan(score([set()], [(four, four)]).precision)
    with pytest.raises(UserError, match="nothing to score"):
        score([set()], [(set(), {(1, 1)})])


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

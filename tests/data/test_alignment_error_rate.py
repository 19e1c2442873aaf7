"""The alignment error rate, against hand counts."""

import math
import re

import pytest

from tests.support import write_lines
from transformer_mt.data.alignments import read_gold, scores_of
from transformer_mt.utils.errors import UserError


def test_a_case_counted_by_hand():
    """Four links found: one sure, two only possible, one wrong; of three sure ones one."""
    found = [{(0, 0), (1, 1), (1, 2), (2, 3)}]
    sure = {(0, 0), (2, 2), (3, 3)}
    scores = scores_of(found, [(sure, sure | {(1, 1), (1, 2)})])
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
    assert scores_of(links, gold).error_rate == pytest.approx(100 * (1 - (4 + 4) / (6 + 5)))
    assert scores_of([{(1, 1)}], [(set(), {(1, 1)})]).error_rate == 0
    assert math.isnan(scores_of([{(1, 1)}], [(set(), {(1, 1)})]).recall)
    assert math.isnan(scores_of([set()], [(four, four)]).precision)
    for nothing in ([(set(), {(1, 1)})], []):
        with pytest.raises(UserError, match="nothing to score"):
            scores_of([set() for _ in nothing], nothing)


def test_a_file_of_true_links(tmp_path):
    path = write_lines(tmp_path / "gold", [" 0-0 1?1\t10p42 3-3 ", "", "2p0"])
    assert read_gold(path) == [
        ({(0, 0), (3, 3)}, {(0, 0), (3, 3), (1, 1), (10, 42)}),
        (set(), set()),
        (set(), {(2, 0)}),
    ]
    for wrong in ("(1,1)", "1s2"):
        write_lines(path, ["0-0", f"0-0 {wrong}"])
        message = f"gold, line 2: '{re.escape(wrong)}' is no link; .*possible"
        with pytest.raises(UserError, match=message):
            read_gold(path)

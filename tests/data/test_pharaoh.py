"""Lines of links, read and written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_mt.data import alignments
from transformer_mt.utils.errors import UserError

LINKS = st.lists(st.tuples(st.integers(0, 10**9 - 1), st.integers(0, 300)), max_size=6)


@given(lines=st.lists(LINKS, max_size=5))
def test_what_is_written_is_read(lines):
    links, counts = alignments.read([alignments.write(line) for line in lines], "links")
    assert links.shape == (sum(map(len, lines)), 2)
    assert [tuple(link) for link in links.tolist()] == [link for line in lines for link in line]
    assert counts.tolist() == [len(line) for line in lines]


def test_spaces_and_tabs():
    links, counts = alignments.read(["  0-1 \t 12-3\t", "   ", "\t", "007-0"], "links")
    assert links.tolist() == [[0, 1], [12, 3], [7, 0]]
    assert counts.tolist() == [2, 0, 0, 1]


@given(line=st.text(st.sampled_from("0123456789- -?p\t.+x\u0665\u2003\x0b"), max_size=12))
def test_a_line_is_links_or_refused(line):
    """What Python itself would read as pairs of numbers, in ASCII, of at most nine digits."""
    items = line.replace("\t", " ").split(" ")
    parts = [item.split("-") for item in items if item]
    good = all(
        len(part) == 2 and all(0 < len(n) < 10 and n.isascii() and n.isdigit() for n in part)
        for part in parts
    )
    if good:
        links, counts = alignments.read([line], "links")
        assert links.tolist() == [[int(n) for n in part] for part in parts]
        assert counts.tolist() == [len(parts)]
    else:
        with pytest.raises(UserError, match=r"^links, line 8: "):
            alignments.read(["0-0", line, "and more"], "links", 7)


@pytest.mark.parametrize("wrong", ["0", "0-", "1--2", "0:0", "a-b"])
def test_the_wrong_link_is_named(wrong):
    with pytest.raises(UserError, match=f"^links, line 1: {wrong!r} is no link"):
        alignments.read([f"0-0 {wrong} 1-1"], "links")

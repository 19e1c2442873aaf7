"""Where two systems differ: words of two texts, and lines whose scores changed."""

import random

from hypothesis import given
from hypothesis import strategies as st

from transformer_mt.scoring.comparison import Piece, differences, most_changed, shares

TEXT = st.text(st.sampled_from("ab c."), max_size=20)
SCORES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=30)


@given(TEXT, TEXT, st.booleans())
def test_the_pieces_give_the_texts_back(first, second, spaces):
    glue = " " if spaces else ""
    pieces = differences(first, second, spaces)
    for text, own in zip((first, second), pieces, strict=True):
        assert glue.join(piece.text for piece in own) == text
    # What does not differ is the same in both.
    one, other = ([piece.text for piece in own if not piece.differs] for own in pieces)
    assert one == other
    if first == second:
        assert not any(piece.differs for own in pieces for piece in own)
    elif first and second:
        assert any(piece.differs for own in pieces for piece in own)


def test_words_and_characters():
    assert differences("Ein Hund rennt", "Ein Mann rennt schnell") == (
        [Piece("Ein", False), Piece("Hund", True), Piece("rennt", False)],
        [Piece("Ein", False), Piece("Mann", True), Piece("rennt", False), Piece("schnell", True)],
    )
    assert differences("图书馆", "图书店", spaces=False) == (
        [Piece("图书", False), Piece("馆", True)],
        [Piece("图书", False), Piece("店", True)],
    )


@given(SCORES)
def test_shares_count_each_line_once(pairs):
    before, after = zip(*pairs, strict=True)
    counted = shares(before, after)
    assert counted.total == len(pairs)
    assert counted == shares(before, after)
    swapped = shares(after, before)
    assert (swapped.better, swapped.worse) == (counted.worse, counted.better)
    assert counted.unchanged == sum(old == new for old, new in pairs)


@given(SCORES, st.integers(0, 10))
def test_most_changed_are_the_extremes(pairs, count):
    before, after = zip(*pairs, strict=True)
    risen, fallen = most_changed(before, after, count)
    changes = [new - old for old, new in pairs]
    for own, sign in ((risen, 1), (fallen, -1)):
        all_of_them = sorted(sign * change for change in changes if sign * change > 0)[::-1]
        assert [sign * changes[line] for line in own] == all_of_them[:count]
        assert len(set(own)) == len(own)
        # Equal changes come in the order of the lines.
        assert own == sorted(own, key=lambda line: (-abs(changes[line]), line))


def test_long_texts_are_compared_in_full():
    """A word that is frequent in a long text is compared too; difflib would leave it out."""
    generator = random.Random(3)
    # Few enough pairs of equal words: more are not compared at all.
    words = [generator.choice(["der", *map(str, range(60))]) for _ in range(400)]
    other = [*words[:200], "neu", *words[200:]]
    _, pieces = differences(" ".join(words), " ".join(other))
    assert [piece.text for piece in pieces if piece.differs] == ["neu"]

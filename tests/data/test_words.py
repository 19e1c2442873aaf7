"""From subwords to the words that they belong to."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import demo_pairs, train_subwords, words
from transformer_mt.data.alignments import NONE, Words, word_count

PAIRS = demo_pairs(300)
TYPES = {
    "bpe": train_subwords(PAIRS, 300).source,
    "unigram": train_subwords(PAIRS, 300, type="unigram").source,
    "char": train_subwords(PAIRS, 300, type="char").source,
}
CHARACTERS = sorted(set("".join(source for source, _ in PAIRS)))
TEXT = st.text(st.sampled_from([*CHARACTERS, " ", " ", "字", "☃"]), max_size=30)


class Pieces:
    """A vocabulary of given pieces, in which an id is a place among them."""

    pad, unk, bos, eos = special = range(4)

    def __init__(self, pieces):
        self._pieces = ["<pad>", "<unk>", "<s>", "</s>", *pieces]
        self.size = len(self._pieces)

    def pieces(self, ids):
        return [self._pieces[i] for i in ids]

    def ids(self, pieces):
        return np.array([self._pieces.index(piece) for piece in pieces], np.int64)


ANY = Pieces(["▁", "▁▁", "▁A", "A", "▁dog", "dog", "▁d", "og", "▁r", "uns", ".", "x", "▁y"])


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([], []),
        (["▁A", "▁dog"], [0, 1]),
        (["▁A", "▁d", "og", "▁r", "uns", "."], [0, 1, 1, 2, 2, 2]),
        (["▁", "A", "▁", "dog"], [0, 0, 1, 1]),
        (["▁", "▁", "A", "▁▁", "▁dog"], [0, 0, 0, 1, 1]),
        (["▁A", "▁", "▁▁"], [0, NONE, NONE]),
        (["▁", "▁"], [NONE, NONE]),
        (["<unk>", "x", "▁y"], [0, 0, 1]),
    ],
)
def test_words_of_subwords(pieces, expected):
    ids = ANY.ids(pieces)
    assert Words(ANY, "en").numbers(ids).tolist() == expected
    assert Words(ANY, "zh").numbers(ids).tolist() == list(range(len(pieces)))
    assert word_count(np.array(expected, np.int64)) == max(expected, default=NONE) + 1


def test_where_all_subwords_are_words_an_unknown_one_is_too():
    # Three words, and the special ones.
    vocabulary = train_subwords([("A man in", "in A man")] * 20, 7, type="word").source
    ids = np.array(vocabulary.encode("A zzqz man in"))
    assert vocabulary.pieces(ids)[1] == "<unk>"
    assert Words(vocabulary, "en").numbers(ids).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", TYPES)
@given(text=TEXT)
def test_words_are_what_stands_between_spaces(kind, text):
    vocabulary = TYPES[kind]
    ids = np.array(vocabulary.encode(text), np.int64)
    numbers = Words(vocabulary, "en").numbers(ids)
    expected = words(text)
    assert word_count(numbers) == len(expected)
    spelt = [""] * len(expected)
    for piece, number in zip(vocabulary.pieces(ids), numbers, strict=True):
        if number != NONE:
            spelt[number] += piece.replace("▁", "")
    # Unknown characters, several of which may be one subword, can't be read in the pieces.
    for word, own in zip(expected, spelt, strict=True):
        assert own == word or "<unk>" in own

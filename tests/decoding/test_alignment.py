"""From attention between subwords to links between words."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import real_pairs, train_subwords

from transformer_mt.data.subword import WordVocabulary
from transformer_mt.decoding.alignment import NONE, word_alignment, word_count, words

PAIRS = real_pairs(300)
VOCABULARY = train_subwords(PAIRS, 300).source
BPE = WordVocabulary(["<s>", "<e>", "<unk>", "a", "b", "a@@", "b@@"])


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
    assert words(pieces, VOCABULARY, True) == expected
    assert words(pieces, VOCABULARY, False) == list(range(len(pieces)))
    assert word_count(expected) == max(expected, default=NONE) + 1


def test_words_of_text_with_its_bpe_applied():
    assert words(["a", "b@@", "a@@", "b", "a"], BPE, True) == [0, 1, 1, 1, 2]


@given(st.text(st.sampled_from(sorted(set("".join(s for s, _ in PAIRS)))), max_size=30))
def test_words_are_what_stands_between_spaces(text):
    pieces = VOCABULARY.pieces(VOCABULARY.encode(text))
    numbers = words(pieces, VOCABULARY, True)
    assert word_count(numbers) == len(text.split(" ")) - text.split(" ").count("")
    spelt = [""] * word_count(numbers)
    for piece, number in zip(pieces, numbers, strict=True):
        if number != NONE:
            spelt[number] += piece.replace("▁", "")
    assert spelt == [word for word in text.split(" ") if word]


def test_attention_is_summed_over_the_subwords_of_both():
    attention = np.array(
        [
            [0.4, 0.3, 0.3, 0.0],  # two subwords of the source outweigh the strongest one
            [0.6, 0.1, 0.1, 0.1],  # these two belong together: 0.7, 0.9, 0.3
            [0.1, 0.4, 0.3, 0.2],
            [0.0, 0.0, 0.0, 0.1],
        ]
    )
    assert word_alignment(attention, [0, 1, 1, 2], [0, 1, 1, 2]) == [(1, 0), (1, 1), (2, 2)]


def test_spaces_belong_to_no_word():
    attention = np.array([[0.1, 0.9], [0.9, 0.1]])
    assert word_alignment(attention, [0, NONE], [0, NONE]) == [(0, 0)]
    assert word_alignment(attention, [NONE, NONE], [0, 1]) == []
    assert word_alignment(attention, [0, 1], [NONE, NONE]) == []
    assert word_alignment(np.zeros((0, 2)), [0, 1], []) == []

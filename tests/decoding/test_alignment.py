"""From attention between subwords to links between words."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from transformer_mt.data.alignments import NONE
from transformer_mt.decoding.line_writer import word_alignment


def align(attention, source_words, target_words):
    return word_alignment(np.array(attention), np.array(source_words), np.array(target_words))


def test_attention_is_summed_over_the_subwords_of_both():
    attention = [
        [0.4, 0.3, 0.3, 0.0],  # two subwords of the source outweigh the strongest one
        [0.6, 0.1, 0.1, 0.1],  # these two belong together: 0.7, 0.9, 0.3
        [0.1, 0.4, 0.3, 0.2],
        [0.0, 0.0, 0.0, 0.1],
    ]
    assert align(attention, [0, 1, 1, 2], [0, 1, 1, 2]) == [(1, 0), (1, 1), (2, 2)]


def test_spaces_belong_to_no_word():
    attention = [[0.1, 0.9], [0.9, 0.1]]
    assert align(attention, [0, NONE], [0, NONE]) == [(0, 0)]
    assert align(attention, [NONE, NONE], [0, 1]) == []
    assert align(attention, [0, 1], [NONE, NONE]) == []


@given(st.data())
def test_each_target_word_has_the_source_word_of_the_largest_sum(data):
    rows, columns = (data.draw(st.integers(1, 6)) for _ in range(2))
    shares = arrays.arrays(np.int64, (rows, columns), elements=st.integers(0, 9))
    attention = data.draw(shares) / 64  # sums are exact in any order
    source, target = (
        np.sort(data.draw(arrays.arrays(np.int64, length, elements=st.integers(0, 2))))
        for length in (columns, rows)
    )
    source, target = source - source[0], target - target[0]
    for own in (source, target):  # no number is left out
        own[:] = np.unique(own, return_inverse=True)[1]
    found = word_alignment(attention, source, target)
    assert [j for _, j in sorted(found, key=lambda link: link[1])] == list(range(target[-1] + 1))
    for i, j in found:
        sums = [attention[target == j][:, source == k].sum() for k in range(source[-1] + 1)]
        assert i == sums.index(max(sums))
    assert found == sorted(found)

"""Groups of lines: each line is in one, and it is the right one."""

import random
from collections import Counter

import pytest

from transformer_mt.scoring.groups import Group, by_length, by_rare_words, word_counts

LENGTHS = {
    "0 words": (0, 0),
    "1–10 words": (1, 10),
    "11–20 words": (11, 20),
    "21–30 words": (21, 30),
    "31–40 words": (31, 40),
    "41–50 words": (41, 50),
    "51 or more words": (51, 10**9),
}


def test_lengths_in_words():
    chance = random.Random(3)
    lengths = [0, 1, 10, 11, 50, 51, *(chance.randint(0, 70) for _ in range(200))]
    groups = by_length([" ".join(["word"] * length) for length in lengths])
    assert [group.name for group in groups] == list(LENGTHS)
    assert sorted(line for group in groups for line in group.lines) == list(range(len(lengths)))
    for group in groups:
        first, last = LENGTHS[group.name]
        assert all(first <= length <= last for length in group.of(lengths))


def test_lengths_in_characters():
    groups = by_length(["我们很快就追上了他们。", "我" * 16, "OK 了"], spaces=False)
    assert groups == [Group("1–15 characters", [0, 2]), Group("16–30 characters", [1])]


def test_no_lines():
    assert by_length([]) == [] and by_rare_words([], word_counts([])) == []


def test_rare_words():
    counts = Counter({"the": 1000, "dog": 99, "barks": 9, "sleeps": 2, "zebra": 1})
    references = ["The dog.", "the", "the dog barks!", "zebra", "dog sleeps", "A dog", "?!", ""]
    assert by_rare_words(references, counts) == [
        Group("never", [5]),
        Group("1–2 times", [3, 4]),
        Group("3–9 times", [2]),
        Group("10–99 times", [0]),
        Group("100 or more times", [1]),
        Group("no words", [6, 7]),
    ]


def test_rare_words_of_the_references_themselves():
    references = ["a b", "a c", "a c", "a c"]
    groups = by_rare_words(references, word_counts(references))
    assert groups == [Group("1–2 times", [0]), Group("3–9 times", [1, 2, 3])]


@pytest.mark.parametrize(
    ("spaces", "expected"),
    [(True, {"“ein": 0, "ein": 2, "hund": 1, "it's": 1}), (False, {"狗": 2, "大": 1, "。": 0})],
)
def test_words(spaces, expected):
    lines = ["“Ein Hund, ein -", "it's"] if spaces else ["大狗 狗。"]
    counts = word_counts(lines, spaces)
    assert {word: counts[word] for word in expected} == expected

"""Over-long input in parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import demo_pairs, train_subwords
from transformer_mt.decoding.segments import segments


def by_words(text, max_length):
    """The parts when each word is a subword."""
    return [" ".join(part.ids) for part in segments(text, str.split, max_length)]


def by_characters(text, max_length):
    return ["".join(part.ids) for part in segments(text, list, max_length)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One two. Three four. Five.", ["One two.", "Three four. Five."]),
        ("One two! Three four? Five… Six.", ["One two!", "Three four? Five…", "Six."]),
        ('She said "no." Then, (yes!) he left.', ['She said "no."', "Then,", "(yes!) he left."]),
        # There is no end of a sentence in a number.
        ("Only 3.50 now. Good one.", ["Only 3.50 now.", "Good one."]),
        ("Wie? “Was?” «Wo?» Da!", ["Wie? “Was?” «Wo?»", "Da!"]),
        ("हाँ जी। नहीं जी। ठीक।", ["हाँ जी।", "नहीं जी। ठीक।"]),
        # As Moses' tokeniser writes it.
        ("one two . three four .", ["one two .", "three four ."]),
        ("One. Two. Three.", ["One. Two. Three."]),
        # Only a sentence that is too long is cut at spaces.
        ("One two. A a a a end. Four.", ["One two.", "A a a", "a end.", "Four."]),
        (" \t\u3000\u2028 ", []),
    ],
)
def test_sentences_stay_whole_where_they_can(text, expected):
    assert by_words(text, 3) == expected


@pytest.mark.parametrize(
    ("max_length", "text", "expected"),
    [
        # Chinese has no space behind a sentence.
        (
            9,
            "你好吗？我很好。“走吧！”他说；真的。",
            ["你好吗？我很好。", "“走吧！”", "他说；真的。"],
        ),
        # The space between sentences is one more.
        (6, "ab. cd.", ["ab.", "cd."]),
        (7, "ab. cd.", ["ab. cd."]),
        # Only a word that is too long is cut anywhere.
        (5, "ab abcdefgh cd", ["ab", "abcde", "fgh", "cd"]),
    ],
)
def test_characters(max_length, text, expected):
    assert by_characters(text, max_length) == expected


TEXT = st.text(st.sampled_from("ab .!?。”\t\u2028\x00é中"), max_size=60)


@given(text=TEXT, max_length=st.integers(1, 12))
def test_nothing_is_lost_and_nothing_too_long(text, max_length):
    for encode in (list, str.split):
        found = segments(text, encode, max_length)
        assert all(0 < len(part.ids) <= max_length for part in found)
        joined = "".join(symbol for part in found for symbol in part.ids)
        assert "".join(joined.split()) == "".join(text.split())
        if len(encode(text.strip())) <= max_length:
            assert len(found) <= 1
        ends = 0
        for part in found:
            # Its place in the text is where its symbols are.
            own = encode(text[part.start : part.end])
            assert own[part.first : part.first + len(part.ids)] == part.ids
            assert part.first + len(part.ids) == len(own) or part.first % max_length == 0
            assert part.start >= ends or part.first
            ends = part.end
        assert ends <= len(text)


def test_a_part_has_the_subwords_that_it_has_alone():
    pairs = demo_pairs(300)
    encode = train_subwords(pairs, 300).source.encode
    text = " ".join(source for source, _ in pairs[:40])
    found = [part.ids for part in segments(text, encode, 50)]
    assert all(len(ids) <= 50 for ids in found)
    assert [i for ids in found for i in ids] == encode(text)  # here they are those of the whole
    assert len(found) <= 2 * len(encode(text)) // 50 + 1

"""Where the words are in the text that they are read from, and in the text that they make."""

import io

import pytest
import sentencepiece
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support import demo_pairs, words
from transformer_mt.data.alignments import Words
from transformer_mt.data.vocabulary import SentencePieceVocabulary, WordVocabulary

TEXT = [source for source, _ in demo_pairs(200)] + ["ﬁn Ａ字字 é …"] * 5
# Many spaces, what NFKC makes several characters or words of, what it removes, and anything.
HARD = "  \u3000\u2581\t\x00\x01\u200b\ufeffﬁ㌔…´\ufdfaＡe\u0301é字👩‍👧🇩🇪שلA a."
ANY = st.text(
    st.one_of(st.sampled_from(HARD), st.characters(exclude_categories=["Cs"])), max_size=25
)


def train(rule: str, **options) -> SentencePieceVocabulary:
    """Also of kinds that this program does not train, such as those with bytes for what is not in
    the vocabulary."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT),
        model_writer=model,
        normalization_rule_name=rule,
        hard_vocab_limit=False,
        pad_id=0,
        unk_id=1,
        bos_id=2,
        eos_id=3,
        unk_surface="\u2047",
        minloglevel=2,
        **{"model_type": "bpe", "vocab_size": 300, "remove_extra_whitespaces": False, **options},
    )
    return SentencePieceVocabulary(model.getvalue())


VOCABULARIES = {
    "bpe": train("identity"),
    "unigram": train("identity", model_type="unigram"),
    "char": train("identity", model_type="char"),
    "word": train("identity", model_type="word"),
    "bytes": train("identity", byte_fallback=True, vocab_size=500),
    "nfkc": train("nmt_nfkc_cf"),
    "nfkc bytes": train("nfkc", byte_fallback=True, vocab_size=500),
    "tidy": train("nmt_nfkc", remove_extra_whitespaces=True),
    "@@": WordVocabulary(["<s>", "<e>", "<unk>", "a", "b", "a@@", "b@@", "@@", "@@@@"]),
}


def ordered(places, text):
    """Whether the places are in order and in the text."""
    flat = [0, *(place for pair in places for place in pair), len(text)]
    return flat == sorted(flat)


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", VOCABULARIES)
@given(text=ANY)
@example(text="")
@example(text="\ufdfa x")
def test_each_word_of_a_source_has_a_place(name, language, text):
    vocabulary = VOCABULARIES[name]
    ids = vocabulary.encode(text)
    places = vocabulary.places(text)
    assert len(places) == len(ids) and ordered(places, text)
    spans = Words(vocabulary, language).places(ids, places)
    assert ordered(spans, text)
    if language == "zh":
        assert spans == places
    elif name in ("bpe", "unigram", "char", "bytes"):
        # What stands between spaces; U+2581 is SentencePiece's own name for a space.
        assert [text[start:end] for start, end in spans] == words(text.replace("\u2581", " "))


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", VOCABULARIES)
@given(data=st.data())
def test_each_word_of_a_translation_has_a_place(name, language, data):
    vocabulary = VOCABULARIES[name]
    hidden = {vocabulary.pad, vocabulary.bos, vocabulary.eos}
    visible = [i for i in range(vocabulary.size) if i not in hidden]
    ids = data.draw(st.lists(st.sampled_from(visible), max_size=12))
    text = vocabulary.decode(ids)
    places = vocabulary.decoded_places(ids)
    assert len(places) == len(ids) and ordered(places, text)
    spans = Words(vocabulary, language).places(ids, places)
    assert ordered(spans, text)
    if language == "zh":
        assert spans == places
    elif "bytes" not in name and not {"@@", "<unk>"} & set(vocabulary.pieces(ids)):
        # (A byte may be a space, @@ has no character, and an unknown word has no space before it.)
        assert [text[start:end] for start, end in spans] == words(text)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("nfkc", "  ﬁn  ＡＢ\u3000x…  ", ["ﬁn", "ＡＢ", "x…"]),
        ("tidy", "  ﬁn  ＡＢ\u3000x…  ", ["ﬁn", "ＡＢ", "x…"]),
        ("bytes", "☃☃ 👩‍👧 é", ["☃☃", "👩‍👧", "é"]),
        ("bpe", "a ☃☃ b\u3000c", ["a", "☃☃", "b\u3000c"]),
        # One character that NFKC makes four words of; it belongs to the last.
        ("nfkc", "\ufdfa a", ["", "", "", "\ufdfa", "a"]),
        ("@@", " a b@@  a@@ b\tx", ["a", "b@@  a@@ b", "x"]),
    ],
)
def test_words_in_a_source(name, text, expected):
    vocabulary = VOCABULARIES[name]
    spans = Words(vocabulary, "en").places(vocabulary.encode(text), vocabulary.places(text))
    assert [text[start:end] for start, end in spans] == expected

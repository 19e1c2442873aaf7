"""The vocabularies of imported models, and symbols that are added to any vocabulary."""

import json
import pickle
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from tests.support import demo_pairs, marian_subwords, train_subwords
from transformer_mt.data.marian_vocabulary import MarianVocabulary, PieceIds
from transformer_mt.data.subword import Subwords, read_symbols
from transformer_mt.data.vocabulary import WordVocabulary, seeded
from transformer_mt.utils.errors import UsageError, UserError

GOLDEN = Path(__file__).parent / "marian_tokenizer"
PAIRS = demo_pairs(300)
TEXTS = [text for pair in PAIRS[:40] for text in pair]
ALPHABET = [*sorted({character for text in TEXTS for character in text}), *"©☃<>▁\u3000\t"]
some_text = st.one_of(
    st.text(st.sampled_from(ALPHABET)),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.lists(st.sampled_from([">>deu<<", ">>xyz<<", "</s>", "<pad>", *TEXTS[0].split()])).map(
        " ".join
    ),
)


@pytest.fixture(scope="module")
def imported() -> Subwords:
    return marian_subwords(PAIRS)


# ---------------------------------------------------------------- like Hugging Face's tokeniser


@pytest.fixture(scope="module")
def golden() -> tuple[Subwords, dict]:
    numbers = json.loads((GOLDEN / "vocab.json").read_text("utf-8"))
    pieces = (*numbers, "<s>")
    ids = PieceIds(pieces, pad=numbers["<pad>"], unk=1, bos=len(pieces) - 1, eos=0)
    models = [(GOLDEN / f"{side}.spm").read_bytes() for side in ("source", "target")]
    expected = json.loads((GOLDEN / "expected.json").read_text("utf-8"))
    return Subwords(*(MarianVocabulary(model, ids) for model in models)), expected


def test_text_has_the_ids_of_the_reference(golden):
    subwords, expected = golden
    texts, *sides = zip(*expected["texts"], strict=True)
    for vocabulary, of_reference in zip((subwords.source, subwords.target), sides, strict=True):
        own = [[*vocabulary.encode(text), vocabulary.eos] for text in texts]
        assert own == list(of_reference)
        assert vocabulary.encode_all(list(texts)) == [ids[:-1] for ids in of_reference]


def test_ids_are_decoded_as_by_the_reference(golden):
    subwords, expected = golden
    for ids, by_source, by_target in expected["decoded"]:
        assert subwords.source.decode(ids) == by_source
        assert subwords.target.decode(ids) == by_target


# ------------------------------------------------------------------------------------ any text


@given(text=some_text)
def test_ids_are_those_of_the_list(imported, text):
    for vocabulary in (imported.source, imported.target):
        processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.model)
        token = re.match(">>deu<<", text)
        rest = text[token.end() :] if token else text
        special = [vocabulary.pieces([i])[0] for i in vocabulary.special]
        pieces = [token[0]] if token else []
        pieces += processor.encode(rest, out_type=str)
        listed = vocabulary.ids.pieces
        expected = [
            listed.index(piece) if piece in listed and piece not in special else vocabulary.unk
            for piece in pieces
        ]
        assert vocabulary.encode(text) == expected


@given(text=some_text, rate=st.floats(0.01, 0.99))
def test_sampled_subwords_are_the_same_text(imported, text, rate):
    vocabulary = imported.source.with_symbols(["<x>"])
    for own in (text, f"{text} <x>{text}"):
        ids = seeded((1,), lambda own=own: vocabulary.sample(own, rate))
        best = vocabulary.encode(own)
        assert not {vocabulary.pad, vocabulary.bos, vocabulary.eos} & set(ids)
        symbols = set(vocabulary.user_symbols.values())
        assert [i for i in ids if i in symbols] == [i for i in best if i in symbols]
        if vocabulary.unk not in [*ids, *best]:
            assert vocabulary.decode(ids) == vocabulary.decode(best)


@given(text=some_text)
def test_each_subword_has_a_place_in_the_text(imported, text):
    vocabulary = imported.source
    ids, places = vocabulary.encode(text), vocabulary.places(text)
    assert len(ids) == len(places)
    assert all(0 <= a <= b <= len(text) for a, b in places)
    assert all(a[1] <= b[0] for a, b in pairwise(places))
    for i, (start, end) in zip(ids, places, strict=True):
        # SentencePiece's nmt_nfkc changes some characters.
        if text.isascii() and text.isprintable() and i != vocabulary.unk:
            assert text[start:end] == vocabulary.pieces([i])[0].strip("▁")
    parts = vocabulary.unknown(text)
    assert len(parts) == ids.count(vocabulary.unk)


@given(data=st.data())
def test_each_id_has_a_place_in_what_is_decoded(imported, data):
    vocabulary = imported.target
    ids = data.draw(st.lists(st.integers(0, vocabulary.size - 1)))
    text, places = vocabulary.decode(ids), vocabulary.decoded_places(ids)
    assert len(ids) == len(places)
    for i, (start, end) in zip(ids, places, strict=True):
        piece = vocabulary.pieces([i])[0].replace("▁", " ").strip()
        hidden = i in (vocabulary.pad, vocabulary.bos, vocabulary.eos)
        shown = "" if hidden else "⁇" if i == vocabulary.unk else piece
        assert text[start:end].strip() == shown


def test_an_id_that_the_model_of_the_other_side_knows_is_written_as_it_is(imported):
    only_source = set(imported.source.ids.pieces) - {
        imported.target._processor.id_to_piece(i)
        for i in range(imported.target._processor.vocab_size())
    }
    pieces = sorted(piece for piece in only_source if piece.strip("▁").isalpha())[:5]
    ids = [imported.source.ids.pieces.index(piece) for piece in pieces]
    assert pieces and imported.target.decode(ids) == "".join(pieces).replace("▁", " ").strip()


# ---------------------------------------------------------------------------- tokens, sides, files


def test_a_token_of_a_target_language_is_one_id_at_the_start(imported):
    source = imported.source
    token = source.ids.pieces.index(">>deu<<")
    assert source.language_tokens == source.user_symbols
    assert list(source.language_tokens) == [">>deu<<", ">>fra<<"]
    plain = source.encode("the dog")
    for text in (">>deu<< the dog", ">>deu<<the dog", ">>deu<<  the dog"):
        assert source.encode(text) == [token, *plain]
        assert source.places(text)[0] == (0, len(">>deu<<"))
    assert token not in source.encode("the >>deu<< dog")
    assert source.decode([token, *plain]) == ">>deu<< the dog"


def test_sides_are_joint_if_their_ids_are_the_same(imported):
    assert imported.joint and imported.source is not imported.target
    assert imported.vocabularies == (imported.source, imported.target)
    apart = marian_subwords(PAIRS, joint=False)
    assert not apart.joint and apart.source.ids != apart.target.ids


@pytest.mark.parametrize("joint", [True, False])
def test_files(tmp_path, joint):
    subwords = marian_subwords(PAIRS, joint)
    subwords.save(tmp_path)
    lists = ["subword.json"] if joint else ["subword.source.json", "subword.target.json"]
    models = ["subword.source.model", "subword.target.model"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*lists, *models])
    sides = subwords.source, subwords.target
    assert [(tmp_path / name).read_bytes() for name in models] == [side.model for side in sides]
    for other in (Subwords.load(tmp_path), pickle.loads(pickle.dumps(subwords))):
        assert other.joint == joint and other.content() == subwords.content()
        assert other.source.special == subwords.source.special
        for text in TEXTS:
            assert other.source.encode(text) == subwords.source.encode(text)


DAMAGED = {
    "no list": (lambda values: values["pieces"], "expected a mapping with the keys bos, eos, pad"),
    "a key is missing": (lambda values: values.pop("pad") and values, "expected a mapping"),
    "no text": (lambda values: values | {"pieces": [*values["pieces"], 3]}, "3 is not text"),
    "half a pair": (lambda v: v | {"pieces": [*v["pieces"], "\ud800"]}, r"ud800' is not UTF-8"),
    "twice": (
        lambda values: values | {"pieces": [*values["pieces"], ">>deu<<"]},
        "'>>deu<<' is in it more than once",
    ),
    "outside": (lambda values: values | {"bos": 10**9}, "bos is 1000000000, which is no id of"),
    "negative": (lambda values: values | {"pad": -1}, "pad is -1, which is no id"),
    "no number": (lambda values: values | {"unk": True}, "unk is True, which is no id"),
    "the same": (lambda values: values | {"pad": values["eos"]}, "special ids are not all diff"),
    "no pieces": (lambda values: values | {"pieces": []}, "is no id of its 0 subwords"),
    "pieces of a mapping": (lambda values: values | {"pieces": {}}, "pieces are not a list"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_list_is_refused_in_one_message(tmp_path, imported, name):
    change, message = DAMAGED[name]
    imported.save(tmp_path)
    path = tmp_path / "subword.json"
    path.write_text(json.dumps(change(json.loads(path.read_text("utf-8")))))
    with pytest.raises(UserError, match=message) as raised:
        Subwords.load(tmp_path)
    assert str(path) in str(raised.value)


def test_other_damage(tmp_path, imported):
    imported.save(tmp_path)
    path = tmp_path / "subword.json"
    whole = path.read_bytes()
    for content in (b"", b"{", b"\xff", b"[" * 100_000):
        path.write_bytes(content)
        with pytest.raises(UserError, match="not a list of subwords"):
            Subwords.load(tmp_path)
    path.write_bytes(whole)
    (tmp_path / "subword.source.json").write_bytes(whole)
    with pytest.raises(UserError, match=r"it has subword.json, subword.source.json"):
        Subwords.load(tmp_path)
    (tmp_path / "subword.source.json").unlink()
    for content in (b"", b"no model"):
        (tmp_path / "subword.target.model").write_bytes(content)
        with pytest.raises(UserError, match=r"subword.target.model: not a SentencePiece model"):
            Subwords.load(tmp_path)
    (tmp_path / "subword.target.model").unlink()
    with pytest.raises(UserError, match=r"subword.target.model"):
        Subwords.load(tmp_path)


# ----------------------------------------------------------------------------------- new symbols

NEW = ["<new>", "⟦0⟧", "ab", ">>xyz<<"]
KINDS = {
    "bpe": lambda: train_subwords(PAIRS, type="bpe"),
    "unigram": lambda: train_subwords(PAIRS, type="unigram", user_symbols=["<old>"]),
    "char": lambda: train_subwords(PAIRS, type="char", joint=False),
    "marian": lambda: marian_subwords(PAIRS),
    "marian, two lists": lambda: marian_subwords(PAIRS, joint=False),
}


@pytest.fixture(scope="module")
def extended() -> dict[str, tuple[Subwords, Subwords]]:
    made = {kind: make() for kind, make in KINDS.items()}
    return {kind: (old, old.with_symbols(NEW)) for kind, old in made.items()}


@given(text=some_text)
@pytest.mark.parametrize("kind", KINDS)
def test_text_without_the_symbols_has_its_old_ids(extended, kind, text):
    old, new = extended[kind]
    if not any(symbol in text for symbol in NEW):
        for before, after in zip(old.vocabularies, new.vocabularies, strict=True):
            assert after.encode(text) == before.encode(text)
            assert after.places(text) == before.places(text)
            assert after.decode(before.encode(text)) == before.decode(before.encode(text))


@given(text=some_text, symbol=st.sampled_from(NEW))
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_symbol_is_one_subword_wherever_it_is(extended, kind, text, symbol):
    _, new = extended[kind]
    for vocabulary in new.vocabularies:
        number = vocabulary.user_symbols[symbol]
        ids = vocabulary.encode(f"a {symbol}{text}")
        assert number in ids
        assert vocabulary.decode([number]) == symbol


@pytest.mark.parametrize("kind", KINDS)
def test_old_subwords_keep_their_ids(extended, kind):
    old, new = extended[kind]
    assert new.joint == old.joint
    for before, after in zip(old.vocabularies, new.vocabularies, strict=True):
        assert after.pieces(range(before.size)) == before.pieces(range(before.size))
        added = after.pieces(range(before.size, after.size))
        assert added == [s for s in NEW if s not in before.pieces(range(before.size))]
        assert after.special == before.special
        assert before.user_symbols.items() <= after.user_symbols.items()
    again = new.with_symbols([*NEW, "<new>"])
    assert again.content() == new.content()


def test_new_symbols_are_in_the_files(tmp_path, extended):
    for kind, (_, new) in extended.items():
        (tmp_path / kind).mkdir()
        new.save(tmp_path / kind)
        loaded = Subwords.load(tmp_path / kind)
        assert loaded.content() == new.content() and loaded.joint == new.joint
        assert NEW[0] in loaded.source.user_symbols


def test_words_get_new_words_at_the_end():
    words = WordVocabulary(["<pad>", "<unk>", "<s>", "</s>", "a@@", "b"])
    longer = words.with_symbols(["<new>", "b"])
    assert longer.pieces(range(longer.size)) == [*words.pieces(range(words.size)), "<new>"]
    assert longer.encode("<new> a@@ b") == [6, 4, 5]
    with pytest.raises(UsageError, match="</s> is a special subword"):
        words.with_symbols(["</s>"])


def test_special_subwords_are_no_symbols(imported):
    for subwords in (train_subwords(PAIRS), imported):
        for special in ("<unk>", "</s>", "<pad>"):
            with pytest.raises(UsageError, match=f"{special} is a special subword"):
                subwords.with_symbols([special])


def test_the_special_ids_of_a_list_need_not_be_its_last(imported):
    ids = imported.source.ids
    longer = replace(ids, pieces=(*ids.pieces, "x<y>"))
    vocabulary = MarianVocabulary(imported.source.model, longer)
    assert vocabulary.pad == ids.pad < vocabulary.size - 1


# --------------------------------------------------------------------------------- a file of them


def test_a_file_of_symbols(tmp_path):
    path = tmp_path / "symbols.txt"
    path.write_bytes("\ufeff<name>\r\n\n  ACME™ \n⟦x⟧".encode())
    assert read_symbols(path) == ["<name>", "ACME™", "⟦x⟧"]
    path.write_text("<a>\ntwo words\n<a>\na\tb\n</s>\n\u2581x\n")
    with pytest.raises(UserError) as raised:
        read_symbols(path)
    first, *listed = str(raised.value).split("\n")
    assert str(path) in first
    assert [line.split(":")[0].strip() for line in listed] == [f"line {i}" for i in range(2, 7)]
    assert "'<a>' is in line 1 already" in listed[1]
    path.write_text("\n \n")
    with pytest.raises(UserError, match="there is no symbol in it"):
        read_symbols(path)
    with pytest.raises(UsageError, match="no such file"):
        read_symbols(tmp_path / "other.txt")

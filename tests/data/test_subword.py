"""Subwords come from the training text, are the same each time, and give the text back."""

import io
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from transformer_mt.config.text import SubwordConfig
from transformer_mt.data.normalization import INVISIBLE, normalized
from transformer_mt.data.subword import Subwords
from transformer_mt.data.vocabulary import WordVocabulary, seeded
from transformer_mt.utils.errors import Interrupted, UsageError, UserError

# Characters that a tokeniser or a reader of lines may well lose, in text that SentencePiece knows.
ODD = " e\u0301é\xa0\u3000\u2028\x85\r\x0b\u200b\ufeff\ufffd\u2047😀,.<>@_'\"ßẞİıﬁ①Ａ"
SENTENCES = [
    ("the cat sat on the mat", "die Katze saß auf der Matte"),
    ("  a dog  in the   house ", " ein  Hund im   Haus  "),
    (ODD, ODD[::-1]),
] * 20
ALPHABET = sorted({character for pair in SENTENCES for text in pair for character in text})


def train(pairs=SENTENCES, **keys) -> Subwords:
    config = SubwordConfig(**{"vocab_size": 150, **keys})
    return Subwords.train(lambda: iter(pairs), config)


@pytest.fixture(scope="module")
def models() -> dict[str, Subwords]:
    return {kind: train(type=kind) for kind in ("bpe", "unigram", "char", "word")}


# ---------------------------------------------------------------------------------- round trip


@given(text=st.text(st.sampled_from(ALPHABET)))
@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
def test_known_characters_come_back(models, kind, text):
    vocabulary = models[kind].source
    ids = vocabulary.encode(text)
    assert vocabulary.decode(ids) == text
    assert all(0 <= i < vocabulary.size and i != vocabulary.unk for i in ids)


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word"])
def test_any_text_has_ids_within_the_vocabulary(models, kind, text):
    vocabulary = models[kind].source
    ids = vocabulary.encode(text)
    assert all(0 <= i < vocabulary.size for i in ids)
    assert not {vocabulary.pad, vocabulary.bos, vocabulary.eos} & set(ids)
    assert isinstance(vocabulary.decode(ids), str)


def test_the_names_of_special_subwords_are_text():
    # SentencePiece cuts these names out of the text it learns from, so their letters stand apart.
    special = [("<s> </s> <unk> <pad>", "< s / u n k p a d >")] * 20
    for kind in ("bpe", "unigram", "char"):
        vocabulary = train(SENTENCES + special, type=kind).source
        ids = vocabulary.encode("<s> cat </s><pad><unk>")
        assert not {vocabulary.pad, vocabulary.bos, vocabulary.eos, vocabulary.unk} & set(ids)
        assert vocabulary.decode(ids) == "<s> cat </s><pad><unk>"


def test_a_special_token_in_a_text_is_an_unknown_word():
    vocabulary = WordVocabulary(["a", "<unk>", "<s>", "<e>", "<pad>"])
    assert vocabulary.encode("<s> a <e> <pad> b") == [1, 0, 1, 1, 1]


def test_special_ids_are_distinct_and_leave_no_trace(models):
    for subwords in models.values():
        vocabulary = subwords.source
        special = [vocabulary.pad, vocabulary.unk, vocabulary.bos, vocabulary.eos]
        assert len(set(special)) == 4 and all(0 <= i < vocabulary.size for i in special)
        ids = vocabulary.encode("the cat")
        framed = [vocabulary.bos, *ids, vocabulary.eos, vocabulary.pad, vocabulary.pad]
        assert vocabulary.decode(framed) == vocabulary.decode(ids) == "the cat"


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word"])
def test_chinese(shared_data, kind):
    folder = shared_data / "tatoeba_zh-en"
    sides = [(folder / f"valid.{lang}").read_text("utf-8").split("\n") for lang in ("zh", "en")]
    pairs = list(zip(*sides, strict=True))[:-1]
    subwords = train(pairs, type=kind, joint=False, vocab_size=3000)
    assert subwords.source.size <= 3000
    for source, target in pairs:
        back = subwords.source.decode(subwords.source.encode(source))
        assert back == source or kind == "word"  # a word there is a whole sentence
        assert subwords.target.decode(subwords.target.encode(target)) == target or kind == "word"


# ------------------------------------------------------------------------------ size and sides


def test_joint_or_one_a_side():
    joint = train()
    assert joint.joint and joint.source is joint.target
    apart = train(joint=False, vocab_size=66, target_vocab_size=70)
    assert not apart.joint and (apart.source.size, apart.target.size) == (66, 70)
    pairs = [("abc", "xyz")] * 5
    apart = train(pairs, joint=False, type="char")
    assert apart.source.unk in apart.source.encode("xyz")
    assert apart.target.unk not in apart.target.encode("xyz")


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_vocabulary_too_small_names_the_key(kind):
    characters = len(set(ALPHABET) - {" "}) + 1  # the space is one, as U+2581
    message = rf"subword\.vocab_size: 20: the text has {characters + 4} different characters"
    with pytest.raises(UsageError, match=message):
        train(type=kind, vocab_size=20)
    with pytest.raises(UsageError, match=r"subword\.target_vocab_size: 10: the text has"):
        train(type=kind, joint=False, target_vocab_size=10)


def test_no_text_at_all():
    with pytest.raises(UserError, match="there is no training pair"):
        train([])


# --------------------------------------------------------------------------------- determinism


# ------------------------------------------------------------------------------------ sampling


@given(text=st.text(st.sampled_from(ALPHABET)), rate=st.floats(0.01, 0.99))
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sampled_subwords_are_the_same_text(models, kind, text, rate):
    vocabulary = models[kind].source
    ids = seeded((1,), lambda: vocabulary.sample(text, rate))
    assert vocabulary.decode(ids) == text
    special = {vocabulary.pad, vocabulary.unk, vocabulary.bos, vocabulary.eos}
    assert all(0 <= i < vocabulary.size and i not in special for i in ids)


TEXTS = [text for pair in SENTENCES[:2] for text in pair] * 25


def draw(vocabulary, rate: float, *seed: int) -> list[list[int]]:
    return seeded(seed, lambda: [vocabulary.sample(text, rate) for text in TEXTS])


def test_bpe_dropout_leaves_out_merges(models):
    """At the rate 0 the text is encoded as ever, at 1 by its characters; in between it varies."""
    vocabulary = models["bpe"].source
    plain = vocabulary.encode_all(TEXTS)
    assert draw(vocabulary, 1e-9, 1) == plain
    characters = sum(len(text) + 1 for text in TEXTS)  # the space before the first word is one
    sizes = [sum(map(len, draw(vocabulary, rate, 1))) for rate in (1e-9, 0.1, 0.5, 1 - 1e-9)]
    assert sum(map(len, plain)) == sizes[0] < sizes[1] < sizes[2] < sizes[3] == characters
    # Of the first sentence's 25 draws, several differ.
    drawn = {tuple(ids) for ids in draw(vocabulary, 0.1, 1)[::4]}
    assert len(drawn) > 3 and tuple(plain[0]) in drawn


def test_unigram_sampling_varies_the_more_the_lower_alpha_is(models):
    vocabulary = models["unigram"].source
    plain = vocabulary.encode_all(TEXTS)
    different = [
        sum(a != b for a, b in zip(draw(vocabulary, rate, 1), plain, strict=True))
        for rate in (0.05, 0.5, 0.999)
    ]
    assert len(TEXTS) * 0.9 < different[0] and different[0] > different[1] > different[2]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_draw_follows_from_its_seed(models, kind):
    vocabulary = models[kind].source
    seeds = [(1, 0, 0), (1, 0, 1), (1, 1, 0), (2, 0, 0), (0,), (2**40, 3)]
    first = [draw(vocabulary, 0.1, *seed) for seed in seeds]
    assert len({str(ids) for ids in first}) == len(seeds)
    # In another order, with other draws in between, in other threads at once.
    draw(vocabulary, 0.3, 9)
    again = [draw(vocabulary, 0.1, *seed) for seed in reversed(seeds)]
    assert again[::-1] == first
    with ThreadPoolExecutor(len(seeds)) as pool:
        assert list(pool.map(lambda seed: draw(vocabulary, 0.1, *seed), seeds)) == first


# -------------------------------------------------------------------------------- save and load


@pytest.mark.parametrize("joint", [True, False])
def test_save_and_load(tmp_path, joint):
    subwords = train(joint=joint)
    subwords.save(tmp_path)
    names = ["subword.model"] if joint else ["subword.source.model", "subword.target.model"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    loaded = Subwords.load(tmp_path)
    assert loaded.joint == joint and loaded.content() == subwords.content()
    (tmp_path / names[-1]).unlink()
    with pytest.raises(UserError, match="there is no subword model"):
        Subwords.load(tmp_path)


def test_a_damaged_model(tmp_path, models):
    model = models["bpe"].source.content()
    for damaged in (b"", b"\n", model[: len(model) // 2], b"text\n" * 9, model[:-1]):
        (tmp_path / "subword.model").write_bytes(damaged)
        with pytest.raises(UserError, match=r"subword\.model: not a SentencePiece model"):
            Subwords.load(tmp_path)


def test_a_model_without_pad_is_not_ours(tmp_path):
    model = io.BytesIO()
    text, options = (pair[0] for pair in SENTENCES), {"vocab_size": 100, "hard_vocab_limit": False}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=text, model_writer=model, minloglevel=2, **options
    )
    (tmp_path / "subword.model").write_bytes(model.getvalue())
    with pytest.raises(UserError, match="four different ids"):
        Subwords.load(tmp_path)


# ------------------------------------------------------------------------- errors from the text


@pytest.mark.parametrize(
    "error", [UserError("line 3"), OSError(5, "I/O"), Interrupted(2)], ids=repr
)
def test_an_error_of_the_text_surfaces_as_itself(error):
    def text():
        yield from SENTENCES
        raise error

    with pytest.raises(type(error)) as caught:
        Subwords.train(text, SubwordConfig(vocab_size=100))
    assert caught.value is error


# -------------------------------------------------------------------------- type: vocabulary

TYPES = ["<s>", "<e>", "<unk>", "the", "ca@@", "t", "@@", "."]


@pytest.fixture
def bpe(tmp_path) -> Subwords:
    (tmp_path / "types").write_text("\n".join(TYPES) + "\n")
    return Subwords.from_vocabulary(tmp_path / "types")


ODD_TOKENS = ["5\u00a0km", "\u3000", "a\u2028b", "\x85", "\u00a0@@"]


def test_only_spaces_and_tabs_separate_tokens(tmp_path):
    (tmp_path / "types").write_text("".join(f"{token}\n" for token in ODD_TOKENS), encoding="utf-8")
    vocabulary = Subwords.from_vocabulary(tmp_path / "types").source
    for space in (" ", "  ", "\t"):
        text = space.join(ODD_TOKENS)
        assert vocabulary.encode(f" {text} ") == list(range(len(ODD_TOKENS)))
        assert [text[start:end] for start, end in vocabulary.places(text)] == ODD_TOKENS
    assert vocabulary.decode([0, 1, 4, 2]) == "5\u00a0km \u3000 \u00a0a\u2028b"


@pytest.mark.parametrize(
    "pieces, text",
    [
        ("the ca@@ t .", "the cat ."),
        ("ca@@ ca@@ t", "cacat"),
        ("the ca@@", "the ca"),  # nothing follows
        ("t @@ t", "t t"),
        ("the dog", "the <unk>"),
        ("", ""),
    ],
)
def test_bpe_is_removed(bpe, pieces, text):
    vocabulary = bpe.source
    ids = vocabulary.encode(pieces)
    framed = [vocabulary.bos, *ids, vocabulary.eos, vocabulary.pad]
    assert vocabulary.decode(ids) == vocabulary.decode(framed) == text


@pytest.mark.parametrize(
    "content, types",
    [
        ("a\nb\n", ["a", "b"]),
        ("\ufeff<s>\nb", ["<s>", "b"]),
        ("a\r\nb\r\n\r\n\n", ["a", "b"]),
        ("a 12\nb\t7\n", ["a", "b"]),  # with counts, as subword-nmt writes them
        ("<s>\n</s>\n<unk>\n<pad>\nx", ["<s>", "</s>", "<unk>", "<pad>", "x"]),
    ],
)
def test_forms_of_vocabulary_files(tmp_path, content, types):
    (tmp_path / "types").write_bytes(content.encode())
    subwords = Subwords.from_vocabulary(tmp_path / "types")
    assert subwords.source.pieces(range(len(types))) == types
    assert subwords.source.size == len({*types, "<pad>", "<unk>", "<s>"}) + ("</s>" not in types)
    subwords.save(tmp_path)
    loaded = Subwords.load(tmp_path)
    assert loaded.joint and loaded.content() == subwords.content()
    for name in ("pad", "unk", "bos", "eos", "size"):
        assert getattr(loaded.source, name) == getattr(subwords.source, name)


def test_vocabulary_files_that_are_none(tmp_path):
    path = tmp_path / "types"
    with pytest.raises(UsageError, match="types: there is no such file"):
        Subwords.from_vocabulary(path)
    for content in ("", "\n", "\t\n\n"):
        path.write_text(content)
        with pytest.raises(UserError, match="types: there is no type in it"):
            Subwords.from_vocabulary(path)
    path.write_text("a\nb\na 3\n")
    with pytest.raises(UserError, match="types: the type 'a' is in it more than once"):
        Subwords.from_vocabulary(path)


def test_a_damaged_saved_vocabulary(bpe, tmp_path):
    bpe.save(tmp_path)
    path = tmp_path / "subword.txt"
    whole = path.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], whole + b"the\n"):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"subword\.txt: damaged"):
            Subwords.load(tmp_path)


ACCENTS = "Mädchen café Ångström tiếng Việt ộ ᾂ й안녕 각가 が क़ नी שּׁ ﬁ ① ö­x Å ﻿a‍b"


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_nfc_encodes_all_spellings_equally(kind):
    """And the outputs are composed, also if the training text was not. The places are those of the
    text that was given."""
    apart = unicodedata.normalize("NFD", ACCENTS)
    composed = unicodedata.normalize("NFC", ACCENTS)
    assert apart != composed != ACCENTS
    vocabulary = train([(apart, apart)] * 9, type=kind, normalization="nfc").source
    same = train([(composed, ACCENTS)] * 9, type=kind, normalization="nfc").source
    assert vocabulary.content() == same.content()
    ids = vocabulary.encode(apart)
    assert vocabulary.unk not in ids
    assert ids == vocabulary.encode(composed) == vocabulary.encode(ACCENTS)
    assert vocabulary.decode(ids) == composed
    parts = "".join(apart[start:end] for start, end in vocabulary.places(apart))
    assert parts == apart.replace(" ", "")


@cache
def normaliser(rule: str) -> sentencepiece.SentencePieceProcessor:
    """SentencePiece itself with a trained model, as another program would use it."""
    model = train(type="char", normalization=rule).source.content()
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    processor.override_normalizer_spec(add_dummy_prefix=False, escape_whitespaces=False)
    return processor


def test_every_character_is_composed_as_unicode_does():
    """Also with its marks in another order."""
    normalise = normaliser("nfc").normalize
    for character in map(chr, [*range(1, 0xD800), *range(0xE000, 0x32000)]):
        composed, apart = (unicodedata.normalize(form, character) for form in ("NFC", "NFD"))
        spellings = {character, apart, composed}
        if unicodedata.normalize("NFD", other := apart[0] + apart[:0:-1]) == apart:
            spellings.add(other)
        assert {normalise(spelling) for spelling in spellings} == {composed}, hex(ord(character))


@given(text=st.text(st.characters(exclude_categories=["Cs", "Mn", "Mc"], exclude_characters="\0")))
@pytest.mark.parametrize("rule", ["nfc", "nfc_visible"])
def test_references_are_normalised_as_the_subwords_are(rule, text):
    """And nothing else is changed. (Marks in odd places are the exception of `rules`.)"""
    expected = unicodedata.normalize("NFC", text)
    if rule == "nfc_visible":
        expected = "".join(one for one in expected if one not in INVISIBLE)
    assert normaliser(rule).normalize(text) == normalized(text, rule) == expected


def test_unknown_parts_of_a_text(models):
    vocabulary = models["bpe"].source
    assert vocabulary.unknown("the cat") == []
    assert vocabulary.unknown("the 中文 cat Жa") == ["中文", "Ж"]
    words = WordVocabulary(["a", "b"])
    assert words.unknown("a c b dd") == ["c", "dd"]

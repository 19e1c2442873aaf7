"""Shortlists: IBM Model 1 against the formulas of the paper, candidates, and the file."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import demo_pairs, examples, make_config, make_model_directory, train_subwords
from transformer_mt.data import shortlist as module
from transformer_mt.data.encoded import EncodedCorpus, Limits, encoded_corpus
from transformer_mt.data.shortlist import Shortlist, ibm_model_1, learn
from transformer_mt.data.subword import Subwords
from transformer_mt.data.vocabulary import WordVocabulary
from transformer_mt.model_directory import SHORTLIST, ModelDirectory
from transformer_mt.training.folder import RunDirectory
from transformer_mt.utils.errors import UsageError, UserError

PAIRS = demo_pairs(300)


@pytest.fixture(scope="module")
def subwords():
    return train_subwords(PAIRS)


def encoded(folder, pairs, subwords) -> EncodedCorpus:
    return encoded_corpus(pairs, "text", subwords, Limits(), folder, "text")


# ---- Learning ----


def brute_force(pairs, empty, iterations):
    """t(f | e) of Brown et al. 1993, formulas (10) to (12), word by word."""
    t = defaultdict(lambda: 1.0)
    for _ in range(iterations):
        counts = defaultdict(float)
        for source, target in pairs:
            source = [empty, *source]
            for f in target:
                total = sum(t[e, f] for e in source)
                for e in source:
                    counts[e, f] += t[e, f] / total
        totals = defaultdict(float)
        for (e, _), count in counts.items():
            totals[e] += count
        t = {(e, f): count / totals[e] for (e, f), count in counts.items()}
    return t


@pytest.mark.parametrize("at_once", [1, 1_000, 1 << 30])
@pytest.mark.parametrize("iterations", [1, 4])
def test_ibm_model_1_is_that_of_the_paper(at_once, iterations, tmp_path, subwords, monkeypatch):
    """However many links are made at once. Some pairs are left out, as tested pairs are."""
    monkeypatch.setattr(module, "LINKS_AT_ONCE", at_once)
    corpus = encoded(tmp_path, PAIRS[:40], subwords)
    chosen = np.delete(np.arange(40), [0, 7, 8, 39])
    sizes = subwords.source.size, subwords.target.size
    arrays = ibm_model_1(corpus.source, corpus.target, chosen, sizes, iterations)
    found = {(e, f): p for e, f, p in zip(*map(np.ndarray.tolist, arrays), strict=True)}
    pairs = [(corpus.source[i].tolist(), corpus.target[i].tolist()) for i in chosen]
    expected = brute_force(pairs, sizes[0], iterations)
    assert found.keys() == expected.keys()
    assert list(found) == sorted(found)
    assert found == pytest.approx(expected)


def test_words_that_occur_together_are_learnt(tmp_path):
    vocabulary = WordVocabulary(["the", "dog", "cat", "runs", "der", "Hund", "Katze", "rennt"])
    subwords = Subwords(vocabulary, vocabulary)
    pairs = [
        ("the dog", "der Hund"),
        ("the cat", "der Katze"),
        ("the dog runs", "der Hund rennt"),
        ("cat runs", "Katze rennt"),
    ]
    shortlist, tested = learn(encoded(tmp_path, pairs, subwords), subwords, 1, frequent=0)
    for source, target in ("the", "der"), ("dog", "Hund"), ("cat", "Katze"), ("runs", "rennt"):
        ids = vocabulary.encode(f"{target} {source}")  # a joint vocabulary: a word may stay
        assert shortlist.translations[vocabulary.encode(source)[0]] == ids
    assert shortlist.always == sorted(vocabulary.special)
    assert tested.pairs == 0
    assert "too small" in str(tested)


def test_the_recall_is_that_of_pairs_that_were_not_learnt_from(tmp_path, subwords):
    corpus = encoded(tmp_path, PAIRS, subwords)
    shortlist, tested = learn(corpus, subwords)
    places = range(module.TEST_EVERY - 1, len(PAIRS), module.TEST_EVERY)
    assert tested.pairs == len(places) == 6
    found, sizes = [], []
    for i in places:
        allowed = set(shortlist.always).union(
            *(shortlist.translations[e] for e in corpus.source[i].tolist())
        )
        found += [f in allowed for f in corpus.target[i].tolist()]
        sizes.append(len(allowed))
    assert tested.recall == pytest.approx(np.mean(found))
    assert tested.recall > 0.9
    assert tested.candidates == pytest.approx(np.mean(sizes))
    again, _ = learn(corpus, subwords)
    assert again.text(subwords) == shortlist.text(subwords)


def test_a_large_text_is_sampled(tmp_path, subwords, monkeypatch):
    corpus = encoded(tmp_path, PAIRS, subwords)
    monkeypatch.setattr(module, "MOST_LINKS", 5_000)
    chosen = module._sample(corpus, np.arange(len(PAIRS)))
    links = ((corpus.source.lengths + 1) * corpus.target.lengths)[chosen].sum()
    assert 4_000 < links <= 5_000
    assert (np.diff(chosen) > 0).all()
    assert chosen[-1] > 250, "the end of the text is learnt from too"
    learn(corpus, subwords)
    monkeypatch.setattr(module, "MOST_LINKS", 1)
    with pytest.raises(UserError, match="so few pairs"):
        learn(corpus, subwords)


# ---- Candidates ----


def test_candidates_are_the_union_and_each_sentence_has_its_own():
    shortlist = Shortlist([0, 1], [[5], [3, 4], [], [9, 5]], target_size=12)
    found = shortlist.candidates([[0, 0], [1, 3], [2], []], [[], [11], [], [7, 1]])
    assert found.ids.tolist() == [0, 1, 3, 4, 5, 7, 9, 11]
    own = [found.ids[row == 0].tolist() for row in found.forbidden]
    assert own == [[0, 1, 5], [0, 1, 3, 4, 5, 9, 11], [0, 1], [0, 1, 7]]
    assert set(found.forbidden.flat) == {0.0, -np.inf}
    found.select(np.array([2, 0]))
    assert [found.ids[row == 0].tolist() for row in found.forbidden] == [[0, 1], [0, 1, 5]]


# ---- The file ----

PIECES = st.text(st.sampled_from("ab\t \n\r\x00\x1c\x85\u2028\u3000\ufeff\u2581#é😀"), max_size=3)


@given(st.lists(PIECES, max_size=12), st.data())
@settings(max_examples=examples(100, 2_000), deadline=None)
def test_what_is_written_is_read(pieces, data):
    """Subwords that the format can't hold are always candidates, and have no translations."""
    vocabulary = WordVocabulary(list(dict.fromkeys(pieces)))
    if data.draw(st.booleans()):  # No vocabulary of ours has a subword twice, but one may.
        vocabulary._tokens.append(vocabulary._tokens[0])
        vocabulary.size += 1
    subwords, size = Subwords(vocabulary, vocabulary), vocabulary.size
    ids = st.lists(st.integers(0, size - 1), max_size=5, unique=True)
    shortlist = Shortlist(data.draw(ids), [data.draw(ids) for _ in range(size)], size)
    all_pieces = vocabulary.pieces(range(size))
    unfit = {
        i
        for i, piece in enumerate(all_pieces)
        if all_pieces.count(piece) > 1 or not piece or any(c in piece for c in "\t \n\r")
    }
    text = shortlist.text(subwords)
    read = Shortlist.read(text, subwords)
    assert set(read.always) == {*shortlist.always, *unfit, *vocabulary.special}
    for i, row in enumerate(shortlist.translations):
        expected = [] if i in unfit else [j for j in row if j not in unfit]
        assert read.translations[i] == expected
    # Read and written again, the lines of translations are the same.
    assert read.text(subwords).split("\n")[1:] == text.split("\n")[1:]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> RunDirectory:
    folder = tmp_path_factory.mktemp("shortlist")
    return make_model_directory(folder / "model", PAIRS, make_config(folder))


def test_a_directory_without_a_shortlist_names_the_command(model):
    with pytest.raises(UsageError, match=f"python -m transformer_mt shortlist {model.path}"):
        model.load_shortlist(model.load_subwords())


DAMAGE = {
    "a byte": lambda content: content.replace(b"\t", b"_", 1),
    "the end": lambda content: content[:-1],
    "the middle": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "not UTF-8": lambda content: b"\xff\xfe" + content,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_gives_one_message(damage, model, tmp_path):
    subwords = model.load_subwords()
    model.write_shortlist(learn(encoded(tmp_path, PAIRS, subwords), subwords)[0], subwords)
    path = model.path / SHORTLIST
    whole = path.read_bytes()
    assert ModelDirectory(model.path).load_shortlist(subwords).text(subwords).encode() in whole
    path.write_bytes(DAMAGE[damage](whole))
    try:
        with pytest.raises(UserError, match=f"{SHORTLIST}: damaged, .*Make it again with: python"):
            model.load_shortlist(subwords)
    finally:
        path.unlink()


@pytest.mark.parametrize(
    "text", ["", "a\n", "x\ta\n", "\ta\nb\n", "\ta\nb\ta\tb\n", "\ta\nb\t\n", "\tz\n", "\t\nz\ta\n"]
)
def test_a_text_in_another_format_is_refused(text):
    vocabulary = WordVocabulary(["a", "b"])
    with pytest.raises(ValueError, match=r"subwords|tab|values to unpack"):
        Shortlist.read(text, Subwords(vocabulary, vocabulary))

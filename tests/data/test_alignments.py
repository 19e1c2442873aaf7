"""Links between words, read from a file, become links between subwords of the encoded corpus."""

import random
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import demo_pairs, train_subwords, words, write_lines
from transformer_mt.data import alignments as alignments_module
from transformer_mt.data import encoded as encoded_module
from transformer_mt.data.alignments import encoded_alignments
from transformer_mt.data.batches import collate, read_update
from transformer_mt.data.encoded import Limits, encoded_corpus
from transformer_mt.utils.errors import UserError

PAIRS = demo_pairs(200)
SUBWORDS = train_subwords(PAIRS, 400)
LANGUAGES = "en", "de"
# The longer side of each pair, in subwords. With the limit some pairs are too long, most are not.
LENGTHS = [max(map(len, map(SUBWORDS.source.encode, pair))) for pair in PAIRS]
SOME = Limits(max_length=sorted(LENGTHS)[3 * len(LENGTHS) // 4])


def random_links(pairs, seed=1):
    """For each pair some links between its words, for some pairs none."""
    draw = random.Random(seed)
    lines = []
    for source, target in pairs:
        sizes = len(words(source)), len(words(target))
        links = {tuple(map(draw.randrange, sizes)) for _ in range(draw.randrange(2 * max(sizes)))}
        lines.append(sorted(links))
    return lines


def written(path, lines):
    return write_lines(path, (" ".join(f"{i}-{j}" for i, j in links) for links in lines))


def encode(pairs, cache, limits=None, chosen=None, subwords=SUBWORDS):
    """`chosen` are the numbers of the pairs that are used; None: all."""
    numbers = count()

    def reason_to_drop(pair):
        return None if chosen is None or next(numbers) in chosen else "other"

    return encoded_corpus(pairs, "", subwords, limits or Limits(), cache, "", reason_to_drop)


def align(path, corpus, cache, subwords=SUBWORDS, languages=LANGUAGES):
    return encoded_alignments(path, corpus, subwords, languages, cache)


def spelling(vocabulary, text):
    """For each subword of a text the word that it is in, found by spelling the text out again."""
    pieces = [piece.replace("▁", " ") for piece in vocabulary.pieces(vocabulary.encode(text))]
    assert "".join(pieces) == f" {text}"
    places, done = [], ""
    for piece in pieces:
        done += piece
        # Where this subword ends, so many words have begun; a space alone is before the next one.
        places.append(len(words(done)) - (0 if not piece.isspace() else -1) - 1)
    return places


def expected_links(pair, links):
    sides = zip((SUBWORDS.source, SUBWORDS.target), pair, strict=True)
    source, target = (spelling(*side) for side in sides)
    return {
        (a, b) for i, j in links for a, w in enumerate(source) if w == i
        for b, v in enumerate(target) if v == j
    }  # fmt: skip


def test_words_become_their_subwords(tmp_path, monkeypatch):
    """On real text, against a mapping that spells the text out. The pairs are some of the lines, in
    whatever way they were chosen."""
    monkeypatch.setattr(encoded_module, "CHUNK", 7)
    lines = random_links(PAIRS)
    path = written(tmp_path / "links", lines)
    chosen = [i for i in range(len(PAIRS)) if i % 3]
    corpus = encode(PAIRS, tmp_path, SOME, chosen)
    assert len(chosen) / 2 < len(corpus) < len(chosen)  # some were too long
    assert [SUBWORDS.source.decode(corpus.source[i]) for i in range(len(corpus))] == [
        PAIRS[line][0] for line in corpus.lines
    ]
    found = align(path, corpus, tmp_path)
    linked = 0
    for i, line in enumerate(corpus.lines):
        own = [tuple(link) for link in found[i].tolist()]
        expected = expected_links(PAIRS[line], lines[line])
        assert len(own) == len(set(own)) and set(own) == expected
        linked += len({target for _, target in expected})
    assert found.facts == {
        "lines": len(PAIRS),
        "pairs": len(corpus),
        "links": sum(len(lines[line]) for line in corpus.lines),
        "unlinked": len(corpus.target.ids) - linked,
    }


def test_rows_are_shares(tmp_path):
    lines = random_links(PAIRS)
    corpus = encode(PAIRS, tmp_path)
    found = align(written(tmp_path / "links", lines), corpus, tmp_path)
    sentences = np.array([5, 0, 17, 120])
    batch = collate(corpus, sentences, SUBWORDS, found)
    rows, target_len, source_len = batch.alignment.shape
    assert (rows, target_len) == batch.target_output.shape and batch.alignment.dtype == np.float32
    assert (rows, source_len) == batch.source.shape
    for row, i in enumerate(sentences):
        expected = np.zeros((target_len, source_len))
        for source, target in expected_links(PAIRS[i], lines[i]):
            expected[target, source] = 1
        expected /= np.maximum(expected.sum(axis=1, keepdims=True), 1)
        np.testing.assert_allclose(batch.alignment[row], expected, rtol=1e-6)
    # eos and padding are linked to nothing.
    assert not batch.alignment[batch.target_output == SUBWORDS.target.eos].any()
    assert not batch.alignment[batch.target_output == SUBWORDS.target.pad].any()
    # Without alignments there are none.
    assert collate(corpus, sentences, SUBWORDS).alignment is None


def test_each_process_has_the_links_of_its_rows(tmp_path):
    corpus = encode(PAIRS, tmp_path)
    found = align(written(tmp_path / "links", random_links(PAIRS)), corpus, tmp_path)
    update = [np.arange(11), np.arange(50, 71), np.arange(30, 35)]
    for rank in (0, 1):
        own = read_update(corpus, update, SUBWORDS, rank, 2, alignments=found)
        for batch, sentences in zip(own.batches, update, strict=True):
            alone = collate(corpus, sentences[rank::2], SUBWORDS, found)
            np.testing.assert_array_equal(batch.alignment, alone.alignment)
            assert batch.alignment.any()
    plain = read_update(corpus, update, SUBWORDS, 0, 2)
    assert all(batch.alignment is None for batch in plain.batches)


def test_it_is_made_once(tmp_path, monkeypatch):
    corpus = encode(PAIRS, tmp_path)
    lines = random_links(PAIRS)
    path = written(tmp_path / "links", lines)
    first = align(path, corpus, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(alignments_module, "_write", lambda *a: pytest.fail("it is made again"))
        moved = path.rename(tmp_path / "moved")
        # Both are written with spaces too.
        assert align(moved, corpus, tmp_path, languages=("de", "fr")).key == first.key
    # Another file, corpus or kind of language, of either side, makes another.
    changed = written(tmp_path / "changed", [[(0, 0)], *lines[1:]])
    others = [
        align(changed, corpus, tmp_path),
        align(moved, encode(PAIRS, tmp_path, SOME), tmp_path),
        align(moved, corpus, tmp_path, languages=("en", "ja")),
        align(moved, corpus, tmp_path, languages=("ja", "de")),
    ]
    assert len({first.key, *(other.key for other in others)}) == 5


# ---- What can be wrong with a file ----


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return encode(PAIRS[:5], tmp_path_factory.mktemp("cache"))


def refused(tmp_path, corpus, lines):
    path = write_lines(tmp_path / "links", lines)
    with pytest.raises(UserError) as caught:
        align(path, corpus, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("alignments-*"))
    message = str(caught.value)
    assert message.startswith(f"guided_attention.alignments: {path}")
    return message.removeprefix(f"guided_attention.alignments: {path}")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["0-0"] * 4, " has 4 lines, the training text 5: "),
        (["0-0", "", "0-0 1:1", "?", ""], ", line 3: '1:1' is no link"),
        # Counting from 1 is found by the last word.
        (
            ["0-0", "", "", "0-0 {source}-0", "0-0"],
            ", line 4: {source}-0: there are {source} words",
        ),
        (["0-0", "", "", "0-{target}", "0-0"], ", line 4: 0-{target}: there are {source} words"),
        (["0-0", "", "", "999999999-0", ""], ", line 4: 999999999-0: there are {source} words"),
        ([""] * 5, ": there is no link in it"),
    ],
)
def test_what_can_be_wrong(tmp_path, corpus, lines, message):
    source, target = (len(words(text)) for text in PAIRS[3])
    lines = [line.format(source=source, target=target) for line in lines]
    assert refused(tmp_path, corpus, lines).startswith(message.format(source=source, target=target))


def test_what_is_wrong_is_looked_for_where_text_is_left_out_too(tmp_path):
    """Links of a pair that is not used may be of any words, but must be links."""
    corpus = encode(PAIRS[:3], tmp_path / "text", chosen=[0, 2])
    assert refused(tmp_path, corpus, ["0-0", "x", ""]).startswith(", line 2: 'x' is no link")
    path = write_lines(tmp_path / "links", ["0-0", "500-500", "0-0"])
    assert align(path, corpus, tmp_path / "cache").facts["links"] == 2


@settings(max_examples=20)
@given(kept=st.sets(st.integers(0, 29), min_size=1), chunk=st.integers(1, 12))
def test_any_choice_of_lines(tmp_path_factory, kept, chunk):
    """The lines that are read, and those that are kept, end at the same places or at others."""
    folder = tmp_path_factory.mktemp("some")
    numbers = sorted(kept)
    lines = [[(0, 0)] * (i % 2) + [(1, 1)] for i in range(30)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoded_module, "CHUNK", chunk)
        corpus = encode(PAIRS[:30], folder, chosen=numbers)
        found = align(written(folder / "links", lines), corpus, folder)
    for i, number in enumerate(numbers):
        expected = expected_links(PAIRS[number], lines[number])
        assert {tuple(link) for link in found[i].tolist()} == expected

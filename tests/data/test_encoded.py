"""The encoded corpus holds what encoding in memory gives, and is made anew when it must be."""

import os
import pickle
import random
import shutil
import signal
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_mt.config.text import SubwordConfig
from transformer_mt.data import encoded as encoded_module
from transformer_mt.data.encoded import EncodedCorpus, Limits, encoded_corpus
from transformer_mt.data.subword import Subwords
from transformer_mt.data.vocabulary import Vocabulary
from transformer_mt.utils.errors import UserError
from transformer_mt.utils.folders import write_checksums


class Letters(Vocabulary):
    """The simplest vocabulary: a character's id is its code point; 1 is unknown."""

    pad, unk, bos, eos = range(4)

    def __init__(self, size: int = 1 << 16) -> None:
        self.size = size

    def encode(self, text: str) -> list[int]:
        return [ord(c) if ord(c) < self.size else self.unk for c in text]

    def content(self) -> bytes:
        return b"%d" % self.size


def letters(size: int = 1 << 16) -> Subwords:
    vocabulary = Letters(size)
    return Subwords(vocabulary, vocabulary)


def encode(pairs, cache: Path, **changes) -> EncodedCorpus:
    arguments = {"content": "text 1", "subwords": letters(), "limits": Limits(), **changes}
    return encoded_corpus(pairs, cache=cache, title="encoding", **arguments)


def without_empty(pair: tuple[str, str]) -> str | None:
    return None if all(pair) else "empty on a side"


def never():
    pytest.fail("the pairs are read again")
    yield


def decoded(corpus: EncodedCorpus) -> list[tuple[str, str]]:
    return [
        tuple("".join(map(chr, side[i])) for side in (corpus.source, corpus.target))
        for i in range(len(corpus))
    ]


def entries(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.name != ".lock")


ENTRY = "[0-9a-f]*"
PAIRS = [("one", "eins"), ("a", ""), ("", "b"), ("", ""), ("long " * 50, "ü")]
any_text = st.text(st.characters(min_codepoint=4, max_codepoint=0xD7FF))


# ------------------------------------------------------------------------------------- content


@settings(max_examples=40)
@given(pairs=st.lists(st.tuples(any_text, any_text), min_size=1, max_size=30))
def test_what_is_encoded_comes_back(pairs, tmp_path_factory):
    cache = tmp_path_factory.getbasetemp() / "any-pairs"
    shutil.rmtree(cache, ignore_errors=True)
    corpus = encode(pairs, cache)
    assert decoded(corpus) == pairs and len(corpus) == len(pairs)
    lengths = [len(source) for source, _ in pairs], [len(target) for _, target in pairs]
    assert (corpus.source.lengths.tolist(), corpus.target.lengths.tolist()) == lengths
    assert corpus.longest == max(map(max, lengths))
    assert corpus.facts == {"pairs": len(pairs), "dropped": {}}


@pytest.mark.parametrize("size, dtype", [(1 << 16, np.uint16), ((1 << 16) + 1, np.int32)])
def test_the_smallest_array_that_holds_every_id(tmp_path, size, dtype):
    corpus = encode([(chr(size - 1), "a"), ("\U0010ffff", "a")], tmp_path, subwords=letters(size))
    assert corpus.source.ids.dtype == dtype
    assert corpus.source.ids.tolist() == [size - 1, Letters.unk]


def test_limits():
    """With eos, 5 and 1 subwords are 6 to 2."""
    limits = Limits(max_length=5, max_length_ratio=3.0)
    for lengths in ((5, 5), (0, 2), (1, 5), (5, 1)):
        assert limits.reason_to_drop(*([9] * length for length in lengths)) is None
    assert limits.reason_to_drop([9] * 6, [9] * 5) == "longer than 5 subwords"
    assert limits.reason_to_drop([9] * 3, []) == "lengths differ by more than 3 to 1"
    assert Limits().reason_to_drop([], [9] * 600) is None


def test_nothing_left(tmp_path):
    pairs = [("", "c")] * 1200 + [("ab", "c"), ("abc", "d")]
    with pytest.raises(UserError, match=r"\(1,200 empty on a side, 2 longer than 1 subwords\)"):
        encode(pairs, tmp_path, reason_to_drop=without_empty, limits=Limits(max_length=1))
    with pytest.raises(UserError, match=r"no pair is left \(there was none\)"):
        encode([], tmp_path)
    assert entries(tmp_path) == []


# --------------------------------------------------------------------------------------- cache


def test_a_hit_reads_nothing_again(tmp_path):
    first = encode(PAIRS, tmp_path, reason_to_drop=without_empty)
    again = encode(never(), tmp_path)
    assert decoded(again) == decoded(first) == [pair for pair in PAIRS if all(pair)]
    assert again.facts == first.facts and again.facts["dropped"] == {"empty on a side": 3}


@pytest.mark.parametrize(
    "change",
    [
        {"content": "text 2"},
        {"limits": Limits(max_length_ratio=1000.0)},
        {"subwords": Subwords(Letters(1 << 16), Letters(999))},
        {"subwords": Subwords(Letters(999), Letters(1 << 16))},
    ],
)
def test_whatever_changes_makes_an_entry_of_its_own(tmp_path, change):
    encode(PAIRS, tmp_path)
    other = encode([("new", "neu")], tmp_path, **change)
    assert decoded(other)[:1] == [("new", "neu")] and len(entries(tmp_path)) == 2
    assert decoded(encode(never(), tmp_path)) == PAIRS
    assert len(encode(never(), tmp_path, **change)) == 1


def test_an_entry_goes_to_other_processes(tmp_path):
    corpus = encode(PAIRS, tmp_path)
    assert decoded(pickle.loads(pickle.dumps(corpus))) == PAIRS


def rewrite(name: str, content: bytes):
    return lambda folder: (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        *(rewrite("facts.json", facts) for facts in (b"", b"{}", b"[]", b'{"pairs": 4}', b"\xff")),
        rewrite("lines.npy", b"x"),
        lambda folder: np.save(folder / "lines.npy", np.arange(3)),
        lambda folder: np.save(folder / "target.ids.npy", np.zeros(3, np.uint16)),
    ],
)
def test_files_that_do_not_belong_together(tmp_path, damage):
    """With right checksums, as somebody else may have written them."""
    encode(PAIRS, tmp_path)
    (folder,) = tmp_path.glob(ENTRY)
    damage(folder)
    write_checksums(folder)
    with pytest.raises(UserError, match=r"damaged encoded corpus .*Delete the folder"):
        encode(PAIRS, tmp_path)


def test_the_lines_of_pairs_that_were_chosen(tmp_path):
    """What is too long is left out of those that were chosen of a text."""
    numbers = count()
    corpus = encode(
        PAIRS * 3,
        tmp_path,
        limits=Limits(max_length=200),
        reason_to_drop=lambda pair: None if next(numbers) % 2 else "even",
    )
    assert corpus.lines.tolist() == [1, 3, 5, 7, 11, 13]
    assert decoded(corpus) == [(PAIRS * 3)[line] for line in corpus.lines]
    assert corpus.text_lines == 15 and corpus.facts["dropped"]["even"] == 8


# ------------------------------------------------------------------------------------ processes


@pytest.fixture
def parallel(monkeypatch):
    """Encodes in two processes from the first pair on; few pairs make many chunks."""
    monkeypatch.setattr(encoded_module, "PARALLEL_FROM", 0)
    monkeypatch.setattr(encoded_module, "CHUNK", 7)
    monkeypatch.setattr(encoded_module.os, "sched_getaffinity", lambda pid: {0, 1})


def test_several_processes_give_the_same_files(tmp_path, parallel, monkeypatch):
    rng = random.Random(1)
    pairs = [
        tuple("".join(rng.choices("abcdef  ", k=rng.randrange(1, 40))) for _ in range(2))
        for _ in range(500)
    ]
    config = SubwordConfig(vocab_size=60, joint=False)
    subwords = Subwords.train(lambda: iter(pairs[:300]), config)
    limits = Limits(max_length=30, max_length_ratio=3.0)
    several = encode(pairs, tmp_path / "several", subwords=subwords, limits=limits)
    monkeypatch.setattr(encoded_module, "PARALLEL_FROM", 10**9)
    one = encode(pairs, tmp_path / "one", subwords=subwords, limits=limits)
    assert several.facts == one.facts and one.facts["dropped"]
    (first,), (second,) = (tmp_path / "several").glob(ENTRY), (tmp_path / "one").glob(ENTRY)
    assert first.name == second.name and entries(first) == entries(second)
    for name in entries(first):
        assert (first / name).read_bytes() == (second / name).read_bytes()


class Deadly(Letters):
    """Its process dies at a text, as one that runs out of memory does."""

    def encode(self, text: str) -> list[int]:
        if text == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode(text)


def test_a_worker_that_is_killed(tmp_path, parallel):
    vocabulary = Deadly()
    with pytest.raises(UserError, match="encoding: a process that encodes text was killed"):
        encode(
            [("a", "b")] * 20 + [("die", "c")], tmp_path, subwords=Subwords(vocabulary, vocabulary)
        )
    assert entries(tmp_path) == []


def test_an_error_of_the_text_while_others_work(tmp_path, parallel):
    def pairs():
        yield from PAIRS * 10
        raise UserError("train.en, line 51: not UTF-8")

    with pytest.raises(UserError, match="line 51"):
        encode(pairs(), tmp_path)
    assert entries(tmp_path) == []

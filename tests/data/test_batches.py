"""Batches hold every sentence once, waste little, and follow from (seed, epoch) alone."""

import gc
import threading

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.padding import padding_share
from tests.support import demo_pairs, train_subwords
from transformer_mt.config.text import DataConfig, SubwordConfig
from transformer_mt.data.batches import (
    collate,
    encoded_rows,
    epoch_batches,
    group_batches,
    ordered_batches,
    read_ahead,
    read_update,
    share,
)
from transformer_mt.data.corpus import open_corpus
from transformer_mt.data.encoded import EncodedCorpus, Limits, encoded_corpus
from transformer_mt.data.subword import Subwords
from transformer_mt.data.vocabulary import WordVocabulary

sentence_lengths = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=200
)


def sides(lengths) -> tuple[np.ndarray, np.ndarray]:
    source, target = zip(*lengths, strict=True)
    return np.asarray(source, np.int64), np.asarray(target, np.int64)


def as_lists(batches) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


# ------------------------------------------------------------------------------------ the cut


@given(lengths=sentence_lengths, max_tokens=st.integers(1, 400), epoch=st.integers(0, 9))
def test_every_sentence_once_and_within_the_limit(lengths, max_tokens, epoch):
    source, target = sides(lengths)
    batches = epoch_batches(source, target, max_tokens, 1, epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    for batch in batches:
        size = len(batch) * (1 + int(max(source[batch].max(), target[batch].max())))
        assert size <= max_tokens or len(batch) == 1


def cut_one_by_one(longer_side: list[int], max_tokens: int) -> list[tuple[int, int]]:
    """Takes a sentence more into a batch as long as the batch stays within the limit."""
    cuts = []
    start = 0
    for end in range(1, len(longer_side) + 1):
        is_last = end == len(longer_side)
        if is_last or max(longer_side[start : end + 1]) * (end + 1 - start) > max_tokens:
            cuts.append((start, end))
            start = end
    return cuts


@given(lengths=sentence_lengths, max_tokens=st.integers(1, 400))
@example(lengths=[(3, 3)] * 8, max_tokens=16)  # a batch that is exactly full
def test_batches_against_one_sentence_after_the_other(lengths, max_tokens):
    source, target = sides(lengths)
    order = sorted(range(len(lengths)), key=lambda number: (target[number], source[number]))
    cuts = cut_one_by_one(np.maximum(source + 1, target + 1)[order].tolist(), max_tokens)
    expected = [order[start:end] for start, end in cuts]
    assert as_lists(ordered_batches(source, target, max_tokens)) == expected


# -------------------------------------------------------------------------- updates and shares


@pytest.mark.parametrize("count, sizes", [(1, [1] * 7), (3, [3, 3, 1]), (7, [7]), (9, [7])])
def test_updates(count, sizes):
    batches = [np.array([i]) for i in range(7)]
    groups = group_batches(batches, count)
    assert [len(group) for group in groups] == sizes
    assert [int(batch[0]) for group in groups for batch in group] == list(range(7))


@given(rows=st.lists(st.integers(1, 20), min_size=1, max_size=9), world_size=st.integers(1, 8))
def test_the_shares_of_all_processes_make_the_update(rows, world_size):
    ends = np.cumsum(rows)
    update = [np.arange(end - n, end) for end, n in zip(ends, rows, strict=True)]
    shares = [share(update, rank, world_size) for rank in range(world_size)]
    numbers = [int(i) for part in shares for batch in part for i in batch]
    assert sorted(numbers) == list(range(sum(rows)))  # complete, and none twice
    assert all(len(batch) for part in shares for batch in part)
    if len(update) % world_size == 0:
        # Whole batches, as many for each.
        assert {len(part) for part in shares} == {len(update) // world_size}
        assert {tuple(b) for part in shares for b in part} == {tuple(b) for b in update}
    else:
        # Equal rows of each batch, to within one.
        for batch in update:
            counts = [sum(len(np.intersect1d(batch, mine)) for mine in part) for part in shares]
            assert max(counts) - min(counts) <= 1


# -------------------------------------------------------------------------------------- arrays


def corpus_of(sentences, folder) -> EncodedCorpus:
    vocabulary = Subwords(Numbers(), Numbers())
    return encoded_corpus(sentences, "", vocabulary, Limits(), folder, "")


class Numbers:
    """Sentences that are lists of ids already."""

    size, pad, unk, bos, eos = 100, 0, 1, 2, 3

    def encode_all(self, sentences: list[list[int]]) -> list[list[int]]:
        return sentences

    def content(self) -> bytes:
        return b""


def test_collate_against_a_slow_reference(tmp_path):
    """Sides apart, with other special ids on each: none may be taken from the other side."""
    rng = np.random.default_rng(1)
    sentences = [
        tuple(rng.integers(4, 100, rng.integers(0, 12)).tolist() for _ in range(2))
        for _ in range(40)
    ]
    corpus = corpus_of(sentences, tmp_path)
    source = WordVocabulary(["<pad>", "<unk>", "<s>", "</s>"])
    subwords = Subwords(source, WordVocabulary(["</s>", "<s>", "<pad>", "<unk>"]))
    for batch in (*epoch_batches(corpus.source.lengths, corpus.target.lengths, 50, 1, 0), [7]):
        made = collate(corpus, np.asarray(batch), subwords)
        source_len = 1 + max(len(sentences[i][0]) for i in batch)
        target_len = 1 + max(len(sentences[i][1]) for i in batch)
        source, given, wanted = [], [], []
        for i in batch:
            ids = [*sentences[i][0], 3]
            source.append(ids + [0] * (source_len - len(ids)))
            fill = [2] * (target_len - len(sentences[i][1]) - 1)
            given.append([1, *sentences[i][1], *fill])
            wanted.append([*sentences[i][1], 0, *fill])
        assert made.source.tolist() == source
        assert made.target_input.tolist() == given
        assert made.target_output.tolist() == wanted
        assert made.target_tokens == sum(len(sentences[i][1]) + 1 for i in batch)
        assert made.source.dtype == made.target_input.dtype == made.target_output.dtype == np.int64


def test_rows_to_translate():
    rows = encoded_rows([[5, 6], [], [7, 8, 9]], pad=1, eos=0)
    assert rows.tolist() == [[5, 6, 0, 1], [0, 1, 1, 1], [7, 8, 9, 0]]
    assert rows.dtype == np.int64


# ------------------------------------------------------------------------------------- updates


@pytest.fixture(scope="module")
def sampled(tmp_path_factory):
    """Real sentences in subwords that can be sampled, for both types, and their corpora. Some of
    the sources have a character that is unknown."""
    pairs = demo_pairs(400)
    pairs[350:360] = [(f"{source} ☃", target) for source, target in pairs[350:360]]
    made = {}
    for kind in ("bpe", "unigram"):
        subwords = train_subwords(pairs[:300], 400, type=kind, joint=False)
        cache = tmp_path_factory.mktemp(kind)
        made[kind] = encoded_corpus(pairs, "", subwords, Limits(), cache, ""), subwords
    return made


def rows(batches, subwords) -> list[tuple[list[int], list[int]]]:
    """The ids of every row of some batches, and that the arrays agree with each other."""
    found = []
    for batch in batches:
        tokens = 0
        for source, given_, wanted in zip(
            batch.source, batch.target_input, batch.target_output, strict=True
        ):
            source_end = source.tolist().index(subwords.source.eos)
            target_end = wanted.tolist().index(subwords.target.eos)
            assert set(source[source_end + 1 :]) <= {subwords.source.pad}
            assert set(wanted[target_end + 1 :]) <= {subwords.target.pad}
            assert given_[0] == subwords.target.bos
            assert given_[1 : target_end + 1].tolist() == wanted[:target_end].tolist()
            found.append((source[:source_end].tolist(), wanted[:target_end].tolist()))
            tokens += target_end + 1
        assert batch.target_tokens == tokens
    return found


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("sampling", [None, 0.1])
@pytest.mark.parametrize("world_size", [2, 5])
def test_the_processes_of_an_update_read_it_once(sampled, kind, sampling, world_size):
    corpus, subwords = sampled[kind]
    plan = group_batches(epoch_batches(corpus.source.lengths, corpus.target.lengths, 300, 1, 0), 4)
    for number, sentences in enumerate((*plan[:2], plan[-1])):
        parts = [
            read_update(corpus, sentences, subwords, rank, world_size, sampling, (1, 0, number))
            for rank in range(world_size)
        ]
        read = [row for part in parts for row in rows(part.batches, subwords)]
        # All processes know how many target tokens the whole update has, by counting them here.
        assert {part.target_tokens for part in parts} == {sum(len(row[1]) + 1 for row in read)}
        assert parts[0].target_tokens == sum(b.target_tokens for p in parts for b in p.batches)
        # The same text, each sentence once, whatever the number of processes.
        numbers = np.concatenate(sentences)
        plain = sorted((corpus.source[i].tolist(), corpus.target[i].tolist()) for i in numbers)
        decode = subwords.source.decode, subwords.target.decode
        text, same = (
            sorted((decode[0](source), decode[1](target)) for source, target in pairs)
            for pairs in (read, plain)
        )
        assert text == same
        whole = read_update(corpus, sentences, subwords, 0, 1, sampling, (1, 0, number))
        assert all(max(b.source.size, b.target_input.size) <= 300 for b in whole.batches)
        assert sorted(read) == sorted(rows(whole.batches, subwords))
        assert (sorted(read) == plain) == (sampling is None)


def test_an_update_is_drawn_from_its_seed_alone(sampled):
    corpus, subwords = sampled["bpe"]
    sentences = [np.arange(20), np.arange(20, 50)]

    def read(*seed: int, first=sentences) -> list:
        return rows(read_update(corpus, first, subwords, 0, 1, 0.1, seed).batches, subwords)

    expected = read(1, 0, 5)
    assert read(1, 0, 6) != expected != read(1, 1, 5) != read(2, 0, 5)
    assert read(1, 0, 5) == expected
    # Read ahead, in another thread, after other updates.
    seeds = [(1, 0, 4), (1, 0, 5), (1, 0, 6)]
    assert [result for _, result in read_ahead(lambda seed: read(*seed), seeds)][1] == expected


def test_a_sentence_with_an_unknown_subword_is_not_sampled(sampled):
    """Its text can't be had from its ids."""
    corpus, subwords = sampled["bpe"]
    unknown = [
        i
        for i in range(len(corpus))
        if subwords.source.unk in corpus.source[i] and subwords.target.unk not in corpus.target[i]
    ]
    assert unknown
    read = read_update(corpus, [np.array(unknown)], subwords, 0, 1, 0.5, (1,))
    sources, targets = zip(*rows(read.batches, subwords), strict=True)
    assert sorted(sources) == sorted(corpus.source[i].tolist() for i in unknown)
    assert not [ids for ids in targets if ids in [corpus.target[i].tolist() for i in unknown]]


# ---------------------------------------------------------------------------------- reading ahead


alive = threading.active_count


def test_read_ahead_keeps_the_order():
    assert list(read_ahead(lambda n: n * n, range(20))) == [(n, n * n) for n in range(20)]
    assert list(read_ahead(str, [])) == []


def test_an_error_of_reading_comes_at_its_turn():
    before = alive()
    seen = []
    with pytest.raises(ZeroDivisionError):
        for item, result in read_ahead(lambda n: 1 // n, [3, 2, 1, 0, 5]):
            seen.append((item, result))
    assert seen == [(3, 0), (2, 0), (1, 1)] and alive() == before


def test_leaving_early_leaves_no_thread():
    before = alive()
    read = []
    for item, _ in read_ahead(read.append, range(100)):
        if item == 3:
            break
    gc.collect()
    assert alive() == before and 4 <= len(read) <= 5
    generator = read_ahead(read.append, range(100))
    next(generator)
    generator.close()
    assert alive() == before


# ------------------------------------------------------------------------------------- padding


@pytest.mark.slow
def test_at_most_8_percent_padding_on_multi30k(shared_data, tmp_path):
    """Counted in the arrays themselves, both sides, at 4,096 tokens."""
    root = str(shared_data / "multi30k")
    config = DataConfig(dataset="multi30k", root=root, source_lang="en", target_lang="de")
    train = open_corpus(config).train
    subwords = Subwords.train(lambda: iter(train), SubwordConfig(vocab_size=8000))
    corpus = encoded_corpus(train, "", subwords, Limits(256, 6.0), tmp_path, "encoding")
    batches = epoch_batches(corpus.source.lengths, corpus.target.lengths, 4096, 1, 0)
    positions = padding = tokens = 0
    for batch in (collate(corpus, sentences, subwords) for sentences in batches):
        assert batch.source.size <= 4096 and batch.target_input.size <= 4096
        for array in (batch.source, batch.target_output):
            positions += array.size
            padding += int((array == subwords.source.pad).sum())
        tokens += batch.target_tokens
    assert padding / positions <= 0.08
    assert padding_share(corpus, batches) == pytest.approx(padding / positions, abs=1e-12)
    assert tokens == len(corpus.target.ids) + len(corpus)

"""Batches of similar lengths: which sentences an update reads, and their padded arrays.

The batches of an epoch follow from the corpus, the seed and the epoch alone, so every process works
them out for itself and takes its share, and a stopped run finds its place again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from transformer_mt.data.alignments import Alignments
from transformer_mt.data.encoded import EncodedCorpus
from transformer_mt.data.subword import Subwords, seeded

T = TypeVar("T")
U = TypeVar("U")
EncodedPair = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True)
class Batch:
    """Padded ids, int64. Rows are sentence pairs.

    source: (batch, source_len), ends in eos. target_input: (batch, target_len), begins with bos.
    target_output: the same shape, one position on, ends in eos. target_tokens: how many of its
    positions are not padding. alignment: of a batch of training that is guided by alignments, as in
    `Alignments.matrix`.
    """

    source: np.ndarray
    target_input: np.ndarray
    target_output: np.ndarray
    target_tokens: int
    alignment: np.ndarray | None = None


def epoch_batches(
    source_lengths: np.ndarray, target_lengths: np.ndarray, max_tokens: int, seed: int, epoch: int
) -> list[np.ndarray]:
    """The batches of an epoch as arrays of sentence numbers, every sentence in exactly one.

    Args:
        source_lengths, target_lengths: subwords of each sentence, without eos: (sentences,).
        max_tokens: padded tokens (with eos) on either side of a batch; a longer sentence makes a
            batch of its own.
    """
    random = np.random.default_rng((seed, epoch))
    order = random.permutation(len(target_lengths))
    # Sorting a permutation by length leaves sentences of equal lengths in a new order each epoch.
    order = order[np.lexsort((source_lengths[order], target_lengths[order]))]
    cuts = _cut(source_lengths[order] + 1, target_lengths[order] + 1, max_tokens)
    shuffled = (cuts[i] for i in random.permutation(len(cuts)))
    return [order[start:end] for start, end in shuffled]


def ordered_batches(
    source_lengths: np.ndarray, target_lengths: np.ndarray, max_tokens: int
) -> list[np.ndarray]:
    """Batches for measuring a loss: as in training, but always the same."""
    order = np.lexsort((source_lengths, target_lengths))
    cuts = _cut(source_lengths[order] + 1, target_lengths[order] + 1, max_tokens)
    return [order[start:end] for start, end in cuts]


def _cut(
    source_lengths: np.ndarray, target_lengths: np.ndarray, max_tokens: int
) -> list[tuple[int, int]]:
    """Cuts sorted sentences into runs whose padded size stays within max_tokens on both sides, each
    as long as it can be."""
    longer_side = np.maximum(source_lengths, target_lengths)
    cuts = []
    start = 0
    while start < len(longer_side):
        # No more fit than if all were as short as the first.
        candidates = longer_side[start : start + max(1, max_tokens // int(longer_side[start]))]
        widths = np.maximum.accumulate(candidates, dtype=np.int64)
        sizes = widths * np.arange(1, len(widths) + 1)
        end = start + max(1, int(np.searchsorted(sizes, max_tokens, side="right")))
        cuts.append((start, end))
        start = end
    return cuts


def updates(batches: list[np.ndarray], batches_per_update: int) -> list[list[np.ndarray]]:
    """The batches whose gradients are added up for one update; the last may have fewer."""
    return [
        batches[start : start + batches_per_update]
        for start in range(0, len(batches), batches_per_update)
    ]


def share(update: list[np.ndarray], rank: int, world_size: int) -> list[np.ndarray]:
    """A process's part of an update: whole batches where they come out even, else equal rows of
    each."""
    if len(update) % world_size == 0:
        return update[rank::world_size]
    return [rows for batch in update if len(rows := batch[rank::world_size])]


def collate(
    corpus: EncodedCorpus,
    sentences: np.ndarray,
    subwords: Subwords,
    alignments: Alignments | None = None,
) -> Batch:
    """The padded arrays of a batch; `alignments` are the corpus's."""
    batch = _padded([(corpus.source[i], corpus.target[i]) for i in sentences], subwords)
    if alignments is None:
        return batch
    lengths = batch.target_input.shape[1], batch.source.shape[1]
    return replace(batch, alignment=alignments.matrix(sentences, *lengths))


def _padded(pairs: list[EncodedPair], subwords: Subwords) -> Batch:
    source_vocabulary, target_vocabulary = subwords.source, subwords.target
    rows = len(pairs)
    target_len = max(len(target) for _, target in pairs) + 1
    target_input = np.full((rows, target_len), target_vocabulary.pad, np.int64)
    target_output = np.full((rows, target_len), target_vocabulary.pad, np.int64)
    target_input[:, 0] = target_vocabulary.bos
    for row, (_, target) in enumerate(pairs):
        target_input[row, 1 : len(target) + 1] = target
        target_output[row, : len(target)] = target
        target_output[row, len(target)] = target_vocabulary.eos
    return Batch(
        encoded_rows([source for source, _ in pairs], source_vocabulary.pad, source_vocabulary.eos),
        target_input,
        target_output,
        rows + sum(len(target) for _, target in pairs),
    )


@dataclass(frozen=True)
class Update:
    """What a process trains on for one update of the weights.

    batches: its share. target_tokens: how many positions of the whole update, over all processes,
    are not padding.
    """

    batches: list[Batch]
    target_tokens: int


def read_update(
    corpus: EncodedCorpus,
    sentences: list[np.ndarray],
    subwords: Subwords,
    rank: int,
    world_size: int,
    sampling: float | None = None,
    seed: tuple[int, ...] = (),
    alignments: Alignments | None = None,
) -> Update:
    """One process's share of an update.

    With `sampling`, the text of every sentence is written in subwords drawn anew (see
    `SentencePieceVocabulary.sample`). The draw follows from the seed and the sentences alone, so
    all processes draw the same, and count the same tokens as they train on. The batches were
    planned without: on Multi30k with 8,000 subwords the tokens get more by 1.4 times with bpe at a
    rate of 0.1, and by 2.0 times with unigram at an alpha of 0.1. So that none takes more memory
    than was planned, the update's sentences are put into batches again, by their new lengths.

    Args:
        sentences: the sentence numbers of each batch of the update.
        sampling: the rate of BPE-dropout or the alpha of unigram sampling; None is none.
        seed: of the draw; another for every update.
        alignments: the corpus's, without sampling only: they are of the subwords that it holds.
    """
    if sampling is None:
        batches = share(sentences, rank, world_size)
        tokens = sum(int((corpus.target.lengths[batch] + 1).sum()) for batch in sentences)
        return Update([collate(corpus, batch, subwords, alignments) for batch in batches], tokens)
    numbers = np.concatenate(sentences)
    drawn = seeded(seed, lambda: [_draw(corpus, i, subwords, sampling) for i in numbers])
    source_lengths = np.array([len(source) for source, _ in drawn])
    target_lengths = np.array([len(target) for _, target in drawn])
    planned = max(_padded_tokens(corpus, batch) for batch in sentences)
    batches = ordered_batches(source_lengths, target_lengths, planned)
    return Update(
        [
            _padded([drawn[i] for i in batch], subwords)
            for batch in share(batches, rank, world_size)
        ],
        int((target_lengths + 1).sum()),
    )


def _padded_tokens(corpus: EncodedCorpus, batch: np.ndarray) -> int:
    """Padded tokens of a batch on its longer side."""
    longest = max(side.lengths[batch].max() for side in (corpus.source, corpus.target))
    return len(batch) * (int(longest) + 1)


def _draw(corpus: EncodedCorpus, number: int, subwords: Subwords, rate: float) -> EncodedPair:
    """A pair in sampled subwords."""
    source, target = (
        # What an unknown subword stood for is lost, so such a sentence stays as it is.
        ids if vocabulary.unk in ids else vocabulary.sample(vocabulary.decode(ids), rate)
        for ids, vocabulary in (
            (corpus.source[number].tolist(), subwords.source),
            (corpus.target[number].tolist(), subwords.target),
        )
    )
    return source, target


def read_ahead(read: Callable[[T], U], items: Iterable[T]) -> Iterator[tuple[T, U]]:
    """Each item with what `read` makes of it, in order.

    The next one is read in a thread while the caller works with the one before. An error of `read`
    is raised at its item's turn.
    """
    thread = ThreadPoolExecutor(1)
    reading: deque[tuple[T, Future[U]]] = deque()
    try:
        for item in items:
            reading.append((item, thread.submit(read, item)))
            if len(reading) > 1:
                done, result = reading.popleft()
                yield done, result.result()
        for done, result in reading:
            yield done, result.result()
    finally:
        # The caller may have left early: what waits is not read, what is being read is waited for.
        thread.shutdown(cancel_futures=True)


def padding_share(corpus: EncodedCorpus, batches: list[np.ndarray]) -> float:
    """The share of padded positions, both sides counted, in the arrays of these batches."""
    real = padded = 0
    for lengths in (corpus.source.lengths + 1, corpus.target.lengths + 1):
        for sentences in batches:
            chosen = lengths[sentences]
            real += int(chosen.sum())
            padded += int(chosen.max()) * len(sentences)
    return 1 - real / padded


def encoded_rows(rows: Sequence[Sequence[int]], pad: int, eos: int) -> np.ndarray:
    """Source sentences to translate, padded: (batch, source_len), int64, each ends in eos."""
    length = max(len(row) for row in rows) + 1
    array = np.full((len(rows), length), pad, np.int64)
    for index, row in enumerate(rows):
        array[index, : len(row)] = row
        array[index, len(row)] = eos
    return array

"""Batches of similar lengths: which sentences an update reads, and their padded arrays.

The batches of an epoch follow from the corpus, the seed and the epoch alone, so every process works
them out for itself and takes its share, and a stopped run finds its place again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from transformer_mt.data.encoded import EncodedCorpus
from transformer_mt.data.subword import Subwords


@dataclass(frozen=True)
class Batch:
    """Padded ids, int64. Rows are sentence pairs.

    source: (batch, source_len), ends in eos. target_input: (batch, target_len), begins with bos.
    target_output: the same shape, one position on, ends in eos. target_tokens: how many of its
    positions are not padding.
    """

    source: np.ndarray
    target_input: np.ndarray
    target_output: np.ndarray
    target_tokens: int


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
    """Cuts sorted sentences into runs whose padded size stays within max_tokens on both sides."""
    cuts = []
    start, longest = 0, 0
    longer_side = np.maximum(source_lengths, target_lengths).tolist()
    for end, length in enumerate(longer_side):
        longest = max(longest, length)
        if end > start and longest * (end - start + 1) > max_tokens:
            cuts.append((start, end))
            start, longest = end, length
    if start < len(longer_side):
        cuts.append((start, len(longer_side)))
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


def collate(corpus: EncodedCorpus, sentences: np.ndarray, subwords: Subwords) -> Batch:
    """The padded arrays of a batch."""
    source_vocabulary, target_vocabulary = subwords.source, subwords.target
    source_len = int(corpus.source.lengths[sentences].max()) + 1
    target_len = int(corpus.target.lengths[sentences].max()) + 1
    rows = len(sentences)
    source = np.full((rows, source_len), source_vocabulary.pad, np.int64)
    target_input = np.full((rows, target_len), target_vocabulary.pad, np.int64)
    target_output = np.full((rows, target_len), target_vocabulary.pad, np.int64)
    target_input[:, 0] = target_vocabulary.bos
    target_tokens = rows
    for row, sentence in enumerate(sentences):
        ids = corpus.source[sentence]
        source[row, : len(ids)] = ids
        source[row, len(ids)] = source_vocabulary.eos
        ids = corpus.target[sentence]
        target_input[row, 1 : len(ids) + 1] = ids
        target_output[row, : len(ids)] = ids
        target_output[row, len(ids)] = target_vocabulary.eos
        target_tokens += len(ids)
    return Batch(source, target_input, target_output, target_tokens)


def padding_share(corpus: EncodedCorpus, batches: list[np.ndarray]) -> float:
    """The share of padded positions, both sides counted, in the arrays of these batches."""
    real = padded = 0
    for lengths in (corpus.source.lengths + 1, corpus.target.lengths + 1):
        for sentences in batches:
            chosen = lengths[sentences]
            real += int(chosen.sum())
            padded += int(chosen.max()) * len(sentences)
    return 1 - real / padded


def encoded_rows(rows: list[list[int]], pad: int, eos: int) -> np.ndarray:
    """Source sentences to translate, padded: (batch, source_len), int64, each ends in eos."""
    length = max(len(row) for row in rows) + 1
    array = np.full((len(rows), length), pad, np.int64)
    for index, row in enumerate(rows):
        array[index, : len(row)] = row
        array[index, len(row)] = eos
    return array

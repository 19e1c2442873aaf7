"""Batches of similar lengths: which sentences an update reads, and their padded arrays.

The batches of an epoch follow from the corpus, the seed and the epoch alone. So every process
computes them for itself and takes its share, and a resumed run continues at the right place.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from transformer_mt.data.alignments import Alignments
from transformer_mt.data.encoded import EncodedCorpus, EncodedText
from transformer_mt.data.subword import Subwords
from transformer_mt.data.vocabulary import Vocabulary, seeded

T = TypeVar("T")
U = TypeVar("U")
Length = TypeVar("Length", int, np.ndarray)
Ids = Sequence[int] | np.ndarray
# Keeps the draw of sentences apart from that of the order of an epoch.
DRAW = 1


@dataclass(frozen=True)
class Batch:
    """Padded ids of sentence pairs, int64.

    Attributes:
        source: (batch, source_len), each row ends in eos.
        target_input: (batch, target_len), each row begins with bos.
        target_output: (batch, target_len), one position ahead, each row ends in eos.
        target_tokens: the number of positions in `target_output` that are not padding.
        alignment: the result of `Alignments.matrix`; None if training reads no alignments.
        padding: the number of positions in `source` and `target_input` that are padding.
        multiple: the number that both lengths of the arrays are multiples of.
    """

    source: np.ndarray
    target_input: np.ndarray
    target_output: np.ndarray
    target_tokens: int
    alignment: np.ndarray | None = None
    padding: int = 0
    multiple: int = 1

    def repeated(self, count: int) -> "Batch":
        """Returns the batch with all of its rows `count` times, one copy after the other."""

        arrays: dict[str, Any] = {
            name: np.concatenate([array] * count)
            for name, array in vars(self).items()
            if isinstance(array, np.ndarray)
        }
        tokens, padding = count * self.target_tokens, count * self.padding
        return replace(self, target_tokens=tokens, padding=padding, **arrays)


def rounded(length: Length, multiple: int) -> Length:
    """Rounds an integer, or an array of integers, up to a multiple."""
    return (length + (multiple - 1)) // multiple * multiple


@dataclass(frozen=True)
class WeightedText:
    """The sentences of one text, which follow those of the text before.

    Attributes:
        pairs: how many there are.
        weight: how often an epoch reads each of them. Of a weight of 2.25, all are read twice, and
            a quarter of them, which is drawn for each epoch, once more.
    """

    pairs: int
    weight: float

    @property
    def copies(self) -> int:
        """How often an epoch reads all pairs."""
        return int(self.weight)

    @property
    def drawn(self) -> int:
        """How many pairs an epoch draws, to read them once more."""
        return round((self.weight - self.copies) * self.pairs)


def epoch_sentences(texts: Sequence[WeightedText], seed: int, epoch: int) -> np.ndarray:
    """Returns the numbers of the sentences that an epoch reads, int64 (sentences,). They are as
    many in each epoch, and follow from the seed and the epoch alone."""
    random = np.random.default_rng((seed, epoch, DRAW))
    numbers, first = [], 0
    for text in texts:
        numbers += [np.arange(first, first + text.pairs)] * text.copies
        if text.drawn:
            numbers.append(first + random.choice(text.pairs, text.drawn, replace=False))
        first += text.pairs
    return np.concatenate(numbers) if numbers else np.zeros(0, np.int64)


def epoch_batches(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    max_tokens: int,
    seed: int,
    epoch: int,
    multiple: int = 1,
    texts: Sequence[WeightedText] = (),
) -> list[np.ndarray]:
    """Returns the batches of an epoch as arrays of sentence numbers. Each sentence is in one batch,
    or as often in them as the weight of its text says.

    Args:
        source_lengths, target_lengths: the number of subwords of each sentence, without eos:
            (sentences,).
        max_tokens: the largest number of padded tokens, with eos, on either side of a batch. A
            longer sentence makes a batch of its own.
        multiple: the padded lengths are multiples of this number.
        texts: the texts that the sentences belong to. Empty if all of them have a weight of 1.
    """
    texts = texts or [WeightedText(len(target_lengths), 1)]
    random = np.random.default_rng((seed, epoch))
    order = random.permutation(epoch_sentences(texts, seed, epoch))
    # The sort is stable, so sentences of equal lengths are in a new order in each epoch.
    batches = ordered_batches(source_lengths, target_lengths, max_tokens, order, multiple)
    return [batches[i] for i in random.permutation(len(batches))]


def ordered_batches(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    max_tokens: int,
    order: np.ndarray | None = None,
    multiple: int = 1,
) -> list[np.ndarray]:
    """Returns batches as `epoch_batches` does, but sorted by length, so always the same ones.

    The sorted sentences are cut into the longest runs whose padded size is at most `max_tokens` on
    both sides.

    Args:
        source_lengths, target_lengths, max_tokens, multiple: as in `epoch_batches`.
        order: the sentence numbers. Sentences of equal lengths keep this order. None: 0, 1, ...
    """
    if order is None:
        order = np.arange(len(target_lengths))
    order = order[np.lexsort((source_lengths[order], target_lengths[order]))]
    longer_side = np.maximum(source_lengths, target_lengths)[order] + 1  # with eos
    longer_side = rounded(longer_side, multiple)
    batches = []
    start = 0
    while start < len(order):
        # No more sentences fit than if all of them were as short as the first one.
        candidates = longer_side[start : start + max(1, max_tokens // int(longer_side[start]))]
        widths = np.maximum.accumulate(candidates, dtype=np.int64)
        sizes = widths * np.arange(1, len(widths) + 1)
        end = start + max(1, int(np.searchsorted(sizes, max_tokens, side="right")))
        batches.append(order[start:end])
        start = end
    return batches


def group_batches(batches: list[np.ndarray], batches_per_update: int) -> list[list[np.ndarray]]:
    """Groups batches whose gradients are added up for one update. The last group may be smaller."""
    starts = range(0, len(batches), batches_per_update)
    return [batches[start : start + batches_per_update] for start in starts]


def share(update: list[np.ndarray], rank: int, world_size: int) -> list[np.ndarray]:
    """Returns one process's part of an update: whole batches if every process gets the same number
    of them, or else an equal share of the rows of each batch."""
    if len(update) % world_size == 0:
        return update[rank::world_size]
    return [rows for batch in update if len(rows := batch[rank::world_size])]


class Sampled(NamedTuple):
    """Sentences that `collate` reads in the place of a corpus, such as sampled subwords."""

    source: Sequence[list[int]]
    target: Sequence[list[int]]


def collate(
    corpus: EncodedCorpus | Sampled,
    sentences: np.ndarray,
    subwords: Subwords,
    alignments: Alignments | None = None,
    multiple: int = 1,
) -> Batch:
    """Returns the padded arrays of a batch, with the `alignments` of its sentences.

    Args:
        multiple: the lengths of the arrays are rounded up to a multiple of this number.
    """
    sources, targets = ([side[i] for i in sentences] for side in (corpus.source, corpus.target))
    source = encoded_rows(sources, subwords.source.pad, subwords.source.eos, multiple)
    target = subwords.target
    target_output = encoded_rows(targets, target.pad, target.eos, multiple)
    target_input = np.roll(target_output, 1, axis=1)
    target_input[:, 0] = target.bos
    target_input[target_input == target.eos] = target.pad
    target_tokens = np.count_nonzero(target_output != target.pad)
    padding = target_input.size - target_tokens + np.count_nonzero(source == subwords.source.pad)
    links = None
    if alignments is not None:
        links = alignments.matrix(sentences, target_input.shape[1], source.shape[1])
    return Batch(source, target_input, target_output, target_tokens, links, padding, multiple)


def encoded_rows(rows: Sequence[Ids], pad: int, eos: int, multiple: int = 1) -> np.ndarray:
    """Returns sentences, padded to the longest: (batch, length), int64. Each ends in eos.

    The length is rounded up to a multiple of `multiple`.
    """
    lengths = [len(row) for row in rows]
    array = np.full((len(rows), rounded(max(lengths) + 1, multiple)), pad, np.int64)
    for index, row in enumerate(rows):
        array[index, : len(row)] = row
    array[np.arange(len(rows)), lengths] = eos
    return array


@dataclass(frozen=True)
class Update:
    """The batches that a process trains on for one update of the weights.

    Attributes:
        batches: this process's share of the update.
        target_tokens: the number of target tokens of the whole update, over all processes, without
            padding.
        positions, padding: the number of positions in the source and target arrays of `batches`,
            and the number of them that are padding.
    """

    batches: list[Batch]
    target_tokens: int

    @property
    def positions(self) -> int:
        return sum(batch.source.size + batch.target_input.size for batch in self.batches)

    @property
    def padding(self) -> int:
        return sum(batch.padding for batch in self.batches)


def read_update(
    corpus: EncodedCorpus,
    sentences: list[np.ndarray],
    subwords: Subwords,
    rank: int,
    world_size: int,
    sampling: float | None = None,
    seed: tuple[int, ...] = (),
    alignments: Alignments | None = None,
    multiple: int = 1,
) -> Update:
    """Reads one process's share of an update.

    With `sampling`, the subwords of every sentence are drawn anew (see
    `SentencePieceVocabulary.sample`). The draw depends on the seed and the sentences alone, so all
    processes draw the same subwords and count the same tokens. A draw has more tokens than the
    encoded corpus, from which the batches were planned: on Multi30k with 8,000 subwords, 1.4 times
    as many with bpe at a rate of 0.1, and 2.0 times as many with unigram at an alpha of 0.1.
    Therefore the update's sentences are put into new batches by their new lengths, so that no batch
    takes more memory than was planned.

    Args:
        sentences: the sentence numbers of each batch of the update.
        sampling: the rate of BPE-dropout or the alpha of unigram sampling. None turns it off.
        seed: the seed of the draw. Every update needs another one.
        alignments: the alignments of the corpus. They link the subwords of the corpus, so they are
            not read with sampling.
        multiple: as in `collate`.
    """
    numbers = np.concatenate(sentences)
    text: EncodedCorpus | Sampled = corpus
    batches, target_lengths = sentences, corpus.target.lengths[numbers]
    if sampling is not None:

        def draw(number: int) -> tuple[list[int], list[int]]:
            source = _sample(corpus.source, number, subwords.source, sampling)
            return source, _sample(corpus.target, number, subwords.target, sampling)

        text = Sampled(*zip(*seeded(seed, lambda: list(map(draw, numbers))), strict=True))
        source_lengths, target_lengths = (np.array([*map(len, side)]) for side in text)
        planned = max(_padded_tokens(corpus, batch, multiple) for batch in sentences)
        batches = ordered_batches(source_lengths, target_lengths, planned, multiple=multiple)
        alignments = None
    read = [
        collate(text, batch, subwords, alignments, multiple)
        for batch in share(batches, rank, world_size)
    ]
    return Update(read, int((target_lengths + 1).sum()))


def _padded_tokens(corpus: EncodedCorpus, batch: np.ndarray, multiple: int) -> int:
    """Returns the number of padded tokens of a batch on its longer side."""
    longest = max(side.lengths[batch].max() for side in (corpus.source, corpus.target))
    return len(batch) * rounded(int(longest) + 1, multiple)


def _sample(text: EncodedText, number: int, vocabulary: Vocabulary, rate: float) -> list[int]:
    """Returns a sentence in sampled subwords. The text of an unknown subword is lost, so a sentence
    that has one keeps its subwords."""
    ids: list[int] = text[number].tolist()
    return ids if vocabulary.unk in ids else vocabulary.sample(vocabulary.decode(ids), rate)


def read_ahead(read: Callable[[T], U], items: Iterable[T]) -> Iterator[tuple[T, U]]:
    """Yields (item, read(item)) in order. A thread reads the next item while the caller works with
    the current one. An error of `read` is raised when its item is due."""
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
        # The caller may stop early. This waits for the item that is being read, and reads no other.
        thread.shutdown(cancel_futures=True)

"""The encoded corpus: the subword ids that training reads, in an entry of the cache.

A corpus is encoded once. Its folder is named by a hash of what it was made from (the text's
content, the subwords, the filters), so a changed file or setting makes a new one. Sentences are
stored as flat arrays with offsets, which are read memory-mapped.
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, islice
from operator import length_hint
from pathlib import Path
from typing import NamedTuple

import numpy as np

from transformer_mt.data.annotation import Annotations
from transformer_mt.data.cache import CachedArrays, entry
from transformer_mt.data.corpus import Pair
from transformer_mt.data.input_noise import InputNoise
from transformer_mt.data.spans import SpanFinder
from transformer_mt.data.subword import Subwords
from transformer_mt.data.vocabulary import Vocabulary
from transformer_mt.utils.console import progress
from transformer_mt.utils.errors import UserError
from transformer_mt.utils.signals import process_pool

# A new number makes existing entries of the cache unused.
FORMAT = 1
CHUNK = 5_000
# Starting the processes takes about a second, which pays off from this number of pairs on.
PARALLEL_FROM = 100_000


class EncodedText:
    """One side of the corpus. Sentence i is `ids[offsets[i]:offsets[i + 1]]`, without bos or eos.

    Raises:
        ValueError: there are not as many sentences as `count`, or not all of their ids.
    """

    def __init__(self, folder: Path, side: str, count: int) -> None:
        self.ids = np.load(folder / f"{side}.ids.npy", mmap_mode="r")
        self.offsets = np.load(folder / f"{side}.offsets.npy", mmap_mode="r")
        self.lengths = np.diff(self.offsets).astype(np.int32)
        if len(self.lengths) != count or self.offsets[-1] != len(self.ids):
            raise ValueError(f"the {side} side is not as long as it was written")

    def __getitem__(self, index: int) -> np.ndarray:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def slice(self, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of sentences `start` to `end` (excluded), concatenated, and the length of
        each sentence."""
        ids = np.asarray(self.ids[self.offsets[start] : self.offsets[end]])
        return ids, self.lengths[start:end]


def smallest_dtype(count: int) -> np.dtype:
    """Returns uint16 if it can hold every natural number below `count`, or else int32."""
    return np.dtype(np.uint16 if count <= 1 << 16 else np.int32)


@contextmanager
def writing(
    folder: Path, side: str, dtype: np.dtype
) -> Iterator[Callable[[np.ndarray, np.ndarray], None]]:
    """Writes the files that `EncodedText` reads: SIDE.ids.npy, to which sentences are appended, and
    SIDE.offsets.npy, which is written at the end. Only the lengths are held in memory.

    Yields: a function that appends sentences, given as their concatenated ids and the length of
        each sentence.
    """
    all_lengths = [np.zeros(1, np.int32)]  # the first sentence begins at 0
    with open(folder / f"{side}.ids.npy", "wb") as file:

        def write_header(total: int) -> None:
            descr = np.lib.format.dtype_to_descr(dtype)
            header = {"descr": descr, "fortran_order": False, "shape": (total,)}
            np.lib.format.write_array_header_1_0(file, header)

        def add(ids: np.ndarray, lengths: np.ndarray) -> None:
            file.write(ids.astype(dtype, copy=False).tobytes())
            all_lengths.append(lengths)

        write_header(0)
        yield add
        offsets = np.cumsum(np.concatenate(all_lengths), dtype=np.int64)
        # The header has the same length for every array, so it can be replaced at the end.
        file.seek(0)
        write_header(int(offsets[-1]))
    np.save(folder / f"{side}.offsets.npy", offsets)


class EncodedCorpus(CachedArrays):
    """Encoded pairs. `facts` holds the counts of the build: pairs, and what was dropped.

    `lines`, int32 (pairs,), has the line number of each pair in the text, from 0, in rising order.
    """

    name = "encoded corpus"

    def _load(self, folder: Path) -> None:
        count = self.facts["pairs"]
        self.source = EncodedText(folder, "source", count)
        self.target = EncodedText(folder, "target", count)
        self.lines = np.load(folder / "lines.npy", mmap_mode="r")
        if len(self.lines) != count:
            raise ValueError("there are not as many lines as pairs")

    def __len__(self) -> int:
        return len(self.source.lengths)

    def split(self, line_counts: Sequence[int]) -> list[int]:
        """Returns how many pairs of each text are used. They follow one another, as the texts do.

        Args:
            line_counts: the number of lines of each text, including those of dropped pairs.
        """
        ends = np.searchsorted(self.lines, np.cumsum(line_counts))
        return np.diff(ends, prepend=0).tolist()

    @property
    def longest(self) -> int:
        """The number of subwords of the longest sentence, on either side."""
        return int(max(self.source.lengths.max(), self.target.lengths.max()))

    @property
    def text_lines(self) -> int:
        """The number of lines of the text, including those of dropped pairs."""
        return self.facts["pairs"] + sum(self.facts["dropped"].values())


@dataclass(frozen=True)
class Limits:
    """Which encoded pairs are used. None means no limit."""

    max_length: int | None = None
    max_length_ratio: float | None = None

    def reason_to_drop(self, source: list[int], target: list[int]) -> str | None:
        """Returns the reason to drop a pair, or None if it is used."""
        shorter, longer = sorted((len(source), len(target)))
        if self.max_length is not None and longer > self.max_length:
            return f"longer than {self.max_length} subwords"
        # eos is counted, as in training, so that "Yes." and three words are not too different.
        if self.max_length_ratio is not None and longer + 1 > self.max_length_ratio * (shorter + 1):
            return f"lengths differ by more than {self.max_length_ratio:g} to 1"
        return None


UNMATCHED = "tags or placeholders of the sides differ"


@dataclass(frozen=True)
class PairChanges:
    """What is changed in pairs before they are encoded: symbols take the place of protected spans,
    some pairs get noise, and of others, the source has the translations of some words beside them.

    Attributes:
        protect, drop_unmatched, input_noise: the keys of the section `data`.
        tags: texts that stay as they are.
        annotations: None if nothing is annotated.
    """

    protect: tuple[str, ...] = ()
    drop_unmatched: bool = False
    input_noise: float = 0.0
    tags: tuple[str, ...] = ()
    annotations: Annotations | None = None

    def applied(self, pair: Pair) -> tuple[Pair, bool]:
        """The changed pair, and whether its spans match."""
        source, target, is_matched = self._finder.pair_in_symbols(*pair)
        changed = self._noise.applied(source, target) if self.input_noise else (source, target)
        if self.annotations is not None and changed == (source, target):
            changed = self.annotations.applied(source, target), target
        return changed, is_matched

    def for_measuring(self) -> PairChanges:
        """Those of a text that is not trained on, such as the dev set: only symbols."""
        return replace(self, drop_unmatched=False, input_noise=0.0, annotations=None)

    def keeps(self, is_matched: bool) -> bool:
        """Whether a pair is used, given whether its spans match."""
        return is_matched or not self.drop_unmatched

    @cached_property
    def _finder(self) -> SpanFinder:
        return SpanFinder(self.protect, self.tags)

    @cached_property
    def _noise(self) -> InputNoise:
        return InputNoise(self.input_noise, self.tags)


def encoded_corpus(
    pairs: Iterable[Pair],
    content: str,
    subwords: Subwords,
    limits: Limits,
    cache: Path,
    title: str,
    reason_to_drop: Callable[[Pair], str | None] = lambda pair: None,
    changes: PairChanges | None = None,
) -> EncodedCorpus:
    """Returns the encoded corpus of a text, from the cache if it is there.

    Args:
        pairs: all pairs of the text, which are read only if the cache does not have the corpus.
            Without a length, they count as few.
        content: a text that changes with `pairs` and with what `reason_to_drop` decides.
        title: what the progress bar and errors call the work.
        reason_to_drop: is called with each pair, in order, and returns None to use it. The dropped
            pairs are counted by reason in `EncodedCorpus.facts`, together with those outside of
            `limits`.
        changes: is applied to each pair that is used, before it is encoded.

    Raises:
        UserError: no pair is left, or the cache can't be written.
    """
    texts = [str(FORMAT), content, repr(limits), *([repr(changes)] if changes else []), ""]
    made_from = "\0".join(texts).encode() + subwords.content()
    key = hashlib.sha256(made_from).hexdigest()[:32]

    def make(folder: Path) -> None:
        encode, total = partial(_encode, subwords, limits, changes), length_hint(pairs)
        cores = len(os.sched_getaffinity(0))
        is_large = cores > 1 and total >= PARALLEL_FROM
        pool = process_pool(cores, encode) if is_large else nullcontext(partial(map, encode))
        try:
            with pool as run:
                _write(run(_chunks(pairs, reason_to_drop)), subwords, folder, title, total)
        except BrokenProcessPool:
            raise UserError(
                f"{title}: a process that encodes text was killed, perhaps because memory ran out"
            ) from None

    return EncodedCorpus(entry(cache / key, make))


class _Chunk(NamedTuple):
    """Some pairs of the text, encoded.

    Attributes:
        lines: the line number of each pair.
        source, target: the concatenated ids of all sentences, and the length of each sentence.
        dropped: how many pairs of the chunk were dropped, by reason.
    """

    lines: list[int]
    source: tuple[np.ndarray, np.ndarray]
    target: tuple[np.ndarray, np.ndarray]
    dropped: Counter[str]


# Pairs with their line numbers, and how many others were dropped, by reason.
_Texts = tuple[list[tuple[int, Pair]], Counter[str]]


def _chunks(
    pairs: Iterable[Pair], reason_to_drop: Callable[[Pair], str | None]
) -> Iterator[_Texts]:
    """Cuts the text into chunks of CHUNK lines, and leaves out the pairs to drop."""
    numbered = enumerate(pairs)
    while chunk := list(islice(numbered, CHUNK)):
        reasons = [reason_to_drop(pair) for _, pair in chunk]
        kept = [own for own, reason in zip(chunk, reasons, strict=True) if reason is None]
        yield kept, Counter(filter(None, reasons))


def _encode(
    subwords: Subwords, limits: Limits, changes: PairChanges | None, texts: _Texts
) -> _Chunk:
    numbered, dropped = texts
    if changes is not None:
        applied = [(number, *changes.applied(pair)) for number, pair in numbered]
        numbered = [(number, pair) for number, pair, matched in applied if changes.keeps(matched)]
        dropped = dropped + Counter([UNMATCHED] * (len(applied) - len(numbered)))
    sources = subwords.source.encode_all([pair[0] for _, pair in numbered])
    targets = subwords.target.encode_all([pair[1] for _, pair in numbered])
    reasons = list(map(limits.reason_to_drop, sources, targets))
    kept = [index for index, reason in enumerate(reasons) if reason is None]
    return _Chunk(
        [numbered[index][0] for index in kept],
        _flat([sources[index] for index in kept], subwords.source),
        _flat([targets[index] for index in kept], subwords.target),
        dropped + Counter(filter(None, reasons)),
    )


def _flat(sentences: list[list[int]], vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """Returns the concatenated ids of all sentences, and the length of each sentence."""
    ids = np.fromiter(chain.from_iterable(sentences), smallest_dtype(vocabulary.size))
    return ids, np.fromiter(map(len, sentences), np.int32, len(sentences))


def _write(
    chunks: Iterator[_Chunk], subwords: Subwords, folder: Path, title: str, total: int
) -> None:
    lines, dropped = array("i"), Counter[str]()
    with (
        writing(folder, "source", smallest_dtype(subwords.source.size)) as add_source,
        writing(folder, "target", smallest_dtype(subwords.target.size)) as add_target,
        progress(total=total, title=title, unit="pairs", unit_scale=True) as bar,
    ):
        for chunk in chunks:
            add_source(*chunk.source)
            add_target(*chunk.target)
            lines.extend(chunk.lines)
            dropped.update(chunk.dropped)
            bar.update(len(chunk.lines) + chunk.dropped.total())
    if not lines:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())
        raise UserError(f"{title}: no pair is left ({reasons or 'there was none'})")
    np.save(folder / "lines.npy", np.array(lines, np.int32))
    (folder / "facts.json").write_text(json.dumps({"pairs": len(lines), "dropped": dropped}))

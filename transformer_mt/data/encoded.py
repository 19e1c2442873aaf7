"""The encoded corpus on disk: flat integer arrays with offsets, read memory-mapped.

A corpus is encoded once. Its folder is named by a hash of what made it (the text's content, the
subwords, the filters), so that a changed file or setting makes a new one.
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from transformer_mt.data.cache import entry
from transformer_mt.data.subword import Subwords, Vocabulary
from transformer_mt.runtime.console import progress
from transformer_mt.runtime.errors import UserError
from transformer_mt.runtime.process_pool import process_pool

FORMAT = 1
LINES = "lines.npy"
CHUNK = 5_000
# Starting the processes costs about a second, which pays from here on.
PARALLEL_FROM = 100_000

Pair = tuple[str, str]


class EncodedText:
    """One side: sentence i is `ids[offsets[i]:offsets[i + 1]]`, without bos or eos."""

    def __init__(self, folder: Path, side: str) -> None:
        self.ids = np.load(folder / f"{side}.ids.npy", mmap_mode="r")
        self.offsets = np.load(folder / f"{side}.offsets.npy", mmap_mode="r")
        self.lengths = np.diff(self.offsets).astype(np.int32)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]


class EncodedCorpus:
    """Encoded pairs. `facts` holds the counts of the build: pairs, tokens, what was dropped.

    `lines`, int32 (pairs,), tells which line of the text each pair was, from 0; they rise.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self.facts: dict[str, Any] = json.loads((folder / "facts.json").read_text())
            self.source = EncodedText(folder, "source")
            self.target = EncodedText(folder, "target")
            self.lines = np.load(folder / LINES, mmap_mode="r")
            self._check()
        except (OSError, EOFError, ValueError, LookupError, TypeError) as error:
            raise UserError(
                f"{folder}: a damaged encoded corpus ({error}). Delete the folder; it is made anew"
            ) from None

    def _check(self) -> None:
        for name, side in (("source", self.source), ("target", self.target)):
            if len(side.lengths) != self.facts["pairs"] or side.offsets[-1] != len(side.ids):
                raise ValueError(f"the {name} side is not as long as it was written")
        if len(self.lines) != self.facts["pairs"]:
            raise ValueError("there are not as many lines as pairs")

    def __len__(self) -> int:
        return len(self.source.lengths)

    @property
    def key(self) -> str:
        """A hash of all that made it: text, subwords and filters."""
        return self._folder.name

    def __reduce__(self) -> tuple:
        """Another process maps the files for itself."""
        return EncodedCorpus, (self._folder,)


@dataclass(frozen=True)
class Limits:
    """Which encoded pairs are used; None is no limit."""

    max_length: int | None = None
    max_length_ratio: float | None = None

    def reason_to_drop(self, source: list[int], target: list[int]) -> str | None:
        shorter, longer = sorted((len(source), len(target)))
        if self.max_length is not None and longer > self.max_length:
            return f"longer than {self.max_length} subwords"
        # With eos counted, as it is in training; "Yes." against three words is no odd pair.
        if self.max_length_ratio is not None and longer + 1 > self.max_length_ratio * (shorter + 1):
            return f"lengths differ by more than {self.max_length_ratio:g} to 1"
        return None


def encoded_corpus(
    pairs: Iterable[Pair],
    *,
    content: str,
    subwords: Subwords,
    limits: Limits,
    dropped: Counter,
    cache: Path,
    title: str,
    total: int | None = None,
    lines: array | None = None,
) -> EncodedCorpus:
    """The encoded corpus of `pairs`, from the cache if it is there.

    Args:
        pairs: read only if the cache does not have them.
        content: whatever decides which pairs `pairs` yields, as text.
        dropped: filled while `pairs` is read; saved with the facts.
        lines: filled while `pairs` is read, with the line that each is of the text; None: they are
            its lines, from the first to the last.

    Raises:
        UserError: no pair is left, or the cache can't be written.
    """
    key = hashlib.sha256()
    for part in (str(FORMAT), content, repr(limits)):
        key.update(part.encode() + b"\0")
    key.update(subwords.content())

    def make(folder: Path) -> None:
        _write(pairs, subwords, limits, dropped, folder, title, total, lines)

    folder = cache / key.hexdigest()[:32]
    return EncodedCorpus(entry(folder, make))


def _write(
    pairs: Iterable[Pair],
    subwords: Subwords,
    limits: Limits,
    dropped: Counter,
    folder: Path,
    title: str,
    total: int | None,
    lines: array | None,
) -> None:
    kept, read, unknown = [np.zeros(0, np.int32)], 0, 0
    try:
        with (
            Writer(folder, "source", _dtype(subwords.source)) as source_writer,
            Writer(folder, "target", _dtype(subwords.target)) as target_writer,
            progress(total=total, title=title, unit="pairs", unit_scale=True) as bar,
        ):
            for chunk in _encode(pairs, subwords, limits, total):
                for writer, side, vocabulary in (
                    (source_writer, chunk.source, subwords.source),
                    (target_writer, chunk.target, subwords.target),
                ):
                    writer.add(side.ids, side.lengths)
                    unknown += int(np.count_nonzero(side.ids == vocabulary.unk))
                kept.append(read + chunk.kept)
                dropped.update(chunk.dropped)
                count = len(chunk.kept) + chunk.dropped.total()
                read += count
                bar.update(count)
            facts = {
                "pairs": len(source_writer),
                "source_tokens": source_writer.total,
                "target_tokens": target_writer.total,
                "longest": max(source_writer.longest, target_writer.longest),
                "unknown": unknown,
                "dropped": dict(dropped),
            }
    except BrokenProcessPool:
        raise UserError(
            f"{title}: a process that encodes text was killed, perhaps because memory ran out"
        ) from None
    if not facts["pairs"]:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())
        raise UserError(f"no training pair is left ({reasons or 'there was none'})")
    numbers = np.concatenate(kept)
    lines_of_kept = numbers if lines is None else np.asarray(lines)[numbers]
    np.save(folder / LINES, lines_of_kept.astype(np.int32))
    (folder / "facts.json").write_text(json.dumps(facts))


@dataclass(frozen=True)
class _Sentences:
    """One side of some pairs: the ids of all sentences in a row, and how many belong to each."""

    ids: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, sentences: list[list[int]], vocabulary: Vocabulary) -> _Sentences:
        return cls(
            np.fromiter(chain.from_iterable(sentences), _dtype(vocabulary)),
            np.fromiter(map(len, sentences), np.int32, len(sentences)),
        )


@dataclass(frozen=True)
class _Chunk:
    """Encoded pairs within the limits, which of the chunk's they are, and how many were dropped, by
    the reason."""

    source: _Sentences
    target: _Sentences
    kept: np.ndarray
    dropped: Counter


def _dtype(vocabulary: Vocabulary) -> np.dtype:
    return np.dtype(np.uint16 if vocabulary.size <= 1 << 16 else np.int32)


class Writer:
    """Writes what `EncodedText` reads: appends sentences to SIDE.ids.npy, and SIDE.offsets.npy at
    the end. Only the lengths are held in memory."""

    def __init__(self, folder: Path, side: str, dtype: np.dtype) -> None:
        self._path = folder / side
        self._dtype = dtype
        self._lengths = [np.zeros(1, np.int32)]  # the first sentence begins at 0
        self._count = 0
        self.total = 0
        self.longest = 0

    def __enter__(self) -> Writer:
        self._file = open(f"{self._path}.ids.npy", "wb")
        self._write_header()
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is None:
            # The header is as long for every length, so it can be put in place at the end.
            self._file.seek(0)
            self._write_header()
            offsets = np.cumsum(np.concatenate(self._lengths), dtype=np.int64)
            np.save(f"{self._path}.offsets.npy", offsets)
        self._file.close()

    def __len__(self) -> int:
        return self._count

    def add(self, ids: np.ndarray, lengths: np.ndarray) -> None:
        """Appends sentences: their ids in a row, and how many belong to each."""
        self._file.write(ids.astype(self._dtype, copy=False).tobytes())
        self._lengths.append(lengths)
        self._count += len(lengths)
        self.total += len(ids)
        self.longest = max(self.longest, int(lengths.max(initial=0)))

    def _write_header(self) -> None:
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self.total,),
        }
        np.lib.format.write_array_header_1_0(self._file, header)


def _encode(
    pairs: Iterable[Pair], subwords: Subwords, limits: Limits, total: int | None
) -> Iterator[_Chunk]:
    """Chunks of encoded pairs in order, made by this process or, for many pairs, by one for each
    core it may use."""
    iterator = iter(pairs)
    chunks = iter(lambda: list(islice(iterator, CHUNK)), [])
    cores = len(os.sched_getaffinity(0))
    if cores == 1 or (total is not None and total < PARALLEL_FROM):
        for chunk in chunks:
            yield _encode_chunk(subwords, limits, chunk)
        return
    with process_pool(cores, _start_worker, subwords, limits) as run:
        yield from run(_encode_in_worker, chunks)


def _encode_chunk(subwords: Subwords, limits: Limits, chunk: list[Pair]) -> _Chunk:
    sources = subwords.source.encode_all([source for source, _ in chunk])
    targets = subwords.target.encode_all([target for _, target in chunk])
    dropped: Counter = Counter()
    kept = []
    for number, pair in enumerate(zip(sources, targets, strict=True)):
        reason = limits.reason_to_drop(*pair)
        if reason:
            dropped[reason] += 1
        else:
            kept.append(number)
    return _Chunk(
        _Sentences.of([sources[i] for i in kept], subwords.source),
        _Sentences.of([targets[i] for i in kept], subwords.target),
        np.array(kept, np.int32),
        dropped,
    )


_worker_settings: tuple[Subwords, Limits] | None = None


def _start_worker(subwords: Subwords, limits: Limits) -> None:
    global _worker_settings
    _worker_settings = subwords, limits


def _encode_in_worker(chunk: list[Pair]) -> _Chunk:
    assert _worker_settings is not None
    return _encode_chunk(*_worker_settings, chunk)

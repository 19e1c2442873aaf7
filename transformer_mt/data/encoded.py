"""The encoded corpus: what training reads, in an entry of the cache.

A corpus is encoded once. Its folder is named by a hash of what it was made from (the text's
content, the subwords, the filters), so a changed file or setting makes a new one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from transformer_mt.data.arrays import CachedArrays, EncodedText, Writer, smallest_dtype
from transformer_mt.data.cache import entry
from transformer_mt.data.subword import Subwords, Vocabulary
from transformer_mt.runtime.console import progress
from transformer_mt.runtime.errors import UserError
from transformer_mt.runtime.process_pool import process_pool

FORMAT = 1
LINES = "lines.npy"
CHUNK = 5_000
# Starting the processes takes about a second, which pays off from this number of pairs on.
PARALLEL_FROM = 100_000

Pair = tuple[str, str]


class EncodedCorpus(CachedArrays):
    """Encoded pairs. `facts` holds the counts of the build: pairs, tokens, what was dropped.

    `lines`, int32 (pairs,), has the line of the text that each pair was, from 0, in rising order.
    """

    name = "encoded corpus"

    def _load(self, folder: Path) -> None:
        self.source = EncodedText(folder, "source")
        self.target = EncodedText(folder, "target")
        self.lines = np.load(folder / LINES, mmap_mode="r")
        for name, side in (("source", self.source), ("target", self.target)):
            if not side.is_whole(self.facts["pairs"]):
                raise ValueError(f"the {name} side is not as long as it was written")
        if len(self.lines) != self.facts["pairs"]:
            raise ValueError("there are not as many lines as pairs")

    def __len__(self) -> int:
        return len(self.source.lengths)

    @property
    def text_lines(self) -> int:
        """The number of lines of the text, those of dropped pairs included."""
        return self.facts["pairs"] + sum(self.facts["dropped"].values())


@dataclass(frozen=True)
class Limits:
    """Which encoded pairs are used; None is no limit."""

    max_length: int | None = None
    max_length_ratio: float | None = None

    def reason_to_drop(self, source: list[int], target: list[int]) -> str | None:
        """Returns None for a pair that is used."""
        shorter, longer = sorted((len(source), len(target)))
        if self.max_length is not None and longer > self.max_length:
            return f"longer than {self.max_length} subwords"
        # eos is counted, as it is in training, so that "Yes." against three words is no odd pair.
        if self.max_length_ratio is not None and longer + 1 > self.max_length_ratio * (shorter + 1):
            return f"lengths differ by more than {self.max_length_ratio:g} to 1"
        return None


def encoded_corpus(
    pairs: Iterable[Pair],
    *,
    content: str,
    subwords: Subwords,
    limits: Limits,
    cache: Path,
    title: str,
    total: int | None = None,
    reason_to_drop: Callable[[Pair], str | None] = lambda pair: None,
) -> EncodedCorpus:
    """Returns the encoded corpus of a text, from the cache if it is there.

    Args:
        pairs: all pairs of the text, which are read only if the cache does not have the corpus.
        content: a text that changes with `pairs` and with what `reason_to_drop` decides.
        total: the number of pairs, if it is known.
        reason_to_drop: is called with each pair, in order, and returns None to use it. The pairs
            that are dropped are counted by the reason in `EncodedCorpus.facts`, together with those
            that are outside of `limits`.

    Raises:
        UserError: no pair is left, or the cache can't be written.
    """
    key = hashlib.sha256()
    for part in (str(FORMAT), content, repr(limits)):
        key.update(part.encode() + b"\0")
    key.update(subwords.content())

    def make(folder: Path) -> None:
        chunks = _chunks(pairs, reason_to_drop)
        try:
            _write(_encoded(chunks, subwords, limits, total), subwords, folder, title, total)
        except BrokenProcessPool:
            raise UserError(
                f"{title}: a process that encodes text was killed, perhaps because memory ran out"
            ) from None

    return EncodedCorpus(entry(cache / key.hexdigest()[:32], make))


class _Chunk(NamedTuple):
    """Some pairs of the text, before or after they are encoded.

    Attributes:
        lines: the line of each pair: int32 (pairs,).
        sources, targets: the text of each; or the ids of all sentences in a row, and the length of
            each sentence.
        dropped: how many pairs between them were dropped, by the reason.
    """

    lines: np.ndarray
    sources: list[str] | tuple[np.ndarray, np.ndarray]
    targets: list[str] | tuple[np.ndarray, np.ndarray]
    dropped: Counter


def _chunks(
    pairs: Iterable[Pair], reason_to_drop: Callable[[Pair], str | None]
) -> Iterator[_Chunk]:
    """Cuts the text into chunks of as many lines, without the pairs that are dropped."""
    numbered = enumerate(pairs)
    while chunk := list(islice(numbered, CHUNK)):
        reasons = [reason_to_drop(pair) for _, pair in chunk]
        kept = [item for item, reason in zip(chunk, reasons, strict=True) if reason is None]
        yield _Chunk(
            np.array([line for line, _ in kept], np.int32),
            [source for _, (source, _) in kept],
            [target for _, (_, target) in kept],
            Counter(filter(None, reasons)),
        )


def _encoded(
    chunks: Iterator[_Chunk], subwords: Subwords, limits: Limits, total: int | None
) -> Iterator[_Chunk]:
    """Encodes chunks in order, in this process or, for many pairs, in one process per core."""
    cores = len(os.sched_getaffinity(0))
    if cores == 1 or (total is not None and total < PARALLEL_FROM):
        yield from map(partial(_encode, subwords, limits), chunks)
        return
    with process_pool(cores, _start_worker, subwords, limits) as run:
        yield from run(_encode_in_worker, chunks)


def _encode(subwords: Subwords, limits: Limits, chunk: _Chunk) -> _Chunk:
    sources = subwords.source.encode_all(chunk.sources)
    targets = subwords.target.encode_all(chunk.targets)
    reasons = list(map(limits.reason_to_drop, sources, targets))
    kept = [index for index, reason in enumerate(reasons) if reason is None]
    return _Chunk(
        chunk.lines[kept],
        _flat([sources[index] for index in kept], subwords.source),
        _flat([targets[index] for index in kept], subwords.target),
        chunk.dropped + Counter(filter(None, reasons)),
    )


def _flat(sentences: list[list[int]], vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """The ids of all sentences in a row, and the length of each sentence."""
    ids = np.fromiter(chain.from_iterable(sentences), smallest_dtype(vocabulary.size))
    return ids, np.fromiter(map(len, sentences), np.int32, len(sentences))


_worker_settings: tuple[Subwords, Limits] | None = None


def _start_worker(subwords: Subwords, limits: Limits) -> None:
    global _worker_settings
    _worker_settings = subwords, limits


def _encode_in_worker(chunk: _Chunk) -> _Chunk:
    return _encode(*_worker_settings, chunk)


def _write(
    chunks: Iterator[_Chunk], subwords: Subwords, folder: Path, title: str, total: int | None
) -> None:
    lines, dropped, unknown = [], Counter(), 0
    with (
        Writer(folder, "source", smallest_dtype(subwords.source.size)) as source,
        Writer(folder, "target", smallest_dtype(subwords.target.size)) as target,
        progress(total=total, title=title, unit="pairs", unit_scale=True) as bar,
    ):
        for chunk in chunks:
            source.add(*chunk.sources)
            target.add(*chunk.targets)
            unknown += np.count_nonzero(chunk.sources[0] == subwords.source.unk)
            unknown += np.count_nonzero(chunk.targets[0] == subwords.target.unk)
            lines.append(chunk.lines)
            dropped.update(chunk.dropped)
            bar.update(len(chunk.lines) + chunk.dropped.total())
    if not len(source):
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())
        raise UserError(f"no training pair is left ({reasons or 'there was none'})")
    np.save(folder / LINES, np.concatenate(lines))
    facts = {
        "pairs": len(source),
        "source_tokens": source.total,
        "target_tokens": target.total,
        "longest": max(source.longest, target.longest),
        "unknown": unknown,
        "dropped": dict(dropped),
    }
    (folder / "facts.json").write_text(json.dumps(facts))

"""The encoded corpus on disk: flat integer arrays with offsets, read memory-mapped.

A corpus is encoded once. Its folder is named by a hash of what made it (the text's content, the
subwords, the filters), so that a changed file or setting makes a new one.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from transformer_mt.console import progress
from transformer_mt.data.subword import Subwords, Vocabulary
from transformer_mt.errors import UserError

FORMAT = 1
CHUNK = 5_000
# Starting the processes costs about a second, which pays from here on.
PARALLEL_FROM = 100_000
# Nothing takes a day to encode.
ABANDONED_AFTER = 24 * 3600  # seconds

Pair = tuple[str, str]
EncodedPair = tuple[list[int], list[int]]


class EncodedText:
    """One side: sentence i is `ids[offsets[i]:offsets[i + 1]]`, without bos or eos."""

    def __init__(self, folder: Path, side: str) -> None:
        self.ids = np.load(folder / f"{side}.ids.npy", mmap_mode="r")
        self.offsets = np.load(folder / f"{side}.offsets.npy", mmap_mode="r")
        self.lengths = np.diff(self.offsets)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]


class EncodedCorpus:
    """Encoded pairs. `facts` holds the counts of the build: pairs, tokens, what was dropped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self.facts: dict[str, Any] = json.loads((folder / "facts.json").read_text())
            self.source = EncodedText(folder, "source")
            self.target = EncodedText(folder, "target")
            self._check()
        except (OSError, EOFError, ValueError, LookupError, TypeError) as error:
            raise UserError(
                f"{folder}: a damaged encoded corpus ({error}). Delete the folder; it is made anew"
            ) from None

    def _check(self) -> None:
        for name, side in (("source", self.source), ("target", self.target)):
            if len(side.lengths) != self.facts["pairs"] or side.offsets[-1] != len(side.ids):
                raise ValueError(f"the {name} side is not as long as it was written")

    def __len__(self) -> int:
        return len(self.source.lengths)

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
) -> EncodedCorpus:
    """The encoded corpus of `pairs`, from the cache if it is there.

    Args:
        pairs: read only if the cache does not have them.
        content: whatever decides which pairs `pairs` yields, as text.
        dropped: filled while `pairs` is read; saved with the facts.

    Raises:
        UserError: no pair is left, or the cache can't be written.
    """
    key = hashlib.sha256()
    for part in (str(FORMAT), content, repr(limits)):
        key.update(part.encode() + b"\0")
    key.update(subwords.content())
    folder = cache / key.hexdigest()[:32]
    if not (folder / "facts.json").is_file():
        _build(pairs, subwords, limits, dropped, folder, title, total)
    return EncodedCorpus(folder)


def _build(
    pairs: Iterable[Pair],
    subwords: Subwords,
    limits: Limits,
    dropped: Counter,
    folder: Path,
    title: str,
    total: int | None,
) -> None:
    """Encodes into a folder beside the final one, and renames it when it is whole."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _clear_abandoned(folder.parent)
        temporary = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    except OSError as error:
        raise UserError(
            f"data.cache: {folder.parent}: can't be written: {error.strerror}"
        ) from None
    try:
        with (
            _Writer(temporary / "source", subwords.source) as source_writer,
            _Writer(temporary / "target", subwords.target) as target_writer,
            progress(total=total, title=title, unit="pairs", unit_scale=True) as bar,
        ):
            for chunk in _encode(pairs, subwords, total):
                for source, target in chunk:
                    reason = limits.reason_to_drop(source, target)
                    if reason:
                        dropped[reason] += 1
                    else:
                        source_writer.add(source)
                        target_writer.add(target)
                bar.update(len(chunk))
            facts = {
                "pairs": len(source_writer),
                "source_tokens": source_writer.total,
                "target_tokens": target_writer.total,
                "longest": max(source_writer.longest, target_writer.longest),
                "unknown": source_writer.unknown + target_writer.unknown,
                "dropped": dict(dropped),
            }
        if not facts["pairs"]:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())
            raise UserError(f"no training pair is left ({reasons or 'there was none'})")
        (temporary / "facts.json").write_text(json.dumps(facts))
        try:
            os.replace(temporary, folder)
        except OSError:
            # Another process has built the same corpus in the meantime.
            if not (folder / "facts.json").is_file():
                raise
    except BrokenProcessPool:
        raise UserError(
            f"{title}: a process that encodes text was killed, perhaps because memory ran out"
        ) from None
    except OSError as error:
        # A write that fails names no file; an error that names another one came from the text.
        if error.filename and temporary not in (path := Path(error.filename), path.parent):
            raise
        reason = error.strerror or error
        raise UserError(f"data.cache: {folder}: can't be written: {reason}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _clear_abandoned(cache: Path) -> None:
    """Removes what processes that were killed while they encoded have left behind."""
    for folder in cache.glob(".building-*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > ABANDONED_AFTER:
                shutil.rmtree(folder)


class _Writer:
    """Appends sentences to PATH.ids.npy, and PATH.offsets.npy at the end. Only the lengths are held
    in memory."""

    def __init__(self, path: Path, vocabulary: Vocabulary) -> None:
        self._path = path
        self._dtype = np.dtype(np.uint16 if vocabulary.size <= 1 << 16 else np.int32)
        self._unk = vocabulary.unk
        self._lengths = array("i")
        self.total = 0
        self.longest = 0
        self.unknown = 0

    def __enter__(self) -> _Writer:
        self._file = open(f"{self._path}.ids.npy", "wb")
        self._write_header()
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is None:
            # The header is as long for every length, so it can be put in place at the end.
            self._file.seek(0)
            self._write_header()
            offsets = np.concatenate([[0], np.cumsum(self._lengths, dtype=np.int64)])
            np.save(f"{self._path}.offsets.npy", offsets.astype(np.int64))
        self._file.close()

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, ids: list[int]) -> None:
        self._file.write(np.asarray(ids, self._dtype).tobytes())
        self.unknown += ids.count(self._unk)
        self._lengths.append(len(ids))
        self.total += len(ids)
        self.longest = max(self.longest, len(ids))

    def _write_header(self) -> None:
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self.total,),
        }
        np.lib.format.write_array_header_1_0(self._file, header)


def _encode(
    pairs: Iterable[Pair], subwords: Subwords, total: int | None
) -> Iterator[list[EncodedPair]]:
    """Chunks of encoded pairs in order, made by this process or, for many pairs, by one a core."""
    iterator = iter(pairs)
    chunks = iter(lambda: list(islice(iterator, CHUNK)), [])
    cores = os.cpu_count() or 1
    if cores == 1 or (total is not None and total < PARALLEL_FROM):
        for chunk in chunks:
            yield _encode_chunk(subwords, chunk)
        return
    with ProcessPoolExecutor(
        cores,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(subwords,),
    ) as pool:
        # A bounded number of chunks waits, so that memory does not grow with the corpus.
        waiting: deque[Future] = deque()
        for chunk in chunks:
            waiting.append(pool.submit(_encode_in_worker, chunk))
            if len(waiting) > 2 * cores:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _encode_chunk(subwords: Subwords, chunk: list[Pair]) -> list[EncodedPair]:
    return [
        (subwords.source.encode(source), subwords.target.encode(target)) for source, target in chunk
    ]


_worker_subwords: Subwords | None = None


def _start_worker(subwords: Subwords) -> None:
    global _worker_subwords
    _worker_subwords = subwords
    # Ctrl-C reaches the whole group; the parent ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _encode_in_worker(chunk: list[Pair]) -> list[EncodedPair]:
    assert _worker_subwords is not None
    return _encode_chunk(_worker_subwords, chunk)

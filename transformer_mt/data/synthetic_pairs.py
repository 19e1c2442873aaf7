"""Synthetic pairs of several models, merged: grouped by source, and each pair once."""

import hashlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from mmap import ACCESS_READ, mmap
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np

from transformer_mt.data.corpus import Pair, is_full

# A source, a target, and the numbers of the models that made the pair, in their order.
MergedPair = tuple[str, str, list[int]]
# Sixteen bytes per text: billions of them are told apart.
DIGEST = "S16"


@dataclass(frozen=True)
class Counts:
    """What became of the pairs.

    Attributes:
        made: the pairs that the models made.
        empty: those of them with a blank side.
        original: those that are equal to an original pair, and not empty.
        repeated: those that are equal to an earlier one, of the others.
        pairs: those that are left.
        sources: the different sources of the pairs that are left.
    """

    made: int
    empty: int
    original: int
    repeated: int
    pairs: int
    sources: int


class SyntheticPairs:
    """Collects pairs. Their texts are in a file without a name, so that memory holds less than 200
    bytes per pair.

    Args:
        folder: where there is room for the file.
        originals: pairs that are left out.
    """

    def __init__(self, folder: Path, originals: Iterable[Pair] = ()) -> None:
        self._file = TemporaryFile(dir=folder)  # noqa: SIM115 (__exit__ closes it)
        self._originals = np.unique(_array(b"".join(_digest(*pair) for pair in originals)))
        self._ends = array("q", [0])  # of each pair in the file
        self._models = array("H")
        self._empty = array("b")
        self._source_digests, self._pair_digests = bytearray(), bytearray()

    def __enter__(self) -> "SyntheticPairs":
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def add(self, source: str, target: str, model: int) -> None:
        """Adds a pair that a model made.

        Args:
            source, target: lines without a line feed.
            model: the number of the model, from 0.
        """
        written = self._file.write(f"{source}\n{target}".encode())
        self._ends.append(self._ends[-1] + written)
        self._models.append(model)
        self._empty.append(not is_full((source, target)))
        self._source_digests += _digest(source)
        self._pair_digests += _digest(source, target)

    def merge(self) -> tuple[Counts, Iterator[MergedPair]]:
        """Returns the counts, and the pairs that are left. No pair can be added afterwards.

        Pairs of the same source stand together. Sources are in the order in which they were first
        added, be it in a pair that is left out, and the pairs of a source too.
        """
        pairs = _array(self._pair_digests)
        sources, first = _first_equal(_array(self._source_digests)), _first_equal(pairs)
        empty = np.frombuffer(self._empty, np.bool_)
        original = np.isin(pairs, self._originals) & ~empty
        kept = np.flatnonzero(~empty & ~original)
        kept = kept[np.lexsort((kept, first[kept], sources[kept]))]
        # The places in `kept` at which the next pair begins.
        starts = np.flatnonzero(np.diff(first[kept], prepend=-1))
        counts = Counts(
            made=len(pairs),
            empty=int(empty.sum()),
            original=int(original.sum()),
            repeated=len(kept) - len(starts),
            pairs=len(starts),
            sources=len(np.unique(sources[kept])),
        )
        return counts, self._read(kept, [*starts.tolist(), len(kept)])

    def _read(self, kept: np.ndarray, starts: list[int]) -> Iterator[MergedPair]:
        if not len(kept):
            return  # An empty file can't be mapped.
        self._file.flush()
        with mmap(self._file.fileno(), 0, access=ACCESS_READ) as text:
            for start, end in pairwise(starts):
                equal = kept[start:end].tolist()
                first, after = self._ends[equal[0]], self._ends[equal[0] + 1]
                source, _, target = text[first:after].decode().partition("\n")
                models = dict.fromkeys(self._models[number] for number in equal)
                yield source, target, list(models)


def _digest(*texts: str) -> bytes:
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=16).digest()


def _array(digests: bytes | bytearray) -> np.ndarray:
    return np.frombuffer(digests, DIGEST)


def _first_equal(values: np.ndarray) -> np.ndarray:
    """Returns for each value the place of the first one that is equal to it: int64."""
    _, first, numbers = np.unique(values, return_index=True, return_inverse=True)
    return first[numbers]

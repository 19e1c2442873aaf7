"""Sentences of integers on disk: flat arrays with offsets, read memory-mapped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from transformer_mt.runtime.errors import UserError


class CachedArrays:
    """Base class of what is read from an entry of the cache: `facts` (counts, from facts.json), and
    arrays, which a subclass loads. It can be pickled: another process maps the files for itself.

    Raises:
        UserError: the files don't belong together, although each is as it was written.
    """

    name: str

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self.facts: dict[str, Any] = json.loads((folder / "facts.json").read_text())
            self._load(folder)
        except (OSError, EOFError, ValueError, LookupError, TypeError) as error:
            raise UserError(
                f"{folder}: damaged {self.name} ({error}). Delete the folder; it is made anew"
            ) from None

    def _load(self, folder: Path) -> None:
        raise NotImplementedError

    @property
    def key(self) -> str:
        """A hash of all that it was made from."""
        return self._folder.name

    def __reduce__(self) -> tuple:
        return type(self), (self._folder,)


class EncodedText:
    """One side: sentence i is `ids[offsets[i]:offsets[i + 1]]`, without bos or eos."""

    def __init__(self, folder: Path, side: str) -> None:
        self.ids = np.load(folder / f"{side}.ids.npy", mmap_mode="r")
        self.offsets = np.load(folder / f"{side}.offsets.npy", mmap_mode="r")
        self.lengths = np.diff(self.offsets).astype(np.int32)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def slice(self, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """The ids of sentences `start` to `end` (excluded) in a row, and their lengths."""
        ids = np.asarray(self.ids[self.offsets[start] : self.offsets[end]])
        return ids, self.lengths[start:end]

    def is_whole(self, sentences: int) -> bool:
        """Whether it has that many sentences, and all of their ids."""
        return len(self.lengths) == sentences and self.offsets[-1] == len(self.ids)


def smallest_dtype(count: int) -> np.dtype:
    """The smaller of two integer types that holds all natural numbers below `count`."""
    return np.dtype(np.uint16 if count <= 1 << 16 else np.int32)


class Writer:
    """Writes what `EncodedText` reads: appends sentences to SIDE.ids.npy, and writes
    SIDE.offsets.npy at the end. Only the lengths are held in memory."""

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
            # The header has the same length for every array, so it can be replaced at the end.
            self._file.seek(0)
            self._write_header()
            offsets = np.cumsum(np.concatenate(self._lengths), dtype=np.int64)
            np.save(f"{self._path}.offsets.npy", offsets)
        self._file.close()

    def __len__(self) -> int:
        return self._count

    def add(self, ids: np.ndarray, lengths: np.ndarray) -> None:
        """Appends sentences, given as their ids in a row and the length of each sentence."""
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

"""Reads from files of unknown origin, with limits on what they can make this program do.

All functions here raise a ValueError with one sentence, whatever is wrong with a file.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import numpy as np

from transformer_mt.utils.console import visible

MB = 1 << 20
# The largest models of translation that are published have 3 billion parameters.
LARGEST = 16 << 30
# Weights are seldom compressed to less than a half, and lists of words to a fifth; a zip bomb is
# compressed to a thousandth.
_LARGEST_RATIO = 100
_RATIO_COUNTS_FROM = 10 * MB
_PIECE = 1 << 20
_LONGEST_NAME = 100
# What zipfile raises for damaged files, apart from ValueError.
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, LookupError),
    *(NotImplementedError, OverflowError, RuntimeError),  # of what is encrypted after all
)


def shown(text: object) -> str:
    """Returns a name from a file for a message: short, and without control characters."""
    name = visible(str(text)[: _LONGEST_NAME + 1]).replace("\n", "\\n").replace("\t", "\\t")
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."


def size_of(file: IO[bytes]) -> int:
    """Returns the number of bytes of a file. It is at its start afterwards."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    return size


def read_exactly(stream: IO[bytes], size: int) -> np.ndarray:
    """Returns the next `size` bytes of a stream as an array of uint8. The caller has compared the
    size with that of the file, because memory for it is reserved.

    Raises:
        ValueError: the stream is shorter.
    """
    content = np.empty(size, np.uint8)
    view = memoryview(content)  # type: ignore[arg-type]
    position = 0
    while position < size:
        piece = stream.read(min(_PIECE, size - position))
        if not piece:
            raise ValueError("it is truncated")
        view[position : position + len(piece)] = piece
        position += len(piece)
    return content


def finite_float32(name: str, array: np.ndarray) -> np.ndarray:
    """Returns an array of any float type as float32, C-contiguous and aligned. It is copied only if
    it was not so already.

    Raises:
        ValueError: it holds NaN or infinity, or a number that float32 does not have.
    """
    with np.errstate(over="ignore"):
        numbers = np.require(array, np.float32, ["C", "A"])
    if not np.isfinite(numbers).all():
        raise ValueError(f"{shown(name)} holds NaN or infinity")
    return numbers


def read_json(content: bytes) -> dict[str, Any]:
    """Returns the object that a JSON file holds.

    Raises:
        ValueError: it is not JSON in UTF-8 or not an object, or an object in it has a key twice.
    """

    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise ValueError(f"it has {shown(twice)!r} twice")
        return values

    try:
        values = json.loads(content.decode("utf-8-sig"), object_pairs_hook=without_duplicates)
    except UnicodeDecodeError:
        raise ValueError("it is not in UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(values, dict):
        raise ValueError("it is not an object of JSON")
    return values


class ZipArchive:
    """The files in a zip archive. They are read in memory; nothing is extracted.

    Args:
        file: the archive, which can be read from any position.

    Raises:
        ValueError: it is damaged or encrypted; or it has files that lie outside it, are links, are
            there twice, or are so large that they could fill the memory.
    """

    def __init__(self, file: IO[bytes]) -> None:
        size = size_of(file)
        with _one_error("it is truncated or damaged: "):
            self._file = zipfile.ZipFile(file)
        self._members: dict[str, zipfile.ZipInfo] = {}
        for member in self._file.infolist():
            _check(member)
            if member.filename in self._members:
                raise ValueError(f"it has {shown(member.filename)} twice")
            self._members[member.filename] = member
        # The beginning of an archive of archives can end where one of these does.
        if min((member.header_offset for member in self._members.values()), default=0) > 0:
            raise ValueError("it is truncated, or has something before its files")
        total = sum(member.file_size for member in self._members.values())
        if total > LARGEST:
            raise ValueError(
                f"it has {total >> 30} GB of content; at most {LARGEST >> 30} are read"
            )
        # The sizes of the members can add up to less than they seem to, because members of a zip
        # bomb overlap.
        if total > _RATIO_COUNTS_FROM and total > _LARGEST_RATIO * size:
            raise ValueError(
                f"its content is more than {_LARGEST_RATIO} times as large as it is compressed. It "
                "is not read, because it could fill the memory"
            )

    def names(self) -> list[str]:
        """Returns the names of all files, with the folders they are in."""
        return [name for name, member in self._members.items() if not member.is_dir()]

    def size(self, name: str) -> int:
        """Returns the number of bytes that `read` returns for a file."""
        return self._members[name].file_size

    def read(self, name: str) -> np.ndarray:
        """Returns the content of a file as an array of uint8.

        Raises:
            ValueError: it is damaged: it is truncated, or does not match its checksum.
        """
        member = self._members[name]
        with _one_error(f"its file {shown(name)} is damaged: "), self._file.open(member) as stream:
            content = read_exactly(stream, member.file_size)
            stream.read(1)  # zipfile verifies the checksum of an empty file only here
            return content


def _check(member: zipfile.ZipInfo) -> None:
    name = shown(member.filename)
    parts = member.filename.replace("\\", "/").split("/")
    if parts[0] == "" or ".." in parts or parts[0][1:2] == ":" or "\0" in member.orig_filename:
        raise ValueError(f"its file {name} is named like one outside it, so it is not a model's")
    if stat.S_ISLNK(member.external_attr >> 16):
        raise ValueError(f"its file {name} is a link, so it is not a model's")
    if member.flag_bits & 0x1:
        raise ValueError(f"its file {name} is encrypted. Make an archive without a password")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"its file {name} is compressed in another way than by deflate")


@contextmanager
def _one_error(start: str = "") -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise ValueError(f"{start}{error or 'it is truncated'}") from None
    except ValueError as error:
        raise ValueError(f"{start}{error}") from None
    except OSError as error:
        if error.errno != errno.EINVAL:  # a position before the beginning
            raise
        raise ValueError(f"{start}it is truncated") from None

"""Zip archives of unknown origin, which are read in memory, with limits on what they can make this
program do.

All functions here raise a ValueError with one sentence, whatever is wrong with an archive.
"""

from __future__ import annotations

import copy
import errno
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO

import numpy as np

from transformer_mt.utils.console import visible

MB = 1 << 20
# Weights are seldom compressed to less than a half, lists of words to a fifth, and text of XML to a
# thirtieth; a zip bomb is compressed to a thousandth.
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


class ZipArchive:
    """The files in a zip archive. They are read in memory; nothing is extracted.

    Args:
        file: the archive, which can be read from any position.
        largest: the most bytes that all its files together may have.

    Raises:
        ValueError: it is damaged or encrypted; or it has files that lie outside it, are links, are
            there twice, or are so large that they could fill the memory.
    """

    def __init__(self, file: IO[bytes], largest: int) -> None:
        size = size_of(file)
        with _one_error("it is truncated or damaged: "):
            self._file = zipfile.ZipFile(file)
        self._members: dict[str, zipfile.ZipInfo] = {}
        for member in self._file.infolist():
            _check(member)
            if member.filename in self._members:
                raise ValueError(f"its file {shown(member.filename)} is there twice")
            self._members[member.filename] = member
        # The beginning of an archive of archives can end where one of these does.
        if min((member.header_offset for member in self._members.values()), default=0) > 0:
            raise ValueError("it is truncated, or has something before its files")
        total = sum(member.file_size for member in self._members.values())
        if total > largest:
            raise ValueError(
                f"it has more than {largest // MB:,} MB of content when it is decompressed. "
                "So much is not read"
            )
        # The sizes of the members can add up to less than they seem to, because members of a zip
        # bomb overlap.
        if total > _RATIO_COUNTS_FROM and total > _LARGEST_RATIO * size:
            raise ValueError(
                f"its content is more than {_LARGEST_RATIO} times as large as it is compressed. It "
                "is not read, because it could fill the memory"
            )

    def copy_to(self, output: IO[bytes], changed: Mapping[str, bytes]) -> None:
        """Writes an archive with the content of some files changed. The others keep their content,
        and all keep their order, times and compression."""
        with zipfile.ZipFile(output, "w") as copied:
            copied.comment = self._file.comment
            for name, member in self._members.items():
                content = changed[name] if name in changed else self.read(name).tobytes()
                copied.writestr(copy.copy(member), content)

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
        raise ValueError(f"its file {name} is named like a file outside it")
    if stat.S_ISLNK(member.external_attr >> 16):
        raise ValueError(f"its file {name} is a link")
    if member.flag_bits & 0x1:
        raise ValueError(f"its file {name} is encrypted; save it without a password")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"its file {name} is compressed in a way other than deflate")


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

"""Files written whole or not at all, and text read by lines that end in `\\n` alone."""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from transformer_mt.errors import UsageError, UserError


@contextmanager
def atomic(path: str | Path, mode: str = "w") -> Iterator[IO]:
    """Opens a file that appears under its name when the block ends, and not if it fails."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    try:
        with open(temporary, mode, **text) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"{path}: can't be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def open_bytes(path: Path) -> IO[bytes]:
    """A file for reading, decompressed if its name ends in .gz."""
    try:
        return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file") from None
    except OSError as error:
        raise UsageError(f"{path}: can't be read: {error.strerror or error}") from None


def byte_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file without their ends (`\\n` or `\\r\\n`)."""
    with open_bytes(path) as file:
        try:
            for line in file:
                yield line.removesuffix(b"\n").removesuffix(b"\r")
        except (EOFError, gzip.BadGzipFile, OSError) as error:
            raise UserError(f"{path}: can't be read to its end: {error}") from None


def lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 text file; U+2028, U+0085 and the like are text, not ends of lines.

    Raises:
        UserError: naming the line that is not UTF-8.
    """
    for number, line in enumerate(byte_lines(path), 1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path}, line {number}: not UTF-8 (byte {line[error.start]:#04x} at position "
                f"{error.start + 1}). Convert the file, for example with iconv -f LATIN1 -t UTF-8"
            ) from None
        yield text.removeprefix("\ufeff") if number == 1 else text


def count_lines(path: Path) -> int:
    """The number of lines; a last one without a newline counts."""
    count, last = 0, b"\n"
    with open_bytes(path) as file:
        try:
            while block := file.read(1 << 20):
                count += block.count(b"\n")
                last = block[-1:]
        except (EOFError, gzip.BadGzipFile, OSError) as error:
            raise UserError(f"{path}: can't be read to its end: {error}") from None
    return count + (last != b"\n")


def content_hash(path: Path) -> str:
    with open_bytes(path) as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()

"""Files written whole or not at all, and text read by lines that end in `\\n` alone."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from transformer_mt.errors import UsageError, UserError


@contextmanager
def atomic(path: str | Path, mode: str = "w") -> Iterator[IO]:
    """Opens a file that appears under its name when the block ends, and not if it fails.

    A link is followed. What is no file (a terminal, a pipe, /dev/null) is written to as it is.

    Raises:
        UserError: the file can't be written. Other errors of the block are passed on.
    """
    path = Path(path)
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    if os.path.exists(path) and not os.path.isfile(path):
        with _write_errors(path, path), open(path, mode, **text) as file:
            yield file
        return
    final = Path(os.path.realpath(path))
    temporary = final.with_name(f".{final.name}.{os.getpid()}.tmp")
    try:
        with _write_errors(path, temporary):
            with open(temporary, mode, **text) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, final)
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def _write_errors(path: Path, opened: Path) -> Iterator[None]:
    """Says of an OSError that `path` can't be written, unless it is about something else."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        # A write that fails names no file; an error that names another one came from there.
        if error.filename not in (None, str(opened)):
            raise
        raise UserError(f"{path}: can't be written: {error.strerror or error}") from error


@contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, zlib.error, OSError) as error:
        raise UserError(f"{path}: can't be read to its end: {error}") from None


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
    with open_bytes(path) as file, _read_errors(path):
        yield from map(without_end, file)


def without_end(line: bytes) -> bytes:
    return line.removesuffix(b"\r\n" if line.endswith(b"\r\n") else b"\n")


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
    with open_bytes(path) as file, _read_errors(path):
        while block := file.read(1 << 20):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")


def content_hash(path: Path) -> str:
    """The SHA-256 of what a file holds (when decompressed), in hexadecimal."""
    digest = hashlib.sha256()
    with open_bytes(path) as file, _read_errors(path):
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def flush_to_disk(path: Path) -> None:
    """Returns when a file, or the names in a folder, would outlive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def clear_leftovers(final: Path) -> None:
    pass

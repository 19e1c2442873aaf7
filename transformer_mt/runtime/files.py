"""Files written whole or not at all, and text read by lines that end in `\\n` alone."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from transformer_mt.runtime.errors import UsageError, UserError
from transformer_mt.runtime.locks import open_locked

# A descriptor as a path: of a process, of one of its threads, or of this process.
_DESCRIPTOR = re.compile(r"(?:/proc/(\d+)(?:/task/\d+)?|/dev)/fd/(\d+)")
# Links that are followed before a path is taken for a loop of them, as Linux does.
_MOST_LINKS = 40


@contextmanager
def atomic(path: str | Path, mode: str = "w") -> Iterator[IO]:
    """Opens a file that appears under its name when the block ends, and not if it fails.

    A link is followed. What may not be replaced (see `is_replaceable`) is written to as it is. What
    a process that was killed has left of the same file is removed.

    Raises:
        UserError: the file can't be written. Other errors of the block are passed on.
    """
    path = Path(path)
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    if not is_replaceable(path):
        with _write_errors(path, path), _open_as_it_is(path, mode, **text) as file:
            yield file
        return
    final = Path(os.path.realpath(path))
    clear_leftovers(final.parent, final.name)
    temporary = final.with_name(f".{final.name}.{os.getpid()}.tmp")
    try:
        with _write_errors(path, temporary), open(temporary, mode, opener=_locked, **text) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            # Before it is closed: until then nobody takes it for a leftover.
            os.replace(temporary, final)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def is_replaceable(path: str | Path) -> bool:
    """Whether `path` names a regular file that another one may take the place of, or nothing yet.

    A device, a pipe and a folder are no regular files. A descriptor, such as /dev/stdout or
    /dev/fd/3, may be one of a regular file; but whoever has opened that goes on writing there.
    """
    if _descriptor(path) is not None:
        return False
    return os.path.isfile(path) or not os.path.exists(path)


def require_distinct(
    written: dict[str, Path | int | None], read: dict[str, Path | int | None]
) -> None:
    """Checks that nothing is written into a regular file that is read, or twice into the same one,
    by whatever names.

    Args:
        written, read: paths, or numbers of open descriptors, by what a message is to call them;
            None is left out.

    Raises:
        UsageError: naming two that are the same file.
    """
    seen = {name: file for name, file in read.items() if file is not None}
    for name, file in written.items():
        if file is None:
            continue
        for other, other_file in seen.items():
            if (identity := _identity(file)) and identity == _identity(other_file):
                raise UsageError(
                    f"{_called(name, file)} and {_called(other, other_file)} are the same file. "
                    "Write into another one"
                )
        seen[name] = file


def _called(name: str, file: Path | int) -> str:
    return name if isinstance(file, int) else f"{name} {file}"


def _identity(file: Path | int) -> tuple[int, int] | str | None:
    """What no other file has, of a regular one or one that is not there yet; None: of any other."""
    try:
        status = os.stat(file)
    except OSError:
        return os.path.realpath(file)
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def _descriptor(path: str | Path) -> tuple[int | None, int] | None:
    """Of a path that names a descriptor, perhaps through links, its process (None: this one) and
    its number; None of any other path."""
    path = os.fspath(path)
    for _ in range(_MOST_LINKS):
        folder, name = os.path.split(path)
        folder = os.path.realpath(folder)
        if match := _DESCRIPTOR.fullmatch(f"{folder}/{name}"):
            is_own = match[1] is None or os.path.realpath("/proc/self") == f"/proc/{match[1]}"
            return None if is_own else int(match[1]), int(match[2])
        try:
            path = os.path.join(folder, os.readlink(f"{folder}/{name}"))
        except OSError:  # it is no link
            break
    return None


def _open_as_it_is(path: Path, mode: str, **options: Any) -> IO:
    """Opens what is no file that may be replaced, for writing; nothing that it holds is lost."""
    descriptor = _descriptor(path)
    if descriptor is None:
        return open(path, mode, **options)
    process, number = descriptor
    if process is not None:
        return open(path, mode.replace("w", "a"), **options)
    # What was printed before comes first.
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    # Not opened anew, which would truncate it, and write at a place of its own.
    return open(os.dup(number), mode, **options)


def _locked(path: str, flags: int) -> int:
    """An opener whose file `clear_leftovers` leaves alone until it is closed."""
    return open_locked(Path(path), flags, wait=True, optional=True)


def clear_leftovers(folder: Path, name: str | None = None) -> None:
    """Removes what killed processes have left in a folder: each `.NAME.PID.tmp`, of any name or of
    this one, that no process holds a lock on."""
    pattern = re.compile(rf"\.{'.+' if name is None else re.escape(name)}\.\d+\.tmp")
    try:
        left = [path for path in folder.iterdir() if pattern.fullmatch(path.name)]
    except OSError:
        return
    for path in left:
        with suppress(OSError):  # it is locked, or gone, or not ours to remove
            descriptor = open_locked(path, os.O_RDONLY | os.O_NONBLOCK)
            try:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            finally:
                os.close(descriptor)


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


class Content(NamedTuple):
    """What a file holds (after decompression): its number of lines, where a last one without a
    newline counts, and its SHA-256 in hexadecimal."""

    line_count: int
    sha256: str


def content_of(path: Path) -> Content:
    """Reads a file to its end, once."""
    digest, count, last = hashlib.sha256(), 0, b"\n"
    with open_bytes(path) as file, _read_errors(path):
        while block := file.read(1 << 20):
            digest.update(block)
            count += block.count(b"\n")
            last = block[-1:]
    return Content(count + (last != b"\n"), digest.hexdigest())


def count_lines(path: Path) -> int:
    """The number of lines of a file, as in `Content`."""
    return content_of(path).line_count


def content_hash(path: Path) -> str:
    """The SHA-256 of a file's content, as in `Content`."""
    return content_of(path).sha256


def flush_to_disk(path: Path) -> None:
    """Returns when a file, or the names in a folder, would outlive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

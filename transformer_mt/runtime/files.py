"""Files that are written completely or not at all, and text whose lines end in `\\n` alone."""

import codecs
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
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from transformer_mt.runtime.console import quoted
from transformer_mt.runtime.errors import UsageError, UserError
from transformer_mt.runtime.locks import open_locked

# The path of a file descriptor: of a process, of one of its threads, or of this process.
_DESCRIPTOR = re.compile(r"(?:/proc/(\d+)(?:/task/\d+)?|/dev)/fd/(\d+)")
# The byte order marks of encodings whose lines do not end in the byte of a newline alone, and how
# many bytes at the start of a file are looked at.
_MARKS = [
    *(("UTF-32", mark) for mark in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)),
    *(("UTF-16", mark) for mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)),
]
_PEEKED = 1000
# After following this many links, Linux takes them for a loop.
_MOST_LINKS = 40


@contextmanager
def atomic(path: str | Path, mode: str = "w") -> Iterator[IO]:
    """Opens a file that appears under its name when the block ends without an error.

    If `path` is a link, the file that it leads to is replaced. If it cannot be replaced (see
    `is_replaceable`), it is opened and written to directly. What a killed process has left of the
    same file is deleted.

    Raises:
        UserError: the file can't be written. Other errors of the block are passed on.
    """
    path = Path(path)
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    if not is_replaceable(path):
        with _write_errors(path, path), _open_directly(path, mode, **text) as file:
            yield file
        return
    final = Path(os.path.realpath(path))
    clear_leftovers(final.parent, final.name)
    temporary = final.with_name(f".{final.name}.{os.getpid()}.tmp")
    locked = partial(open_locked, wait=True, optional=True)
    try:
        with _write_errors(path, temporary), open(temporary, mode, opener=locked, **text) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            # The file is renamed before it is closed, because closing releases the lock, without
            # which another process would take it for a leftover.
            os.replace(temporary, final)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Writes a whole file; see `atomic`. Text is encoded in UTF-8."""
    with atomic(path, "wb") as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


def as_line(text: str) -> str:
    """Returns a text as a line of a file, from which `lines` reads the same text."""
    # A reader takes a carriage return before the end of a line for a part of that end.
    return f"{text}\r\n" if text.endswith("\r") else f"{text}\n"


def is_replaceable(path: str | Path) -> bool:
    """Returns whether `path` names a regular file, which another one can replace, or nothing yet.

    A device, a pipe and a folder are not regular files. A descriptor, such as /dev/stdout or
    /dev/fd/3, can lead to a regular file, but the process that opened that file would go on writing
    to the replaced one.
    """
    if _descriptor(path) is not None:
        return False
    return os.path.isfile(path) or not os.path.exists(path)


def require_distinct(
    written: dict[str, Path | int | None], read: dict[str, Path | int | None]
) -> None:
    """Checks that no regular file is both written and read, or written twice, even if it has
    several names.

    Args:
        written, read: the name of each file in messages, and its path, or the number of an open
            descriptor, or None if there is no file.

    Raises:
        UsageError: two of them are the same file.
    """
    seen: dict[tuple[int, int] | str, str] = {}
    for files in (read, written):
        for name, file in files.items():
            identity = None if file is None else _identity(file)
            if identity is None:
                continue
            called = name if isinstance(file, int) else f"{name} {file}"
            if files is written and identity in seen:
                raise UsageError(
                    f"{called} and {seen[identity]} are the same file. Write into another one"
                )
            seen.setdefault(identity, called)


def _identity(file: Path | int) -> tuple[int, int] | str | None:
    """Returns what tells a regular file, existing or not, from all others; None for anything that
    is not a regular file."""
    try:
        status = os.stat(file)
    except OSError:
        return os.path.realpath(file)
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def _descriptor(path: str | Path) -> tuple[int | None, int] | None:
    """Returns the process (None: this one) and the number of the descriptor that a path names,
    directly or through links; None if it names no descriptor."""
    path = os.fspath(path)
    for _ in range(_MOST_LINKS):
        folder, name = os.path.split(path)
        folder = os.path.realpath(folder)
        if match := _DESCRIPTOR.fullmatch(f"{folder}/{name}"):
            is_own = match[1] is None or os.path.realpath("/proc/self") == f"/proc/{match[1]}"
            return None if is_own else int(match[1]), int(match[2])
        try:
            path = os.path.join(folder, os.readlink(f"{folder}/{name}"))
        except OSError:  # it is not a link
            break
    return None


def _open_directly(path: Path, mode: str, **options: Any) -> IO:
    """Opens something that cannot be replaced for writing, without truncating a file."""
    descriptor = _descriptor(path)
    if descriptor is None:
        return open(path, mode, **options)
    process, number = descriptor
    if process is not None:
        return open(path, mode.replace("w", "a"), **options)
    # Text that was printed before must come first.
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    # Opening the path instead would truncate the file, and start at a position of its own.
    return open(os.dup(number), mode, **options)


def clear_leftovers(folder: Path, name: str | None = None) -> None:
    """Deletes what killed processes have left in a folder: each `.NAME.PID.tmp` that no process has
    locked.

    Args:
        name: NAME; None: any name.
    """
    pattern = re.compile(rf"\.{'.+' if name is None else re.escape(name)}\.\d+\.tmp")
    try:
        left = [path for path in folder.iterdir() if pattern.fullmatch(path.name)]
    except OSError:
        return
    for path in left:
        with suppress(OSError):  # it is locked, or already gone, or may not be deleted
            descriptor = open_locked(path, os.O_RDONLY | os.O_NONBLOCK)
            try:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            finally:
                os.close(descriptor)


@contextmanager
def _write_errors(path: Path, opened: Path) -> Iterator[None]:
    """Raises a UserError about `path` for an OSError of the block that comes from writing it."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        # The error of a write names no file. An error that names another file is about that one.
        if error.filename not in (None, str(opened)):
            raise
        raise UserError(f"{path}: can't be written: {error.strerror or error}") from error


def _wide_encoding(start: bytes) -> str | None:
    """Returns the encoding of a text that has two or four bytes for each character, given its first
    bytes; None if it is another one."""
    for encoding, mark in _MARKS:  # UTF-32 comes first, because its mark begins with the other
        if start.startswith(mark):
            return encoding
    # Without a mark, every second byte of most text is zero. UTF-8 has that byte only for U+0000.
    zeros = [start[place::2].count(0) for place in (0, 1)]
    if len(start) >= 100 and 4 * max(zeros) > len(start):
        return "UTF-16BE" if zeros[0] > zeros[1] else "UTF-16LE"
    return None


def _conversion(path: Path, encoding: str) -> str:
    """Returns a command that converts a file to UTF-8."""
    if path.suffix == ".gz":
        return f"gzip -dc {quoted(path)} | iconv -f {encoding} -t UTF-8 | gzip > NEW_FILE.gz"
    return f"iconv -f {encoding} -t UTF-8 {quoted(path)} > NEW_FILE"


@contextmanager
def _reading(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file for reading. It is decompressed if its name ends in .gz.

    Raises:
        UsageError: there is no such file, or it can't be opened.
        UserError: it is damaged, or its encoding is UTF-16 or UTF-32.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        file = opened(path, "rb")
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file") from None
    except OSError as error:
        raise UsageError(f"{path}: can't be read: {error.strerror or error}") from None
    with file:
        try:
            if encoding := _wide_encoding(file.peek(_PEEKED)[:_PEEKED]):
                raise UserError(
                    f"{path}: the encoding is {encoding}, not UTF-8. Convert the file: "
                    f"{_conversion(path, encoding)}"
                )
            yield file
        except (EOFError, zlib.error, OSError) as error:
            raise UserError(f"{path}: can't be read to its end: {error}") from None


def byte_lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a file without their ends (`\\n` or `\\r\\n`).

    Raises:
        UsageError, UserError: as `_reading` does.
    """
    with _reading(path) as file:
        for line in file:
            yield line.removesuffix(b"\r\n" if line.endswith(b"\r\n") else b"\n")


def lines(path: Path) -> Iterator[str]:
    """Yields the lines of a UTF-8 text file. U+2028, U+0085 and the like do not end a line.

    Raises:
        UsageError, UserError: as `byte_lines` does; or a line is not UTF-8.
    """
    for number, line in enumerate(byte_lines(path), 1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path}, line {number}: not UTF-8 (byte {line[error.start]:#04x} at position "
                f"{error.start + 1}). Convert the file: {_conversion(path, 'ENCODING')}. For "
                "Chinese, ENCODING is GB18030; for Japanese, SHIFT_JIS; for European languages, "
                "often LATIN1. Look at the new file before you use it"
            ) from None
        yield text.removeprefix("\ufeff") if number == 1 else text


class Content(NamedTuple):
    """The number of lines of a file (after decompression), including a last one without a newline,
    and its SHA-256 in hexadecimal."""

    line_count: int
    sha256: str


def content_of(path: Path) -> Content:
    """Reads a file once, and counts and hashes its content.

    Raises:
        UsageError, UserError: as `byte_lines` does.
    """
    digest, count, last = hashlib.sha256(), 0, b"\n"
    with _reading(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
            count += block.count(b"\n")
            last = block[-1:]
    return Content(count + (last != b"\n"), digest.hexdigest())


def flush_to_disk(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on disk and would survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Files that are written completely or not at all, and text whose lines end in `\\n` alone.

Compressed text is read like any other, whatever its name is. What is written into a name that ends
in .gz, .bz2 or .xz is compressed.
"""

import bz2
import codecs
import fcntl
import gzip
import hashlib
import io
import lzma
import os
import re
import shutil
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from transformer_mt.utils.console import quoted
from transformer_mt.utils.errors import UsageError, UserError

# The paths of this process's open files.
_DESCRIPTOR = re.compile(r"/dev/(?:fd/(\d+)|stdout|stderr)")
# The byte order marks of encodings whose lines do not end in the byte of a newline alone. UTF-32
# comes first, because its mark begins with the other.
_MARKS = {
    **dict.fromkeys((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "UTF-32"),
    **dict.fromkeys((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "UTF-16"),
}
# The number of bytes that are read at once, and looked at to find out what they are.
BLOCK = 1 << 16
# A command that ends lines in \\n instead of in \\r.
_NEWLINES = r"tr '\r' '\n'"
# UTF-8 has no halves of surrogate pairs, which Python has in names that are not UTF-8. They are
# written as JSON has them: \\udcff.
_ERRORS = "backslashreplace"


class _Compression(NamedTuple):
    """A kind of compressed file.

    Attributes:
        start: a pattern of its first bytes.
        unpack: a command that decompresses its input.
        open: opens a compressed file, for reading ("rb") or writing ("wb"), inside an open file.
    """

    start: bytes
    unpack: str
    open: Callable[[Any, Any], Any]


def _gzip(file: IO[bytes], mode: str) -> gzip.GzipFile:
    # Without a name and a time, equal content gives equal files.
    return gzip.GzipFile("", mode, fileobj=file, mtime=0)


# By the endings of their names.
_COMPRESSIONS = {
    ".gz": _Compression(rb"\x1f\x8b", "gzip -dc", _gzip),
    ".bz2": _Compression(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", "bzip2 -dc", bz2.BZ2File),
    ".xz": _Compression(rb"\xfd7zXZ\x00", "xz -dc", lzma.LZMAFile),
}
# The endings of text files, which may be compressed.
ENDINGS = ("", *_COMPRESSIONS)
# Files that are neither read nor written: the ending, the first bytes, and a command that unpacks.
UNREADABLE = {
    ".zst": (rb"\x28\xb5\x2f\xfd", "zstd -dc < {} > NEW_FILE"),
    ".zip": (rb"PK\x03\x04", "unzip -p {} > NEW_FILE"),
    ".7z": (rb"7z\xbc\xaf\x27\x1c", "7z e -so {} > NEW_FILE"),
    ".lz4": (rb"\x04\x22\x4d\x18", "lz4 -dc < {} > NEW_FILE"),
    ".tar": (rb"(?s).{257}ustar", "tar -xOf {} > NEW_FILE"),
}


@contextmanager
def atomic(path: str | Path, mode: str = "w", as_is: bool = False) -> Iterator[IO]:
    """Opens a file that appears under its name when the block ends without an error.

    If the name ends in .gz, .bz2 or .xz, what is written is compressed, unless `as_is`.

    If `path` is a link, the file that it leads to is replaced. If it cannot be replaced (see
    `is_replaceable`), it is opened and written to directly. What a killed process has left of the
    same file is deleted.

    Raises:
        UserError: the file can't be written. Other errors of the block are passed on.
    """
    path = Path(path)
    if not is_replaceable(path):
        with (
            _write_errors(path, path),
            _open_directly(path) as file,
            _content(file, path, mode, as_is) as content,
        ):
            yield content
        return
    final = Path(os.path.realpath(path))
    clear_leftovers(final.parent, final.name)
    temporary = final.with_name(f".{final.name}.{os.getpid()}.tmp")
    locked = partial(open_locked, wait=True, optional=True)
    try:
        with _write_errors(path, temporary), open(temporary, "wb", opener=locked) as file:
            with _content(file, path, mode, as_is) as content:
                yield content
            file.flush()
            os.fsync(file.fileno())
            # The file is renamed before it is closed, because closing releases the lock, without
            # which another process would take it for a leftover.
            os.replace(temporary, final)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def _content(file: IO[bytes], path: Path, mode: str, as_is: bool) -> Iterator[IO]:
    """What writes the content of `path` into an open file: it compresses and encodes."""
    compression = None if as_is else _COMPRESSIONS.get(path.suffix.lower())
    packed = file if compression is None else compression.open(file, "wb")
    if "b" in mode:
        yield packed
    else:
        text = io.TextIOWrapper(packed, encoding="utf-8", errors=_ERRORS, newline="\n")
        yield text
        text.detach()  # flushes it
    if packed is not file:
        packed.close()


def write_atomically(path: str | Path, content: str | bytes, as_is: bool = False) -> None:
    """Writes a whole file; see `atomic`. Text is encoded in UTF-8."""
    with atomic(path, "wb", as_is) as file:
        file.write(content.encode("utf-8", _ERRORS) if isinstance(content, str) else content)


def is_compressed(path: Path) -> bool:
    """Returns whether what is written into a file of this name is compressed."""
    return path.suffix.lower() in _COMPRESSIONS


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
        return None if isinstance(file, int) else os.path.realpath(file)
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def _descriptor(path: str | Path) -> int | None:
    """Returns the number of the open file that a path such as /dev/stdout names; None if it names
    another kind of file."""
    match = _DESCRIPTOR.fullmatch(os.fspath(path))
    if match is None:
        return None
    return int(match[1] or {"/dev/stdout": 1, "/dev/stderr": 2}[match[0]])


def _open_directly(path: Path) -> IO[bytes]:
    """Opens something that cannot be replaced for writing, without truncating a file."""
    descriptor = _descriptor(path)
    if descriptor is None:
        return open(path, "wb")
    # Text that was printed before must come first.
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    # Opening the path instead would truncate the file, and start at a position of its own.
    return open(os.dup(descriptor), "wb")


def clear_leftovers(folder: Path, name: str | None = None) -> None:
    """Deletes what killed processes have left in a folder: each `.NAME.PID.tmp` that no process has
    locked, and each `.NAME.PID.old.tmp` whose place NAME has taken (see `folders.replace`).

    Args:
        name: NAME; None: any name.
    """
    pattern = re.compile(rf"\.({'.+' if name is None else re.escape(name)})\.\d+(\.old)?\.tmp")
    try:
        matches = {path: pattern.fullmatch(path.name) for path in folder.iterdir()}
    except OSError:
        return
    for path, match in matches.items():
        if match is None or (match[2] and not os.path.lexists(folder / match[1])):
            continue
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
    for mark, encoding in _MARKS.items():
        if start.startswith(mark):
            return encoding
    # Without a mark: in UTF-16, every second byte of Latin text is zero. In UTF-8, hardly any is.
    for place, encoding in ((1, "UTF-16LE"), (0, "UTF-16BE")):
        if len(start) >= 4 and 4 * start[place::2].count(0) > len(start):
            return encoding
    return None


def _command(file: str, *steps: str | None) -> str:
    """Returns a command that takes a file, given as a word of a shell, through some steps."""
    first, *rest = filter(None, steps)
    return f"{' | '.join([f'{first} < {file}', *rest])} > NEW_FILE"


def _compression_of(start: bytes) -> _Compression | None:
    """Returns how a file is compressed, given its first bytes."""
    return next((kind for kind in _COMPRESSIONS.values() if re.match(kind.start, start)), None)


def conversion(path: Path, step: str) -> str:
    """Returns a command that takes a file, which may be compressed, through a step."""
    compression = None
    if path.is_file():  # a pipe can be read only once
        with open(path, "rb") as file:
            compression = _compression_of(file.read(BLOCK))
    return _command(quoted(path), compression and compression.unpack, step)


def _require_text(
    start: bytes, name: str, file: str, any_encoding: bool, unpack: str | None = None
) -> None:
    """Checks the first bytes of a text.

    Args:
        name: of the file, in messages.
        file: the file as a word of a shell, for commands in messages.
        any_encoding: whether to allow other encodings and line ends than those of `lines`.
        unpack: the command that decompresses it, if it is compressed.

    Raises:
        UserError: it is compressed in a way that is not read, its encoding is UTF-16 or UTF-32, or
            its lines end in a carriage return alone.
    """
    if unpack and _compression_of(start):
        raise UserError(f"{name}: compressed twice. Unpack it: {unpack} < {file} > NEW_FILE")
    for ending, (pattern, command) in UNREADABLE.items():
        if re.match(pattern, start):
            raise UserError(
                f"{name}: a {ending} file, which is not read. Unpack it: {command.format(file)}"
            )
    if any_encoding:
        return
    if encoding := _wide_encoding(start):
        raise UserError(
            f"{name}: the encoding is {encoding}, not UTF-8. Convert the file: "
            f"{_command(file, unpack, f'iconv -f {encoding} -t UTF-8')}"
        )
    if b"\n" not in start and b"\r" in start.rstrip(b"\r"):
        raise UserError(
            f"{name}: its lines end in a carriage return alone, as on old Macintoshes. Convert the "
            f"file: {_command(file, unpack, _NEWLINES)}"
        )


class _Descriptor(io.RawIOBase):
    """A descriptor of which the first bytes were read already. It stays open."""

    def __init__(self, start: bytes, descriptor: int) -> None:
        self._start = start
        self._descriptor = descriptor

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def readinto(self, buffer: Any) -> int:
        count = min(len(self._start), len(buffer))
        if not count:
            return os.readv(self._descriptor, [buffer])
        buffer[:count] = self._start[:count]
        self._start = self._start[count:]
        return count


@contextmanager
def reading(
    source: Path | int, name: str | None = None, any_encoding: bool = False
) -> Iterator[IO[bytes]]:
    """Opens a text for reading, and decompresses it if it is compressed. Until the first line has
    arrived, it waits, because its content says what it is.

    Args:
        source: a file, or a descriptor that is open.
        name: of the text, in messages; None: the path.
        any_encoding: whether the text may be in UTF-16, as XML can.

    Raises:
        UsageError: there is no such file, or it can't be opened.
        UserError: it is damaged; or as `_require_text` does.
    """
    name = name or str(source)
    file = "FILE" if isinstance(source, int) else quoted(source)
    try:
        descriptor = source if isinstance(source, int) else os.open(source, os.O_RDONLY)
    except FileNotFoundError:
        raise UsageError(f"{name}: there is no such file") from None
    except OSError as error:
        raise UsageError(f"{name}: can't be read: {error.strerror or error}") from None
    try:
        start = b""
        while b"\n" not in start and len(start) < BLOCK:
            if not (block := os.read(descriptor, BLOCK)):
                break
            start += block
        stream: Any = io.BufferedReader(_Descriptor(start, descriptor), BLOCK)
        if compression := _compression_of(start):
            stream = compression.open(stream, "rb")
            _require_text(stream.peek(BLOCK), name, file, any_encoding, compression.unpack)
        else:
            _require_text(start, name, file, any_encoding)
        yield stream
    except IsADirectoryError as error:
        raise UsageError(f"{name}: can't be read: {error.strerror}") from None
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        raise UserError(f"{name}: can't be read to its end: {error}") from None
    finally:
        if not isinstance(source, int):
            os.close(descriptor)


def byte_lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a file without their ends (`\\n` or `\\r\\n`).

    Raises:
        UsageError, UserError: as `reading` does.
    """
    with reading(path) as file:
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
                f"{error.start + 1}). Convert the file: "
                f"{conversion(path, 'iconv -f ENCODING -t UTF-8')}. For "
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
    with reading(path) as file:
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


def open_locked(path: str | Path, flags: int, *, wait: bool = False, optional: bool = False) -> int:
    """Opens a file or a folder, and locks it.

    A link is not followed: it may lead to a file that belongs to somebody else.

    Args:
        flags: as in `os.open`.
        wait: whether to wait until no other process holds the lock.
        optional: whether to continue without a lock if the file system does not support locks.

    Returns: the descriptor. It holds the lock until it is closed.

    Raises:
        BlockingIOError: another process holds it, and `wait` is not set.
        OSError: it cannot be opened or locked.
    """
    while True:
        descriptor = os.open(path, flags | os.O_NOFOLLOW, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise
            except OSError as error:
                if not optional:
                    reason = f"{error.strerror}: it can't be locked. Give a folder on a file system"
                    raise OSError(error.errno, f"{reason} that has locks") from None
            # The process that held the lock may have deleted or renamed the file meanwhile. Then a
            # lock on it protects nothing, and the file that has its name now is opened.
            with suppress(FileNotFoundError):
                status = os.stat(path, follow_symlinks=False)
                if os.path.samestat(status, os.fstat(descriptor)):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)

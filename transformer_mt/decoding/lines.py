"""Lines in and out of files: windows of lines to translate, and an output file that is written
under another name until it is complete, and can be resumed."""

import json
import os
import select
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from transformer_mt.utils import signals
from transformer_mt.utils.console import say, warn
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.files import (
    BLOCK,
    atomic,
    byte_lines,
    is_compressed,
    open_locked,
    reading,
    write_atomically,
)

# The number of lines that are sorted by length together. It is enough for batches with little
# padding.
WINDOW = 2_000
# A pause of this many seconds ends a window, because whoever writes line by line waits for each
# translation.
PAUSE = 0.03
# The number of seconds after which a window ends even without a pause.
PATIENCE = 0.5

Item = TypeVar("Item")


def in_windows(lines: Iterable[Item]) -> Iterator[list[Item]]:
    """Cuts lines into windows of WINDOW lines; the last one may have fewer."""
    iterator = iter(lines)
    while window := list(islice(iterator, WINDOW)):
        yield window


def input_lines(path: Path, skip: int = 0) -> Iterator[str]:
    """The lines of a file to translate, without the first `skip`. Bytes that are not UTF-8 become
    U+FFFD, with a warning, so that one bad line does not stop the translation."""
    return _decoded(islice(byte_lines(path), skip, None), str(path), skip + 1)


def arriving(descriptor: int, name: str) -> Iterator[list[str]]:
    """The lines of a pipe, a terminal or the like, in windows of at most WINDOW lines. A window
    holds the lines that have arrived when the input pauses. An empty window marks the pause.

    Input is read only when a window is asked for, so that a fast writer waits for a slow reader.

    Raises:
        UserError: as `utils.files.reading` does.
    """
    number = 1
    with reading(descriptor, name) as file:
        for lines in _arriving_bytes(file):
            yield list(_decoded(lines, name, number))
            number += len(lines)


def _arriving_bytes(file: Any) -> Iterator[list[bytes]]:
    whole: list[bytes] = []  # lines that have arrived
    torn: list[bytes] = []  # pieces of a line whose end has not arrived
    deadline = 0.0  # the time at which the window ends
    is_quiet = True  # whether no line was yielded since the last pause
    while True:
        if len(whole) >= WINDOW:
            yield whole[:WINDOW]
            del whole[:WINDOW]
            deadline, is_quiet = time.monotonic() + PATIENCE, False
            continue
        if whole or not is_quiet:
            is_ready, _, _ = select.select([file], [], [], PAUSE)
            if whole and (not is_ready or time.monotonic() > deadline):
                yield whole
                whole, is_quiet = [], False
            if not is_ready:
                yield []
                is_quiet = True
        block = file.read1(BLOCK)  # waits if there is nothing
        if not block:
            break
        *ended, rest = block.split(b"\n")
        if ended:
            if not whole:
                deadline = time.monotonic() + PATIENCE
            ended[0] = b"".join([*torn, ended[0]])
            torn = []
            whole += (line.removesuffix(b"\r") for line in ended)
        torn.append(rest)
    if last := b"".join(torn):
        whole.append(last)
    if whole:
        yield whole


def _decoded(lines: Iterable[bytes], name: str, first: int) -> Iterator[str]:
    for number, line in enumerate(lines, first):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            warn(
                f"{name}, line {number}: not UTF-8; the bytes that are not became U+FFFD",
                kind="lines are not UTF-8",
            )
            text = line.decode("utf-8", errors="replace")
        yield text.removeprefix("\ufeff") if number == 1 else text


# ---- The output file ----


class ResumableFile:
    """Lines for `path`. They are written into `.NAME.partial` beside it, and everything that the
    content follows from into `.NAME.partial.json`. See `resumable_file`.

    Attributes:
        lines: the number of lines that are written.
    """

    def __init__(self, path: Path, chunk: int) -> None:
        self._path = path
        self._final = Path(os.path.realpath(path))
        self._partial = self._final.with_name(f".{self._final.name}.partial")
        self._description = self._final.with_name(f".{self._final.name}.partial.json")
        self._chunk = chunk
        with self._errors():
            descriptor = open_locked(self._partial, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            self._file = os.fdopen(descriptor, "a+b")
        self.lines = 0

    def start(self, made_from: dict[str, Any], resume: bool) -> None:
        """Begins the file, or continues after its last whole chunk, if there is one.

        Raises:
            UsageError: the lines in the file were made from something else.
        """
        with self._errors():
            self.lines, size = self._whole_chunks() if resume else (0, 0)
            if self.lines:
                self._require_same(made_from)
            self._file.truncate(size)
            self._file.seek(size)
            if not self.lines:
                try:
                    write_atomically(self._description, json.dumps(made_from))
                except BaseException:  # a full disk, for example
                    self.delete()
                    raise
        if self.lines:
            say(f"{self._path}: going on after line {self.lines:,}")
        elif resume:
            say(f"{self._path}: there is nothing to continue; starting with the first line")

    def write_line(self, line: str) -> None:
        with self._errors():
            self._file.write(f"{line}\n".encode())
            self.lines += 1
            if self.lines % self._chunk == 0:
                self._file.flush()

    def written(self) -> Path:
        """Returns the file that holds the lines until it is complete, to read them again."""
        with self._errors():
            self._file.flush()
        return self._partial

    def delete(self) -> None:
        """Deletes the lines, which are needed no more; no file gets the final name."""
        for path in (self._partial, self._description):
            with suppress(OSError):
                path.unlink()
        self.close()

    def finish(self) -> None:
        """Renames the file to its final name, or compresses it if that name asks for it."""
        if self._file.closed:  # It was deleted.
            return
        with self._errors():
            self._file.flush()
            if is_compressed(self._path):
                self._file.seek(0)
                with atomic(self._path, "wb") as compressed:
                    shutil.copyfileobj(self._file, compressed)
                self._partial.unlink()
            else:
                os.fsync(self._file.fileno())
                os.replace(self._partial, self._final)
        with suppress(OSError):
            self._description.unlink()
        self._file.close()

    def leave(self) -> None:
        """Keeps the whole chunks so that they can be resumed; without any, removes the files."""
        if self._file.closed:  # It is finished, or was deleted.
            return
        with suppress(OSError):  # such as a full disk, which is reported by the error of the block
            self._file.flush()
        lines = self.lines
        with suppress(OSError):
            lines, _ = self._whole_chunks()
        if lines:
            say(f"{self._path}: {lines:,} lines are kept; to continue, add --resume to the command")
            self.close()
        else:
            self.delete()

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()

    def _whole_chunks(self) -> tuple[int, int]:
        """The number of lines in the whole chunks of the file, and their size in bytes. If the
        process was killed, the last line may be incomplete."""
        lines = position = size = 0
        # The file is opened again, because on a full disk the handle for writing still holds bytes,
        # and would try to write them before it reads.
        with open(self._partial, "rb") as file:
            for number, line in enumerate(file, 1):
                position += len(line)
                if number % self._chunk == 0 and line.endswith(b"\n"):
                    lines, size = number, position
        return lines, size

    def _require_same(self, made_from: dict[str, Any]) -> None:
        try:
            then = json.loads(self._description.read_bytes())
        except (OSError, ValueError):
            then = {}
        # What was written is compared as JSON reads it back, which has no tuples.
        now = json.loads(json.dumps(made_from))
        if other := [key for key in dict.fromkeys([*now, *then]) if then.get(key) != now.get(key)]:
            raise UsageError(
                f"--resume: {self._path} was begun with another {', '.join(other)}. Repeat the "
                "command as it was, or leave out --resume to start again"
            )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except BlockingIOError:  # the file is locked
            raise UserError(f"{self._path} is being written by another process") from None
        except OSError as error:
            raise UserError(f"{self._path}: can't be written: {error.strerror or error}") from error


@contextmanager
def resumable_file(
    path: Path, made_from: dict[str, Any], chunk: int, resume: bool
) -> Iterator[ResumableFile]:
    """A file that gets its name when the block ends, unless it is deleted in the block. If the
    block fails, or the process is killed, the lines that were written stay under another name.

    Args:
        made_from: everything that the content follows from, in JSON's types.
        chunk: the file is resumed after a multiple of this number of lines.
        resume: whether to continue with the lines that are there, if any.

    Raises:
        UsageError: the lines that are there were made from something else than `made_from`.
        UserError: the file can't be written, or another process writes it.
    """
    file = ResumableFile(path, chunk)
    try:
        file.start(made_from, resume)
    except BaseException:
        file.close()
        raise
    try:
        yield file
        with signals.held_back():
            file.finish()
    except BaseException:
        file.leave()
        raise

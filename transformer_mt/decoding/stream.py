"""Lines to translate, in windows: of a file, a pipe or a terminal."""

import select
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, TypeVar

from transformer_mt.utils.console import warn
from transformer_mt.utils.files import BLOCK, byte_lines, reading

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


def _arriving_bytes(file: IO[bytes]) -> Iterator[list[bytes]]:
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

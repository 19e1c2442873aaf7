"""Segments: the parts of a line that are translated one by one. They are its sentences, or parts of
sentences that are too long."""

import re
import select
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, TypeVar

from transformer_mt.data.languages import Place, sentences
from transformer_mt.utils.console import warn
from transformer_mt.utils.files import BLOCK, byte_lines, reading

# Where a clause may end, and a word. Marks of languages with spaces count only before a space.
_CLAUSE = re.compile(r"[,;:،؛፣၊]\s+|\s[–—-]\s|[、，；：]\s*")
_WORD = re.compile(r"\s+")
# Gives the places at which a text may be cut, in rising order.
Ends = Callable[[str], list[int]]


@dataclass(frozen=True)
class Segment:
    """A part of a line.

    Attributes:
        ids: its subwords.
        start, end: the place in the line of the text that was encoded.
        first: the place of its subwords among those of that text. It is 0, except where a word was
            cut.
        begins_sentence: whether a sentence of the line begins here, and not only a part of one.
    """

    ids: list[int]
    start: int
    end: int
    first: int = 0
    begins_sentence: bool = True


def segments(
    line: str,
    encode: Callable[[str], list[int]],
    max_length: int,
    language: str = "",
    *,
    split_sentences: bool = False,
    start: int = 0,
) -> list[Segment]:
    """The segments of a line, of at most `max_length` ids each. An empty line has no segment.

    A sentence that is too long by itself is cut behind commas and the like. What is still too long
    is cut at spaces, and only a word that is too long by itself is cut anywhere.

    Args:
        language: such as de, which tells where sentences end.
        split_sentences: whether each sentence is a segment. Otherwise, a segment holds as many
            whole sentences as fit.
        start: where the text begins that is cut.
    """
    cut = partial(_segments, line, encode=encode, max_length=max_length)
    if not split_sentences and len(encode(line[start:].strip())) <= max_length:
        return list(cut((start, len(line)), ends=()))
    own = [(start + first, start + end) for first, end in sentences(line[start:], language)]
    if not split_sentences:
        own = _filled(line, own, encode, max_length)
    within = partial(_ends_of, _CLAUSE), partial(_ends_of, _WORD)
    return [segment for place in own for segment in cut(place, ends=within)]


def _segments(
    line: str,
    place: Place,
    *,
    encode: Callable[[str], list[int]],
    max_length: int,
    ends: tuple[Ends, ...],
    begins_sentence: bool = True,
) -> Iterator[Segment]:
    """Cuts the text at a place of the line at the first kind of end, and then what is still too
    long at the next kind."""
    start, end = _stripped(line, *place)
    text = line[start:end]
    ids = encode(text) if text else []
    if len(ids) <= max_length:
        if ids:
            yield Segment(ids, start, end, 0, begins_sentence)
        return
    if not ends:
        for first in range(0, len(ids), max_length):
            own = ids[first : first + max_length]
            yield Segment(own, start, end, first, begins_sentence and not first)
        return
    cuts = [start, *(start + own for own in ends[0](text) if own < len(text)), end]
    for unit in _filled(line, list(pairwise(cuts)), encode, max_length):
        yield from _segments(
            line,
            unit,
            encode=encode,
            max_length=max_length,
            ends=ends[1:],
            begins_sentence=begins_sentence and unit[0] == start,
        )


def _filled(
    line: str, units: list[Place], encode: Callable[[str], list[int]], max_length: int
) -> list[Place]:
    """Joins units that follow one another, as many as fit into `max_length` ids."""
    lengths = [len(encode(line[start:end].strip())) for start, end in units]
    filled = []
    first = 0
    while first < len(lengths):
        last = first + 1
        total = lengths[first]
        while last < len(lengths) and total + lengths[last] <= max_length:
            total += lengths[last]
            last += 1
        # Together they may need more subwords than one by one, because of the spaces between.
        while last - first > 1:
            if len(encode(line[units[first][0] : units[last - 1][1]].strip())) <= max_length:
                break
            last -= 1
        filled.append((units[first][0], units[last - 1][1]))
        first = last
    return filled


def _ends_of(mark: re.Pattern[str], text: str) -> list[int]:
    return [match.end() for match in mark.finditer(text)]


def _stripped(line: str, start: int, end: int) -> Place:
    """A place of the line without the spaces around it."""
    text = line[start:end]
    start += len(text) - len(text.lstrip())
    return start, start + len(text.strip())


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

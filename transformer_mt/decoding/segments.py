"""Segments: lines that are too long are cut into them, and they are translated one by one."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

# A sentence ends with one of these marks and closing quotes or brackets. A space must follow,
# except after the marks of languages that are written without spaces.
_CLOSING = "[\"'”’»›)\\]}」』）】》〉]*"
_SENTENCE = re.compile(rf"[.!?…؟۔।॥։።]+{_CLOSING}\s+|[。！？；｡]+{_CLOSING}\s*")
_WORD = re.compile(r"\s+")


@dataclass(frozen=True)
class Segment:
    """A part of a line.

    Attributes:
        ids: its subwords.
        start, end: the place in the line of the text that was encoded.
        first: the place of its subwords among those of that text. It is 0, except where a word was
            cut.
    """

    ids: list[int]
    start: int
    end: int
    first: int = 0


def segments(line: str, encode: Callable[[str], list[int]], max_length: int) -> list[Segment]:
    """The segments of a line, of at most `max_length` ids each. An empty line has no segment.

    A segment holds as many whole sentences as fit. Only a sentence that is too long by itself is
    cut at spaces, and only a word that is too long by itself is cut anywhere.
    """
    return list(_segments(line, (0, len(line)), encode, max_length, (_SENTENCE, _WORD)))


def _segments(
    line: str,
    place: tuple[int, int],
    encode: Callable[[str], list[int]],
    max_length: int,
    boundaries: tuple[re.Pattern[str], ...],
) -> Iterator[Segment]:
    """Cuts the text at a place of the line at the first kind of boundary, and then what is still
    too long at the next kind."""
    start, end = _stripped(line, *place)
    text = line[start:end]
    ids = encode(text) if text else []
    if len(ids) <= max_length:
        if ids:
            yield Segment(ids, start, end)
        return
    if not boundaries:
        for first in range(0, len(ids), max_length):
            yield Segment(ids[first : first + max_length], start, end, first)
        return
    # The units are between these places.
    cuts = [start, *(start + match.end() for match in boundaries[0].finditer(text))]
    if cuts[-1] != end:
        cuts.append(end)
    lengths = [len(encode(line[a:b].strip())) for a, b in pairwise(cuts)]
    first = 0
    while first < len(lengths):
        last = first + 1
        total = lengths[first]
        while last < len(lengths) and total + lengths[last] <= max_length:
            total += lengths[last]
            last += 1
        # Together they may need more subwords than one by one, because of the spaces between.
        while last - first > 1 and len(encode(line[cuts[first] : cuts[last]].strip())) > max_length:
            last -= 1
        yield from _segments(line, (cuts[first], cuts[last]), encode, max_length, boundaries[1:])
        first = last


def _stripped(line: str, start: int, end: int) -> tuple[int, int]:
    """A place of the line without the spaces around it."""
    text = line[start:end]
    start += len(text) - len(text.lstrip())
    return start, start + len(text.strip())

"""Segments: the parts of a line that are translated one by one. They are its sentences, or parts of
sentences that are too long."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from transformer_mt.data.sentences import Place, sentences

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

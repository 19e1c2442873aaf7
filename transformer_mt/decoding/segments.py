"""Segments: the parts of a line that are translated one by one. They are its sentences, or parts of
sentences that are too long. An engine reads the subwords of each as a sentence."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from transformer_mt.decoding.protection import Original
from transformer_mt.utils.languages import Place, sentences

# Where a clause may end, and a word. Marks of languages with spaces count only before a space.
_CLAUSE = re.compile(r"[,;:،؛፣၊]\s+|\s[–—-]\s|[、，；：]\s*")
_WORD = re.compile(r"\s+")


@dataclass(frozen=True)
class Segment:
    """A part of a line.

    Attributes:
        ids: its subwords.
        start, end: the place in the line of the text that was encoded.
        first: the place of its subwords among those of that text. It is 0, except where a word was
            cut.
        begins_sentence: whether a sentence of the line begins here, and not only a part of one.
        tags: the ids of the line's tags, which are read before it. They are empty where `ids` begin
            with the tags.
        before: what stands before its translation in that of the line.
        after: what stands behind it, of the last segment of a line.
        originals: the spans whose symbols are in it, by these.
        is_fragment: whether a span follows it where the line was cut, and no sentence ends there.
        is_copied: whether it is nothing to translate, and is its own translation.
    """

    ids: list[int]
    start: int
    end: int
    first: int = 0
    begins_sentence: bool = True
    tags: list[int] = field(default_factory=list)
    before: str = ""
    after: str = ""
    originals: dict[str, Original] = field(default_factory=dict)
    is_fragment: bool = False
    is_copied: bool = False


def segments(
    line: str,
    encode: Callable[[str], list[int]],
    max_length: int,
    language: str = "",
    *,
    split_sentences: bool = False,
    start: int = 0,
    symbols: Collection[int] = (),
) -> list[Segment]:
    """The segments of a line, of at most `max_length` ids each. An empty line has no segment.

    A sentence that is too long by itself is cut behind commas and the like. What is still too long
    is cut at spaces, and only a word that is too long by itself is cut anywhere.

    Args:
        language: such as de, which tells where sentences end.
        split_sentences: whether each sentence is a segment. Otherwise, a segment holds as many
            whole sentences as fit.
        start: where the text begins that is cut.
        symbols: ids that a segment may have only once.
    """

    def size(ids: list[int]) -> int:
        """The length of ids; too long for a segment if a symbol is repeated."""
        repeated = symbols and _repeats(ids, symbols)
        return max_length + 1 if repeated else len(ids)

    def fits(start: int, end: int) -> bool:
        return size(encode(line[start:end].strip())) <= max_length

    def filled(units: list[Place]) -> list[Place]:
        """Joins units that follow one another, as many as fit into a segment."""
        lengths = [size(encode(line[start:end].strip())) for start, end in units]
        found, first = [], 0
        while first < len(units):
            last, total = first + 1, lengths[first]
            while last < len(units) and total + lengths[last] <= max_length:
                total += lengths[last]
                last += 1
            # Together they may need more subwords than one by one, because of the spaces between.
            while last - first > 1 and not fits(units[first][0], units[last - 1][1]):
                last -= 1
            found.append((units[first][0], units[last - 1][1]))
            first = last
        return found

    def cut(
        start: int, end: int, marks: Sequence[re.Pattern[str]], begins_sentence: bool = True
    ) -> Iterator[Segment]:
        """Cuts a text behind marks of the first kind, and then what is still too long behind those
        of the next kind."""
        text = line[start:end]
        start += len(text) - len(text.lstrip())
        end = start + len(text.strip())
        ids = encode(line[start:end]) if start < end else []
        if size(ids) > max_length and marks:
            ends = (match.end() for match in marks[0].finditer(line, start, end))
            cuts = [start, *(place for place in ends if place < end), end]
            for unit in filled(list(pairwise(cuts))):
                yield from cut(*unit, marks[1:], begins_sentence and unit[0] == start)
            return
        first = 0
        while first < len(ids):
            own = ids[first : first + max_length]
            while symbols and _repeats(own, symbols):
                own.pop()
            yield Segment(own, start, end, first, begins_sentence and not first)
            first += len(own)

    if not split_sentences and fits(start, len(line)):
        return list(cut(start, len(line), ()))
    own = [(start + first, start + end) for first, end in sentences(line[start:], language)]
    if not split_sentences:
        own = filled(own)
    return [segment for place in own for segment in cut(*place, (_CLAUSE, _WORD))]


def _repeats(ids: list[int], symbols: Collection[int]) -> bool:
    """Whether one of some symbols is in ids more than once."""
    found = [i for i in ids if i in symbols]
    return len(found) != len(set(found))

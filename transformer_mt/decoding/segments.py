"""Segments: lines that are too long are cut into them, and they are translated one by one."""

import re
from collections.abc import Callable, Iterator

# A sentence ends with one of these marks and closing quotes or brackets. A space must follow,
# except after the marks of languages that are written without spaces.
_CLOSING = "[\"'”’»›)\\]}」』）】》〉]*"
_SENTENCE = re.compile(rf"[.!?…؟۔।॥։።]+{_CLOSING}\s+|[。！？；｡]+{_CLOSING}\s*")
_WORD = re.compile(r"\s+")


def segments(text: str, encode: Callable[[str], list[int]], max_length: int) -> list[list[int]]:
    """The ids of each segment of a text, at most `max_length` each. Empty text has no segment.

    A segment holds as many whole sentences as fit. Only a sentence that is too long by itself is
    cut at spaces, and only a word that is too long by itself is cut anywhere.
    """
    return list(_segments(text.strip(), encode, max_length, (_SENTENCE, _WORD)))


def _segments(
    text: str,
    encode: Callable[[str], list[int]],
    max_length: int,
    boundaries: tuple[re.Pattern[str], ...],
) -> Iterator[list[int]]:
    """Cuts at the first kind of boundary, and then what is still too long at the next kind."""
    ids = encode(text) if text else []
    if len(ids) <= max_length:
        if ids:
            yield ids
        return
    if not boundaries:
        yield from (ids[start : start + max_length] for start in range(0, len(ids), max_length))
        return
    ends = [match.end() for match in boundaries[0].finditer(text)]
    if ends[-1:] != [len(text)]:
        ends.append(len(text))
    units = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    lengths = [len(encode(unit.strip())) for unit in units]
    first = 0
    while first < len(units):
        last = first + 1
        total = lengths[first]
        while last < len(units) and total + lengths[last] <= max_length:
            total += lengths[last]
            last += 1
        # Together they may need more subwords than one by one, because of the spaces between.
        while last - first > 1 and len(encode(_joined(units, first, last))) > max_length:
            last -= 1
        yield from _segments(_joined(units, first, last), encode, max_length, boundaries[1:])
        first = last


def _joined(units: list[str], first: int, last: int) -> str:
    return "".join(units[first:last]).strip()

"""Tags in the lines of a model that knows no symbols: it translates the line without them, and the
word alignment tells where they belong in the translation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from transformer_mt.data.alignments import Link
from transformer_mt.data.spans import Replaced, SpanFinder
from transformer_mt.data.vocabulary import Place
from transformer_mt.utils.languages import has_spaces


class Tag(NamedTuple):
    """A tag, or a pair of them.

    Attributes:
        opening, closing: their text. A tag that stands alone has no `closing`.
        start, end: the place in the line without tags of what they enclose; of a tag that stands
            alone, where it is, twice.
        inner: the tags inside the pair.
        has_spaces: whether spaces are around it.
    """

    opening: str
    closing: str
    start: int
    end: int
    inner: list[Tag]
    has_spaces: bool


@dataclass(frozen=True)
class Untagged:
    """A line without its tags.

    Attributes:
        replaced: `replaced.text` is the line without them.
        tags: those that are in no pair, with all others inside of them.
        kept: the places in `replaced.text` of all other spans, which stay in it.
    """

    replaced: Replaced
    tags: list[Tag]
    kept: list[Place]


def untagged(line: str, finder: SpanFinder) -> Untagged:
    """Takes the tags out of a line. Of two spaces around a tag, one goes with it."""
    spans = finder.find(line)
    out, kept, places = "", [], []
    done = 0
    # The place in `out` of each tag, and whether a space went with it.
    tags: dict[int, tuple[int, bool]] = {}
    for number, span in enumerate(spans):
        out += line[done : span.start]
        done = span.end
        if span.partner >= 0 or span.kind in ("tags", "markup"):
            is_spaced = out[-1:] in ("", " ") and line[done : done + 1] in ("", " ")
            done = min(done + is_spaced, len(line))
            tags[number] = len(out), is_spaced
            places.append((span.start, done, ""))
        else:
            kept.append((len(out), len(out) + span.end - span.start))
            out += line[span.start : span.end]
    whole: list[Tag] = []
    levels = [whole]  # the tags of each pair that is open
    for number, (start, is_spaced) in tags.items():
        span = spans[number]
        if 0 <= span.partner < number:
            levels.pop()
            continue
        end, closing = start, ""
        if span.partner >= 0:
            other = spans[span.partner]
            end, closing = tags[span.partner][0], line[other.start : other.end]
        tag = Tag(line[span.start : span.end], closing, start, end, [], is_spaced and not closing)
        levels[-1].append(tag)
        if closing:
            levels.append(tag.inner)
    return Untagged(Replaced.of(line, places), whole, kept)


class Tagger:
    """Puts the tags of a line into its translation.

    Args:
        source: the line without tags.
        words: the places of its words.
        text: its translation.
        own_words: the places of the words of that.
        links: which words belong together.
        language: that of the translation.
    """

    def __init__(
        self,
        source: str,
        words: Sequence[Place],
        text: str,
        own_words: Sequence[Place],
        links: Iterable[Link],
        language: str,
    ) -> None:
        self._source, self._words = source, words
        self._text, self._own_words = text, own_words
        self._linked: dict[int, list[Place]] = {}
        for word, own in sorted(links):
            self._linked.setdefault(word, []).append(own_words[own])
        self._has_spaces = has_spaces(language)

    def tagged(self, tags: list[Tag]) -> Replaced:
        """The translation with the tags. Each is there once, and pairs nest.

        A pair encloses the words that are linked to those it encloses in the source. A tag that
        stands alone comes before the words that are linked to what follows it.

        Returns: `original` is the translation with tags, and `text` without them, so that `at`
            tells where something of the translation is now.
        """
        out, done = "", 0
        places, spans = [], []
        for at, tag in self._insertions(tags, 0, len(self._text)):
            out += self._text[done:at]
            places.append((at, at))
            spans.append((len(out), len(out) + len(tag)))
            out += tag
            done = at
        return Replaced(self._text, out + self._text[done:], places, spans)

    def _insertions(self, tags: list[Tag], start: int, end: int) -> Iterator[tuple[int, str]]:
        """Yields tags, and where they come between two places of the translation, in order."""
        placed = []
        for number, tag in enumerate(tags):
            first, last = self._enclosed(tag) if tag.closing else (self._before(tag.start),) * 2
            placed.append((min(max(first, start), end), min(max(last, start), end), number))
        done = start
        for first, last, number in sorted(placed):
            tag, first, last = tags[number], max(first, done), max(last, done)
            done = last
            if tag.closing:
                yield first, tag.opening
                yield from self._insertions(tag.inner, first, last)
                yield last, tag.closing
                continue
            is_spaced = tag.has_spaces and self._has_spaces
            before = " " * (is_spaced and first > 0 and self._text[first - 1] != " ")
            behind = " " * (is_spaced and self._text[first : first + 1].strip() != "")
            yield first, before + tag.opening + behind

    def _enclosed(self, tag: Tag) -> Place:
        start, end = tag.start, tag.end
        inside, text = self._source[start:end], self._text
        if not self._source[:start].strip() and not self._source[end:].strip():
            return 0, len(text)
        found = [
            place
            for number, (first, last) in enumerate(self._words)
            if first < end and last > start
            for place in self._linked.get(number, [])
        ]
        if not found or not inside.strip():
            return (self._before(start),) * 2
        first, last = min(found)[0], max(place[1] for place in found)
        # Marks around a word stay outside, unless they are inside in the source.
        while last - 1 > first and not text[last - 1].isalnum() and inside[-1].isalnum():
            last -= 1
        while first + 1 < last and not text[first].isalnum() and inside[0].isalnum():
            first += 1
        return first, last

    def _before(self, at: int) -> int:
        """Where what follows a place of the source begins in the translation."""
        if not self._source[:at].strip():
            return 0
        after = (number for number, (start, _) in enumerate(self._words) if start >= at)
        found = next((self._linked[number] for number in after if number in self._linked), None)
        return min(found)[0] if found and self._source[at:].strip() else len(self._text)

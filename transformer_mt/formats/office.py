"""What the formats of office programs share: zip files of XML whose paragraphs are runs of text,
each with a formatting.

The most frequent formatting of a paragraph, and of a link in it, is not shown in a unit. What else
is formatted is between `<g id="1">` and `</g>`, and whatever is no text is `<x id="2"/>`.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from transformer_mt.formats.archive import Archive
from transformer_mt.formats.document import LINE_BREAK, MARKUP, Document, Unit
from transformer_mt.formats.pieces import (
    Piece,
    arrange,
    blanks_apart,
    core,
    is_translatable,
    text_of,
    with_whole_words,
    words_of,
)
from transformer_mt.formats.splicing import Edits
from transformer_mt.formats.xml import Element, Scanner, encoding_of
from transformer_mt.utils.errors import UserError

# The ends of ranges, and the attributes that name a range.
_END = re.compile("-?(?:start|end)$", re.IGNORECASE)
_NAMES = ("w:id", "text:name", "text:change-id", "text:id", "office:name")
# What a file has: bytes, or a range of the member, in which a paragraph may be translated.
Parts = list[bytes | tuple[int, int]]


@dataclass(frozen=True)
class Format:
    """A formatting of text.

    Attributes:
        key: equal for formattings that look the same.
        before, after: what stands around such text in the file.
    """

    key: tuple[str, ...] = ()
    before: bytes = b""
    after: bytes = b""


@dataclass(eq=False)
class Item:
    """A text in a paragraph, or something else in it.

    Attributes:
        kind: "text", "mark" (stands alone), "open" and "close" (stand around others).
        parts: what the file has.
        text: of a text.
        format: that of a text, or of the run that a mark is in; None if it is in no run.
        may_be_lost: see Piece.
        field: the part of a field that a mark is: "begin", "instruction", "separate" or "end".
        end_of: see `end_of`.
    """

    kind: str
    parts: Parts
    text: str = ""
    format: Format | None = None
    may_be_lost: bool = False
    field: str = ""
    end_of: tuple[str, str, bool] | None = None


@dataclass
class _Written:
    """What a piece is in the file.

    Attributes:
        parts: what the file has there.
        format: of the text in it that is formatted like most of it; None for what stands alone.
        end_of: see `end_of`.
    """

    parts: Parts = field(default_factory=list)
    format: Format | None = None
    end_of: tuple[str, str, bool] | None = None


@dataclass
class _Paragraph:
    """The place of a unit.

    Attributes:
        member: the name of the member of the zip file.
        head, tail: what stays before and after the items.
        items: all of the paragraph; those of the unit are [first, end).
    """

    member: str
    head: tuple[int, int]
    tail: tuple[int, int]
    format: Format
    items: list[str | Piece]
    first: int
    end: int


class OfficeDocument(Document):
    """A zip file of XML.

    Attributes of a format:
        paragraphs: the names of the elements that have the text of a unit.
        skipped: elements outside paragraphs whose paragraphs are not translated; and others that
            `other` reads.
        hidden: elements inside paragraphs whose paragraphs are not translated.
    """

    paragraphs: frozenset[str]
    skipped: frozenset[str] = frozenset()
    hidden: frozenset[str] = frozenset()

    def __init__(self, content: bytes, name: str, languages: tuple[str, str]) -> None:
        self._content = content
        self._archive = Archive(content, name)
        self._places: list[_Paragraph] = []
        self.units = []
        for member in self.members(self._archive):
            found = list(self._read(member))
            found.sort(key=lambda place: place.head)
            short = member.rsplit("/", 1)[-1].removesuffix(".xml")
            for number, place in enumerate(found, 1):
                source = text_of(place.items[place.first : place.end])
                self.units.append(Unit(f"{short}, paragraph {number}", source))
            self._places += found

    def render(self, translations: Mapping[int, str], made_by: str) -> bytes:
        if not translations:
            return self._content
        by_member: dict[str, list[tuple[_Paragraph, str]]] = {}
        for index, translation in translations.items():
            place = self._places[index]
            by_member.setdefault(place.member, []).append((place, translation))
        changed = {}
        for member, translated in by_member.items():
            edits = Edits(self._archive.read(member))
            for place, translation in sorted(translated, key=lambda pair: pair[0].tail[1]):
                edits.replace(
                    place.head[0], place.tail[1], self._paragraph(place, translation, edits)
                )
            changed[member] = edits.all()
        return self._archive.with_members(changed)

    @abstractmethod
    def members(self, archive: Archive) -> list[str]:
        """Returns the names of the members that have text, in the order of reading."""

    @abstractmethod
    def items(self, paragraph: Element, scanner: Scanner) -> Iterator[Item]:
        """Yields what a paragraph consists of, except its head and its tail."""

    @abstractmethod
    def written(self, text: str) -> bytes:
        """Returns the XML of a text, which stands inside that of its format."""

    def other(self, element: Element) -> None:
        """Reads one of the elements that are skipped, which all come before the paragraphs that
        they are about."""

    def frame(self, paragraph: Element) -> tuple[int, int]:
        """Returns the range inside a paragraph's element that its items have."""
        return paragraph.content_start, paragraph.content_end

    def _read(self, member: str) -> Iterator[_Paragraph]:
        """Yields the paragraphs of a member that have words."""
        content, name = self._archive.read(member), f"{self._archive.name}, {member}"
        if encoding_of(content, name) != "utf-8":
            raise UserError(f"{name}: not UTF-8, which documents are in. Save the document again")
        scanner = Scanner([content], name, self.paragraphs | self.skipped, keep=True)
        for element in scanner:
            if element.name in self.paragraphs:
                for paragraph in self._nested(element):
                    yield from self._place(member, paragraph, scanner)
            else:
                self.other(element)

    def _nested(self, element: Element) -> Iterator[Element]:
        """Yields an element if it is a paragraph, and the paragraphs in it, as in a text box."""
        if element.name in self.paragraphs:
            yield element
        if element.name not in self.hidden:
            for child in element.children:
                yield from self._nested(child)

    def _place(self, member: str, paragraph: Element, scanner: Scanner) -> Iterator[_Paragraph]:
        found = list(self.items(paragraph, scanner))
        if not is_translatable("".join(item.text for item in found if item.kind == "text")):
            return
        items, format_ = _pieces(found)
        items = blanks_apart(with_whole_words(items))
        first, end = core(items)
        _name(items[first:end])
        if not is_translatable(words_of(items[first:end])):
            return
        start, stop = self.frame(paragraph)
        head, tail = (paragraph.start, start), (stop, paragraph.end)
        yield _Paragraph(member, head, tail, format_, items, first, end)

    def _paragraph(self, place: _Paragraph, translation: str, edits: Edits[bytes]) -> bytes:
        """Returns the XML of a paragraph with a translation."""
        formats = [place.format]
        parts: Parts = [place.head]
        own = _in_order(arrange(place.items[place.first : place.end], translation))
        for item in [*place.items[: place.first], *own, *place.items[place.end :]]:
            if isinstance(item, str):
                parts += [formats[-1].before, self.written(item), formats[-1].after]
                continue
            parts += item.written.parts
            if item.opens:
                formats.append(item.written.format)
            elif item.partner is not None:
                formats.pop()
        parts.append(place.tail)
        return b"".join(part if isinstance(part, bytes) else edits.between(*part) for part in parts)


def end_of(element: Element) -> tuple[str, str, bool] | None:
    """Returns of which range an element is an end, such as that of a bookmark or a tracked change:
    its kind, its name, and whether it is the last one; None if it has no name."""
    kind = _END.sub("", element.name)
    name = next((element.attributes[key] for key in _NAMES if key in element.attributes), None)
    is_last = element.name.lower().endswith("end")
    return None if name is None else (kind, name, is_last)


def _in_order(items: list[str | Piece]) -> list[str | Piece]:
    """Exchanges the ends of each range whose last one is before its first one."""
    result = list(items)
    last: dict[tuple[str, str], int] = {}
    for place, item in enumerate(items):
        if isinstance(item, str) or item.written.end_of is None:
            continue
        *range_, is_last = item.written.end_of
        if is_last:
            last[tuple(range_)] = place
        elif tuple(range_) in last:
            other = last.pop(tuple(range_))
            result[place], result[other] = result[other], result[place]
    return result


def text_in(element: Element, scanner: Scanner) -> str:
    """Returns the text of an element that has no others, without line ends."""
    return " ".join(MARKUP.sub("", scanner.text(element)).split("\n"))


def _most_frequent(texts: Iterable[Item]) -> Format | None:
    """Returns the formatting that most characters have, as the first text has it."""
    counts: Counter[tuple[str, ...]] = Counter()
    formats: dict[tuple[str, ...], Format] = {}
    for item in texts:
        formats.setdefault(item.format.key, item.format)
        counts[item.format.key] += len(item.text)
    return formats[counts.most_common(1)[0][0]] if counts else None


def _pieces(found: list[Item]) -> tuple[list[str | Piece], Format]:
    """Returns texts and pieces, and the formatting that is not shown.

    Args:
        found: the items of a paragraph, of which at least one is a text.
    """
    # The texts of each pair, of which None is the paragraph.
    texts: dict[Item | None, list[Item]] = {None: []}
    around: list[Item | None] = [None]
    for item in found:
        if item.kind == "open":
            around.append(item)
            texts[item] = []
        elif item.kind == "close":
            around.pop()
        elif item.kind == "text":
            texts[around[-1]].append(item)
    overall = _most_frequent(item for item in found if item.kind == "text")
    base = {pair: _most_frequent(own) or overall for pair, own in texts.items()}

    result: list[str | Piece] = []
    opened: list[Piece] = []
    usual: list[Format] = [base[None]]
    shown: Piece | None = None  # the start of what is formatted in another way

    def end_shown() -> None:
        nonlocal shown
        if shown is not None:
            closing = Piece("</g>", _Written())
            shown.pair_with(closing)
            result.append(closing)
            shown = None

    for item in found:
        differs = item.format is not None and item.format.key != usual[-1].key
        is_outside_runs = item.kind == "mark" and item.format is None
        goes_on = differs and shown is not None and item.format.key == shown.written.format.key
        if not goes_on and not is_outside_runs:
            end_shown()
        if item.kind == "text":
            if differs and shown is None:
                shown = Piece("<g>", _Written([], item.format))
                result.append(shown)
            if result and isinstance(result[-1], str):
                result[-1] += item.text
            else:
                result.append(item.text)
        elif item.kind == "mark":
            result.append(
                Piece(
                    "<x/>", _Written(item.parts, end_of=item.end_of), may_be_lost=item.may_be_lost
                )
            )
        elif item.kind == "open":
            usual.append(base[item])
            opened.append(Piece("<g>", _Written(item.parts, base[item])))
            result.append(opened[-1])
        else:
            usual.pop()
            closing = Piece("</g>", _Written(item.parts))
            opened.pop().pair_with(closing)
            result.append(closing)
    end_shown()
    return result, base[None]


def _name(items: list[str | Piece]) -> None:
    """Numbers the pieces of a unit, except those that end a line."""
    number = 0
    for item in items:
        if isinstance(item, Piece) and item.may_be_lost:
            item.shown = LINE_BREAK
        elif isinstance(item, Piece) and (item.opens or item.partner is None):
            number += 1
            item.shown = f'<g id="{number}">' if item.opens else f'<x id="{number}"/>'

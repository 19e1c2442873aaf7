"""Markdown: CommonMark with the tables, footnotes and alerts of GitHub.

A unit is the text of a heading, a paragraph (also in a list or a quote) or a cell of a table. A
translation is written on one line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformer_mt.formats.document import LINE_BREAK, Document, Unit
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
from transformer_mt.utils.errors import UsageError, UserError

_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n|\Z)")
_FRONT_MATTER = re.compile(
    r"\A\ufeff?(---|\+\+\+)[ \t]*\r?\n.*?^\1[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE
)
# The first line of an alert, which says of what kind it is.
_ALERT = re.compile(r"\[![A-Za-z]+\][-+]?[ \t]*\n")
_SPECIAL = re.compile(
    r"([\\`*\[\]<|]|!(?=\[|\Z)|(?<![^\W_])_|_(?![^\W_])|&(?=#?\w+;)|~(?=~)|(?<=~)~)"
)
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
# What begins a block of another kind.
_ENDS_HEADING = re.compile(r"(?<!\\)#\Z")
_BEGINS_BLOCK = re.compile(r"\A(\s*\d*)([#+=:.)>|-])")

# What stands before and after the text of a block.
_FRAMES = {"paragraph": ("", ""), "heading": ("# ", ""), "underlined": ("", "\n---")}


@dataclass
class _Place:
    """The place of a unit.

    Attributes:
        start, end: its range in the file.
        block: "paragraph", "heading" (after #), "underlined" (a heading too) or "cell".
        items: all that it consists of; those of the unit are [first, last).
    """

    start: int
    end: int
    block: str
    items: list[str | Piece]
    first: int
    last: int


@dataclass(frozen=True)
class _Written:
    """A piece of markup.

    Attributes:
        inline: in the text of the block, without what begins its lines.
        in_file: in the file.
        is_emphasis: see Span.
    """

    inline: str
    in_file: str
    is_emphasis: bool


class MarkdownDocument(Document):
    """A file in Markdown: .md.

    Raises:
        UsageError: markdown-it-py is not installed.
    """

    def __init__(self, content: bytes, name: str, languages: tuple[str, str]) -> None:
        try:
            from transformer_mt.formats import markdown_inline
        except ModuleNotFoundError as error:
            raise UsageError(
                f"{name}: to read Markdown, the package markdown-it-py is needed. Install it with: "
                "python -m pip install markdown-it-py"
            ) from error
        self._inline = markdown_inline
        self._parser = markdown_inline.parser()
        self._content = content
        try:
            self._text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{name} is not UTF-8 (byte {error.start}). Save it as UTF-8") from None
        self._env: dict[str, Any] = {}
        self._places: list[_Place] = []
        self.units = []
        self._read()

    def render(self, translations: Mapping[int, str], made_by: str) -> bytes:
        if not translations:
            return self._content
        edits = Edits(self._text)
        for index in sorted(translations):
            place = self._places[index]
            edits.replace(place.start, place.end, self._written(place, translations[index]))
        return edits.all().encode("utf-8", "replace")

    def _read(self) -> None:
        lines = [match for match in _LINE.finditer(self._text) if match[0]]
        front = _FRONT_MATTER.match(self._text)
        hidden = front.end() if front else int(self._text.startswith("\ufeff"))
        # What is hidden from the parser keeps its lines.
        blank = re.sub(r"[^\r\n]", "", self._text[:hidden])
        tokens = self._parser.parse(blank + self._text[hidden:], self._env)
        block, cursor = "", (0, 0)
        for token in tokens:
            if token.type != "inline":
                if token.type == "heading_open":
                    block = "heading" if token.markup[0] == "#" else "underlined"
                else:
                    block = "paragraph" if token.type == "paragraph_open" else "cell"
                continue
            if not is_translatable(token.content):
                continue
            first = token.map[0]
            rows = [(line.start(), line[0].rstrip("\r\n")) for line in lines[first : token.map[1]]]
            if block == "cell":
                start = cursor[1] if cursor[0] == first else 0
                found = _in_cell(token.content, rows[0], start)
                if found:
                    cursor = (first, found[1][-1] - rows[0][0])
            else:
                found = _in_lines(token.content, rows, block == "heading")
            if found:
                self._add(token.content, *found, block, f"line {first + 1}")

    def _add(self, content: str, starts: list[int], ends: list[int], block: str, name: str) -> None:
        """Adds the unit of a block, if it has one.

        Args:
            content: the text of the block.
            starts, ends: the range of each of its characters in the file.
        """
        alert = _ALERT.match(content)
        if alert:
            skipped = (
                alert.end() + len(content[alert.end() :]) - len(content[alert.end() :].lstrip())
            )
            content, starts, ends = content[skipped:], starts[skipped:], ends[skipped:]
        items: list[str | Piece] = []
        opened: list[Piece] = []
        for span in self._inline.spans(content, self._parser, self._env):
            if span.kind == "text":
                if items and isinstance(items[-1], str):
                    items[-1] += span.value
                else:
                    items.append(span.value)
                continue
            raw = content[span.start : span.end]
            in_file = self._text[starts[span.start] : ends[span.end - 1]]
            if span.kind == "close" and span.value != raw:  # a link without its name
                in_file = span.value
            elif span.value == "  \n":
                in_file = "  " + in_file
            is_break = raw.strip(" \t\\") == "\n" or _BREAK.fullmatch(raw)
            shown = LINE_BREAK if is_break else " ".join(raw.split("\n"))
            piece = Piece(shown, _Written(span.value, in_file, span.is_emphasis))
            items.append(piece)
            if span.kind == "open":
                opened.append(piece)
            elif span.kind == "close":
                opened.pop().pair_with(piece)
        if not is_translatable(words_of(items)):
            return
        items = blanks_apart(with_whole_words(items))
        first, last = core(items)
        place = _Place(starts[0], ends[-1], block, items, first, last)
        self._places.append(place)
        self.units.append(Unit(name, text_of(items[first:last])))

    def _written(self, place: _Place, translation: str) -> str:
        """Returns a translation as it is in the file."""
        own = [
            re.sub(r"[\r\n]+", " ", item) if isinstance(item, str) else item
            for item in arrange(place.items[place.first : place.last], translation)
        ]
        items = [*place.items[: place.first], *own, *place.items[place.last :]]
        if items and isinstance(items[0], str):
            items[0] = items[0].lstrip()
        if items and isinstance(items[-1], str):
            items[-1] = items[-1].rstrip()
        # As little is escaped as needed so that the text is read again as what it is.
        for attempt in (items, _escaped(items), _spaced(_escaped(items))):
            if self._is_read_as(place.block, attempt, items):
                break
        else:
            attempt = _escaped(_without_emphasis(items))
        if place.block == "cell":
            attempt = [
                re.sub(r"\\?\|", r"\\|", item) if isinstance(item, str) else item
                for item in attempt
            ]
        written = "".join(
            item if isinstance(item, str) else item.written.in_file for item in attempt
        )
        # A backslash before the end of a cell would escape it.
        return f"{written} " if place.block == "cell" and written.endswith("\\") else written

    def _is_read_as(
        self, block: str, attempt: Sequence[str | Piece], items: Sequence[str | Piece]
    ) -> bool:
        """Whether a text is a block of a kind, with the markup of some items and their words."""
        content = _inline(attempt)
        if block == "cell":
            content = content.replace("\\|", "|")
        else:
            before, after = _FRAMES[block]
            tokens = self._parser.parse(f"{before}{content}{after}", {})
            kind = "paragraph" if block == "paragraph" else "heading"
            types = [f"{kind}_open", "inline", f"{kind}_close"]
            if [token.type for token in tokens] != types or tokens[1].content != content.strip():
                return False
        spans = self._inline.spans(content.strip(), self._parser, self._env)
        read = [(span.kind == "text", span.value) for span in spans]
        expected = [
            (True, item) if isinstance(item, str) else (False, item.written.inline)
            for item in items
        ]
        return _merged(read) == _merged(expected)


def _in_lines(
    content: str, rows: Sequence[tuple[int, str]], is_heading: bool
) -> tuple[list[int], list[int]] | None:
    """Finds the text of a block in its lines.

    Args:
        rows: the start of each line in the file, and the line without its end.

    Returns:
        the range of each character in the file; None if it is not there as it was parsed.
    """
    starts: list[int] = []
    ends: list[int] = []
    parts = content.split("\n")
    if len(parts) > len(rows):
        return None
    for number, part in enumerate(parts):
        row_start, row = rows[number]
        text = part.lstrip(" \t")
        if is_heading or number == len(parts) - 1:
            place = row.find(text) if is_heading else row.rstrip().rfind(text)
        else:
            place = len(row) - len(text) if row.endswith(text) else -1
        if place == -1 or not text:
            return None
        if number:
            ends[-1] = row_start + place
        indent = len(part) - len(text)
        starts += [row_start + place] * indent
        ends += [row_start + place] * indent
        starts += range(row_start + place, row_start + place + len(text))
        ends += range(row_start + place + 1, row_start + place + len(text) + 1)
        if number < len(parts) - 1:
            starts.append(row_start + len(row))
            ends.append(row_start + len(row))
    return starts, ends


def _in_cell(content: str, row: tuple[int, str], start: int) -> tuple[list[int], list[int]] | None:
    """Finds the text of a cell in its line, from a place on. See `_in_lines`."""
    written = content.replace("|", "\\|")
    place = row[1].find(written, start)
    if place == -1:
        return None
    starts: list[int] = []
    ends: list[int] = []
    position = row[0] + place
    for character in content:
        starts.append(position)
        position += 2 if character == "|" else 1
        ends.append(position)
    return starts, ends


def _inline(items: Sequence[str | Piece]) -> str:
    return "".join(item if isinstance(item, str) else item.written.inline for item in items)


def _merged(parts: Sequence[tuple[bool, str]]) -> list[str]:
    """Returns texts without blanks, and markup, without two texts beside each other."""
    result: list[str] = []
    was_text = False
    for is_text, value in parts:
        value = "".join(value.split()) if is_text else f"\0{value}"
        if is_text and not value:
            continue
        if is_text and was_text:
            result[-1] += value
        else:
            result.append(value)
        was_text = is_text
    return result


def _escaped(items: Sequence[str | Piece]) -> list[str | Piece]:
    """Escapes what could be markup."""
    result: list[str | Piece] = []
    begins_line = True
    for item in items:
        if isinstance(item, str):
            item = _SPECIAL.sub(r"\\\1", item)
            item = _BEGINS_BLOCK.sub(r"\1\\\2", item) if begins_line else item
            begins_line = False
        else:
            begins_line = item.written.inline.endswith("\n")
        result.append(item)
    if result and isinstance(result[-1], str):
        result[-1] = _ENDS_HEADING.sub(r"\\#", result[-1])
    return result


def _spaced(items: Sequence[str | Piece]) -> list[str | Piece]:
    """Puts spaces around emphasis. Beside punctuation, `**` counts only if there is a space on its
    other side, which languages without spaces do not have."""
    result: list[str | Piece] = []
    for item in items:
        if isinstance(item, str) or not item.written.is_emphasis:
            result.append(item)
        else:
            result += [" ", item] if item.opens and result else [item]
            result += [] if item.opens or item is items[-1] else [" "]
    return result


def _without_emphasis(items: Sequence[str | Piece]) -> list[str | Piece]:
    return [item for item in items if isinstance(item, str) or not item.written.is_emphasis]

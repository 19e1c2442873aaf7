"""Documents in XML: translations replace the bytes of some elements."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from transformer_mt.formats import xml
from transformer_mt.formats.document import (
    MARKUP,
    Codes,
    Document,
    Unit,
    are_of,
    clean,
    require_languages,
)
from transformer_mt.formats.xml import ATTRIBUTE, TAG, Element, Scanner
from transformer_mt.utils.errors import UserError
from transformer_mt.utils.files import BLOCK

# What a file calls the application, beside the name of the model.
TOOL = "transformer_mt"
_NAME = re.compile(r"</?([^\s/>!?]+)")


class XmlDocument(Document):
    """A document in XML. Nothing but its content and its units is kept in memory; to write it, it
    is read again.

    Subclasses name the elements that the scanner yields, and say where units are in them, and what
    a translation changes.
    """

    # The name of the format for messages, the root, and the elements that the scanner yields.
    format: ClassVar[str]
    roots: ClassVar[frozenset[str]]
    wanted: ClassVar[frozenset[str]]
    # Whether its programs write quotes in text as references.
    escapes_quotes: ClassVar[bool] = False

    def __init__(self, content: bytes, name: str, languages: tuple[str, str]) -> None:
        """
        Args:
            name: the name of the file, in messages.
            languages: the source language and the target language of the translation.

        Raises:
            UserError: it is not a file of this format.
        """
        self._content = content
        self._name = name
        self._languages = languages
        self._encoding = xml.encoding_of(content, name)
        self._text = self._in_utf8()
        self.units = []
        for unit, place in self._read(self._scanner(), languages):
            if not self.units:
                self.source_lang, self.target_lang = self._languages_of(place)
            self.units.append(unit)

    @classmethod
    def fits(cls, content: bytes) -> bool:
        """Returns whether content is of this format, judged by its root element."""
        return xml.root_name(content) in cls.roots

    def render(self, translations: Mapping[int, str], made_by: str) -> bytes:
        if not translations:
            return self._content
        scanner = self._scanner()
        edits = Edits(scanner, self._encoding, self.escapes_quotes)
        for number, (unit, place) in enumerate(self._read(scanner, self._languages)):
            if number in translations:
                self._write(edits, unit, place, translations[number], made_by)
        text = edits.applied()
        if self._encoding == "utf-8":
            return text
        return text.decode("utf-8").encode(self._encoding, "xmlcharrefreplace")

    def _in_utf8(self) -> bytes:
        text = b"".join(xml.to_utf8([self._content], self._name))
        if text.decode("utf-8").encode(self._encoding) != self._content:
            raise UserError(
                f"{self._name}: what is not translated would not stay as it is in "
                f"{self._encoding.upper()}. Convert the file to UTF-8"
            )
        return text

    def _scanner(self) -> Scanner:
        text = self._text
        blocks = (text[start : start + BLOCK] for start in range(0, len(text), BLOCK))
        return Scanner(blocks, self._name, self.wanted, keep=True)

    @classmethod
    def _read(cls, scanner: Scanner, languages: tuple[str, str]) -> Iterator[tuple[Unit, Any]]:
        """Yields the units, and for each what `_write` needs to find its place."""
        found = cls._units(scanner, languages)
        first = next(found, None)
        # Without units, all was read.
        cls._require_root(scanner)
        if first is not None:
            yield first
            yield from found

    @classmethod
    def _require_root(cls, scanner: Scanner) -> None:
        if scanner.root.name not in cls.roots:
            raise UserError(
                f"{scanner.name}: not {cls.format}: the root element is <{scanner.root.name}>"
            )

    @classmethod
    @abstractmethod
    def _units(cls, scanner: Scanner, languages: tuple[str, str]) -> Iterator[tuple[Unit, Any]]:
        """See `_read`."""

    @abstractmethod
    def _write(
        self, edits: Edits, unit: Unit, place: Any, translation: str, made_by: str
    ) -> None: ...

    @classmethod
    def _languages_of(cls, place: Any) -> Codes:
        """The languages that the file names for a unit."""
        return None, None


class BilingualDocument(XmlDocument):
    """A document that has the translations beside the source."""

    replaces_sources = False

    @classmethod
    def pairs(
        cls, path: Path, languages: tuple[str, str], columns: tuple[str, str] | None = None
    ) -> Iterator[tuple[str, str]]:
        """Yields the sources and the translations that need no review, for training. Text of other
        languages is left out, line ends within a text become spaces, and inline markup is as in the
        file. The file is read as a stream, and may be compressed.

        Raises:
            OtherLanguagesError: all text is of other languages.
            UserError: it can't be read, or is not of this format.
        """
        is_empty = True
        with xml.scanning(path, cls.wanted) as scanner:
            for unit, place in cls._read(scanner, languages):
                if unit.is_done and are_of(cls._languages_of(place), languages):
                    is_empty = False
                    yield cls._line(unit.source), cls._line(unit.target)
        if is_empty:
            require_languages(str(path), cls.languages(path), languages)

    @classmethod
    def languages(cls, path: Path) -> Iterator[Codes]:
        """Yields the languages of each text of a file.

        Raises:
            UserError: it can't be read, or is not of this format.
        """
        with xml.scanning(path, cls.wanted) as scanner:
            for _, place in cls._read(scanner, ("", "")):
                yield cls._languages_of(place)

    @classmethod
    def _line(cls, text: str) -> str:
        return re.sub(r"[ \t]*[\r\n]\s*", " ", clean(text)).strip()


class Edits:
    """What changes in a file.

    Args:
        scanner: has read the file, or is reading it.
        encoding: in which the file will be.
        escapes_quotes: whether quotes in text are written as references.
    """

    def __init__(self, scanner: Scanner, encoding: str, escapes_quotes: bool) -> None:
        self.scanner = scanner
        self._encoding = encoding
        # By their places, and, for those that only insert, their order.
        self._edits: dict[tuple[int, int, int], str] = {}
        self._newline: str | None = None
        self._escapes_quotes = escapes_quotes

    def replace(self, start: int, end: int, text: str) -> None:
        """Replaces what is at a place. The same place is replaced once."""
        self._edits[start, end, len(self._edits) if start == end else 0] = text

    def applied(self) -> bytes:
        """The file with all changes, in UTF-8."""
        parts, done = [], 0
        for (start, end, _), text in sorted(self._edits.items()):
            parts += [self.scanner.content(done, start), text.encode("utf-8")]
            done = end
        parts.append(self.scanner.content(done, None))
        return b"".join(parts)

    def fill(self, element: Element, content: str, attributes: Mapping[str, str | None]) -> None:
        """Replaces the content of an element, and some attributes.

        Args:
            content: XML.
            attributes: new values; None removes an attribute.
        """
        tag = with_attributes(self.scanner.start_tag(element), attributes)
        if element.is_empty_tag:
            tag = f"{re.sub(r'[ ]*/>$', '>', tag)}{content}</{element.name}>"
            self.replace(element.start, element.end, tag)
        else:
            self.replace(element.start, element.content_end, tag + content)

    def append(self, element: Element, text: str) -> None:
        """Inserts XML at the end of an element, on a line like that of its last child."""
        if element.is_empty_tag:
            self.fill(element, text, {})
        elif element.children:
            self.insert(element.children[-1], element.children[-1], text)
        else:
            self.replace(element.content_start, element.content_start, text)

    def set_attributes(self, element: Element, attributes: Mapping[str, str | None]) -> None:
        tag = self.scanner.start_tag(element)
        changed = with_attributes(tag, attributes)
        if changed != tag:
            self.replace(element.start, element.content_start, changed)

    def insert(self, after: Element, like: Element, text: str) -> None:
        """Inserts XML behind an element, on a new line if another element begins one."""
        self.replace(after.end, after.end, self.scanner.indent(like) + text)

    def inline(self, translation: str, source: str, like: Element) -> str:
        """A translation as XML. Markup that the source has is written as it is, and made
        well-formed: tags that have lost their partner are closed or left out.

        Args:
            like: the element of the source, or a part of it. If it is all CDATA, so is the result.
        """
        if self.scanner.is_cdata(like):
            text = clean(translation)
            core = text.strip()
            if self._can_encode(core):
                before, _, after = text.partition(core) if core else (text, "", "")
                return self.escaped(before) + xml.as_cdata(core, self.newline) + self.escaped(after)
        pieces: list[str] = []
        place = 0
        known = set(MARKUP.findall(source))
        for match in MARKUP.finditer(translation):
            pieces.append(self.escaped(clean(translation[place : match.start()])))
            piece = clean(match[0])
            pieces.append(piece if match[0] in known else self.escaped(piece))
            place = match.end()
        pieces.append(self.escaped(clean(translation[place:])))
        return "".join(_balanced(pieces))

    def escaped(self, text: str) -> str:
        text = xml.escaped(text, self.newline)
        if self._escapes_quotes:
            text = text.replace('"', "&quot;").replace("'", "&apos;")
        return text

    @property
    def newline(self) -> str:
        """The line end of the file."""
        if self._newline is None:
            self._newline = "\r\n" if b"\r\n" in self.scanner.content(0, 1 << 16) else "\n"
        return self._newline

    def _can_encode(self, text: str) -> bool:
        try:
            text.encode(self._encoding)
        except UnicodeEncodeError:
            return False
        return True


def _balanced(pieces: Iterable[str]) -> Iterator[str]:
    """Makes pieces of XML well-formed, each of which is escaped text or markup."""
    is_open: list[str] = []
    for piece in pieces:
        if not _NAME.match(piece) or not TAG.fullmatch(piece.encode()) or piece.endswith("/>"):
            yield piece  # text, an empty tag, a comment, or a whole element
            continue
        name = _NAME.match(piece)[1]
        if not piece.startswith("</"):
            is_open.append(name)
            yield piece
        elif name in is_open:
            while (innermost := is_open.pop()) != name:
                yield f"</{innermost}>"
            yield piece
    yield from (f"</{name}>" for name in reversed(is_open))


def with_attributes(tag: str, attributes: Mapping[str, str | None]) -> str:
    """Changes the attributes of a start tag. What is not changed stays as it is.

    Args:
        attributes: new values; None removes an attribute.
    """
    missing = dict(attributes)

    def change(match: re.Match[str]) -> str:
        before, name, equals, old = match.groups()
        if name not in missing:
            return match[0]
        value = missing.pop(name)
        if value is None:
            return ""
        new = xml.escaped_value(value)
        return match[0] if old[1:-1] == new else f'{before}{name}{equals}"{new}"'

    changed = ATTRIBUTE.sub(change, tag)
    new = "".join(
        f' {name}="{xml.escaped_value(value)}"'
        for name, value in missing.items()
        if value is not None
    )
    end = re.search(r"\s*/?>$", changed).start()
    return changed[:end] + new + changed[end:]


def has_text(text: str) -> bool:
    """Returns whether the text of a unit is more than spaces and markup."""
    return bool(MARKUP.sub("", text).strip())

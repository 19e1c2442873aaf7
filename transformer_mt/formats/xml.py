"""Reads XML as a stream of elements with their places, so that a file is written by replacing some
bytes of it.

All places are those of bytes in UTF-8, into which other encodings are converted first. Entities
are not declared in any file that is read, so that no file can grow when it is read, or name
another one.
"""

from __future__ import annotations

import codecs
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from transformer_mt.formats.document import MARK_END, MARK_START, clean
from transformer_mt.utils.errors import UserError
from transformer_mt.utils.files import BLOCK, reading

# Elements within elements, which some functions follow by calling themselves.
MAX_DEPTH = 200
# What expat has verified to be a tag. Values of attributes may hold `>`.
TAG = re.compile(rb"<[^\"'>]*(?:\"[^\"]*\"[^\"'>]*|'[^']*'[^\"'>]*)*>")
ATTRIBUTE = re.compile(r"(\s+)([^\s=/>\"']+)(\s*=\s*)(\"[^\"]*\"|'[^']*')")
_DECLARATION = re.compile(rb"<\?xml[^>]*?\sencoding\s*=\s*[\"']([A-Za-z][\w.\-]*)[\"']")
_REFERENCE = re.compile(r"&(?:#([0-9]+)|#x([0-9a-fA-F]+)|([^;&\s]+));")
_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
# Characters that XML 1.0 does not allow, not even as references.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
# How the encodings begin that have no byte for each ASCII character. UTF-32 is before UTF-16,
# whose mark is the first half of its mark.
_WIDE = {
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
    b"<\0": "utf-16-le",
    b"\0<": "utf-16-be",
}
_ASCII = bytes(range(32, 127))
# The names of nodes that are no elements.
COMMENT, INSTRUCTION, CDATA = "!--", "?", "![CDATA["
_ENDS = {COMMENT: b"-->", INSTRUCTION: b"?>"}


@dataclass(slots=True, eq=False)
class Element:
    """An element, or a comment, a processing instruction or a CDATA section, which have names that
    no element can have.

    Attributes:
        name: as in the file, with its prefix.
        start, end: the place of all of it.
        content_start, content_end: the place between its tags. In `<x/>`, both are `end`.
        parent: of an element that the scanner yields, or of an ancestor of such a one.
        children: all in it except text. Only those in elements that the scanner yields are kept.
    """

    name: str
    start: int
    content_start: int
    attributes: dict[str, str] = field(default_factory=dict)
    parent: Element | None = None
    content_end: int = -1
    end: int = -1
    children: list[Element] = field(default_factory=list)

    @property
    def is_empty_tag(self) -> bool:
        return self.content_start == self.content_end == self.end

    def child(self, name: str) -> Element | None:
        """Returns the first child of this name."""
        return next((child for child in self.children if child.name == name), None)

    def ancestors(self) -> Iterator[Element]:
        """Yields its parent, the parent of that, and so on to the root."""
        above = self.parent
        while above is not None:
            yield above
            above = above.parent

    def inherited(self, attribute: str) -> str | None:
        """Returns an attribute of the element, or else of the nearest ancestor that has it."""
        for element in (self, *self.ancestors()):
            if attribute in element.attributes:
                return element.attributes[attribute]
        return None


class Scanner:
    """Yields the elements of some names, each when it has ended. One that is in another is among
    the children of that one only. The ancestors of an element are known, without their ends.

    Args:
        chunks: the bytes of the file.
        name: the name of the file, in messages.
        wanted: the names of the elements.
        keep: whether all places can be read at any time. Otherwise, those of an element can be
            read until the next one is asked for, and memory holds little else.

    Raises, when iterated:
        UserError: it is not XML that can be read.
    """

    def __init__(
        self, chunks: Iterable[bytes], name: str, wanted: frozenset[str], keep: bool = False
    ) -> None:
        self.name = name
        self.root: Element | None = None
        self._chunks = chunks
        self._wanted = wanted
        self._keep = keep
        self._data = bytearray()
        self._offset = 0  # of the first byte of `_data` in the file
        self._last_end = 0  # of the last tag
        self._open: list[Element] = []
        self._unit: Element | None = None  # the wanted one that is open
        self._found: list[Element] = []
        # The names of encodings in files are not obeyed, because everything is UTF-8 here.
        self._parser = parser = expat.ParserCreate("utf-8")
        parser.specified_attributes = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CommentHandler = lambda _: self._other(COMMENT)
        parser.ProcessingInstructionHandler = lambda *_: self._other(INSTRUCTION)
        parser.StartCdataSectionHandler = self._start_cdata
        parser.EndCdataSectionHandler = self._end_cdata
        parser.EntityDeclHandler = self._entity

    def __iter__(self) -> Iterator[Element]:
        try:
            for chunk in self._chunks:
                self._data += chunk
                self._parser.Parse(chunk, False)
                yield from self._found
                self._found.clear()
                if not self._keep:
                    needed = self._unit.start if self._unit else self._last_end
                    del self._data[: needed - self._offset]
                    self._offset = needed
            self._parser.Parse(b"", True)
        except expat.ExpatError as error:
            self._refuse(error.lineno, f"not well-formed XML: {expat.ErrorString(error.code)}")

    def raw(self, start: int, end: int) -> str:
        """What is at a place, as in the file."""
        return self._data[start - self._offset : end - self._offset].decode("utf-8")

    def content(self, start: int, end: int | None) -> bytes:
        """What is at a place, in UTF-8; None is the end of what was read."""
        return bytes(self._data[start - self._offset : end and end - self._offset])

    def start_tag(self, element: Element) -> str:
        return self.raw(element.start, element.content_start)

    def text(
        self, element: Element, is_code: Callable[[Element], bool] = lambda element: False
    ) -> str:
        """The text in an element, as `Unit` has it.

        Args:
            is_code: says of an element whether it is one piece of markup with all that is in it.
                Otherwise, its tags are two pieces.
        """
        pieces: list[str] = []
        self._collect(element, is_code, pieces)
        return "".join(pieces)

    def _collect(
        self, element: Element, is_code: Callable[[Element], bool], pieces: list[str]
    ) -> None:
        place = element.content_start
        for child in element.children:
            pieces.append(resolved(self.raw(place, child.start)))
            if child.name == CDATA:
                text = self.raw(child.content_start, child.content_end)
                pieces.append(clean(text.replace("\r\n", "\n").replace("\r", "\n")))
            elif child.name in _ENDS or child.is_empty_tag or is_code(child):
                pieces.append(marked(self.raw(child.start, child.end)))
            else:
                pieces.append(marked(self.start_tag(child)))
                self._collect(child, is_code, pieces)
                pieces.append(marked(self.raw(child.content_end, child.end)))
            place = child.end
        pieces.append(resolved(self.raw(place, element.content_end)))

    def is_cdata(self, element: Element) -> bool:
        """Returns whether the content of an element is one CDATA section, and spaces around it."""
        if [child.name for child in element.children] != [CDATA]:
            return False
        section = element.children[0]
        around = self.raw(element.content_start, section.start) + self.raw(
            section.end, element.content_end
        )
        return not around.strip()

    def indent(self, element: Element) -> str:
        """The line end and the spaces before an element; empty if it does not begin a line."""
        start = max(0, element.start - self._offset - 200)
        before = self._data[start : element.start - self._offset].decode("utf-8", "ignore")
        match = re.search(r"\r?\n[ \t]*$", before)
        return match[0] if match else ""

    # ------------------------------------------------------------------------- expat's handlers

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        start = self._parser.CurrentByteIndex
        end = TAG.match(self._data, start - self._offset).end() + self._offset
        # Within a unit there is no need of it, and without cycles its memory is freed at once.
        parent = self._open[-1] if self._open and self._unit is None else None
        element = Element(name, start, end, attributes, parent)
        if self.root is None:
            self.root = element
        if self._unit is not None:
            self._open[-1].children.append(element)
        elif name in self._wanted:
            self._unit = element
        self._open.append(element)
        if len(self._open) > MAX_DEPTH:
            self._refuse(
                self._parser.CurrentLineNumber, f"more than {MAX_DEPTH} elements within each other"
            )
        self._last_end = end

    def _end(self, name: str) -> None:
        element = self._open.pop()
        place = self._parser.CurrentByteIndex
        # The end of `<x/>` is reported at the end of the tag.
        is_empty_tag = (
            place == element.content_start
            and self._data[place - self._offset - 2 : place - self._offset] == b"/>"
        )
        element.content_end = place
        element.end = place if is_empty_tag else self._data.index(b">", place - self._offset) + 1
        if not is_empty_tag:
            element.end += self._offset
        if element is self._unit:
            self._unit = None
            self._found.append(element)
        self._last_end = element.end

    def _other(self, name: str) -> None:
        start = self._parser.CurrentByteIndex
        mark = _ENDS[name]
        end = self._data.index(mark, start - self._offset + 1 + len(name)) + len(mark)
        self._last_end = end + self._offset
        if self._unit is not None:
            node = Element(name, start, self._last_end)
            node.content_end = node.end = self._last_end
            self._open[-1].children.append(node)

    def _start_cdata(self) -> None:
        if self._unit is not None:
            start = self._parser.CurrentByteIndex
            node = Element(CDATA, start, start + len("<![CDATA["))
            self._open[-1].children.append(node)

    def _end_cdata(self) -> None:
        if self._unit is not None:
            node = self._open[-1].children[-1]
            node.content_end = self._parser.CurrentByteIndex
            node.end = node.content_end + len("]]>")

    def _entity(self, name: str, *_: object) -> None:
        self._refuse(
            self._parser.CurrentLineNumber,
            f"declares the entity {name}. Such files are not read, because entities can fill the "
            "memory or name other files. Put its text in its place, and delete the declaration",
        )

    def _refuse(self, line: int, reason: str) -> None:
        raise UserError(f"{self.name}, line {line}: {reason}")


def encoding_of(start: bytes, name: str) -> str:
    """Returns the encoding of XML, by its first bytes: "utf-8", or the name that Python has for
    another one.

    Raises:
        UserError: there is no such encoding, or it cannot be the one that is declared.
    """
    for mark, encoding in _WIDE.items():
        if start.startswith(mark):
            return encoding
    declared = _DECLARATION.match(start)
    if not declared:
        return "utf-8"
    encoding = declared[1].decode("ascii")
    try:
        known = codecs.lookup(encoding).name
        if known.startswith(("utf-16", "utf-32")):
            raise UserError(
                f"{name}, line 1: says that it is {encoding}, but it is not. "
                "Declare the encoding that it has"
            )
        if _ASCII.decode(known) != _ASCII.decode("ascii"):
            raise LookupError
    except (LookupError, UnicodeError):
        raise UserError(
            f"{name}, line 1: the encoding {encoding} is not known. Convert the file to UTF-8"
        ) from None
    return known


def to_utf8(chunks: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Converts XML to UTF-8, without changing the encoding that it declares.

    Raises:
        UserError: see `encoding_of`; or it is not in that encoding.
    """
    decoder: codecs.IncrementalDecoder | None = None
    encoding, line = "", 1
    for chunk in itertools.chain(chunks, [b""]):
        if decoder is None:
            encoding = encoding_of(chunk, name)
            decoder = codecs.getincrementaldecoder(encoding)()
        try:
            text = decoder.decode(chunk, not chunk)
        except UnicodeDecodeError as error:
            line += error.object[: error.start].decode(encoding, "replace").count("\n")
            raise UserError(
                f"{name}, line {line}: not {encoding.upper()}, which is its encoding according to "
                "its first line. Convert the file to that, or correct the line"
            ) from None
        line += text.count("\n")
        yield chunk if encoding == "utf-8" else text.encode("utf-8")


@contextmanager
def scanning(path: Path, wanted: frozenset[str]) -> Iterator[Scanner]:
    """Opens a file, which may be compressed, for a scanner that reads it as a stream.

    Raises:
        UserError: as `files.reading` does.
    """
    with reading(path, any_encoding=True) as file:
        blocks = iter(lambda: file.read(BLOCK), b"")
        yield Scanner(to_utf8(blocks, str(path)), str(path), wanted)


def root_name(content: bytes) -> str | None:
    """Returns the name of the root element; None if the content is not XML as far as that."""

    class _FoundError(Exception):
        pass

    def stop(name: str, _: object) -> None:
        raise _FoundError(name)

    try:
        parser = expat.ParserCreate("utf-8")
        parser.StartElementHandler = stop
        for block in to_utf8([content[: 1 << 20]], ""):
            parser.Parse(block, False)
    except _FoundError as found:
        return str(found)
    except (expat.ExpatError, UserError):
        return None
    return None


def marked(markup: str) -> str:
    """A piece of inline markup between the marks."""
    return f"{MARK_START}{clean(markup)}{MARK_END}"


def resolved(raw: str) -> str:
    """Text of a file with its references resolved, and `\\n` for each line end. A reference to an
    entity that XML does not define is a piece of markup."""
    text = clean(raw)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _REFERENCE.sub(_resolve, text) if "&" in text else text


def _resolve(match: re.Match[str]) -> str:
    decimal, hexadecimal, entity = match.groups()
    if entity:
        return _ENTITIES.get(entity) or marked(match[0])
    # Python does not read decimal numbers of thousands of digits.
    return clean(chr(int(decimal.lstrip("0")) if decimal else int(hexadecimal, 16)))


def escaped(text: str, newline: str = "\n") -> str:
    """Text as it is written between tags.

    Args:
        newline: the line end of the file.
    """
    text = _FORBIDDEN.sub("", text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("\r", "&#13;").replace("\n", newline)


def escaped_value(text: str) -> str:
    """Text as it is written between the quotes of an attribute."""
    return re.sub(r"[\t\n]", " ", escaped(text)).replace('"', "&quot;")


def as_cdata(text: str, newline: str = "\n") -> str:
    """Text as CDATA. A carriage return cannot be in it."""
    text = _FORBIDDEN.sub("", text).replace("]]>", "]]]]><![CDATA[>").replace("\r", "")
    return f"<![CDATA[{text}]]>".replace("\n", newline)

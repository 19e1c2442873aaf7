"""Documents that are text, in which each translation replaces a few places.

A subclass finds the units of the text, and says which places a translation replaces by what. What
lies between those places is copied.
"""

from __future__ import annotations

import codecs
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import NamedTuple

from transformer_mt.formats.document import Document, Unit
from transformer_mt.utils.console import quoted
from transformer_mt.utils.errors import UserError

_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}


class Edit(NamedTuple):
    """The characters of the text from `start` to before `end` are replaced by `text`."""

    start: int
    end: int
    text: str


class SplicedDocument(Document):
    """A document of this kind.

    Args:
        content: of the file.
        name: of the file, in messages.
        encoding: of the content, if it does not begin with a byte order mark.

    Attributes:
        text: the content as characters, without a byte order mark.
        newline: what ends the lines.

    Raises:
        UserError: the content is not in this encoding, or breaks a rule of the format.
    """

    def __init__(self, content: bytes, name: str, encoding: str = "utf-8") -> None:
        self.units = []
        self.name = name
        self._mark = next((mark for mark in _MARKS if content.startswith(mark)), b"")
        self._encoding = _MARKS.get(self._mark, encoding)
        self.text = self._decoded(content[len(self._mark) :])
        self.newline = "\r\n" if "\r\n" in self.text else "\n"

    def _decoded(self, content: bytes) -> str:
        try:
            text = content.decode(self._encoding)
            # Some encodings can write the same text in several ways.
            if self._encoding in _MARKS.values() or text.encode(self._encoding) == content:
                return text
            place = self.name
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            place = f"{self.name}, line {line}"
        except (LookupError, ValueError):  # there is no such encoding
            place = self.name
        raise UserError(
            f"{place}: not {self._encoding.upper()}. Convert the file: "
            f"iconv -f ENCODING -t UTF-8 < {quoted(self.name)} > NEW_FILE, where ENCODING is often "
            "LATIN1 for European languages, GB18030 for Chinese and SHIFT_JIS for Japanese"
        )

    def error(self, position: int, message: str) -> UserError:
        """Returns an error about a place of the text."""
        return UserError(
            f"{self.name}, line {self.text.count(chr(10), 0, position) + 1}: {message}"
        )

    @abstractmethod
    def edits(self, index: int, translation: str) -> Iterable[Edit]:
        """What changes in the text if a unit is translated. Equal edits of several units count
        once; others must not overlap."""

    def render(self, translations: Mapping[int, str], made_by: str) -> bytes:
        """See `Document`. No format of this kind can tell what translated a single text.

        Raises:
            UserError: the encoding of the file lacks a character of a translation.
        """
        edits: set[Edit] = set()
        for index, translation in translations.items():
            edits.update(self.edits(index, translation))
        pieces, end = [], 0
        for edit in sorted(edits):
            pieces += [self.text[end : edit.start], edit.text]
            end = edit.end
        pieces.append(self.text[end:])
        try:
            return self._mark + "".join(pieces).encode(self._encoding)
        except UnicodeEncodeError as error:
            raise UserError(
                f"{self.name}: a translation has the character "
                f"{error.object[error.start]!r}, which {self._encoding.upper()} lacks. "
                "Convert the file to UTF-8"
            ) from None


def lines(text: str) -> Iterator[tuple[int, int, int]]:
    """Yields the number of each line, from 1, and where it begins and ends, without the \\n or
    \\r\\n that ends it."""
    start = 0
    for number in count(1):
        if start >= len(text):
            return
        after = text.find("\n", start)
        end = len(text) if after < 0 else after
        yield number, start, end - (after > start and text[after - 1] == "\r")
        start = end + 1


def with_line_ends_of(source: str, translation: str) -> str:
    """Returns a translation that begins and ends with as many line ends as its source."""
    body = translation.strip("\r\n")
    start = source[: len(source) - len(source.lstrip("\n"))]
    return start + body + source[len(source.rstrip("\n")) :] if body else translation


def valid(text: str) -> str:
    """Joins the halves of surrogate pairs, as escapes name them. Lone ones become U+FFFD."""
    if not re.search("[\ud800-\udfff]", text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def as_pair(unit: Unit) -> tuple[str, str]:
    """The source and the target of a unit as lines."""
    return as_line(unit.source), as_line(unit.target)


def as_line(text: str) -> str:
    """Returns a text without line ends, which become spaces, and without spaces around it."""
    return " ".join(re.split("[\r\n]+", text)).strip()

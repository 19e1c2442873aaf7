"""JSON: where the values of a text are, how its strings are written, and files of interface texts,
as i18next and many others have them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from transformer_mt.formats.document import Unit, clean
from transformer_mt.formats.spliced import Edit, SplicedDocument, valid

_TOKEN = re.compile(r'[\[\]{}:,]|"(?:[^"\\]|\\.)*"|[^\s\[\]{}:,"]+')
# An escape of something beyond ASCII, and a slash that is escaped, which it need not be.
_UNICODE_ESCAPE = re.compile(r"\\u(?!00[0-7])[0-9a-fA-F]{4}")
_SLASH_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\/")


class Value(NamedTuple):
    """A value, also an object or an array.

    Attributes:
        name: the keys that lead to it, with dots between; "" for the whole.
        start, end: its place in the text.
    """

    name: str
    start: int
    end: int


@dataclass
class _Container:
    """An object or array that is open. `key` is that of its next value, None before it is read."""

    name: str
    start: int
    key: str | int | None

    def name_of_next(self) -> str:
        return f"{self.name}.{self.key}" if self.name else str(self.key)


def parsed(text: str) -> object:
    """Returns what a JSON text says. Numbers become strings, because Python limits their digits.

    Raises:
        ValueError: it is not JSON, or nested too deeply to be read.
    """
    try:
        return json.loads(text, parse_int=str, parse_float=str)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def values(text: str, start: int = 0, end: int | None = None) -> Iterator[Value]:
    """Yields the values of valid JSON that stands between two places of a text. An object or array
    comes after its values."""
    open_ones: list[_Container] = []
    for token in _TOKEN.finditer(text, start, len(text) if end is None else end):
        char = token[0][0]
        inner = open_ones[-1] if open_ones else None
        if char in "{[":
            name = inner.name_of_next() if inner else ""
            open_ones.append(_Container(name, token.start(), 0 if char == "[" else None))
        elif char in "}]":
            yield Value(inner.name, inner.start, token.end())
            open_ones.pop()
        elif char == ",":
            inner.key = inner.key + 1 if isinstance(inner.key, int) else None
        elif inner and inner.key is None:
            inner.key = json.loads(token[0])
        elif char != ":":
            yield Value(inner.name_of_next() if inner else "", *token.span())


def string_writer(text: str) -> Callable[[str], str]:
    """Returns what writes a string as a JSON text writes its own: with or without escapes for what
    is not ASCII, and for slashes."""
    escapes_unicode = text.isascii() and bool(_UNICODE_ESCAPE.search(text))
    escapes_slashes = bool(_SLASH_ESCAPE.search(text))

    def write(string: str) -> str:
        written = json.dumps(string, ensure_ascii=escapes_unicode)
        return written.replace("/", r"\/") if escapes_slashes else written

    return write


class JSONDocument(SplicedDocument):
    """A JSON file. Each string that is a value is a unit; keys are not."""

    def __init__(self, content: bytes, name: str, languages: tuple[str, str]) -> None:
        super().__init__(content, name)
        self._places: list[Value] = []
        self._write = string_writer(self.text)
        if not self.text.strip():
            return
        try:
            parsed(self.text)
        except json.JSONDecodeError as error:
            raise self.error(error.pos, f"not JSON: {error.msg}") from None
        except ValueError as error:
            raise self.error(0, str(error)) from None
        for value in values(self.text):
            if self.text[value.start] == '"':
                source = clean(valid(json.loads(self.text[value.start : value.end])))
                if source.strip():
                    self.units.append(Unit(value.name, source))
                    self._places.append(value)

    def edits(self, index: int, translation: str) -> Iterator[Edit]:
        value = self._places[index]
        yield Edit(value.start, value.end, self._write(translation))

"""Texts of Java programs: .properties files.

https://docs.oracle.com/javase/8/docs/api/java/util/Properties.html#load-java.io.Reader-
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from transformer_mt.formats.balanced import balanced
from transformer_mt.formats.document import Unit, clean
from transformer_mt.formats.spliced import Edit, SplicedDocument, valid

_BLANK = re.compile(r"(?:[ \t\f]*(?:[#!][^\r\n]*)?(?:\r\n|[\r\n]))*[ \t\f]*(?:[#!][^\r\n]*)?")
_KEY = re.compile(r"(?:[^\\=: \t\f\r\n]|\\(?:\r\n|[\s\S]|\Z))*")
# A backslash before a line end continues the line, also here.
_SEPARATOR = re.compile(r"(?:[ \t\f]|\\(?:\r\n|[\r\n]))*(?:[=:](?:[ \t\f]|\\(?:\r\n|[\r\n]))*)?")
_VALUE = re.compile(r"(?:[^\\\r\n]|\\(?:\r\n|[\s\S]|\Z))*")
_ESCAPE = re.compile(r"\\(?:(?:\r\n|[\r\n])[ \t\f]*|u([0-9a-fA-F]{4})|([\s\S]?))")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_ESCAPED = str.maketrans({char: f"\\{letter}" for letter, char in _ESCAPES.items()} | {"\\": r"\\"})
_CONTINUATION = re.compile(r"(?<!\\)(?:\\\\)*\\(?:\r\n|[\r\n])([ \t\f]*)")
_ARGUMENT = re.compile(r"\{\d")


class PropertiesDocument(SplicedDocument):
    """A .properties file, in UTF-8 (since Java 9) or ISO 8859-1.

    Other characters than ASCII are written as escapes, unless the file has them in UTF-8. A value
    that is continued over several lines is written so too. In texts with an argument, such as {0},
    an apostrophe is doubled, as java.text.MessageFormat needs it.
    """

    def __init__(self, content: bytes, name: str, languages: tuple[str, str]) -> None:
        try:
            content.decode("utf-8-sig")
            encoding = "utf-8"
        except UnicodeDecodeError:
            encoding = "iso-8859-1"
        super().__init__(content, name, encoding)
        self._has_escapes = encoding != "utf-8" or self.text.isascii()
        self._target_lang = languages[1]
        # Where the values are, and whether each is for MessageFormat.
        self._places: list[tuple[int, int, bool]] = []
        position = 0
        while (position := _BLANK.match(self.text, position).end()) < len(self.text):
            key = _KEY.match(self.text, position)
            start = _SEPARATOR.match(self.text, key.end()).end()
            position = _VALUE.match(self.text, start).end()
            source = self._unescaped(start, position)
            if source.strip():
                # Text in which no apostrophe is doubled, but one is there, is for something else.
                is_message = bool(_ARGUMENT.search(source)) and "'" not in source.replace("''", "")
                source = source.replace("''", "'") if is_message else source
                self.units.append(Unit(self._unescaped(*key.span()), clean(source)))
                self._places.append((start, position, is_message))

    def _unescaped(self, start: int, end: int) -> str:
        def char(match: re.Match[str]) -> str:
            code, letter = match.groups()
            if letter == "u":
                raise self.error(start, r"\u without four hexadecimal digits")
            return chr(int(code, 16)) if code else _ESCAPES.get(letter, letter or "")

        return valid(_ESCAPE.sub(char, self.text[start:end]))

    def edits(self, index: int, translation: str) -> Iterator[Edit]:
        start, end, is_message = self._places[index]
        if is_message:
            translation = translation.replace("'", "''")
        indents = _CONTINUATION.findall(self.text, start, end)
        if not indents:
            pieces = [translation]
        elif "\n" in translation:
            pieces = re.findall(r"[^\n]*\n|[^\n]+", translation)
        else:
            pieces = balanced(translation, len(indents) + 1, self._target_lang)
        between = f"\\{self.newline}{indents[0] if indents else ''}"
        yield Edit(start, end, between.join(map(self._escaped, pieces)))

    def _escaped(self, text: str) -> str:
        text = text.translate(_ESCAPED)
        if text.startswith((" ", "=", ":")):  # would belong to the separator, or to the indentation
            text = f"\\{text}"
        if self._has_escapes:
            text = re.sub(r"[^\x00-\x7f]", _code, text)
        return text


def _code(char: re.Match[str]) -> str:
    """The escape of a character: of each half of its surrogate pair, if it has one."""
    units = char[0].encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))

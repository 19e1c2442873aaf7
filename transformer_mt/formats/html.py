"""HTML and XHTML: the texts between the tags of blocks, and the attributes that people read.

The file is not parsed into a tree, because a tree cannot be written back as it was. It is cut at
the tags of blocks instead, so that broken HTML stays exactly as broken as it is.
"""

from __future__ import annotations

import codecs
import html
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from transformer_mt.formats.document import LINE_BREAK, Document, Unit, clean
from transformer_mt.formats.html_scan import BLANKS, Token, names, scan
from transformer_mt.formats.pieces import (
    Piece,
    arrange,
    core,
    is_translatable,
    text_of,
    with_whole_words,
    words_of,
)
from transformer_mt.formats.splicing import Edits
from transformer_mt.utils.errors import UserError

# Elements inside a text that have no text of their own to translate, whatever is in them.
_OBJECTS = names("audio canvas embed math object svg video")
_CODE = names("code kbd samp var")
# Elements inside a text. All others end it.
_INLINE = (
    _OBJECTS
    | _CODE
    | names("a abbr acronym b bdi bdo big br cite data del dfn em font i img input ins mark meter")
    | names("nobr output picture progress q rp rt ruby s slot small source span strike strong sub")
    | names("sup time tt u wbr")
)
# Elements that end a text, and whose content is not translated.
_UNTOUCHED = names("iframe noembed noframes pre script style template textarea xmp")

_READ_BY_PEOPLE = ("alt", "aria-label", "placeholder", "title")
_DESCRIPTIONS = names("description og:description og:title")

# Characters for private use, such as the icons of a font, and references to characters.
_REFERENCE_OR_PRIVATE = re.compile("(&#[0-9a-fA-FxX]+;?|[\ue000-\uf8ff])")
_BLANKS = re.compile(f"[{BLANKS}]+")
_LINE_ENDS = re.compile("[\r\n]+")
_NOT_OF_CHARSET = re.compile("[\ud800-\udfff]")

_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
_DECLARED_CHARSET = re.compile(
    rb"""(?:<meta\s[^>]*?\bcharset|^\s*<\?xml\s[^>]*?\bencoding)\s*=\s*["']?\s*([\w.:-]+)""",
    re.IGNORECASE,
)
_DECLARED_WITHIN = 4096  # bytes
# What browsers take for these names, https://encoding.spec.whatwg.org/#names-and-labels
_CHARSETS = {
    **dict.fromkeys(("iso-8859-1", "iso8859-1", "latin1", "us-ascii", "ascii"), "windows-1252"),
    **dict.fromkeys(("gb2312", "gbk", "x-gbk"), "gb18030"),
    **dict.fromkeys(("shift_jis", "shift-jis", "x-sjis", "sjis"), "cp932"),
    **dict.fromkeys(("euc-kr", "ks_c_5601-1987"), "cp949"),
    **dict.fromkeys(("utf-16", "utf-16le", "utf-16be"), "utf-8"),  # it was read as ASCII
}


@dataclass
class _Place:
    """Where a unit is.

    Attributes:
        start, end: its range in the file; that of an attribute has the quotes.
        items: what a text consists of; None for the value of an attribute.
    """

    start: int
    end: int
    items: list[str | Piece] | None = None


class HTMLDocument(Document):
    """A page, or a part of one: .html, .htm, .xhtml."""

    def __init__(self, content: bytes, name: str, languages: tuple[str, str]) -> None:
        self._content = content
        self._charset = _charset_of(content, name)
        try:
            self._text = content.decode(self._charset, "surrogateescape")
            is_same = self._text.encode(self._charset, "surrogateescape") == content
        except UnicodeError:
            is_same = False
        if not is_same:
            raise UserError(
                f"{name} cannot be read as {self._charset}, the charset that it names. "
                "Save it as UTF-8"
            )
        is_xml = name.lower().endswith(".xhtml") or self._text.startswith(("<?xml", "\ufeff<?xml"))
        self._places = sorted(self._find(scan(self._text, is_xml)), key=lambda place: place.start)
        self.units = []
        line, counted = 1, 0
        for place in self._places:
            line += self._text.count("\n", counted, place.start)
            counted = place.start
            if place.items is None:
                source, kind = self._value((place.start, place.end)), ", attribute"
            else:
                source, kind = text_of(place.items).strip(BLANKS), ""
            self.units.append(Unit(f"line {line}{kind}", source))

    def render(self, translations: Mapping[int, str], made_by: str) -> bytes:
        if not translations:
            return self._content
        edits = Edits(self._text)
        for index in sorted(translations, key=lambda index: self._places[index].end):
            place, translation = self._places[index], translations[index]
            if place.items is None:
                quote = self._text[place.start]
                quote = quote if quote in "\"'" else '"'
                value = self._escaped(clean(translation)).replace(
                    quote, "&quot;" if quote == '"' else "&#39;"
                )
                new = f"{quote}{value}{quote}"
            else:
                new = "".join(
                    self._escaped(item) if isinstance(item, str) else edits.between(*item.written)
                    for item in arrange(place.items, translation)
                )
            edits.replace(place.start, place.end, new)
        return edits.all().encode(self._charset, "surrogateescape")

    def _find(self, tokens: list[Token]) -> list[_Place]:
        """Returns the places of all units, those of attributes in between."""
        places: list[_Place] = []
        run: list[Token] = []  # of a text
        # How many tags of blocks there are before each token.
        blocks = [0, *accumulate(_is_block(token) for token in tokens)]
        index = 0
        while index < len(tokens):
            token = tokens[index]
            index += 1
            if token.kind == "open":
                if self._is_untouched(token):
                    match = token.match
                    is_piece = token.name in _INLINE and (
                        match is None or token.name in _OBJECTS or blocks[match] == blocks[index]
                    )
                    end = token.end if match is None else tokens[match].end
                    if is_piece:
                        kind = "open" if match is None else "hidden"
                        run.append(Token(kind, token.start, end, token.name))
                    else:
                        places += self._text_place(run)
                        run = []
                    if match is not None:
                        index = match + 1
                    elif token.name in _UNTOUCHED and not token.is_closed:
                        break  # browsers take all that follows for its content
                    elif not is_piece and not token.is_closed:
                        while index < len(tokens) and not _is_block(tokens[index]):
                            index += 1
                    continue
                places += self._attribute_places(token)
                if token.name == "html" and "lang" in token.attributes:
                    self.source_lang = self._value(token.attributes["lang"]) or None
            if _is_block(token):
                places += self._text_place(run)
                run = []
            elif token.kind != "raw":
                run.append(token)
        return places + self._text_place(run)

    def _is_untouched(self, token: Token) -> bool:
        """Whether the content of an element is no text to translate."""
        attributes = {
            name: self._value(token.attributes[name]).lower()
            for name in ("translate", "class")
            if name in token.attributes
        }
        return (
            token.name in _UNTOUCHED | _OBJECTS | _CODE
            or attributes.get("translate") == "no"
            or "notranslate" in attributes.get("class", "").split()
        )

    def _attribute_places(self, token: Token) -> list[_Place]:
        """Returns the values of a start tag that people read."""

        def given(name: str) -> str:
            return self._value(token.attributes[name]).lower() if name in token.attributes else ""

        read: tuple[str, ...] = ()
        if token.name == "meta":
            if _DESCRIPTIONS & {given("name"), given("property")}:
                read = ("content",)
        elif token.name not in ("link", "style"):  # whose title names a style sheet
            read = _READ_BY_PEOPLE
            if token.name == "input" and given("type") in ("submit", "reset", "button"):
                read += ("value",)
        ranges = [token.attributes[name] for name in read if name in token.attributes]
        return [_Place(*range_) for range_ in ranges if is_translatable(self._value(range_))]

    def _text_place(self, run: list[Token]) -> list[_Place]:
        """Returns the place of a text, if its tokens have words.

        Args:
            run: texts and tags that stand beside each other.
        """
        items: list[str | Piece] = []
        ranges: list[tuple[int, int]] = []
        opened: list[tuple[str, Piece]] = []
        for token in run:
            if token.kind == "text":
                position = token.start
                for part in _REFERENCE_OR_PRIVATE.split(self._text[token.start : token.end]):
                    ranges.append((position, position + len(part)))
                    items.append(self._text_or_icon(part, ranges[-1]))
                    position += len(part)
                continue
            ranges.append((token.start, token.end))
            # A line end in a tag is shown as a space, because it would end the line of the text.
            shown = _LINE_ENDS.sub(" ", self._text[token.start : token.end])
            shown = LINE_BREAK if token.name == "br" else shown
            piece = Piece(shown, ranges[-1])
            items.append(piece)
            if token.kind == "open":
                opened.append((token.name, piece))
            elif token.kind == "close":
                for depth in reversed(range(len(opened))):
                    if opened[depth][0] == token.name:
                        opened[depth][1].pair_with(piece)
                        del opened[depth:]
                        break
        if not is_translatable(words_of(items)):
            return []
        first, end = core(items)
        items, ranges = items[first:end], ranges[first:end]
        (start, _), (_, stop) = ranges[0], ranges[-1]
        text = self._text
        if isinstance(items[0], str):
            items[0] = items[0].lstrip(BLANKS)
            start += len(text[start:stop]) - len(text[start:stop].lstrip(BLANKS))
        if isinstance(items[-1], str):
            items[-1] = items[-1].rstrip(BLANKS)
            stop -= len(text[start:stop]) - len(text[start:stop].rstrip(BLANKS))
        return [_Place(start, stop, with_whole_words(items))]

    def _text_or_icon(self, part: str, range_: tuple[int, int]) -> str | Piece:
        """Returns a text with blanks as people see them; a character for private use is markup,
        because no model knows it."""
        text = _unescaped(part)
        if len(text) == 1 and "\ue000" <= text <= "\uf8ff":
            return Piece(f"&#x{ord(text):x};", range_)
        return _BLANKS.sub(" ", text)

    def _value(self, range_: tuple[int, int]) -> str:
        """Returns the value of an attribute."""
        raw = self._text[slice(*range_)]
        if raw[0] in "\"'":
            raw = raw[1:-1]
        return clean(_BLANKS.sub(" ", _unescaped(raw))).strip(" ")

    def _escaped(self, text: str) -> str:
        """Returns a text as the file has it. A character that its charset lacks is a reference."""
        return (
            html.escape(text, quote=False)
            .encode(self._charset, "xmlcharrefreplace")
            .decode(self._charset)
        )


def _is_block(token: Token) -> bool:
    return token.kind in ("open", "close") and token.name not in _INLINE


def _unescaped(raw: str) -> str:
    """Resolves references. Bytes that are not of the charset are shown as browsers do."""
    return _NOT_OF_CHARSET.sub("\ufffd", html.unescape(raw))


def _charset_of(content: bytes, name: str) -> str:
    """Returns the charset that browsers take."""
    for mark, charset in _BYTE_ORDER_MARKS.items():
        if content.startswith(mark):
            return charset
    declared = _DECLARED_CHARSET.search(content[:_DECLARED_WITHIN])
    if not declared:
        try:
            content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{name} names no charset, and is not UTF-8 (byte {error.start}). Save it as "
                'UTF-8, or name its charset in the file: <meta charset="…">'
            ) from None
        return "utf-8"
    label = declared[1].decode("ascii").lower()
    charset = _CHARSETS.get(label, label)
    try:
        if "<a>".encode(charset) != b"<a>":
            raise LookupError
    except (LookupError, ValueError):
        raise UserError(
            f"{name} names the charset {label}, which is unknown. Save it as UTF-8"
        ) from None
    return charset

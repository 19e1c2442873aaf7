"""Messages of gettext: PO files, and the templates that they are made of (POT).

https://www.gnu.org/software/gettext/manual/html_node/PO-Files.html
"""

from __future__ import annotations

import gettext
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from transformer_mt.formats.document import Codes, Unit, clean, require_languages
from transformer_mt.formats.spliced import Edit, SplicedDocument, as_pair, lines, with_line_ends_of
from transformer_mt.utils.files import reading

_STRING = r'"(?:[^"\\]|\\.)*"'
_STRINGS = rf"{_STRING}(?:[ \t]*{_STRING})*"
# A keyword with its first string, a further string, or a comment.
_LINE = re.compile(
    r"[ \t]*(?:(?:(msgctxt|msgid|msgid_plural|msgstr(?:\[\d+\])?)[ \t]*)?"
    rf"({_STRINGS})|(\#.*))?[ \t]*"
)
# What printf and its likes take for a directive; and the flags of messages for them.
_DIRECTIVE = re.compile(
    r"%%|%(?:\([^()\s]*\)|\d+\$)?[-+ 0#']*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh?|ll?|[Lqjzt])?[A-Za-z@]"
)
_OF_PRINTF = frozenset(f"{name}-format" for name in ("c", "objc", "perl", "php", "python"))
_CHARSET = re.compile(rb'Content-Type:[^"\n]*charset=([^\s\\";]+)', re.IGNORECASE)
_TEMPLATE = "CHARSET"  # stands for the encoding in templates, which are ASCII or UTF-8

_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|(.))")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPED = str.maketrans(
    {"\\": r"\\", '"': r"\""} | {char: f"\\{letter}" for letter, char in _ESCAPES.items()}
)


@dataclass
class _Value:
    """The strings behind a keyword: where they are in the file, and each by itself."""

    line: int
    start: int
    end: int
    strings: list[str]

    @property
    def text(self) -> str:
        return "".join(self.strings)


@dataclass
class _Entry:
    """A message.

    Attributes:
        start: of its first line that is neither a comment nor its flags.
        flags: of the lines of flags, where they begin.
        is_of_printf: whether a percent sign in the message is written twice.
        values: by keyword.
    """

    start: int | None = None
    flags: list[int] = field(default_factory=list)
    is_fuzzy: bool = False
    is_of_printf: bool = False
    values: dict[str, _Value] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        return any(keyword.startswith("msgstr") for keyword in self.values)


@dataclass
class _Place:
    """What a unit fills in. `source` is its source as the file has it."""

    entry: _Entry
    source: str
    forms: list[_Value]
    is_main: bool


class PODocument(SplicedDocument):
    """A PO or POT file.

    A message with a plural is two units: the singular fills in the form of the number 1, and the
    plural all others. In languages with one form, such as Chinese, the plural alone is a unit,
    because its translation is right for most numbers. What the units fill in is marked as fuzzy.
    """

    replaces_sources = False

    def __init__(self, content: bytes, name: str, languages: tuple[str, str]) -> None:
        charset = _CHARSET.search(content)
        encoding = charset[1].decode("ascii", "replace") if charset else "utf-8"
        super().__init__(content, name, "utf-8" if encoding == _TEMPLATE else encoding.lower())
        # In a template, the name of the encoding must be filled in, because msgfmt refuses other
        # characters than ASCII without it.
        self._charset = None
        if encoding == _TEMPLATE:
            at = self.text.index(f"={_TEMPLATE}") + 1
            self._charset = Edit(at, at + len(_TEMPLATE), "UTF-8")
        self._plural = ""
        self._places: list[_Place] = []
        for entry in self._entries():
            self._add(entry)

    def _entries(self) -> Iterator[_Entry]:
        entry, value = _Entry(), None
        for line, start, end in lines(self.text):
            match = _LINE.fullmatch(self.text, start, end)
            if not match:
                raise self.error(start, "not a line of a PO file. Are its quotes balanced?")
            keyword, strings, comment = match.groups()
            if entry.is_complete and (comment or keyword in ("msgctxt", "msgid")):
                yield entry
                entry = _Entry()
            if keyword:
                if keyword in entry.values:
                    raise self.error(start, f"a second {keyword} in the same message")
                value = entry.values[keyword] = _Value(line, *match.span(2), [])
            if strings:
                if value is None:
                    raise self.error(start, "a text without a keyword, such as msgstr, before it")
                value.end = match.end(2)
                value.strings += [_unescaped(string) for string in re.findall(_STRING, strings)]
            else:
                value = None
            if comment and comment.startswith("#~"):
                entry = _Entry()  # Flags before an obsolete message are its own.
            elif comment and comment.startswith("#,"):
                entry.flags.append(match.start(3))
                flags = re.split(r"[,\s]+", comment)
                entry.is_fuzzy |= "fuzzy" in flags
                entry.is_of_printf |= not _OF_PRINTF.isdisjoint(flags)
            elif (keyword or (comment and comment.startswith("#|"))) and entry.start is None:
                entry.start = start
        if entry.is_complete:
            yield entry
        elif entry.values:
            raise self.error(entry.start, "the last message has no msgstr")

    def _add(self, entry: _Entry) -> None:
        singular, plural = entry.values.get("msgid"), entry.values.get("msgid_plural")
        if singular is None:
            raise self.error(entry.start, "a message without msgid")
        forms = [value for key, value in entry.values.items() if key.startswith("msgstr")]
        if not singular.text and "msgctxt" not in entry.values:
            self._read_header(forms[0].text)
        elif plural is None:
            self._add_unit(entry, singular, forms, True)
        elif len(forms) == 1:
            self._add_unit(entry, plural, forms, True)
        else:
            form = forms[self._form_of_one(len(forms))]
            self._add_unit(entry, singular, [form], True)
            self._add_unit(entry, plural, [other for other in forms if other is not form], False)

    def _add_unit(self, entry: _Entry, source: _Value, forms: list[_Value], is_main: bool) -> None:
        if not source.text.strip():
            return
        is_done = not entry.is_fuzzy and all(form.text for form in forms)
        text, target = source.text, forms[0].text
        if entry.is_of_printf:
            text, target = _without_percent_escapes(text), _without_percent_escapes(target)
        self.units.append(Unit(f"line {source.line}", clean(text), clean(target), is_done))
        self._places.append(_Place(entry, source.text, forms, is_main))

    def _read_header(self, text: str) -> None:
        for line in text.split("\n"):
            key, _, value = line.partition(":")
            if key.strip().lower() == "language" and value.strip():
                self.target_lang = value.strip()
            elif key.strip().lower() == "plural-forms":
                match = re.search(r"plural\s*=\s*([^;]*)", re.sub(r"nplurals\s*=", "", value))
                self._plural = match[1] if match else ""

    def _form_of_one(self, count: int) -> int:
        """The number of the form that stands with the number 1."""
        try:
            form = gettext.c2py(self._plural)(1)
        except (ValueError, ArithmeticError, RecursionError):
            return 0  # The formula is missing, as in templates, or wrong.
        return form if 0 <= form < count else 0

    def edits(self, index: int, translation: str) -> Iterator[Edit]:
        place, source = self._places[index], self.units[index].source
        entry = place.entry
        if entry.is_of_printf:
            translation = _with_percent_escapes(translation, place.source)
        is_wrapped = len(entry.values["msgid"].strings) > 1
        translation = with_line_ends_of(source, translation)
        pieces = re.findall(r"[^\n]*\n|[^\n]+", translation) if is_wrapped else [translation]
        written = self.newline.join(
            f'"{piece.translate(_ESCAPED)}"' for piece in (["", *pieces] if is_wrapped else pieces)
        )
        for form in [form for form in place.forms if not form.text] or place.forms:
            yield Edit(form.start, form.end, written)
        if self._charset is not None:
            yield self._charset
        if entry.is_fuzzy:
            return
        if entry.flags:
            after = entry.flags[0] + len("#,")
            yield Edit(after, after, " fuzzy,")
        else:
            yield Edit(entry.start, entry.start, f"#, fuzzy{self.newline}")

    def finished(self) -> Iterator[tuple[str, str]]:
        """Yields the messages that are translated and not fuzzy. Of a plural, only the form of the
        number 1 is taken, because the others differ from language to language."""
        for unit, place in zip(self.units, self._places, strict=True):
            if unit.is_done and place.is_main:
                yield as_pair(unit)


def pairs(
    path: Path, languages: tuple[str, str], columns: tuple[str, str] | None = None
) -> Iterator[tuple[str, str]]:
    """Yields the finished messages of a PO file.

    Raises:
        OtherLanguagesError: its header names another language.
        UserError: it can't be read, or breaks a rule of the format.
    """
    document = _read(path)
    require_languages(str(path), _languages_of(document), languages)
    return document.finished()


def languages(path: Path) -> Iterator[Codes]:
    """Returns the target language of a PO file, if its header names it."""
    return iter(_languages_of(_read(path)))


def _read(path: Path) -> PODocument:
    with reading(path) as file:
        return PODocument(file.read(), str(path), ("", ""))


def _languages_of(document: PODocument) -> list[Codes]:
    code = document.target_lang
    # The header may have the name of a locale: de_DE.UTF-8, sr@latin.
    return [] if code is None else [(None, re.split("[.@]", code)[0])]


def _without_percent_escapes(text: str) -> str:
    """Returns a text for printf with its percent signs as people see them."""
    return _DIRECTIVE.sub(lambda match: "%" if match[0] == "%%" else match[0], text)


def _with_percent_escapes(text: str, source: str) -> str:
    """Returns a text for printf, in which every percent sign is written twice that is of none of
    the directives of its source. In German, `100 % der` has one that nobody wants."""
    known = {"%%", *_DIRECTIVE.findall(source)}
    longest_first = sorted(known, key=len, reverse=True)
    pattern = "|".join(map(re.escape, longest_first))
    return re.sub(f"{pattern}|%", lambda match: match[0] if match[0] in known else "%%", text)


def _unescaped(string: str) -> str:
    def char(match: re.Match[str]) -> str:
        octal, hexadecimal, letter = match.groups()
        if letter:
            return _ESCAPES.get(letter, letter)
        return chr(int(octal, 8) if octal else int(hexadecimal, 16))

    return _ESCAPE.sub(char, string[1:-1])

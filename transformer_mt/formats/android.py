"""Android's strings.xml. A translation takes the place of the source, and the format cannot say
that it is of a machine."""

from __future__ import annotations

import re
from collections.abc import Iterator

from transformer_mt.formats.document import MARK_START, MARKUP, Codes, Unit
from transformer_mt.formats.xml import Element, Scanner
from transformer_mt.formats.xml_document import Edits, XmlDocument, has_text

_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})|\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t"}
_WHITE = " \t\n\r"
# Outside double quotes, these become one space, and none at the ends.
_SPACES = re.compile(f"[{_WHITE}]+")
_TOKEN = re.compile(f'{MARKUP.pattern}|{_ESCAPE.pattern}|"|{_SPACES.pattern}|.', re.DOTALL)
# A string that names another resource, such as @string/app_name.
_RESOURCE = re.compile(r"[@?][\w.:+]+(?:/[\w.]+)?|@null|@empty")


class AndroidStrings(XmlDocument):
    format = "a strings.xml file of Android"
    roots = frozenset({"resources"})
    wanted = frozenset({"string", "string-array", "plurals"})

    @classmethod
    def _units(
        cls, scanner: Scanner, languages: tuple[str, str]
    ) -> Iterator[tuple[Unit, tuple[Element, Element]]]:
        for element in scanner:
            if element.attributes.get("translatable") == "false":
                continue
            name = element.attributes.get("name", "")
            items = {name: element}
            if element.name != "string":
                children = [child for child in element.children if child.name == "item"]
                items = {
                    f"{name}[{child.attributes.get('quantity', number)}]": child
                    for number, child in enumerate(children)
                }
            for item_name, item in items.items():
                raw = scanner.text(item, _is_code)
                text = decoded(raw)
                if has_text(text) and not _RESOURCE.fullmatch(raw.strip()):
                    yield Unit(item_name, text), (element, item)

    @classmethod
    def _languages_of(cls, place: tuple[Element, Element]) -> Codes:
        return place[0].inherited("tools:locale"), None

    def _write(
        self,
        edits: Edits,
        unit: Unit,
        place: tuple[Element, Element],
        translation: str,
        made_by: str,
    ) -> None:
        _, item = place
        # Spaces around the text do not count, and stay, so that lines are not joined.
        raw = edits.scanner.raw(item.content_start, item.content_end)
        start = item.content_start + len(raw) - len(raw.lstrip(_WHITE))
        end = item.content_end - len(raw) + len(raw.rstrip(_WHITE))
        edits.replace(start, end, edits.inline(encoded(translation), unit.source, item))


def decoded(text: str) -> str:
    """The text that an application shows, of text with Android's escapes."""
    pieces: list[str] = []
    is_quoted = False
    soft: list[int] = []  # the places of spaces that count only between other text
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token.startswith("\\") and len(token) > 1:
            pieces.append(_ESCAPE.sub(_unescape, token))
        elif token == '"':
            is_quoted = not is_quoted
        elif _SPACES.fullmatch(token) and not is_quoted:
            soft.append(len(pieces))
            pieces.append(" ")
        else:
            pieces.append(token)
    if soft and soft[-1] == len(pieces) - 1:
        pieces.pop()
    if soft and soft[0] == 0 and pieces:
        pieces[0] = ""
    # Characters outside the basic plane are escaped as two.
    return "".join(pieces).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _unescape(match: re.Match[str]) -> str:
    if match[1]:
        character = chr(int(match[1], 16))
        return "" if "\ue000" <= character <= "\ue001" else character
    return _ESCAPED.get(match[2], match[2])


def encoded(text: str) -> str:
    """Text with Android's escapes, which `decoded` reads as the same text."""
    pieces: list[str] = []
    place = 0
    for match in [*MARKUP.finditer(text), None]:
        part = text[place : match.start() if match else None]
        part = re.sub(r"[\\'\"]", r"\\\g<0>", part)
        for name, character in _ESCAPED.items():
            part = part.replace(character, f"\\{name}")
        pieces.append(part.replace("\r", "\\u000d"))
        if match:
            pieces.append(match[0])
            place = match.end()
    text = "".join(pieces)
    # A space beside another one, and one at an end, counts only if it is escaped.
    text = re.sub(rf"(?<= ) (?!{MARK_START})|(?<= ) |^ | $", r"\\u0020", text)
    return re.sub(r"^[@?]", r"\\\g<0>", text)


def _is_code(element: Element) -> bool:
    """<xliff:g> is around what is not to be translated."""
    return element.name.endswith(":g")

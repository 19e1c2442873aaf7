"""Resources of .NET (.resx). A translation takes the place of the source, and the format cannot say
that it is of a machine."""

from __future__ import annotations

from collections.abc import Iterator

from transformer_mt.formats.document import Unit
from transformer_mt.formats.xml import Element, Scanner
from transformer_mt.formats.xml_document import Edits, XmlDocument, has_text


class Resx(XmlDocument):
    format = "a .resx file"
    roots = frozenset({"root"})
    wanted = frozenset({"data"})

    @classmethod
    def _units(cls, scanner: Scanner, languages: tuple[str, str]) -> Iterator[tuple[Unit, Element]]:
        for element in scanner:
            attributes = element.attributes
            name, value = attributes.get("name", ""), element.child("value")
            is_text = (
                "mimetype" not in attributes
                and attributes.get("type", "System.String").split(",")[0] == "System.String"
            )
            # Names with >> are notes of the designer of windows.
            if is_text and value is not None and not name.startswith(">>"):
                text = scanner.text(value)
                if has_text(text):
                    yield Unit(name, text), value

    def _write(
        self, edits: Edits, unit: Unit, place: Element, translation: str, made_by: str
    ) -> None:
        edits.fill(place, edits.inline(translation, unit.source, place), {})

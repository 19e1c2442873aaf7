"""Qt's .ts files. A translation of a machine stays "unfinished"; the format has no place to say who
made it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from transformer_mt.formats.document import Codes, Unit
from transformer_mt.formats.xml import Element, Scanner
from transformer_mt.formats.xml_document import BilingualDocument, Edits, has_text

# What is before the translation in a message.
_BEFORE = {
    *("location", "source", "oldsource", "comment", "oldcomment"),
    *("extracomment", "translatorcomment"),
}
_GONE = {"vanished", "obsolete"}


class _Place(NamedTuple):
    """Where a unit is.

    Attributes:
        translation: the element of it.
        after: what a new translation follows.
    """

    root: Element
    message: Element
    source: Element
    translation: Element | None
    after: Element


class QtLinguist(BilingualDocument):
    format = "a .ts file of Qt"
    roots = frozenset({"TS"})
    wanted = frozenset({"name", "message"})
    escapes_quotes = True

    @classmethod
    def _units(cls, scanner: Scanner, languages: tuple[str, str]) -> Iterator[tuple[Unit, _Place]]:
        context = ""
        for element in scanner:
            if element.name == "name":
                context = scanner.text(element)
                continue
            source, translation = element.child("source"), element.child("translation")
            kind = "" if translation is None else translation.attributes.get("type", "")
            if source is None or kind in _GONE or _has_lengths(translation):
                continue
            text = scanner.text(source)
            if not has_text(text):
                continue
            translated = ""
            if translation is not None:
                forms = _forms(translation)
                # Of a translation with numbers, the form of most of them is the last one.
                texts = [scanner.text(form) for form in forms or [translation]]
                translated = texts[-1]
                is_done = kind == "" and all(map(has_text, texts))
            else:
                is_done = False
            name = element.attributes.get("id") or f"{context}: {text[:40]}"
            after = [child for child in element.children if child.name in _BEFORE][-1]
            yield (
                Unit(name, text, translated, is_done),
                _Place(scanner.root, element, source, translation, after),
            )

    @classmethod
    def _languages_of(cls, place: _Place) -> Codes:
        attributes = place.root.attributes
        return attributes.get("sourcelanguage"), attributes.get("language")

    def _write(
        self, edits: Edits, unit: Unit, place: _Place, translation: str, made_by: str
    ) -> None:
        text = edits.inline(translation, unit.source, place.source)
        unfinished = {"type": "unfinished"}
        if place.translation is None:
            if place.message.attributes.get("numerus") == "yes":
                text = f"<numerusform>{text}</numerusform>"
            edits.insert(
                place.after, place.source, f'<translation type="unfinished">{text}</translation>'
            )
            return
        forms = _forms(place.translation)
        if not forms:
            if place.message.attributes.get("numerus") == "yes":
                text = f"<numerusform>{text}</numerusform>"
            edits.fill(place.translation, text, unfinished)
            return
        edits.set_attributes(place.translation, unfinished)
        empty = [form for form in forms if not has_text(edits.scanner.text(form))]
        for form in empty or forms:
            edits.fill(form, text, {})


def _forms(translation: Element) -> list[Element]:
    return [child for child in translation.children if child.name == "numerusform"]


def _has_lengths(translation: Element | None) -> bool:
    """Whether there are translations of several lengths, which are left as they are."""
    return translation is not None and any(
        child.name == "lengthvariant" or child.child("lengthvariant")
        for child in translation.children
    )


pairs = QtLinguist.pairs
languages = QtLinguist.languages

"""XLIFF 1.x and 2.x: bilingual files of translators' programs.

A translation of a machine is marked, in XLIFF 1.2, by the state "needs-review-translation" and its
qualifier "mt-suggestion". XLIFF 2 has no such state: there it is "translated", with a state of ours
below that. The name of the model is in one note for each <file>.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from transformer_mt.formats.document import MARK_END, MARK_START, Codes, Unit
from transformer_mt.formats.xml import Element, Scanner
from transformer_mt.formats.xml_document import TOOL, BilingualDocument, Edits, has_text
from transformer_mt.utils.errors import UserError

# Of XLIFF 2. The specification wants a prefix that names who made the value up.
SUB_STATE = f"{TOOL}:needs-review"
# These elements of XLIFF 1 hold codes of the original format.
_CODE = {"ph", "it", "bpt", "ept", "ut"}
_ANNOTATION = re.compile(
    rf"{MARK_START}</?mrk[\s/>][^{MARK_END}]*{MARK_END}|{MARK_START}</mrk>{MARK_END}"
)


@dataclass
class _File:
    """A <file>.

    Attributes:
        notes: the element for notes that it has.
        before_units: what would follow new notes.
    """

    element: Element
    notes: Element | None = None
    before_units: Element | None = None
    is_marked: bool = False


class _Place(NamedTuple):
    """Where a unit is.

    Attributes:
        unit: <trans-unit>, or the <segment> of XLIFF 2.
        after: what a new target follows.
    """

    file: _File
    unit: Element
    source: Element
    target: Element | None
    after: Element


class Xliff(BilingualDocument):
    format = "XLIFF"
    roots = frozenset({"xliff"})
    wanted = frozenset({"trans-unit", "header", "unit", "notes"})

    @classmethod
    def _units(cls, scanner: Scanner, languages: tuple[str, str]) -> Iterator[tuple[Unit, _Place]]:
        file: _File | None = None
        for element in scanner:
            if scanner.root.name != "xliff":
                continue
            version = scanner.root.attributes.get("version", "")
            if version[:2] not in ("1.", "2."):
                raise UserError(f"{scanner.name}: XLIFF of an unknown version: {version!r}")
            above = [element, *element.ancestors()]
            names = [ancestor.name for ancestor in above]
            if "file" not in names:
                continue
            place = names.index("file")
            if file is None or file.element is not above[place]:
                file = _File(above[place])
            if element.name in ("header", "notes"):
                if place == 1:
                    file.notes = element
                continue
            file.before_units = file.before_units or above[place - 1]
            if element.inherited("translate") == "no":
                continue
            yield from (_units_1 if version[0] == "1" else _units_2)(scanner, file, element)

    @classmethod
    def _languages_of(cls, place: _Place) -> Codes:
        root, file = place.file.element.parent.attributes, place.file.element.attributes
        return (
            root.get("srcLang") or file.get("source-language"),
            root.get("trgLang") or file.get("target-language"),
        )

    @classmethod
    def _line(cls, text: str) -> str:
        # The marks of segments and comments are in one of the two texts only.
        return super()._line(_ANNOTATION.sub("", text))

    def _write(
        self, edits: Edits, unit: Unit, place: _Place, translation: str, made_by: str
    ) -> None:
        is_first = place.unit.name == "trans-unit"
        attributes: Mapping[str, str | None] = {}
        if is_first:
            attributes = {"state": "needs-review-translation", "state-qualifier": "mt-suggestion"}
            if place.unit.attributes.get("approved") == "yes":
                edits.set_attributes(place.unit, {"approved": "no"})
        else:
            edits.set_attributes(place.unit, {"state": "translated", "subState": SUB_STATE})
        text = edits.inline(translation, unit.source, place.source)
        if place.target is not None:
            edits.fill(place.target, text, attributes)
        else:
            values = "".join(f' {name}="{value}"' for name, value in attributes.items())
            edits.insert(place.after, place.source, f"<target{values}>{text}</target>")
        if not place.file.is_marked:
            place.file.is_marked = True
            self._mark(edits, place.file, is_first, made_by)

    def _mark(self, edits: Edits, file: _File, is_first: bool, made_by: str) -> None:
        """Names the target language if it is missing, and adds a note of who translated."""
        root = file.element.parent
        if is_first and "target-language" not in file.element.attributes:
            edits.set_attributes(file.element, {"target-language": self._languages[1]})
        elif not is_first and "trgLang" not in root.attributes:
            edits.set_attributes(root, {"trgLang": self._languages[1]})
        text = edits.escaped(f"Machine translations by {made_by}")
        if is_first:
            note = f'<note from="{TOOL}">{text}</note>'
            name = "header"
        else:
            note = f'<note category="{TOOL}">{text}</note>'
            name = "notes"
        if file.notes is None:
            indent = edits.scanner.indent(file.before_units)
            place = file.before_units.start
            edits.replace(place, place, f"<{name}>{note}</{name}>{indent}")
        elif note not in edits.scanner.raw(file.notes.start, file.notes.end):
            edits.append(file.notes, note)


def _units_1(scanner: Scanner, file: _File, element: Element) -> Iterator[tuple[Unit, _Place]]:
    """The unit of a <trans-unit>. If its source was cut into segments, their marks are markup."""
    source = element.child("source")
    if source is None:
        return
    segmented = element.child("seg-source")
    target = element.child("target")
    place = _Place(file, element, segmented or source, target, segmented or source)
    text = scanner.text(place.source, _is_code)
    if not has_text(text):
        return
    name = element.attributes.get("resname") or element.attributes.get("id", "")
    translated = "" if target is None else scanner.text(target, _is_code)
    state = "" if target is None else target.attributes.get("state", "")
    is_done = has_text(translated) and (
        element.attributes.get("approved") == "yes"
        or not (state == "new" or state.startswith("needs-"))
    )
    yield Unit(name, text, translated, is_done), place


def _units_2(scanner: Scanner, file: _File, element: Element) -> Iterator[tuple[Unit, _Place]]:
    """The units of a <unit>: its segments."""
    name = element.attributes.get("name") or element.attributes.get("id", "")
    segments = [child for child in element.children if child.name == "segment"]
    for number, segment in enumerate(segments, 1):
        source, target = segment.child("source"), segment.child("target")
        if source is None:
            continue
        text = scanner.text(source, _is_protected)
        if not has_text(text):
            continue
        translated = "" if target is None else scanner.text(target, _is_protected)
        is_done = (
            has_text(translated)
            and segment.attributes.get("state") in ("translated", "reviewed", "final")
            and segment.attributes.get("subState") != SUB_STATE
        )
        yield (
            Unit(name if len(segments) == 1 else f"{name}[{number}]", text, translated, is_done),
            _Place(file, segment, source, target, source),
        )


def _is_code(element: Element) -> bool:
    return element.name in _CODE or (
        element.name == "mrk" and element.attributes.get("mtype") == "protected"
    )


def _is_protected(element: Element) -> bool:
    return element.name == "mrk" and element.attributes.get("translate") == "no"


pairs = Xliff.pairs
languages = Xliff.languages

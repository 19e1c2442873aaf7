"""TMX: translation memories.

A translation of a machine is a <tuv> that names the application in `creationtool` and the model in
`creationid`. TMX cannot say that it needs review, so those of this tool are taken to need one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from transformer_mt.formats.document import Codes, OtherLanguagesError, Unit
from transformer_mt.formats.xml import Element, Scanner, escaped_value, scanning
from transformer_mt.formats.xml_document import TOOL, BilingualDocument, Edits, has_text
from transformer_mt.utils.languages import closest

# These elements hold codes of the original format.
_CODE = {"bpt", "ept", "it", "ph", "ut"}


class _Place(NamedTuple):
    """Where a unit is: the <tuv> of the source, that of the target, and the last one."""

    source: Element
    target: Element | None
    last: Element


class Tmx(BilingualDocument):
    format = "TMX"
    roots = frozenset({"tmx"})
    wanted = frozenset({"tu"})

    @classmethod
    def _units(cls, scanner: Scanner, languages: tuple[str, str]) -> Iterator[tuple[Unit, _Place]]:
        source_lang, target_lang = languages
        seen: set[str] = set()
        is_found = False
        for number, element in enumerate(scanner, 1):
            variants: dict[str, Element] = {}
            for child in element.children:
                if child.name == "tuv" and child.child("seg") is not None:
                    variants.setdefault(_language(child), child)
                    last = child
            source = variants.get(closest(variants, source_lang))
            if source is None:
                seen.update(variants)
                continue
            is_found = True
            target = variants.get(closest(variants, target_lang))
            text = scanner.text(source.child("seg"), _is_code)
            if target is source or not has_text(text):
                continue
            translated = "" if target is None else scanner.text(target.child("seg"), _is_code)
            is_done = has_text(translated) and target.attributes.get("creationtool") != TOOL
            name = element.attributes.get("tuid") or f"unit {number}"
            yield Unit(name, text, translated, is_done), _Place(source, target, last)
        if not is_found and seen:
            raise OtherLanguagesError(
                f"{scanner.name}: has no text in {source_lang}; its languages are "
                f"{', '.join(sorted(seen)[:20])}"
            )

    @classmethod
    def languages(cls, path: Path) -> Iterator[Codes]:
        """Yields, for each unit, the language that is said to be its source, or that of the first
        text, together with each of the others."""
        with scanning(path, cls.wanted | {"header"}) as scanner:
            usual = None
            for element in scanner:
                if element.name == "header":
                    usual = element.attributes.get("srclang")
                    continue
                variants = [child for child in element.children if child.name == "tuv"]
                codes = list(dict.fromkeys(map(_language, variants)))
                named = element.attributes.get("srclang", usual)
                source = named and closest(codes, named)  # It may be "*all*".
                for code in codes:
                    if code != (source or codes[0]):
                        yield source or codes[0], code
            cls._require_root(scanner)

    @classmethod
    def _languages_of(cls, place: _Place) -> Codes:
        target = None if place.target is None else _language(place.target)
        return _language(place.source), target

    def _write(
        self, edits: Edits, unit: Unit, place: _Place, translation: str, made_by: str
    ) -> None:
        text = edits.inline(translation, unit.source, place.source.child("seg"))
        made = {"creationtool": TOOL, "creationid": made_by}
        if place.target is not None:
            edits.set_attributes(place.target, made)
            edits.fill(place.target.child("seg"), text, {})
            return
        # Versions of TMX before 1.4 call the attribute `lang`.
        name = "xml:lang" if "xml:lang" in place.source.attributes else "lang"
        attributes = {name: self._languages[1]} | made
        values = "".join(f' {name}="{escaped_value(value)}"' for name, value in attributes.items())
        seg = f"<seg>{text}</seg>"
        if inner := edits.scanner.indent(place.source.child("seg")):
            seg = inner + seg + edits.scanner.indent(place.source)
        edits.insert(place.last, place.source, f"<tuv{values}>{seg}</tuv>")


def _language(variant: Element) -> str:
    return variant.attributes.get("xml:lang") or variant.attributes.get("lang", "")


def _is_code(element: Element) -> bool:
    return element.name in _CODE


pairs = Tmx.pairs
languages = Tmx.languages

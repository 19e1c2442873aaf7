"""TBX: lists of terms, of which the translations are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from transformer_mt.formats import xml
from transformer_mt.formats.document import MARKUP, clean
from transformer_mt.formats.xml import Element, Scanner
from transformer_mt.utils.errors import UserError
from transformer_mt.utils.languages import closest

# The names of roots, entries, languages and terms: those of TBX 3, and the older ones.
_ROOTS = {"tbx", "martif"}
_ENTRIES = frozenset({"conceptEntry", "termEntry"})
_LANGUAGES = {"langSec", "langSet"}
_TERMS = {"termSec", "tig", "ntig"}
_STATUS = {"administrativeStatus", "normativeAuthorization"}
_FORBIDDEN = ("deprecatedTerm", "supersededTerm", "forbidden", "obsolete")


def terms(path: Path, languages: tuple[str, str]) -> Iterator[tuple[str, list[str], bool]]:
    """Yields each term of the source language with its terms in the target language: those to use,
    the preferred ones first, and separately those that the list deprecates or forbids.

    Args:
        languages: the source language and the target language.

    Returns: the source term, the target terms, and whether they must not be used.

    Raises:
        UserError: it can't be read, is not TBX, or no entry has a term in the source language.
    """
    seen: set[str] = set()
    is_found = False
    with xml.scanning(path, _ENTRIES) as scanner:
        for entry in scanner:
            _require_root(scanner)
            sections: dict[str, list[Element]] = {}
            for child in entry.children:
                if child.name in _LANGUAGES:
                    code = child.attributes.get("xml:lang") or child.attributes.get("lang", "")
                    sections.setdefault(code, []).append(child)
            seen.update(sections)
            source, target = (_terms(scanner, sections, language) for language in languages)
            is_found = is_found or bool(source)
            allowed = [term for term, status in target if not status.startswith(_FORBIDDEN)]
            forbidden = [term for term, status in target if status.startswith(_FORBIDDEN)]
            for term in dict.fromkeys(term for term, _ in source):
                if allowed:
                    yield term, allowed, False
                if forbidden:
                    yield term, forbidden, True
        _require_root(scanner)
    if seen and not is_found:
        raise UserError(
            f"{path}: has no terms in {languages[0]}; its languages are "
            f"{', '.join(sorted(seen)[:20])}"
        )


def _require_root(scanner: Scanner) -> None:
    if scanner.root.name not in _ROOTS:
        raise UserError(f"{scanner.name}: not TBX: the root element is <{scanner.root.name}>")


def _terms(
    scanner: Scanner, sections: dict[str, list[Element]], language: str
) -> list[tuple[str, str]]:
    """The terms in a language, and the status of each; the preferred ones first."""
    found: list[tuple[str, str]] = []
    for section in sections.get(closest(sections, language), []):
        for group in section.children:
            if group.name in _TERMS:
                parts = list(_descendants(group))
                # What a term is made of does not count.
                term = next((part for part in parts if part.name == "term"), None)
                text = "" if term is None else _plain(scanner, term)
                if text:
                    found.append((text, _status(scanner, parts)))
    return sorted(found, key=lambda term: not term[1].startswith("preferredTerm"))


def _descendants(element: Element) -> Iterator[Element]:
    for child in element.children:
        yield child
        yield from _descendants(child)


def _status(scanner: Scanner, parts: list[Element]) -> str:
    """The value of <termNote type="administrativeStatus">, or of <min:administrativeStatus>."""
    for part in parts:
        if part.name.split(":")[-1] in _STATUS or part.attributes.get("type") in _STATUS:
            return _plain(scanner, part)
    return ""


def _plain(scanner: Scanner, element: Element) -> str:
    """The text in an element, without the highlighting in it."""
    return " ".join(clean(MARKUP.sub("", scanner.text(element))).split())

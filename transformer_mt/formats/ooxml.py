"""What Word's and PowerPoint's files share (Office Open XML, ECMA-376)."""

from __future__ import annotations

import re
from collections.abc import Callable

from transformer_mt.formats.archive import Archive
from transformer_mt.formats.office import Format
from transformer_mt.formats.xml import COMMENT, INSTRUCTION, Element, Scanner
from transformer_mt.utils.errors import UserError

_CONTENT_TYPES = "[Content_Types].xml"
_DIGITS = re.compile(r"(\d+)")


def members_of(archive: Archive, main: str, others: tuple[str, ...], program: str) -> list[str]:
    """Returns the names of the members of some content types, those of the main one first.

    Args:
        main, others: how the content types end, without "+xml".
        program: the program of such files, in messages.

    Raises:
        UserError: there is none of the main type.
    """
    found: dict[str, list[str]] = {ending: [] for ending in (main, *others)}
    if _CONTENT_TYPES in archive:
        name = f"{archive.name}, {_CONTENT_TYPES}"
        for element in Scanner([archive.read(_CONTENT_TYPES)], name, frozenset(["Override"])):
            member = element.attributes.get("PartName", "").lstrip("/")
            for ending, members in found.items():
                if element.attributes.get("ContentType", "").endswith(f"{ending}+xml"):
                    members.append(member)
    if not any(member in archive for member in found[main]):
        raise UserError(
            f"{archive.name} is not a document of {program}, or is damaged: it has no member with "
            f"a document. Open it in {program}, and save it again"
        )
    return [
        member
        for members in found.values()
        for member in sorted(members, key=_natural)
        if member in archive
    ]


def after_properties(paragraph: Element) -> int:
    """Returns where the content of a paragraph begins: after its properties, if it has some."""
    elements = (child for child in paragraph.children if child.name not in (COMMENT, INSTRUCTION))
    first = next(elements, None)
    has_properties = first is not None and first.name == f"{paragraph.name}Pr"
    return first.end if has_properties else paragraph.content_start


def run_format(run: Element, scanner: Scanner, key: Callable[[Element], tuple[str, ...]]) -> Format:
    """Returns the formatting of a run.

    Args:
        run: `w:r` or `a:r`.
        key: of the element with its properties.
    """
    properties = run.child(f"{run.name}Pr")
    before, after = f"<{run.name}>".encode(), f"</{run.name}>".encode()
    if properties is None:
        return Format((), before, after)
    raw = scanner.content(properties.start, properties.end)
    return Format(key(properties), before + raw, after)


def _natural(member: str) -> list[tuple[int, str]]:
    """Sorts slide2 before slide10."""
    return [(int(part) if part.isdigit() else 0, part) for part in _DIGITS.split(member)]

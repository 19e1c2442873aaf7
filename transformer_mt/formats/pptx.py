"""PowerPoint: .pptx, and .pptm, whose macros stay as they are.

A unit is a paragraph of a slide or its notes, also in tables. Masters, layouts, charts and comments
stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator

from transformer_mt.formats.archive import Archive
from transformer_mt.formats.office import Item, OfficeDocument, text_in
from transformer_mt.formats.ooxml import after_properties, members_of, run_format
from transformer_mt.formats.xml import Element, Scanner, escaped

# Attributes of a run's properties that nobody sees.
_UNSEEN = frozenset(("lang", "altLang", "noProof", "dirty", "err", "smtClean", "smtId", "bmk"))


class PPTXDocument(OfficeDocument):
    """A presentation of PowerPoint."""

    paragraphs = frozenset(("a:p",))

    def members(self, archive: Archive) -> list[str]:
        return members_of(archive, ".slide", (".notesSlide",), "PowerPoint")

    def frame(self, paragraph: Element) -> tuple[int, int]:
        end = paragraph.content_end
        if paragraph.children and paragraph.children[-1].name == "a:endParaRPr":
            end = paragraph.children[-1].start
        return after_properties(paragraph), end

    def items(self, paragraph: Element, scanner: Scanner) -> Iterator[Item]:
        link: str | None = None  # the one that is open
        for child in paragraph.children:
            properties = child.child("a:rPr")
            own = properties and properties.child("a:hlinkClick")
            target = scanner.raw(own.start, own.end) if own else None
            # A link is a formatting of runs there, but it belongs to their words, as in Word.
            if target != link:
                if link is not None:
                    yield Item("close", [])
                if target is not None:
                    yield Item("open", [])
                link = target
            if child.name == "a:r":
                format_ = run_format(child, scanner, lambda properties: _key(properties, scanner))
                for text in child.children:
                    if text.name == "a:t":
                        yield Item("text", [], text_in(text, scanner), format_)
            elif child.name not in ("a:pPr", "a:endParaRPr"):
                is_break = child.name == "a:br"
                yield Item("mark", [(child.start, child.end)], may_be_lost=is_break)
        if link is not None:
            yield Item("close", [])

    def written(self, text: str) -> bytes:
        return f"<a:t>{escaped(text, ' ')}</a:t>".encode()


def _key(properties: Element, scanner: Scanner) -> tuple[str, ...]:
    attributes = properties.attributes.items()
    return (
        *sorted(f"{name}={value}" for name, value in attributes if name not in _UNSEEN),
        *sorted(scanner.raw(child.start, child.end) for child in properties.children),
    )

"""Word: .docx, and .docm, whose macros stay as they are.

A unit is a paragraph of the text, of its tables and text boxes, headers, footers and notes.
Comments and what was deleted in a tracked change stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator

from transformer_mt.formats.archive import Archive
from transformer_mt.formats.office import Item, OfficeDocument, Parts, end_of, text_in
from transformer_mt.formats.ooxml import after_properties, members_of, run_format
from transformer_mt.formats.xml import Element, Scanner, escaped

# Elements around runs: links, tracked insertions, content controls and the like.
_AROUND_RUNS = frozenset(
    f"w:{name}" for name in ("bdo", "customXml", "dir", "hyperlink", "ins", "moveTo", "smartTag")
)
# What Word finds out anew: its marks of spelling and grammar, and where pages ended.
_FORGOTTEN = frozenset(("w:lastRenderedPageBreak", "w:proofErr", "w:softHyphen"))
_SPACES = frozenset(("w:tab", "w:br", "w:cr", "w:ptab"))
# Properties of runs that nobody sees.
_UNSEEN = frozenset(("w:lang", "w:noProof"))
# Fields whose result is text of people. That of others is computed: page numbers, dates.
_FIELDS_OF_TEXT = frozenset(("HYPERLINK", "TOC", "QUOTE"))


class DOCXDocument(OfficeDocument):
    """A document of Word."""

    paragraphs = frozenset(("w:p",))
    hidden = frozenset(("w:del", "w:moveFrom"))

    def members(self, archive: Archive) -> list[str]:
        others = (".header", ".footer", ".footnotes", ".endnotes")
        return members_of(archive, ".main", others, "Word")

    def frame(self, paragraph: Element) -> tuple[int, int]:
        return after_properties(paragraph), paragraph.content_end

    def items(self, paragraph: Element, scanner: Scanner) -> Iterator[Item]:
        yield from _with_fields(list(_items(paragraph, scanner)))

    def written(self, text: str) -> bytes:
        space = ' xml:space="preserve"' if text != text.strip() else ""
        return f"<w:t{space}>{escaped(text, ' ')}</w:t>".encode()


def _items(parent: Element, scanner: Scanner) -> Iterator[Item]:
    for child in parent.children:
        if child.name == "w:r":
            yield from _run_items(child, scanner)
            continue
        if child.name == "w:pPr" or child.name in _FORGOTTEN:
            continue
        # The runs of a content control are in a child of it.
        inner = child.child("w:sdtContent") if child.name == "w:sdt" else child
        is_link = child.name == "w:fldSimple" and _is_of_text(child.attributes.get("w:instr", ""))
        is_pair = child.name in _AROUND_RUNS or child.name == "w:sdt" or is_link
        if is_pair and inner is not None and not inner.is_empty_tag:
            yield Item("open", [(child.start, inner.content_start)])
            yield from _items(inner, scanner)
            yield Item("close", [(inner.content_end, child.end)])
        else:
            yield Item("mark", [(child.start, child.end)], end_of=end_of(child))


def _run_items(run: Element, scanner: Scanner) -> Iterator[Item]:
    format_ = run_format(run, scanner, lambda properties: _key(properties, scanner))
    for child in run.children:
        parts: Parts = [format_.before, (child.start, child.end), format_.after]
        if child.name == "w:t":
            yield Item("text", parts, text_in(child, scanner), format_)
        elif child.name == "w:noBreakHyphen":
            yield Item("text", parts, "\u2011", format_)
        elif child.name == "w:fldChar":
            field = child.attributes.get("w:fldCharType", "")
            yield Item("mark", parts, format=format_, field=field)
        elif child.name == "w:instrText":
            yield Item("mark", parts, text_in(child, scanner), format_, field="instruction")
        elif child.name in _SPACES:
            # A break of the page or the column is not lost.
            may_be_lost = "w:type" not in child.attributes
            yield Item("mark", parts, format=format_, may_be_lost=may_be_lost)
        elif child.name != "w:rPr" and child.name not in _FORGOTTEN:
            yield Item("mark", parts, format=format_)


def _key(properties: Element, scanner: Scanner) -> tuple[str, ...]:
    seen = (child for child in properties.children if child.name not in _UNSEEN)
    return tuple(sorted(scanner.raw(child.start, child.end) for child in seen))


def _with_fields(items: list[Item]) -> Iterator[Item]:
    """Yields a field whose result is text as a pair around it, and any other one as one mark.

    A field that begins or ends in another paragraph, as a table of contents does, is left as marks.
    """
    begins: list[int] = []
    result: list[Item] = []
    for item in items:
        result.append(item)
        if item.field == "begin":
            begins.append(len(result) - 1)
        elif item.field == "end" and begins:
            begin = begins.pop()
            field = result[begin:]
            if _is_balanced(field):
                result[begin:] = _field(field)
    yield from result


def _is_balanced(items: list[Item]) -> bool:
    depth = 0
    for item in items:
        depth += {"open": 1, "close": -1}.get(item.kind, 0)
        if depth < 0:
            return False
    return depth == 0


def _field(items: list[Item]) -> list[Item]:
    """Returns what a field is as items, of which the last one ends it."""
    kinds = [item.field for item in items]
    instruction = "".join(item.text for item in items if item.field == "instruction")
    if "separate" in kinds and _is_of_text(instruction):
        result = kinds.index("separate") + 1
        return [
            Item("open", [part for item in items[:result] for part in item.parts]),
            *items[result:-1],
            Item("close", items[-1].parts),
        ]
    return [Item("mark", [part for item in items for part in item.parts], format=items[0].format)]


def _is_of_text(instruction: str) -> bool:
    return instruction.strip().partition(" ")[0].upper() in _FIELDS_OF_TEXT

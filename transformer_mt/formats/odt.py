"""OpenDocument text of LibreOffice and others: .odt.

A unit is a paragraph or a heading of the text, of its tables, text boxes and notes, and of headers
and footers. Comments and what was deleted in a tracked change stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from transformer_mt.formats.archive import Archive
from transformer_mt.formats.document import MARKUP, clean
from transformer_mt.formats.office import Format, Item, OfficeDocument, Parts, end_of
from transformer_mt.formats.xml import CDATA, Element, Scanner, escaped, resolved
from transformer_mt.utils.errors import UserError

_BLANKS = re.compile("[ \t\r\n]+")
# Blanks after a blank count only if they are an element.
_KEPT_BLANKS = re.compile("^  +|(?<= ) +")
# Links, and what else stands around text without being a formatting.
_AROUND_TEXT = frozenset(("text:a", "text:meta"))
_SPACES = frozenset(("text:tab", "text:line-break"))
# What nobody sees of a style: the language, and which session of editing a text is from.
_UNSEEN = re.compile(r"officeooo:(paragraph-)?rsid|(fo|style):(language|country)(-asian|-complex)?")
_MANIFEST = "META-INF/manifest.xml"


class ODTDocument(OfficeDocument):
    """A text document."""

    paragraphs = frozenset(("text:p", "text:h"))
    skipped = frozenset(("text:tracked-changes", "style:style"))
    hidden = frozenset(("office:annotation",))

    def members(self, archive: Archive) -> list[str]:
        self._unseen_styles: set[str] = set()
        manifest = archive.read(_MANIFEST) if _MANIFEST in archive else b""
        if b"encryption-data" in manifest or "encrypted-package" in archive:
            raise UserError(
                f"{archive.name} is protected by a password. Save it without a password"
            )
        if "content.xml" not in archive:
            raise UserError(
                f"{archive.name} is not a document of LibreOffice, or is damaged: it has no "
                "content.xml. Open it in LibreOffice, and save it again"
            )
        return [member for member in ("content.xml", "styles.xml") if member in archive]

    def other(self, element: Element) -> None:
        """Takes note of a style of text that looks like none."""
        properties = [child.name for child in element.children] == ["style:text-properties"]
        if (
            element.name == "style:style"
            and element.attributes.get("style:family") == "text"
            and "style:parent-style-name" not in element.attributes
            and properties
            and all(_UNSEEN.fullmatch(name) for name in element.children[0].attributes)
        ):
            self._unseen_styles.add(element.attributes.get("style:name", ""))

    def items(self, paragraph: Element, scanner: Scanner) -> Iterator[Item]:
        is_start = True  # blanks are not text there
        after_blank = False
        for item in self._items(paragraph, scanner, Format()):
            if item.kind == "text" and not item.field:
                text = _BLANKS.sub(" ", item.text)
                if is_start or after_blank:
                    text = text.removeprefix(" ")
                if not text:
                    continue
                item.text = text
            item.field = ""
            if item.kind in ("text", "mark"):
                is_start = False
                after_blank = item.text.endswith(" ")
            yield item

    def written(self, text: str) -> bytes:
        pieces = []
        place = 0
        for match in _KEPT_BLANKS.finditer(text):
            count = len(match[0])
            pieces += [escaped(text[place : match.start()], " "), f'<text:s text:c="{count}"/>']
            place = match.end()
        return "".join([*pieces, escaped(text[place:], " ")]).encode()

    def _items(self, parent: Element, scanner: Scanner, format_: Format) -> Iterator[Item]:
        """Yields the items in an element. Blanks that are an element have a `field`."""

        def text_between(start: int, end: int) -> Iterator[Item]:
            text = MARKUP.sub("", resolved(scanner.raw(start, end)))
            if text:
                yield Item("text", [], text, format_)

        place = parent.content_start
        for child in parent.children:
            yield from text_between(place, child.start)
            place = child.end
            if child.name == CDATA:
                text = clean(scanner.raw(child.content_start, child.content_end))
                yield Item("text", [], text, format_)
            elif child.name == "text:span":
                yield from self._items(child, scanner, self._inner(format_, child, scanner))
            elif child.name == "text:s":
                count = child.attributes.get("text:c", "1")
                blanks = " " * min(int(count) if count.isdecimal() else 1, 1000)
                yield Item("text", [], blanks, format_, field="blanks")
            elif child.name == "text:soft-page-break":
                continue
            elif child.name in _AROUND_TEXT and not child.is_empty_tag:
                yield Item("open", [(child.start, child.content_start)])
                yield from self._items(child, scanner, format_)
                yield Item("close", [(child.content_end, child.end)])
            else:
                parts: Parts = [format_.before, (child.start, child.end), format_.after]
                is_space = child.name in _SPACES
                yield Item(
                    "mark", parts, format=format_, may_be_lost=is_space, end_of=end_of(child)
                )
        yield from text_between(place, parent.content_end)

    def _inner(self, format_: Format, span: Element, scanner: Scanner) -> Format:
        """Returns the formatting in an element for that."""
        if span.is_empty_tag or span.attributes.get("text:style-name") in self._unseen_styles:
            return format_
        tag = scanner.start_tag(span)
        return Format(
            (*format_.key, tag), format_.before + tag.encode(), b"</text:span>" + format_.after
        )

"""Cuts HTML into tags and texts, as browsers do, and says where each is in the file."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

BLANKS = " \t\n\f\r"


def names(text: str) -> frozenset[str]:
    """Returns the names in a text."""
    return frozenset(text.split())


_VOID = names("area base br col embed hr img input link meta param source track wbr")
# Elements whose content is no markup: it ends at the next end tag of that name. In a title, it is
# text.
_RAW = names("iframe noembed noframes script style textarea title xmp")

_MARKUP = re.compile(r"<(/?)([a-zA-Z][^ \t\n\f\r/>]*)|<[!?]")
_GAP = re.compile(r"[ \t\n\f\r/]*")
# A name, and what follows "=": a value, or nothing before a quote that has no end.
_ATTRIBUTE = re.compile(
    r"""([^ \t\n\f\r/>][^ \t\n\f\r/>=]*)"""
    r"""(?:[ \t\n\f\r]*(=)[ \t\n\f\r]*("[^"]*"|'[^']*'|[^ \t\n\f\r>"'][^ \t\n\f\r>]*)?)?"""
)
_COMMENT_END = re.compile(r"(?<=<!--)-?>|--!?>")


@dataclass
class Token:
    """A text, a tag, or something else.

    Attributes:
        kind: "text", "open", "close", "hidden" (a comment or an instruction) or "raw" (the content
            of a script, or whatever never ends, such as a tag whose quote is not closed).
        name: of a tag, in lower case.
        attributes: the name of each in lower case, and the range of its value with its quotes.
        match: for a tag, the place of its other tag among the tokens; None if it has none.
        is_closed: whether it is a start tag of an element without content.
    """

    kind: str
    start: int
    end: int
    name: str = ""
    attributes: dict[str, tuple[int, int]] = field(default_factory=dict)
    match: int | None = None
    is_closed: bool = False


def scan(text: str, is_xml: bool) -> list[Token]:
    """Returns what a file consists of, without a gap.

    Args:
        text: the content of the file.
        is_xml: whether `<p/>` is an element without content, and CDATA is known, as in XHTML.
    """
    tokens = list(_tokens(text, is_xml))
    opened: defaultdict[str, list[int]] = defaultdict(list)
    for index, token in enumerate(tokens):
        if token.kind == "open" and not token.is_closed:
            opened[token.name].append(index)
        elif token.kind == "close" and opened[token.name]:
            token.match = opened[token.name].pop()
            tokens[token.match].match = index
    return tokens


def _tokens(text: str, is_xml: bool) -> Iterator[Token]:
    position = text_start = int(text.startswith("\ufeff"))  # after the byte order mark
    while match := _MARKUP.search(text, position):
        start, position = match.span()
        if start > text_start:
            yield Token("text", text_start, start)
        if match[2] is None:
            end = _end_of_hidden(text, start, is_xml)
            token = Token("hidden", start, end)
        else:
            attributes: dict[str, tuple[int, int]] = {}
            end = _end_of_tag(text, position, attributes)
            name = match[2].lower()
            is_closed = name in _VOID or (is_xml and text.startswith("/>", end - 2))
            kind = "close" if match[1] else "open"
            token = Token(kind, start, end, name, attributes, is_closed=is_closed)
        if end == -1:
            yield Token("raw", start, len(text))
            return
        yield token
        position = text_start = end
        if token.kind == "open" and token.name in _RAW and not token.is_closed:
            closing = re.compile(rf"</{token.name}(?=[ \t\n\f\r/>])", re.IGNORECASE)
            found = closing.search(text, end)
            position = text_start = found.start() if found else len(text)
            if position > end:
                is_text = token.name == "title" and found
                yield Token("text" if is_text else "raw", end, position)
    if text_start < len(text):
        yield Token("text", text_start, len(text))


def _end_of_hidden(text: str, start: int, is_xml: bool) -> int:
    """Returns the end of a comment, a doctype or an instruction; -1 if it has none."""
    if text.startswith("<!--", start):
        match = _COMMENT_END.search(text, start + 4)
        return match.end() if match else -1
    if is_xml and text.startswith("<![CDATA[", start):
        last = "]]>"
    else:
        last = "?>" if text.startswith(("<?php", "<?="), start) else ">"
    end = text.find(last, start)
    return -1 if end == -1 else end + len(last)


def _end_of_tag(text: str, position: int, attributes: dict[str, tuple[int, int]]) -> int:
    """Returns the end of a tag, and collects its attributes; -1 if it has none.

    Args:
        position: the end of the tag's name.
    """
    while True:
        position = _GAP.match(text, position).end()
        if position == len(text):
            return -1
        if text[position] == ">":
            return position + 1
        match = _ATTRIBUTE.match(text, position)
        position = match.end()
        if match[3]:
            attributes.setdefault(match[1].lower(), match.span(3))
        elif match[2] and text[position : position + 1] in ('"', "'"):
            return -1

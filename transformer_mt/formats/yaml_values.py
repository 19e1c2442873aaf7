"""YAML files of interface texts, as Rails and Home Assistant have them."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import yaml
from yaml.emitter import Emitter, ScalarAnalysis

from transformer_mt.formats.document import Unit, clean
from transformer_mt.formats.spliced import Edit, SplicedDocument, valid, with_line_ends_of

# Both give the same events, and libyaml is much faster.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEXT_TAG = "tag:yaml.org,2002:str"
_MAX_DEPTH = 500
# The anchor and the tag before a value, with comments and line ends.
_PROPERTIES = re.compile(r"(?:[&!]\S*\s+(?:#[^\r\n]*\s+)*)+")
# The first line of a block, and the blank lines after it.
_BLOCK_START = re.compile(r"[|>][^\r\n]*(?:\r?\n[ \t]*(?=\r?\n))*\r?\n")
_LINE_END = re.compile(r"\r?\n|\Z")
_OTHER_LINE_END = re.compile("[\r\x85\u2028\u2029]")
_BLANK = re.compile(r"[ \t\r\n]*")
_INDENT = re.compile(" *")
_ESCAPE = re.compile(r"\\[xuU][0-9a-fA-F]")


@dataclass
class _Collection:
    """A mapping or a sequence that is open.

    Attributes:
        key: of its next value, None before it is read; the number of its next item.
        is_flow: whether it is within brackets or braces.
        is_key: whether it is a key, or in one.
    """

    name: str
    key: str | int | None
    is_flow: bool
    is_key: bool


class _Place(NamedTuple):
    start: int
    end: int
    style: str
    is_flow: bool


class YAMLDocument(SplicedDocument):
    """A YAML file. Each scalar that is a string and a value is a unit. Keys, aliases and values
    with a tag, such as !secret, are not.

    A translation is written in the style of its source if that style can have it, and otherwise in
    quotes. Plain and quoted texts are written on one line.
    """

    def __init__(self, content: bytes, name: str, languages: tuple[str, str]) -> None:
        super().__init__(content, name)
        escapes = self.text.isascii() and bool(_ESCAPE.search(self.text))
        self._emitter = Emitter(io.StringIO(), allow_unicode=not escapes)
        self._resolver = yaml.SafeLoader("")
        self._places: list[_Place] = []
        if self.text.startswith("\ufeff"):  # libyaml would not count it
            raise self.error(0, "begins with two byte order marks. Remove one")
        try:
            self._read()
        except yaml.reader.ReaderError as error:
            # The C library counts bytes, so its place is of no use.
            at = self.text.find(chr(error.character))
            raise self.error(at, f"not YAML: U+{error.character:04X} is not allowed") from None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise self.error(mark.index, f"not YAML: {error.problem}") from None

    def _read(self) -> None:
        open_ones: list[_Collection] = []
        for event in yaml.parse(self.text, Loader=_Loader):
            if isinstance(event, yaml.CollectionEndEvent):
                open_ones.pop()
            elif isinstance(event, yaml.NodeEvent):
                inner = open_ones[-1] if open_ones else _Collection("", "", False, False)
                is_key = inner.is_key or inner.key is None
                name = f"{inner.name}.{inner.key}" if inner.name else f"{inner.key}"
                if inner.key is None:
                    inner.key = getattr(event, "value", "?")
                else:
                    inner.key = inner.key + 1 if isinstance(inner.key, int) else None
                if isinstance(event, yaml.CollectionStartEvent):
                    if len(open_ones) == _MAX_DEPTH:
                        raise self.error(event.start_mark.index, "nested too deeply")
                    first = 0 if isinstance(event, yaml.SequenceStartEvent) else None
                    is_flow = inner.is_flow or event.flow_style
                    open_ones.append(_Collection(name, first, is_flow, is_key))
                elif isinstance(event, yaml.ScalarEvent) and not is_key:
                    self._add(event, name, inner.is_flow)

    def _add(self, event: yaml.ScalarEvent, name: str, is_flow: bool) -> None:
        source, tag = clean(valid(event.value)), event.tag
        if tag is None or tag == "!":
            tag = self._resolver.resolve(yaml.ScalarNode, event.value, event.implicit)
        if tag != _TEXT_TAG or not source.strip():
            return
        start, end = event.start_mark.index, event.end_mark.index
        if properties := _PROPERTIES.match(self.text, start):
            start = properties.end()
        if event.style in ("|", ">"):
            # The blank lines behind the block stay.
            last = start + len(self.text[start:end].rstrip()) - 1
            end = _LINE_END.search(self.text, last).start()
        self.units.append(Unit(name, source))
        self._places.append(_Place(start, end, event.style or "", is_flow))

    def edits(self, index: int, translation: str) -> Iterator[Edit]:
        place, source = self._places[index], self.units[index].source
        translation = with_line_ends_of(source, translation)
        written, end = None, place.end
        if place.style in ("|", ">"):
            written = self._block(place, source, translation)
        written = written or self._on_one_line(place, translation)
        if place.style == "" and written[0] in "\"'":
            # Tabs on the blank lines after a plain text are allowed; after quotes they are not.
            blank = _BLANK.match(self.text, end)[0]
            written, end = written + blank.replace("\t", " "), end + len(blank)
        yield Edit(place.start, end, written)

    def _block(self, place: _Place, source: str, translation: str) -> str | None:
        """A block with a translation; None if it can't have it."""
        body = translation.strip("\n")
        is_indented = re.search(r"^[ \t]", body, re.MULTILINE if place.style == ">" else 0)
        if is_indented or _OTHER_LINE_END.search(body) or not self._analysis(body).allow_block:
            return None
        start = _BLOCK_START.match(self.text, place.start, place.end).end()
        # Of the spaces before the first line, some can belong to the text.
        indent = _INDENT.match(self.text, start)[0]
        indent = indent[: len(indent) - len(_INDENT.match(source.lstrip("\n"))[0])]
        if place.style == ">":  # in which one line end is a space
            body = re.sub("\n+", r"\g<0>\n", body)
        body = re.sub(r"(?m)^(?=.)", indent, body).replace("\n", self.newline)
        return self.text[place.start : start] + body

    def _on_one_line(self, place: _Place, text: str) -> str:
        analysis = self._analysis(text)
        if place.style == "" and text and not analysis.multiline:
            tag = self._resolver.resolve(yaml.ScalarNode, text, (True, False))
            is_allowed = analysis.allow_flow_plain if place.is_flow else analysis.allow_block_plain
            if tag == _TEXT_TAG and is_allowed:
                return text
        if place.style in ("", "'") and analysis.allow_single_quoted and not analysis.multiline:
            return "'" + text.replace("'", "''") + "'"
        unicode, width = self._emitter.allow_unicode, float("inf")
        return yaml.safe_dump(text, default_style='"', allow_unicode=unicode, width=width).rstrip()

    def _analysis(self, text: str) -> ScalarAnalysis:
        return self._emitter.analyze_scalar(text)

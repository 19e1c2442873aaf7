"""Subtitles: SubRip (.srt) and WebVTT (.vtt, https://www.w3.org/TR/webvtt1/)."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from transformer_mt.formats.balanced import balanced
from transformer_mt.formats.document import MARK_END, MARK_START, MARKUP, Unit, clean
from transformer_mt.formats.spliced import Edit, SplicedDocument, as_line, lines

_TIME = re.compile(r"\s*[\d:.,]+\s*-->\s*[\d:.,]+")
# A group of its own, so that `split` returns the markup too.
_SRT_MARKUP = re.compile(r"(</?(?:i|b|u|s|font)\b[^<>]*>|\{\\[^{}]*\})", re.IGNORECASE)
_VTT_MARKUP = re.compile(r"(<[^<>]*>)")
# What begins the lines of a dialogue, which has a line for each speaker.
_SPEAKER = re.compile(r"[-–—]\s*")


class SRTDocument(SplicedDocument):
    """A file of SubRip. Each cue is a unit: its lines are one text, and its translation is broken
    into at most as many lines, of about the same length. The lines of a dialogue stay lines, and
    keep their dashes."""

    _markup = _SRT_MARKUP

    def __init__(self, content: bytes, name: str, languages: tuple[str, str]) -> None:
        super().__init__(content, name)
        self._target_lang = languages[1]
        # The place of each cue, and what begins each line of a dialogue.
        self._places: list[tuple[int, int, list[str]]] = []
        has_time = False
        for block in self._blocks():
            # Its time is in the first or in the second line, behind the number or the name.
            time = next((at for at in (0, 1) if self._is_time(block[at : at + 1])), None)
            has_time = has_time or time is not None
            if late := [line[1] for line in block[2:] if self._is_time([line])]:
                raise self.error(late[0], "a time of a cue without a blank line before the cue")
            self._add(block if time is None else block[time + 1 :], time is not None)
        if self.text.strip():
            self._check(has_time)

    def _check(self, has_time: bool) -> None:
        if not has_time:
            raise self.error(0, "no time, such as 00:00:01,000 --> 00:00:02,500, in the whole file")

    def _blocks(self) -> Iterator[list[tuple[int, int, int]]]:
        """Yields the lines between blank lines."""
        block = []
        for number, start, end in lines(self.text):
            if self.text[start:end].strip():
                block.append((number, start, end))
            elif block:
                yield block
                block = []
        if block:
            yield block

    def _is_time(self, line: list[tuple[int, int, int]]) -> bool:
        return bool(line) and bool(_TIME.match(self.text, *line[0][1:]))

    def _add(self, block: list[tuple[int, int, int]], is_cue: bool) -> None:
        # A block without a time is the rest of a cue that has a blank line.
        texts = [self.text[start:end].strip() for _, start, end in block]
        if texts and (is_cue or not texts[0].isdigit()):
            dashes = [match[0] for text in texts if (match := _SPEAKER.match(text))]
            if 1 < len(texts) == len(dashes):
                lines_ = [text[len(dash) :] for text, dash in zip(texts, dashes, strict=True)]
                source = "\n".join(lines_)
            else:
                dashes, source = [], " ".join(texts)
            self.units.append(Unit(f"line {block[0][0]}", self._marked(source)))
            self._places.append((block[0][1], block[-1][2], dashes))

    def _marked(self, text: str) -> str:
        pieces = self._markup.split(clean(text))
        pieces[0::2] = map(self._unescaped, pieces[0::2])
        pieces[1::2] = [f"{MARK_START}{piece}{MARK_END}" for piece in pieces[1::2]]
        return "".join(pieces)

    def edits(self, index: int, translation: str) -> Iterator[Edit]:
        start, end, dashes = self._places[index]
        pieces = translation.split("\n")
        if len(pieces) == len(dashes):
            pieces = [dash + piece for dash, piece in zip(dashes, pieces, strict=True)]
        else:
            count = self.text.count("\n", start, end) + 1
            pieces = balanced(as_line(translation), count, self._target_lang)
        yield Edit(start, end, self.newline.join(self._escaped(piece.strip()) for piece in pieces))

    def _escaped(self, text: str) -> str:
        """Returns text of a cue as the file has it, without what stands around markup."""
        return clean(text)

    def _unescaped(self, text: str) -> str:
        return text


class VTTDocument(SRTDocument):
    """A file of WebVTT. Styles, regions and notes have no units."""

    _markup = _VTT_MARKUP

    def _check(self, has_time: bool) -> None:
        if not re.match(r"WEBVTT(?![^\s])", self.text):
            raise self.error(0, "a WebVTT file begins with WEBVTT")

    def _add(self, block: list[tuple[int, int, int]], is_cue: bool) -> None:
        if is_cue:
            super()._add(block, is_cue)

    def _escaped(self, text: str) -> str:
        outside = MARKUP.split(text)
        inside = [clean(markup) for markup in MARKUP.findall(text)]
        escaped = [html.escape(piece, quote=False) for piece in outside]
        return "".join(piece for pair in zip(escaped, [*inside, ""], strict=True) for piece in pair)

    def _unescaped(self, text: str) -> str:
        return html.unescape(text)

"""Protected spans: the parts of a text that a translation keeps as they are, such as tags,
placeholders and addresses.

In the text that a model reads and writes, each span is a symbol, which is one subword. A pair of
tags is a pair of symbols, so that the model sees which words they enclose. Numbers tell the symbols
of a text apart. They say nothing else: training gives them at random, so that all are learnt alike.
"""

from __future__ import annotations

import re
import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from html.entities import html5
from typing import TYPE_CHECKING, NamedTuple

from transformer_mt.config.text import PROTECTED_CLASSES, DataConfig

if TYPE_CHECKING:
    from transformer_mt.data.subword import Subwords
    from transformer_mt.data.vocabulary import Vocabulary

# The number of symbols of each form. What has more spans is translated in parts.
SYMBOL_COUNT = 16
STANDALONE = [f"\u27e6{i}\u27e7" for i in range(SYMBOL_COUNT)]
OPENING = [f"\u27e6{i}:\u27e7" for i in range(SYMBOL_COUNT)]
CLOSING = [f"\u27e6:{i}\u27e7" for i in range(SYMBOL_COUNT)]
# They are single subwords of a model that was trained with protected spans.
SYMBOLS = STANDALONE + OPENING + CLOSING
# They stand before and behind the translation of a term in a source; see `data.annotation`.
TRANSLATED_BY, END_OF_TRANSLATION = "\u27e6=\u27e7", "\u27e6/\u27e7"
ANNOTATION = [TRANSLATED_BY, END_OF_TRANSLATION]
SYMBOL = re.compile("\u27e6(?::[0-9]+|[0-9]+:?)\u27e7")

# A piece of markup that a document has marked (see `formats.document`).
_MARKED = re.compile("\ue000[^\ue000\ue001]*\ue001")
_NAME = r"[A-Za-z_][\w:.-]*"
_TAG = re.compile(
    rf"<(?:(?P<close>/)\s*)?(?P<name>{_NAME})"
    rf"(?:\s+{_NAME}\s*=\s*(?:\"[^\"<]*\"|'[^'<]*'|[^\s\"'<>/=]+))*\s*(?P<alone>/)?>"
)
# Elements of HTML that have no end.
_VOID = {"area", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}
# Elements of XLIFF and TMX whose content is code, which is a part of the span.
_CODE = re.compile(r"<(ph|it|bpt|ept|code)\b[^<>]*(?<!/)>[^<>]*</\1\s*>")
# Those of them that are halves of pairs, and the attributes that name a pair.
_HALF = re.compile(r"<(bpt|bx|sc|ept|ex|ec)\b([^<>]*)>")
_OPENING_HALVES = ("bpt", "bx", "sc")
_PAIR = re.compile(r"\b(startRef|rid|i|id)\s*=\s*[\"']([^\"']*)[\"']")
_LINK = re.compile(
    r"(!?\[)[^\[\]]*(\]\((?:[^()\s]|\([^()\s]*\))*(?:[ ]+\"[^\"]*\")?\))"  # [text](address "title")
)
_BRACE = re.compile(r"\{[\w@#.]|\{\}")
# What follows a number and belongs to it.
_UNITS = (
    r"%|‰|°[CF]?|[kMGT]?i?B|[kMG]?bit/s|[kcmµn]?m[²³]?|[kmµ]?g|[kMG]?Hz|[kM]?W|px|pt|dpi|[mµn]?s"
)
_PATTERNS = {
    "tags": [_CODE, _TAG, re.compile(r"<\?>|<!\[CDATA\[|\]\]>|<!--.*?-->")],
    "placeholders": [
        re.compile(r"\{\{[^{}]*\}\}|\{%[^{}]*%\}|[$%#]\{[^{}]*\}|\$\[\w+\]"),
        # printf's forms, with Python's and Objective-C's; Qt's %1 and %n. A number before % makes
        # it a percentage.
        re.compile(
            r"(?<!\d)%(?:\([^()\s]+\)|\d+\$)?[-+0#']*\d*(?:\.\d+)?(?:hh?|ll?|[Lqjzt])?"
            r"[sdiufFeEgGxXoaAcCpn@]|%%|(?<!\d)%L?[1-9]\d?(?![\d%])"
        ),
        re.compile(r"(?<![\w$])\$[A-Za-z_]\w*|(?<!\w)__\w+?__(?!\w)"),
    ],
    "urls": [
        re.compile(r"(?:(?:https?|ftp|file)://|mailto:|www\.)[^\s<>\"'“”„‘’«»\u3000-\uffef]+")
    ],
    "emails": [re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+")],
    "entities": [re.compile(r"&(?:[A-Za-z]\w{1,31}|#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6});", re.ASCII)],
    "markdown": [re.compile(r"(?<!`)(`+)(?!`).{1,500}?(?<!`)\1(?!`)"), _LINK],
    "numbers": [re.compile(rf"(?<![\w.,])\d+(?:[.,:]\d+)*(?:\s?(?:{_UNITS})(?!\w))?")],
}
# What usually ends the sentence that an address is in, and not the address.
_AFTER_ADDRESS = re.compile(r"[.,;:!?)\]]+$")


class Span(NamedTuple):
    """A span of a text.

    Attributes:
        start, end: its place in the text.
        kind: the class that it belongs to.
        partner: for a tag of a pair, the place of the other one among the spans of the text; -1 for
            every other span.
    """

    start: int
    end: int
    kind: str
    partner: int = -1


@dataclass(frozen=True)
class Replaced:
    """A text in which other texts stand in place of some of its parts.

    Attributes:
        text: with the replacements.
        original: the text with its spans.
        places: the place of each replacement in `text`, in order.
        spans: the place of what it replaces in `original`.
    """

    text: str
    original: str
    places: list[tuple[int, int]]
    spans: list[tuple[int, int]]

    @classmethod
    def of(cls, original: str, replacements: Iterable[tuple[int, int, str]]) -> Replaced:
        """Replaces the places (start, end) of a text, in order, by texts."""
        text, done = "", 0
        places, spans = [], []
        for start, end, replacement in replacements:
            text += original[done:start]
            places.append((len(text), len(text) + len(replacement)))
            spans.append((start, end))
            text += replacement
            done = end
        return cls(text + original[done:], original, places, spans)

    def at(self, place: tuple[int, int]) -> tuple[int, int]:
        """The place in `original` of a place in `text`. A replacement counts as a whole."""
        start, end = place
        if start == end:
            moved = self._moved(start, is_end=False)
            return moved, moved
        return self._moved(start, is_end=False), self._moved(end, is_end=True)

    def _moved(self, offset: int, is_end: bool) -> int:
        number = bisect_right(self.places, (offset - is_end, len(self.text))) - 1
        if number < 0:
            return offset
        (_, end), span = self.places[number], self.spans[number]
        if offset < end or (is_end and offset == end):
            return span[is_end]
        return offset - end + span[1]


class SpanFinder:
    """Finds the protected spans of texts.

    Args:
        settings: the value of data.protect: names of PROTECTED_CLASSES, and regular expressions.
        ignored: texts that are no spans, such as the tags of `data.train`.
    """

    def __init__(self, settings: Iterable[str], ignored: Iterable[str] = ()) -> None:
        self.settings = tuple(settings)
        self._ignored = frozenset(ignored)
        self._finders: list[tuple[str, Callable[[str], Iterable[tuple[int, int]]]]] = [
            ("markup", _matches(_MARKED)),
            ("symbol", _matches(SYMBOL)),
        ]
        for setting in self.settings:
            if setting not in PROTECTED_CLASSES:
                self._finders.append(("pattern", _matches(re.compile(setting))))
        for name in PROTECTED_CLASSES:  # in the order of precedence
            if name in self.settings:
                self._finders += [(name, _finder(name, own)) for own in _PATTERNS[name]]
        if "placeholders" in self.settings:
            self._finders.append(("placeholders", _in_braces))

    def __reduce__(self) -> tuple[type, tuple]:
        return SpanFinder, (self.settings, tuple(self._ignored))

    def find(self, text: str) -> list[Span]:
        """The spans of a text, in order. They don't overlap: the one that begins first counts, and
        of those that begin together, the longest, or the one of the first class."""
        found = [
            (start, -end, order, name)
            for order, (name, finder) in enumerate(self._finders)
            for start, end in finder(text)
            if start < end and text[start:end] not in self._ignored
        ]
        spans: list[Span] = []
        for start, negative_end, _, name in sorted(found):
            if not spans or start >= spans[-1].end:
                spans.append(Span(start, -negative_end, name))
        return _paired(text, spans) if spans else spans

    def in_symbols(self, text: str) -> Replaced:
        """A text with symbols in place of its spans. After the last number, they begin again with
        0, so that a text may have a symbol several times."""
        numbers = _Numbers(0)
        places: list[tuple[int, int, str]] = []
        for unit in _units(text, self.find(text)):
            symbols = numbers.next(len(unit.spans))
            places += ((s.start, s.end, name) for s, name in zip(unit.spans, symbols, strict=True))
        return Replaced.of(text, sorted(places))

    def pair_in_symbols(self, source: str, target: str) -> tuple[str, str, bool]:
        """Both sides of a pair with symbols in place of the spans that belong together: first those
        with equal text, in order, then the others of the same class, in order. Other spans stay
        text. The number of the first symbol follows from the source, as if it were drawn.

        Returns: source, target, and whether every span has one on the other side.
        """
        spans = self.find(source), self.find(target)
        if not any(spans):
            return source, target, True
        units = _units(source, spans[0]), _units(target, spans[1])
        links = _linked(*units)
        is_matched = len(links) == len(units[0]) == len(units[1])
        numbers = _Numbers(zlib.crc32(source.encode("utf-8", "replace")) % SYMBOL_COUNT)
        places: tuple[list, list] = [], []
        for own, other in links:
            if numbers.are_used_up(len(own.spans)):
                is_matched = False
                continue
            symbols = numbers.next(len(own.spans))
            for found, unit in zip(places, (own, other), strict=True):
                found += (
                    (span.start, span.end, symbol)
                    for span, symbol in zip(unit.spans, symbols, strict=True)
                )
        texts = [
            Replaced.of(text, sorted(found)).text
            for text, found in zip((source, target), places, strict=True)
        ]
        return texts[0], texts[1], is_matched


def symbols_of(data: DataConfig) -> list[str]:
    """Returns the symbols that the training text of a config needs, each as one subword."""
    return (SYMBOLS if data.protect else []) + (ANNOTATION if data.annotate_terms else [])


def has_symbols(subwords: Subwords) -> bool:
    """Returns whether the symbols are subwords of both sides."""
    return all(SYMBOLS[0] in vocabulary.user_symbols for vocabulary in subwords.vocabularies)


def symbol_ids(vocabulary: Vocabulary) -> list[int]:
    """Returns the ids of the symbols that a vocabulary has, with those of `data.annotation`."""
    ids = vocabulary.user_symbols
    return [ids[symbol] for symbol in [*SYMBOLS, *ANNOTATION] if symbol in ids]


# ---- Finding ----


def _matches(pattern: re.Pattern[str]) -> Callable[[str], Iterator[tuple[int, int]]]:
    return lambda text: (match.span() for match in pattern.finditer(text))


def _addresses(pattern: re.Pattern[str]) -> Callable[[str], Iterator[tuple[int, int]]]:
    def find(text: str) -> Iterator[tuple[int, int]]:
        for match in pattern.finditer(text):
            yield match.start(), match.start() + len(_AFTER_ADDRESS.sub("", match[0]))

    return find


def _entities(pattern: re.Pattern[str]) -> Callable[[str], Iterator[tuple[int, int]]]:
    def find(text: str) -> Iterator[tuple[int, int]]:
        for match in pattern.finditer(text):
            if match[0][1] == "#" or match[0][1:] in html5:
                yield match.span()

    return find


def _links(text: str) -> Iterator[tuple[int, int]]:
    for match in _LINK.finditer(text):
        yield match.span(1)
        yield match.span(2)


def _in_braces(text: str) -> Iterator[tuple[int, int]]:
    """Braces with all that is inside them, as in ICU's `{count, plural, one {# file} other {}}`."""
    ends, opened = {}, []
    for place, character in enumerate(text):
        if character == "{":
            opened.append(place)
        elif character == "}" and opened:
            ends[opened.pop()] = place + 1
    done = 0
    for start, end in sorted(ends.items()):
        if start >= done and _BRACE.match(text, start):
            yield start, end
            done = end


def _finder(name: str, pattern: re.Pattern[str]) -> Callable[[str], Iterator[tuple[int, int]]]:
    if name in ("urls", "entities"):
        return (_addresses if name == "urls" else _entities)(pattern)
    return _links if pattern is _LINK else _matches(pattern)


# ---- Pairs of tags ----


def _role(text: str) -> tuple[str, str | None]:
    """What a span is: its name, and whether it opens, closes, does both ("toggle") or stands alone
    (None). A span and its partner have the same name."""
    text = text.strip("\ue000\ue001")
    if text in ("[", "!["):
        return "[", "open"
    if text.startswith("]("):
        return "[", "close"
    if half := _HALF.match(text):
        names = dict(_PAIR.findall(half[2]))
        name = next((names[key] for key in ("startRef", "rid", "i", "id") if key in names), "")
        return f"half {name}", "open" if half[1] in _OPENING_HALVES else "close"
    match = _TAG.fullmatch(text)
    if match is None:
        return text, "toggle" if text.strip("*_~") == "" else None  # Markdown's emphasis
    if match["close"]:
        return match["name"], "close"
    is_alone = match["alone"] or match["name"].lower() in _VOID
    return match["name"], None if is_alone else "open"


def _paired(text: str, spans: list[Span]) -> list[Span]:
    """The spans, with the partners of those tags that belong together. Pairs nest: a tag that is
    opened inside a pair and not closed there has no partner."""
    opened: list[tuple[str, int]] = []
    for number, span in enumerate(spans):
        if span.kind not in ("markup", "tags", "markdown"):
            continue
        name, role = _role(text[span.start : span.end])
        names = [own for own, _ in opened]
        if role in ("close", "toggle") and name in names:
            place = len(names) - 1 - names[::-1].index(name)
            partner = opened[place][1]
            spans[partner] = spans[partner]._replace(partner=number)
            spans[number] = span._replace(partner=partner)
            del opened[place:]
        elif role in ("open", "toggle"):
            opened.append((name, number))
    return spans


class _Unit(NamedTuple):
    """A span that stands alone, or a pair of tags: its spans, and their texts."""

    spans: tuple[Span, ...]
    texts: tuple[str, ...]

    @property
    def form(self) -> tuple[str, int]:
        return self.spans[0].kind, len(self.spans)


def _units(text: str, spans: list[Span]) -> list[_Unit]:
    found = []
    for number, span in enumerate(spans):
        if span.partner < 0 or span.partner > number:
            own = (span,) if span.partner < 0 else (span, spans[span.partner])
            found.append(_Unit(own, tuple(text[s.start : s.end] for s in own)))
    return found


def _linked(source: list[_Unit], target: list[_Unit]) -> list[tuple[_Unit, _Unit]]:
    """The units of both sides that belong together, in the order of the source."""
    links: dict[int, _Unit] = {}
    left = list(target)
    for key in (lambda unit: (unit.form, unit.texts), lambda unit: unit.form):
        free: dict[object, list[_Unit]] = defaultdict(list)
        for unit in left:
            free[key(unit)].append(unit)
        for number, unit in enumerate(source):
            if number not in links and free[key(unit)]:
                links[number] = free[key(unit)].pop(0)
        left = [unit for own in free.values() for unit in own]
        left.sort()
    return [(source[number], links[number]) for number in sorted(links)]


# ---- Symbols ----


class _Numbers:
    """Gives symbols with consecutive numbers, from `first`, for units of both forms."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._used = {1: 0, 2: 0}

    def are_used_up(self, size: int) -> bool:
        """Whether the next unit of this form gets a symbol that another one has."""
        return self._used[size] >= SYMBOL_COUNT

    def next(self, size: int) -> tuple[str, ...]:
        """The symbols of a unit of one span or of two."""
        number = (self._first + self._used[size]) % SYMBOL_COUNT
        self._used[size] += 1
        return (STANDALONE[number],) if size == 1 else (OPENING[number], CLOSING[number])

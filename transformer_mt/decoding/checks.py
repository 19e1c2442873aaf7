"""Checks of a translation against its source: what was lost on the way, and what looks wrong.

They compare the two texts and nothing else, so they are the same for every engine and every search.
Where languages differ from each other, as in their words for numbers, they are lenient: references
that people wrote are hardly ever named.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from transformer_mt.data.spans import Span, SpanFinder
from transformer_mt.data.terms import Terms, has_form
from transformer_mt.utils.languages import CHINESE, JAPANESE, primary


class Warning(NamedTuple):
    """What a check has found.

    Attributes:
        kind: one of KINDS.
        what: the reason, such as "{name} is missing".
    """

    kind: str
    what: str


# The kinds, and what they say of a translation.
KINDS = {
    "span": "a protected span is missing, there too often, new, or in the wrong order",
    "number": "a number is missing, changed or new",
    "empty": "the source has text, and the translation has none",
    "punctuation": "the sentence ends with another kind of mark",
    "length": "much shorter or much longer than the source",
    "repetition": "words are repeated that the source does not repeat",
    "copied": "the source itself, not translated",
    "term": "the given translation of a term is missing, or a forbidden one is there",
}
# The kinds that say that something of the source was lost.
LOSSES = ("span", "number", "empty", "term")


def warnings_of(
    source: str,
    text: str,
    finder: SpanFinder | None,
    source_lang: str,
    target_lang: str,
    terms: Terms | None = None,
) -> list[Warning]:
    """Returns what is wrong with a translation, in the order of KINDS.

    Args:
        text: the translation.
        finder: finds the protected spans; None if nothing is protected.
        terms: those whose translations are given.
    """
    sides = [
        _Side.of(own, finder, primary(language))
        for own, language in ((source, source_lang), (text, target_lang))
    ]
    if any(map(str.isalnum, sides[0].words)) and not sides[1].words.replace(_OBJECT, "").strip():
        return [Warning("empty", "there is no translation")]
    checks = {
        "span": _spans,
        "number": _numbers,
        "punctuation": _punctuation,
        "length": _length,
        "repetition": _repetition,
        "copied": _copied,
    }
    found = [Warning(kind, what) for kind, check in checks.items() for what in check(*sides)]
    if terms is not None:
        found += (Warning("term", what) for what in _terms(terms, source, text, target_lang))
    return found


def is_loss(warnings: Iterable[Warning]) -> bool:
    """Returns whether some warnings say that something was lost."""
    return any(warning.kind in LOSSES for warning in warnings)


# What stands in a text in place of a span that is no tag.
_OBJECT = "\ufffc"


class _Side(NamedTuple):
    """A text with what several checks need.

    Attributes:
        language: its standard code, without a region.
        spans: its protected spans.
        words: the text without tags, and with _OBJECT in place of each other span, in Unicode's
            form NFKC, which has full-width characters as their usual forms.
    """

    text: str
    language: str
    spans: list[Span]
    words: str

    @classmethod
    def of(cls, text: str, finder: SpanFinder | None, language: str) -> _Side:
        spans = finder.find(text) if finder else []
        words, done = "", 0
        for span in spans:
            is_tag = span.partner >= 0 or span.kind in ("tags", "markup")
            words += text[done : span.start] + ("" if is_tag else _OBJECT)
            done = span.end
        return cls(text, language, spans, unicodedata.normalize("NFKC", words + text[done:]))

    def name(self, span: Span) -> str:
        return self.text[span.start : span.end]


# ---- Terms ----


def _terms(terms: Terms, source: str, text: str, target_lang: str) -> Iterator[str]:
    for term in dict.fromkeys(own.term for own in terms.find(source)):
        forms = " or ".join(map(_shown, term.forms))
        if has_form(term, text, target_lang) == term.is_forbidden:
            problem = "is forbidden" if term.is_forbidden else "is missing"
            yield f"{_shown(term.source)}: {forms} {problem}"


# ---- Spans ----


def _spans(source: _Side, target: _Side) -> Iterator[str]:
    counts, own = (Counter(map(side.name, side.spans)) for side in (source, target))
    for name in counts | own:
        if not counts[name]:
            yield f"{_shown(name)} is not in the source"
        elif not own[name]:
            yield f"{_shown(name)} is missing"
        elif counts[name] != own[name]:
            yield f"{_shown(name)} is there {own[name]}x, but {counts[name]}x in the source"
    pairs, own_pairs = (Counter(_pairs(side)) for side in (source, target))
    for opening, closing in pairs - own_pairs:
        if own[opening] >= counts[opening] and own[closing] >= counts[closing]:
            yield f"{_shown(opening)} and {_shown(closing)} do not form a pair"
    for opening, closing in _empty_pairs(target) - _empty_pairs(source):
        yield f"nothing is between {_shown(opening)} and {_shown(closing)}"


def _empty_pairs(side: _Side) -> Counter[tuple[str, str]]:
    """The pairs with no text between them, but spaces and other tags."""
    found: Counter[tuple[str, str]] = Counter()
    for number, span in enumerate(side.spans):
        if span.partner > number:
            last = side.spans[span.partner]
            inside = side.spans[number + 1 : span.partner]
            covered = sum(own.end - own.start for own in inside if own.partner >= 0)
            spaces = sum(map(str.isspace, side.text[span.end : last.start]))
            if last.start - span.end <= covered + spaces:
                found[side.name(span), side.name(last)] += 1
    return found


def _pairs(side: _Side) -> Iterator[tuple[str, str]]:
    for number, span in enumerate(side.spans):
        if span.partner > number:
            yield side.name(span), side.name(side.spans[span.partner])


def _shown(name: str) -> str:
    name = name.strip("\ue000\ue001")  # the marks of `formats.document`
    return name if len(name) <= 80 else f"{name[:79]}…"


# ---- Numbers ----

# Digits with marks between them, as in 1,000.5 and 7.4.7, or with spaces between groups of three.
_NUMERAL = re.compile(r"(?<!\d)\d{1,3}(?: \d{3}(?!\d))+(?:[.,٫]\d+)?|\d+(?:[.,'’٫٬]\d+)*")
# The words that stand for the numbers from zero to twelve, by languages. Those of German are the
# beginnings of words.
_ENGLISH = [
    *(r"zero|no\b|midnight|o'clock", r"an?\b|one|once|first|single"),
    *("two|twice|second|both|double|dual|pair", "three|third|triple", "four", "five|fifth", "six"),
    *("seven", "eight", "nine|ninth", "ten", "eleven", "twelve|twelfth|dozen|noon"),
]
_GERMAN = [
    *("null|kein|mitternacht|uhr", "ein|erst", r"zwei|zwo\b|beid|doppel", "drei|dritt", "vier"),
    *("fünf", "sechs", "sieb", "acht", "neun", "zehn", "elf", "zwölf|dutzend|mittag"),
]
_HAN = [
    "[零〇无点點]",
    "[一壹单]",
    "[二两兩贰双]",
    "[三叁]",
    *"四五六七八九十",
    "十一",
    "十二|中午",
]
_HALF_HOUR = rf"halb (?:{'|'.join(_GERMAN)})"  # halb drei is 2:30
_SMALL = {
    "en": [re.compile(rf"\b(?:{words})", re.IGNORECASE) for words in _ENGLISH],
    "de": [re.compile(rf"\b(?:{words}|{_HALF_HOUR})", re.IGNORECASE) for words in _GERMAN],
    **{language: [re.compile(words) for words in _HAN] for language in CHINESE | JAPANESE},
}
_SMALL_VALUES = set(map(str, range(len(_HAN))))
# What words for greater numbers have in them. Such words are not read, so that any of them may
# stand for any number.
_GREAT = {
    language: re.compile(rf"(?<!\d)(?<!\d )(?:{words})", re.IGNORECASE)
    for language, words in {
        "en": r"\w*teen\b|(?:twen|thir|for|fif|six|seven|eigh|nine)t(?:y|ie)|hundred|thousand"
        "|million|billion|dozen|half|quarter",
        "de": r"\w*(?:zehn|zig\b|zigst|dreißig|hundert|tausend|million|milliard|dutzend|halb"
        "|viertel)",
        **dict.fromkeys(CHINESE | JAPANESE, "[十百千万亿萬億半刻〇]|[一二三四五六七八九]{2}"),
    }.items()
}
# Words behind a number that multiply it, and by which power of ten.
_SCALES = {
    **dict.fromkeys(("thousand", "tausend", "千"), 3),
    **dict.fromkeys(("万", "萬"), 4),
    **dict.fromkeys(("million", "mio", "百万", "百萬"), 6),
    **dict.fromkeys(("亿", "億"), 8),
    **dict.fromkeys(("billion", "milliarde", "mrd", "十亿"), 9),
}
_SCALE = re.compile(rf"\s?({'|'.join(sorted(_SCALES, key=len, reverse=True))})", re.IGNORECASE)
# What tells that hours are counted to twelve.
_HALF_DAY = re.compile(
    r"\d\s?[ap]\.?m\b|o'clock|[上下]午|[早晚]上|凌晨|[午前]後?|Uhr", re.IGNORECASE
)


_MONTH = re.compile(r"(\d{1,2}) ?月")


class _Number(NamedTuple):
    """A number in a text, or a part of one.

    Attributes:
        readings: the values that it may have, as text: 1,000 is 1000, or 1 in other languages.
        shown: how the whole number is written.
    """

    readings: frozenset[str]
    shown: str


def _numbers(source: _Side, target: _Side) -> Iterator[str]:
    # First whole numbers are compared, and then the parts of those that are left, because dates,
    # times and ranges are written in different ways.
    left = _unmatched(*(list(_whole_numbers(side.words)) for side in (source, target)))
    parts = [
        [part for number in own if not _is_in_words(number, other) for part in _parts(number)]
        for own, other in zip(left, (target, source), strict=True)
    ]
    if any(map(_HALF_DAY.search, (source.words, target.words))):
        parts[0] = [_with_both_hours(part) for part in parts[0]]
    missing, new = _unmatched(*parts)
    for numbers, side, other, what in (
        (missing, source, target, "is missing"),
        (new, target, source, "is not in the source"),
    ):
        months = set(_MONTH.findall(side.words))  # which other languages have words for
        named = [one.shown for one in numbers if not _is_in_words(one, other)]
        yield from (f"{shown} {what}" for shown in dict.fromkeys(named) if shown not in months)


def _whole_numbers(text: str) -> Iterator[_Number]:
    for match in _NUMERAL.finditer(text):
        readings = set(_readings(match[0]))
        if scale := _SCALE.match(text, match.end()):
            power = _SCALES[scale[1].lower()]
            readings |= {_multiplied(reading, power) for reading in readings}
        yield _Number(frozenset(readings), match[0])


def _readings(numeral: str) -> Iterator[str]:
    """The values that a number may have, as decimals with a point."""
    first, *groups = re.split(r"\D", "".join(map(_ascii, numeral)))
    *marks, last = list(re.sub(r"\d", "", numeral)) or [""]
    if not groups:
        yield _plain(first)
    elif last not in marks and len(set(marks)) < 2:
        *others, fraction = groups
        if not others or _are_groups(first, others):
            yield _plain(first + "".join(others), fraction)
    if groups and _are_groups(first, groups):
        yield _plain(first + "".join(groups))
    yield ".".join([first, *groups])  # the number of a version


def _are_groups(first: str, groups: list[str]) -> bool:
    """Whether digits are separated as in 1,000,000, or in India 10,00,000."""
    *others, last = groups
    return len(first) <= 3 and len(last) == 3 and all(len(own) in (2, 3) for own in others)


def _ascii(character: str) -> str:
    return str(unicodedata.decimal(character)) if character.isdecimal() else character


def _plain(whole: str, fraction: str = "") -> str:
    whole, fraction = whole.lstrip("0") or "0", fraction.rstrip("0")
    return f"{whole}.{fraction}" if fraction else whole


def _multiplied(decimal: str, power: int) -> str:
    whole, _, fraction = decimal.partition(".")
    return _plain(whole + fraction[:power].ljust(power, "0"), fraction[power:])


def _parts(number: _Number) -> Iterator[_Number]:
    for digits in re.findall(r"\d+", number.shown):
        yield _Number(frozenset([_plain("".join(map(_ascii, digits)))]), number.shown)


def _with_both_hours(number: _Number) -> _Number:
    """With the hour in the other half of the day: 3 pm is 15 Uhr."""
    hours = [int(one) for one in number.readings if len(one) < 3]
    others = {str(hour + 12 if hour < 12 else hour - 12) for hour in hours if hour <= 24}
    return number._replace(readings=number.readings | others)


def _unmatched(source: list[_Number], target: list[_Number]) -> tuple[list[_Number], list[_Number]]:
    """The numbers of each side that have no equal one on the other side."""
    free: dict[str, list[int]] = defaultdict(list)
    for place, number in reversed(list(enumerate(target))):
        for reading in number.readings:
            free[reading].append(place)
    used: set[int] = set()
    missing = []
    for number in source:
        found = None
        for reading in sorted(number.readings):
            while free[reading] and found is None:
                place = free[reading].pop()
                found = None if place in used else place
        if found is None:
            missing.append(number)
        else:
            used.add(found)
    return missing, [number for place, number in enumerate(target) if place not in used]


def _is_in_words(number: _Number, side: _Side) -> bool:
    """Whether a text may have a number in words. A number with marks is a great one."""
    small, great = _SMALL.get(side.language), _GREAT.get(side.language)
    if small is None or great is None:
        return False
    is_plain = number.shown.isdecimal()
    return any(
        (small[int(one)] if is_plain and one in _SMALL_VALUES else great).search(side.words)
        for one in number.readings
    )


# ---- The mark at the end ----

_FINAL = re.compile(r"([.。｡!?:;…؟۔।॥։።។။]+)[\s\"'“”„’‘«»‹›)\]}」』】》〉*_`]*$")
_WITHOUT_FULL_STOPS = {"th", "lo"}
# A source that is so short is a label, and no sentence (in the units of `_size`).
_LABEL = 20


def _punctuation(source: _Side, target: _Side) -> Iterator[str]:
    mark, own = map(_final_mark, (source, target))
    if mark == own or {mark, own} <= {"a full stop", "an exclamation mark"}:
        return  # German has an exclamation mark behind orders.
    if {mark, own} <= {"a full stop", "an ellipsis", "no mark"}:
        # Menus may have an ellipsis behind their names. A full stop behind a whole sentence is
        # often left out in one of two languages.
        without = not _WITHOUT_FULL_STOPS.isdisjoint((source.language, target.language))
        is_label = _size(source.words) <= _LABEL
        if "an ellipsis" in (mark, own) or without or (mark == "no mark" and not is_label):
            return
    yield f"the end has {own}, and the source has {mark}"


def _final_mark(side: _Side) -> str:
    match = _FINAL.search(side.words)
    marks = match[1] if match else ""
    if re.search("[?؟]", marks) or (side.language == "el" and marks.endswith(";")):
        return "a question mark"
    if side.language in JAPANESE and re.search("か。", side.words[-5:]):
        return "a question mark"
    if "!" in marks:
        return "an exclamation mark"
    if re.search(r"\.\.|。。|…", marks):
        return "an ellipsis"
    if marks.endswith(":"):
        return "a colon"
    return "no mark" if not marks or marks.endswith(";") else "a full stop"


# ---- Length ----

# A Chinese character stands for about three letters. Some units are added to both sides, because
# short texts differ more.
_WIDE, _ADDED = 3, 20
_SHORTEST, _LONGEST = 0.5, 2.5


def _length(source: _Side, target: _Side) -> Iterator[str]:
    sizes = [_size(side.words) + _ADDED for side in (source, target)]
    ratio = sizes[1] / sizes[0]
    if not _SHORTEST <= ratio <= _LONGEST:
        lengths = [len(side.words.strip()) for side in (source, target)]
        kind = "short" if ratio < 1 else "long"
        yield f"too {kind}: {lengths[1]} characters for {lengths[0]} of the source"


def _size(text: str) -> int:
    """The length of a text in letters."""
    return sum(_WIDE if unicodedata.east_asian_width(one) in "WF" else 1 for one in text.strip())


# ---- Words ----

# A word, or a character of a script without spaces: Thai to Burmese, Khmer, Kana and Han.
_UNSPACED = "\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff"
_CHARACTER = re.compile(f"[{_UNSPACED}]")
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
_LONGEST_LOOP = 20  # words
# A few characters that repeat within a word.
_LOOP_IN_WORD = re.compile(r"([^\W\d_]{2,8}?)\1{3,}")


def _repetition(source: _Side, target: _Side) -> Iterator[str]:
    found = _loop(_words(target))
    if found and found[1] > (_loop(_words(source)) or ("", 0))[1]:
        yield f"{_shown(found[0])} is there {found[1]}x in a row"
    elif (match := _LOOP_IN_WORD.search(target.words)) and not _LOOP_IN_WORD.search(source.words):
        yield f"{match[1]} is there {len(match[0]) // len(match[1])}x in a row"


def _words(side: _Side) -> list[str]:
    return _WORD.findall(side.words.lower())


def _loop(words: list[str]) -> tuple[str, int] | None:
    """The words that are repeated most often without others between, and how often. A few words
    may stand there twice, or be said three times for emphasis."""
    best = None
    for size in range(1, min(_LONGEST_LOOP, len(words) // 2) + 1):
        equal = 0  # words that are equal to the one `size` words before
        for place in range(size, len(words)):
            equal = equal + 1 if words[place] == words[place - size] else 0
            if not equal or equal % size:
                continue
            times, own = equal // size + 1, words[place + 1 - size : place + 1]
            if times > (best[1] if best else 0) and times >= _times_of_loop(own):
                best = " ".join(own), times
    return best


def _times_of_loop(words: list[str]) -> int:
    """How often words are there in a row if they are a loop. Numbers may repeat, as in 0.0.0.0."""
    if not any(map(str.isalpha, words)):
        return sys.maxsize
    length = sum(0.5 if _CHARACTER.match(word) else 1 for word in words)
    return 2 if length >= 4 else 3 if length > 1 else 4 if length == 1 else 5


# A source that is copied has at least this number of words, or of characters without spaces, that
# are no names.
_FEWEST_WORDS, _FEWEST_CHARACTERS = 3, 4


def _copied(source: _Side, target: _Side) -> Iterator[str]:
    if source.language == target.language or _words(source) != _words(target):
        return
    characters = _CHARACTER.findall(source.words)
    words = [word.strip(".,;:!?()\"'“”„‘’«»") for word in source.words.split()]
    small = [word for word in words if word.isalpha() and word.islower() and len(word) > 1]
    if len(characters) >= _FEWEST_CHARACTERS or len(small) >= _FEWEST_WORDS:
        yield "the source was copied"

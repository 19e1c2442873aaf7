"""Documents: their units are translated line by line, and everything else stays as it is."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from transformer_mt.config.schema import Config
from transformer_mt.config.text import PROTECTED_IN_DOCUMENTS
from transformer_mt.decoding.line_reader import Warn
from transformer_mt.decoding.memory import Found, Memory
from transformer_mt.formats.document import (
    LINE_BREAK,
    MARK_END,
    MARK_START,
    MARKUP,
    Document,
    clean,
)
from transformer_mt.utils.languages import fits

# Translates lines. The name of the unit that a line is from comes with it, for messages.
TranslateLines = Callable[[Mapping[str, str]], Sequence[str]]

# The marks around a segment of XLIFF 1.2.
_SEGMENT = (
    rf"{MARK_START}<mrk\s[^{MARK_END}]*mtype=[\"']seg[\"'][^{MARK_END}]*{MARK_END}"
    rf"|{MARK_START}</mrk>{MARK_END}(?=\s*(?:{MARK_START}<mrk\s|$))"
)
# What ends a line, or a piece of markup that does not. A tab stands between two texts, such as a
# command of a menu and its keys, and a model that moved it would move them.
_LINE_END = re.compile(
    rf"({MARK_START}{LINE_BREAK}{MARK_END}|{_SEGMENT}|\r\n|\r|\n|\t+)|{MARKUP.pattern}",
)
# What stands in a line for the line ends within markup. They are blanks to the model, and no text
# has them.
_WITHIN_MARKUP = str.maketrans({"\n": "\x1e", "\r": "\x1f"})


@dataclass(frozen=True)
class TranslatedDocument:
    """A document with translations.

    Attributes:
        content: of the new file.
        translated, from_memory, kept: the numbers of units that were translated, that came from
            the memory as a whole, and that were left as they are.
        found: what the memory has, in the order of the document: the name of the unit of a line,
            and what was found for this line.
    """

    content: bytes
    translated: int
    from_memory: int
    kept: int
    found: list[tuple[str, Found]]

    def __str__(self) -> str:
        return (
            f"units translated: {self.translated:,}, taken from the memory: {self.from_memory:,}, "
            f"left as they are: {self.kept:,}"
        )


def translate_document(
    document: Document,
    translate: TranslateLines,
    made_by: str,
    *,
    all: bool = False,
    memory: Memory | None = None,
) -> TranslatedDocument:
    """Translates the units of a document. Each line of a unit is translated by itself, and each
    line that occurs several times only once. The line ends, the spaces around lines, and what is
    nothing but markup stay as they are.

    Args:
        translate: is called once, and only if there is something to translate. It has to protect
            markup; see `protected_in_documents`.
        made_by: the name of the model, for formats that can tell who translated.
        all: whether units that have a finished translation are translated too.
        memory: lines that it has are taken from it.
    """
    chosen = {
        number: [_Line(part) for part in _lines(unit.source)]
        for number, unit in enumerate(document.units)
        if all or not unit.is_done
    }
    # The texts of lines, each with the name of the first unit that has it.
    names: dict[str, str] = {}
    known: dict[str, str] = {}
    for number, lines in chosen.items():
        for line in lines:
            if line.has_text:
                names.setdefault(line.text, document.units[number].name)
            else:
                known[line.text] = line.text
    hits: dict[str, Found] = {}
    of_memory: dict[str, str] = {}
    for text in names if memory is not None else ():
        hit = memory.find(clean(text))
        if hit is None:
            continue
        target = _with_marks(hit.target, text) if hit.is_exact else None
        if target is not None:
            of_memory[text] = target
        # An entry whose translation has other markup than the line is only similar.
        hits[text] = hit._replace(is_exact=target is not None)
    known |= of_memory
    asked = {text: name for text, name in names.items() if text not in of_memory}
    if asked:
        known |= zip(asked, translate(asked), strict=True)
    translations = {
        number: "".join(line.filled(known[line.text]) for line in lines)
        for number, lines in chosen.items()
    }
    if document.replaces_sources:
        # What is translated as itself, such as an address, stays as the file writes it.
        translations = {
            number: text
            for number, text in translations.items()
            if text != document.units[number].source
        }
    texts = [[line.text for line in lines if line.has_text] for lines in chosen.values()]
    translated = sum(any(text in asked for text in own) for own in texts)
    from_memory = sum(bool(own) and of_memory.keys() >= set(own) for own in texts)
    return TranslatedDocument(
        document.render(translations, made_by),
        translated,
        from_memory,
        len(document.units) - translated - from_memory,
        [
            (document.units[number].name, hits[line.text])
            for number, lines in chosen.items()
            for line in lines
            if line.text in hits
        ],
    )


def protected_in_documents(config: Config) -> list[str]:
    """The setting `protect` with which documents are translated: their markup is protected,
    whatever else is. If the config does not say what is, the usual classes are."""
    asked = config.decoding.protect
    if asked is None:
        asked = config.data.protect or list(PROTECTED_IN_DOCUMENTS)
    # With any setting, markup is protected. This one finds nothing else.
    return asked or [MARKUP.pattern]


def naming_units(warn: Warn, names: Mapping[str, str]) -> Warn:
    """A way to warn that names units, where a translator has the numbers of lines.

    Args:
        names: of the units of the lines, in order, as `translate_document` gives them.
    """
    of_lines = list(names.values())

    def named(match: re.Match[str]) -> str:
        number = int(match[1])
        return of_lines[number - 1] if 0 < number <= len(of_lines) else match[0]

    return lambda message, kind: warn(re.sub(r"^line (\d+)(?=:)", named, message), kind)


def other_languages(document: Document, languages: tuple[str, str]) -> Iterator[str]:
    """Yields in which languages a document differs from the model's."""
    for side, code, language in (
        ("source", document.source_lang, languages[0]),
        ("target", document.target_lang, languages[1]),
    ):
        if code is not None and not fits(code, language):
            yield f"its {side} language is {code}, but that of the model is {language}"


# ---- Lines ----


class _Line:
    """A line of a unit.

    Attributes:
        text: what is translated, in which markup has no line ends.
        has_text: whether there is more than spaces and markup.
    """

    def __init__(self, part: tuple[str, str]) -> None:
        line, end = part
        self._pieces = {piece.translate(_WITHIN_MARKUP): piece for piece in MARKUP.findall(line)}
        text = line.strip()
        self._before, _, after = line.partition(text) if text else (line, "", "")
        self._after = after + end
        self.text = MARKUP.sub(lambda match: match[0].translate(_WITHIN_MARKUP), text)
        self.has_text = bool(MARKUP.sub("", self.text).strip())

    def filled(self, translation: str) -> str:
        """The line with a translation of its text."""
        text = MARKUP.sub(lambda match: self._pieces.get(match[0], match[0]), translation)
        return f"{self._before}{text}{self._after}"


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """The lines of a text and what ends each. Other line ends within markup are a part of it."""
    start = 0
    for match in _LINE_END.finditer(text):
        if match[1]:
            yield text[start : match.start()], match[1]
            start = match.end()
    if start < len(text):
        yield text[start:], ""


def _with_marks(target: str, source: str) -> str | None:
    """A translation of a memory, in which markup is text, with the marks that it has in a document.

    Args:
        source: the line with its marks.

    Returns: None if the two do not have the same markup.
    """
    pieces = Counter(clean(piece) for piece in MARKUP.findall(source))
    if not pieces:
        return target
    longest_first = sorted(pieces, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest_first)))
    if Counter(pattern.findall(target)) != pieces:
        return None
    return pattern.sub(lambda match: f"{MARK_START}{match[0]}{MARK_END}", target)

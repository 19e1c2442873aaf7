"""Documents: files that hold texts to translate among much else, such as PO, XLIFF or HTML.

A document is read as its units, and written with translations in their places. Everything else
stays byte for byte as it was: comments, keys, order, escapes, line ends. Reading runs nothing that
is in a file, and fetches nothing that it names.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from transformer_mt.utils.errors import UserError
from transformer_mt.utils.languages import fits

# What stands around a piece of inline markup in the text of a unit, such as an element of XLIFF.
# They are characters for private use, so text has none; `clean` removes them where it has.
MARK_START, MARK_END = "\ue000", "\ue001"
MARKUP = re.compile(f"{MARK_START}[^{MARK_START}{MARK_END}]*{MARK_END}")
# What a piece shows that ends a line, or a column, such as <br> or a tab of Word.
LINE_BREAK = "\n"

# The codes of a source language and a target language, each None where a file does not name it.
Codes = tuple[str | None, str | None]


@dataclass
class Unit:
    """A text of a document that is translated by itself.

    In `source` and `target`, escapes of the format are resolved (`&amp;` is &), and each piece of
    inline markup is as in the file, between MARK_START and MARK_END. The texts may have line ends,
    and spaces around them. A piece that ends a line is LINE_BREAK.

    Attributes:
        name: where it is, for people: a key, the id of a message, or "line 12".
        source: what to translate.
        target: the translation that the file has; empty if it has none.
        is_done: whether the file has a translation that needs no review, so that the unit is
            translated only if everything is.
    """

    name: str
    source: str
    target: str = ""
    is_done: bool = False


class Document(ABC):
    """A file that was read.

    Attributes:
        units: in the order of the file.
        source_lang, target_lang: the languages that the file names; None if it names none.
        replaces_sources: whether a translation takes the place of its source.
    """

    units: list[Unit]
    replaces_sources: bool = True
    source_lang: str | None = None
    target_lang: str | None = None

    @abstractmethod
    def render(self, translations: Mapping[int, str], made_by: str) -> bytes:
        """The content of the file with translations.

        A translation is marked as one of a machine, as the format has it: fuzzy, or "needs
        review". Without translations, the content is what was read, byte for byte.

        Args:
            translations: of some units, by their places in `units`. Their markup stands between
                MARK_START and MARK_END.
            made_by: what translated, for formats that can tell: the name of a model.
        """


class OtherLanguagesError(UserError):
    """A file has no text of the languages that it is read for."""


def are_of(codes: Codes, languages: Codes) -> bool:
    """Returns whether text with these codes serves as text in two languages."""
    return all(
        code is None or language is None or fits(code, language)
        for code, language in zip(codes, languages, strict=True)
    )


def direction(codes: Codes) -> str:
    """The codes for messages: from en to de."""
    words = zip(("from", "to"), codes, strict=True)
    return " ".join(f"{word} {code}" for word, code in words if code is not None)


def directions(codes: Iterable[Codes]) -> str:
    return ", ".join(sorted(map(direction, codes))[:20])


def require_languages(name: str, found: Iterable[Codes], languages: tuple[str, str]) -> None:
    """
    Args:
        name: of the file, in messages.
        found: the languages of each text in it.

    Raises:
        OtherLanguagesError: there is text, and none of it is in these languages.
    """
    others = list(dict.fromkeys(found))
    if others and not any(are_of(codes, languages) for codes in others):
        raise OtherLanguagesError(
            f"{name}: has no text {direction(languages)}, only {directions(others)}"
        )


def clean(text: str) -> str:
    """Removes the characters that stand around markup from text of a file."""
    return text.replace(MARK_START, "").replace(MARK_END, "")

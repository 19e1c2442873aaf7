"""Terminology: how the terms of a subject are to be translated, and where they are in a text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from transformer_mt.formats import tbx
from transformer_mt.utils.errors import UserError
from transformer_mt.utils.files import lines
from transformer_mt.utils.languages import has_spaces

# The word in a file that marks a translation that must not be used.
FORBIDDEN = "forbidden"
_WORD = re.compile(r"\w+|[^\w\s]")
_CHARACTER = re.compile(r"[A-Za-z0-9_]+|\S")


@dataclass(frozen=True)
class Term:
    """A term and its translation.

    Attributes:
        source: as it is in a text, in its usual case.
        forms: the forms of the translation, of which a text must have one; the usual one first.
        is_forbidden: whether a text must have none of them.
    """

    source: str
    forms: tuple[str, ...]
    is_forbidden: bool = False


class Occurrence(NamedTuple):
    """A term in a text, and its place there."""

    start: int
    end: int
    term: Term


class Terms:
    """A list of terms for a source language. A later entry for the same term replaces those before
    it, unless only one of them is forbidden.

    A term without capital letters is found in any case, as at the start of a sentence; any other
    is found as it is written. Terms are whole words, and of two that overlap, the one that begins
    first counts, and then the longer one.
    """

    def __init__(self, terms: Iterable[Term], source_lang: str) -> None:
        self._pattern = _WORD if has_spaces(source_lang) else _CHARACTER
        # The terms by the words of their sources: {"main": {"window": {None: ...}}}
        self._tree: dict[Any, Any] = {}
        for term in terms:
            node = self._tree
            for word, _, _ in self._words(term.source):
                node = node.setdefault(word.casefold(), {})
            own = node.setdefault(None, {})
            own[term.source, term.is_forbidden] = term

    def find(self, text: str) -> list[Occurrence]:
        """The terms in a text, in order."""
        words = list(self._words(text))
        found: list[Occurrence] = []
        first = 0
        while first < len(words):
            node, longest, end = self._tree, [], first
            for place in range(first, len(words)):
                node = node.get(words[place][0].casefold())
                if node is None:
                    break
                start, stop = words[first][1], words[place][2]
                terms = [own for own in node.get(None, {}).values() if _fits(own, text[start:stop])]
                if terms:
                    longest, end = [Occurrence(start, stop, term) for term in terms], place
            found += longest
            first = end + 1
        return found

    def _words(self, text: str) -> Iterator[tuple[str, int, int]]:
        return ((match[0], *match.span()) for match in self._pattern.finditer(text))


def _fits(term: Term, text: str) -> bool:
    return term.source == term.source.lower() or "".join(term.source.split()) == "".join(
        text.split()
    )


def read(path: Path, languages: tuple[str, str]) -> list[Term]:
    """Reads a list of terms: a file in TBX, or lines of columns with tabs between them. The first
    column is the term, the second its translation, and others are further forms of that. If the
    last column is "forbidden", the translation must not be used. Lines that are blank or begin with
    # mean nothing.

    Raises:
        UsageError: there is no such file.
        UserError: a line has no translation, or the file is no TBX.
    """
    if path.suffix.lower() == ".tbx":
        return [
            Term(source, tuple(forms), forbidden)
            for source, forms, forbidden in tbx.terms(path, languages)
        ]
    terms = []
    for number, line in enumerate(lines(path), 1):
        if line.strip() and not line.startswith("#"):
            try:
                terms.append(parse(line.split("\t")))
            except ValueError as error:
                raise UserError(f"{path}, line {number}: {error}") from None
    return terms


def parse(columns: Iterable[str]) -> Term:
    """Makes a term of the columns of a line (see `read`).

    Raises:
        ValueError: there is no term or no translation.
    """
    source, *forms = (text.strip() for text in columns)
    is_forbidden = len(forms) > 1 and forms[-1] == FORBIDDEN
    forms = [form for form in dict.fromkeys(forms[: len(forms) - is_forbidden]) if form]
    if not source or not forms:
        raise ValueError("expected a term and its translation, with a tab between them")
    return Term(source, tuple(forms), is_forbidden)


def has_form(term: Term, text: str, target_lang: str) -> bool:
    """Returns whether a text has one of the forms of a term, as words and in any case."""
    folded = text.casefold()
    edge = r"\b" if has_spaces(target_lang) else ""
    return any(
        re.search(
            f"{edge if form[0].isalnum() else ''}{re.escape(form.casefold())}"
            f"{edge if form[-1].isalnum() else ''}",
            folded,
        )
        for form in term.forms
    )

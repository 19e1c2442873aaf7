"""The translations of terms, written beside them into the source: `The cell⟦=⟧ Zelle⟦/⟧ is empty.`

A model that was trained on such text uses the translations that it is given, in the form that its
sentence needs (Dinu et al. 2019, arXiv 1906.01105, section 3, "append"). Training needs no list of
terms for this: it finds words that belong together in the training text itself. A word may have
several translations there, of which a pair is given the one that its target has. If the model knew
it anyway, it would not learn to copy what is between the two symbols. Where the target has another
form of a translation, the source is given the usual one, so that the model learns to inflect it
(Bergmanis and Pinnis 2021, arXiv 2101.10035, section 3, with lemmas).
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from transformer_mt.data.spans import END_OF_TRANSLATION, SYMBOL, TRANSLATED_BY
from transformer_mt.data.subword import Subwords
from transformer_mt.data.term_extraction import extracted
from transformer_mt.data.terms import Term, Terms, has_form
from transformer_mt.utils.languages import has_spaces

# Words belong together if they are in so many lines, with this coefficient of Dice.
LEAST_LINES = 5
LEAST_DICE = 0.2
# Two words are forms of one word if their common beginning has so many letters, and this share of
# the longer one. Lemmas would need a program for each language.
LEAST_COMMON = 4
LEAST_COMMON_SHARE = 0.6
_WORD = re.compile(r"\w+")


def annotated(text: str, found: Iterable[tuple[int, str]], target_lang: str) -> str:
    """A text with translations behind some of its words.

    Args:
        found: where each of the words ends, in order, and the translation.
    """
    # A space begins the translation, as one begins its first word in a target text.
    space = " " if has_spaces(target_lang) else ""
    done, parts = 0, []
    for end, translation in found:
        parts += [text[done:end], TRANSLATED_BY, space, translation, END_OF_TRANSLATION]
        done = end
    return "".join([*parts, text[done:]])


def outside_annotations(ids: list[int], subwords: Subwords) -> list[int]:
    """The places of those ids of a source that belong to its text."""
    symbols = subwords.source.user_symbols
    begin, end = symbols.get(TRANSLATED_BY), symbols.get(END_OF_TRANSLATION)
    if begin is None:
        return list(range(len(ids)))
    places, is_inside = [], False
    for place, i in enumerate(ids):
        is_inside = is_inside or i == begin
        if not is_inside:
            places.append(place)
        is_inside = is_inside and i != end
    return places


def learnable_terms(
    pairs: Iterable[tuple[str, str]], languages: tuple[str, str]
) -> tuple[tuple[str, str], ...]:
    """Words of a text that belong together, with which its pairs can be annotated."""
    found = extracted(
        pairs, languages, least_lines=LEAST_LINES, least_dice=LEAST_DICE, are_unique=False
    )
    return tuple(found)


@dataclass(frozen=True)
class Annotations:
    """Annotates a share of the pairs. What becomes of a pair follows from its text alone.

    Attributes:
        share: of the pairs that are annotated, if they have terms.
        terms: the terms and their translations, the most certain ones first. A term may have
            several.
        languages: the source language and the target language.
        ignored: texts in which nothing is annotated, such as the tags of `data.train`.
    """

    share: float
    terms: tuple[tuple[str, str], ...]
    languages: tuple[str, str]
    ignored: tuple[str, ...] = ()

    def applied(self, source: str, target: str) -> str:
        """The source of a pair as it is trained on. Of the terms whose translations are in the
        target, the least certain one is annotated, and about half of the others."""
        draw = random.Random(zlib.crc32(f"{target}\n{source}".encode("utf-8", "replace")))
        if draw.random() >= self.share:
            return source
        kept = [match.span() for match in self._kept.finditer(source)]
        found = [
            (self._ranks[own.term.source, translation], own.end, translation)
            for own in self._terms.find(source)
            if not any(own.start < end and own.end > at for at, end in kept)
            and (translation := self._used(own.term, target))
        ]
        if not found:
            return source
        least_certain = max(found)
        chosen = [own[1:] for own in found if own == least_certain or draw.random() < 0.5]
        return annotated(source, chosen, self.languages[1])

    def _used(self, term: Term, target: str) -> str | None:
        """The most certain translation of a term that a target has, perhaps in another form."""
        words = _WORD.findall(target.casefold())
        for form in term.forms:
            if has_form(Term(term.source, (form,)), target, self.languages[1]):
                return form
            wanted = _WORD.findall(form.casefold())
            places = range(len(words) - len(wanted) + 1 if has_spaces(self.languages[1]) else 0)
            if any(all(map(_are_forms, wanted, words[at : at + len(wanted)])) for at in places):
                return form
        return None

    @cached_property
    def _ranks(self) -> dict[tuple[str, str], int]:
        """The places of the terms in the list."""
        return {pair: rank for rank, pair in enumerate(self.terms)}

    @cached_property
    def _terms(self) -> Terms:
        translations: dict[str, list[str]] = {}
        for source, target in self.terms:
            translations.setdefault(source, []).append(target)
        terms = (Term(source, tuple(forms)) for source, forms in translations.items())
        return Terms(terms, self.languages[0])

    @cached_property
    def _kept(self) -> re.Pattern[str]:
        return re.compile("|".join([SYMBOL.pattern, *map(re.escape, self.ignored)]))


def _are_forms(word: str, other: str) -> bool:
    """Whether two words in lower case may be forms of one word."""
    longest = max(len(word), len(other))
    common = next(
        (n for n, (a, b) in enumerate(zip(word, other, strict=False)) if a != b),
        min(len(word), len(other)),
    )
    return word == other or (common >= LEAST_COMMON and common >= LEAST_COMMON_SHARE * longest)

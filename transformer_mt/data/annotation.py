"""The translations of terms, written beside them into the source: `The cell⟦=⟧ Zelle⟦/⟧ is empty.`

A model that was trained on such text uses the translations that it is given, in the form that its
sentence needs (Dinu et al. 2019, arXiv 1906.01105, section 3, "append"). Training needs no list of
terms for this: it finds words that belong together in the training text itself. Which words these
are matters little, since the model learns to copy what is between the two symbols. Where the target
has another form of the usual translation, the source is given the usual one, so that the model
learns to inflect it (Bergmanis and Pinnis 2021, arXiv 2101.10035, section 3, with lemmas).
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
from transformer_mt.data.terms import Occurrence, Term, Terms, has_form
from transformer_mt.utils.languages import has_spaces

# Words belong together if they are in so many lines, with this coefficient of Dice.
LEAST_LINES = 5
LEAST_DICE = 0.5
# Two words are forms of one word if their common beginning has so many letters, and this share of
# the longer one. Lemmas would need a program for each language.
LEAST_COMMON = 4
LEAST_COMMON_SHARE = 0.6
_WORD = re.compile(r"\w+")


def annotated(text: str, found: Iterable[Occurrence], target_lang: str) -> str:
    """A text with the usual translation behind each of its terms."""
    # A space begins the translation, as one begins its first word in a target text.
    space = " " if has_spaces(target_lang) else ""
    done, parts = 0, []
    for _, end, term in found:
        parts += [text[done:end], TRANSLATED_BY, space, term.forms[0], END_OF_TRANSLATION]
        done = end
    return "".join([*parts, text[done:]])


def reads_annotations(subwords: Subwords) -> bool:
    """Returns whether the symbols are subwords of the source."""
    return TRANSLATED_BY in subwords.source.user_symbols


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
    found = extracted(pairs, languages, least_lines=LEAST_LINES, least_dice=LEAST_DICE)
    return tuple(found)


@dataclass(frozen=True)
class Annotations:
    """Annotates a share of the pairs. What becomes of a pair follows from its text alone.

    Attributes:
        share: of the pairs that are annotated, if they have terms.
        terms: the terms and their usual translations.
        languages: the source language and the target language.
        ignored: texts in which nothing is annotated, such as the tags of `data.train`.
    """

    share: float
    terms: tuple[tuple[str, str], ...]
    languages: tuple[str, str]
    ignored: tuple[str, ...] = ()

    def applied(self, source: str, target: str) -> str:
        """The source of a pair as it is trained on: about half of those terms are annotated whose
        translation is in the target, and at least one."""
        draw = random.Random(zlib.crc32(f"{target}\n{source}".encode("utf-8", "replace")))
        if draw.random() >= self.share:
            return source
        found = [own for own in self._terms.find(source) if self._is_used(own.term, target)]
        kept = [match.span() for match in self._kept.finditer(source)]
        found = [
            own for own in found if not any(own.start < end and own.end > at for at, end in kept)
        ]
        if not found:
            return source
        sure = draw.randrange(len(found))
        chosen = [own for n, own in enumerate(found) if n == sure or draw.random() < 0.5]
        return annotated(source, chosen, self.languages[1])

    def _is_used(self, term: Term, target: str) -> bool:
        """Whether a target has the translation of a term, or another form of it."""
        if has_form(term, target, self.languages[1]):
            return True
        if not has_spaces(self.languages[1]):
            return False
        words = _WORD.findall(target.casefold())
        wanted = _WORD.findall(term.forms[0].casefold())
        places = range(len(words) - len(wanted) + 1)
        return any(
            all(map(_are_forms, wanted, words[place : place + len(wanted)])) for place in places
        )

    @cached_property
    def _terms(self) -> Terms:
        terms = (Term(source, (target,)) for source, target in self.terms)
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

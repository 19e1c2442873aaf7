"""How well translations follow a list of terms.

Each term that the source of a line has counts once for this line, however often it occurs there, as
the translation may well name it once and then write a pronoun. (The search, too, asks for it once.)
It is right if the translation has one of its forms: exactly, as words in any case, or by stem, if
the words may have other endings. Stems are those of Snowball (https://snowballstem.org). Languages
that it does not know, and languages without spaces between words, have only exact forms.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
from sacrebleu.metrics.base import Metric, Score, Signature

from transformer_mt.data.terms import Term, Terms, has_form
from transformer_mt.scoring.metrics import Scores, corpus_score
from transformer_mt.utils.errors import UsageError, UserError, describe
from transformer_mt.utils.languages import primary

# Snowball's names of languages. Those are left out whose letters have marks that are characters of
# their own, as in Hindi, Tamil and Yiddish, because `_WORD` would end before such a mark.
STEMMERS = {
    **{"ar": "arabic", "ca": "catalan", "cs": "czech", "da": "danish", "de": "german"},
    **{"el": "greek", "en": "english", "eo": "esperanto", "es": "spanish", "et": "estonian"},
    **{"eu": "basque", "fa": "persian", "fi": "finnish", "fr": "french", "ga": "irish"},
    **{"hu": "hungarian", "hy": "armenian", "id": "indonesian", "it": "italian"},
    **{"lt": "lithuanian", "nl": "dutch", "pl": "polish", "pt": "portuguese", "ro": "romanian"},
    **{"ru": "russian", "sr": "serbian", "st": "sesotho", "sv": "swedish", "tr": "turkish"},
    **dict.fromkeys(("no", "nb", "nn"), "norwegian"),
}
_WORD = re.compile(r"\w+")


class Counts(NamedTuple):
    """What is found in a line, or in all lines.

    Attributes:
        terms: those of the source that have a translation to use.
        exact: how many of these have one of their forms in the translation.
        by_stem: how many have one by stem; without stems, as `exact`.
        forbidden: the terms of the source whose forbidden translation is there nevertheless.
    """

    terms: int
    exact: int
    by_stem: int
    forbidden: int


class TermChecker:
    """Checks translations by a list of terms.

    Args:
        terms: the list.
        languages: the source language and the target language; "" is any language with spaces
            between words.

    Raises:
        UsageError: the package with the stems of the target language is missing.
    """

    def __init__(self, terms: Iterable[Term], languages: tuple[str, str]) -> None:
        source_lang, self._target_lang = languages
        self._terms = Terms(terms, source_lang)
        self._algorithm = STEMMERS.get(primary(self._target_lang))
        self._stemmer = _stemmer(self._algorithm) if self._algorithm else None
        # Each metric asks for the same lines, and so does each paired test.
        self.counts = cache(self._counts)
        self._stemmed_term = cache(
            lambda term: replace(term, forms=tuple(map(self._stemmed, term.forms)))
        )

    def _counts(self, source: str, hypothesis: str) -> Counts:
        """What a line has."""
        found = dict.fromkeys(own.term for own in self._terms.find(source))
        stems = self._stemmed(hypothesis) if found and self._stemmer else ""
        terms = exact = by_stem = forbidden = 0
        for term in found:
            is_exact = has_form(term, hypothesis, self._target_lang)
            if term.is_forbidden:
                forbidden += is_exact
                continue
            terms += 1
            exact += is_exact
            by_stem += is_exact or bool(
                stems and has_form(self._stemmed_term(term), stems, self._target_lang)
            )
        return Counts(terms, exact, by_stem, forbidden)

    def _stemmed(self, text: str) -> str:
        """A text whose words are replaced by their stems."""
        return _WORD.sub(lambda word: self._stemmer.stemWord(word[0]) or word[0], text.lower())

    def metrics(self) -> dict[str, TermAccuracy]:
        """The accuracies, by their keys in `metrics.OPTIONAL`."""
        found = {"terms": TermAccuracy(self, "exact")}
        if self._stemmer:
            stemmer = f"snowball-{self._algorithm}-{version('snowballstemmer')}"
            found["terms_by_stem"] = TermAccuracy(self, "by_stem", stemmer)
        return found

    def scores(self, sources: list[str], hypotheses: list[str]) -> TermScores:
        """Scores the translations of a system. See `require_terms`."""
        lines = [self.counts(*pair) for pair in zip(sources, hypotheses, strict=True)]
        values, signatures, intervals = {}, {}, {}
        for key, metric in self.metrics().items():
            result, signatures[key], intervals[key] = corpus_score(
                metric, hypotheses, [sources], confidence=True
            )
            values[key] = float(result.score)
        accuracies = Scores(values, signatures, None, len(lines), intervals=intervals)
        return TermScores(accuracies, lines)

    def require_terms(self, sources: Iterable[str]) -> None:
        """
        Raises:
            UserError: no term that has a translation to use is in the sources.
        """
        if not any(
            not own.term.is_forbidden for source in sources for own in self._terms.find(source)
        ):
            raise UserError(
                "none of the terms is in the source. Give a list for this text, whose first column "
                "is in the language of the source"
            )


def _stemmer(algorithm: str) -> Any:
    """
    Raises:
        UsageError: the package is missing.
    """
    try:
        return import_module("snowballstemmer").stemmer(algorithm)
    except ModuleNotFoundError as error:
        raise UsageError(f"terms are also counted by stem: {describe(error)}") from None


@dataclass(frozen=True)
class TermScores:
    """How well a system follows a list of terms.

    Attributes:
        accuracies: the shares of terms that are right, in per cent and with 95 % intervals: "terms"
            and, if the target language has stems, "terms_by_stem".
        by_line: the counts of each line.
    """

    accuracies: Scores
    by_line: list[Counts]

    @property
    def total(self) -> Counts:
        """The counts of all lines."""
        return Counts(*map(sum, zip(*self.by_line, strict=True)))

    @property
    def lines(self) -> int:
        """The number of lines that have terms."""
        return sum(own.terms > 0 for own in self.by_line)

    @property
    def _has_stems(self) -> bool:
        return "terms_by_stem" in self.accuracies.values

    def columns(self) -> dict[str, Sequence[float]]:
        """The counts of each line, by the names of columns."""
        columns = dict(zip(Counts._fields, zip(*self.by_line, strict=True), strict=True))
        if not self._has_stems:
            del columns["by_stem"]
        return {name if name == "terms" else f"terms_{name}": own for name, own in columns.items()}

    def note(self) -> str:
        """Returns what the labels of `metrics.OPTIONAL` mean."""
        of_terms = f"{self.total.terms:,} terms in {self.lines:,} lines"
        text = f"Terms is how many of {of_terms} a translation has exactly, in per cent"
        return text + (
            "; Stems is how many it has by the stems of their words." if self._has_stems else "."
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns everything for JSON."""
        counts = self.total._asdict()
        if not self._has_stems:
            del counts["by_stem"]
        return {
            **counts,
            "lines": self.lines,
            "accuracies": self.accuracies.by_key(),
            "intervals": {key: list(ends) for key, ends in self.accuracies.intervals.items()},
        }

    def __str__(self) -> str:
        total, shown = self.total, self.accuracies.shown
        text = f"terms: {shown('terms')} % exact"
        if self._has_stems:
            text += f", {shown('terms_by_stem')} % by stem"
        forbidden = f"; {total.forbidden:,} forbidden" if total.forbidden else ""
        text += f" ({total.exact:,} of {total.terms:,} in {self.lines:,} lines{forbidden})"
        return text


class TermAccuracy(Metric):
    """The share of terms that are right, as a metric of sacreBLEU, whose bootstrap and paired tests
    can then compute with it. The sources take the place of the references.

    Args:
        checker: counts the terms.
        match: the field of `Counts` that is divided by the number of terms.
        stemmer: what stems are made by, for the signature.
    """

    def __init__(self, checker: TermChecker, match: str, stemmer: str | None = None) -> None:
        super().__init__()
        self._checker = checker
        self._match = match
        self._stemmer = stemmer

    def get_signature(self) -> Signature:
        signature = Signature(vars(self))
        del signature.info["nrefs"]  # there are none
        signature.update("match", self._match)
        signature.update("stemmer", self._stemmer)
        return signature

    def _preprocess_segment(self, sent: str) -> str:
        return sent

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, str]:
        return {"source": refs[0]}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict) -> list[int]:
        counts = self._checker.counts(ref_kwargs["source"], hypothesis)
        return [getattr(counts, self._match), counts.terms]

    def _aggregate_and_compute(self, stats: Any) -> Score:
        return self._compute_score_from_stats(np.sum(stats, axis=0))

    def _compute_score_from_stats(self, stats: Any) -> Score:
        right, terms = map(float, stats)
        # A resample of a text with few terms may have none.
        return Score("terms", 100 * right / terms if terms else 0.0)

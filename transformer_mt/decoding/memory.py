"""Translation memories: translations by people that are taken before a model is asked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from transformer_mt.formats import registry
from transformer_mt.utils.console import warn
from transformer_mt.utils.errors import UsageError

EXACT, FUZZY = "exact", "fuzzy"


class Found(NamedTuple):
    """An entry of a memory that is like a text.

    Attributes:
        score: in percent: 100 times the share of the longer one of both texts that is equal, which
            is 1 minus the edit distance (Levenshtein 1966) by its length in characters.
        source, target: the entry.
    """

    score: float
    source: str
    target: str
    is_exact: bool

    @property
    def kind(self) -> str:
        return EXACT if self.is_exact else FUZZY


class Memory:
    """Pairs of a source and its translation. Spaces around a text do not count. If a source has
    several translations, the last one counts, because programs append what is newer.

    Args:
        pairs: all entries.
        fuzzy: the least score of an entry that is found though it is not equal to a text; None:
            only equal ones are found.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]], fuzzy: float | None = None) -> None:
        self._targets: dict[str, str] = {}
        self._fuzzy = fuzzy
        if fuzzy is not None:
            _rapidfuzz()  # Without it, nothing is read.
        digest = hashlib.sha256()
        for source, target in pairs:
            source, target = source.strip(), target.strip()
            digest.update(f"{source}\n{target}\n".encode("utf-8", "replace"))
            if source and target:
                self._targets[source] = target
        self.sha256 = digest.hexdigest()

    @classmethod
    def read(
        cls, paths: Iterable[Path], languages: tuple[str, str], fuzzy: float | None = None
    ) -> Memory:
        """Reads the pairs of files, see `formats.registry.pairs`. Those of later files count before
        those of earlier ones.

        Raises:
            UsageError: a file is not one of pairs; or `fuzzy` needs a package.
            UserError: a file breaks a rule of its format.
        """
        return cls(_pairs(paths, languages), fuzzy)

    def find(self, text: str) -> Found | None:
        """The entry of a text, or else the one that is most like it, if it is like enough."""
        text = text.strip()
        if text in self._targets:
            return Found(100.0, text, self._targets[text], True)
        if self._fuzzy is None or not text:
            return None
        best = _rapidfuzz().process.extractOne(
            text,
            self._sources,
            scorer=_rapidfuzz().distance.Levenshtein.normalized_similarity,
            score_cutoff=self._fuzzy / 100,
        )
        if best is None:
            return None
        source, share, _ = best
        return Found(100 * share, source, self._targets[source], False)

    @cached_property
    def _sources(self) -> list[str]:
        return list(self._targets)


def _pairs(paths: Iterable[Path], languages: tuple[str, str]) -> Iterator[tuple[str, str]]:
    for path in paths:
        is_empty = True
        for pair in registry.pairs(path, languages):
            is_empty = False
            yield pair
        if is_empty:
            warn(f"{path} has no finished translations from {' to '.join(languages)}")


def _rapidfuzz():
    try:
        import rapidfuzz
        import rapidfuzz.distance
        import rapidfuzz.process
    except ImportError:
        raise UsageError(
            "fuzzy matches need the package rapidfuzz. Install it with: "
            "python -m pip install rapidfuzz"
        ) from None
    return rapidfuzz

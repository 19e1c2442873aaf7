"""Noise of the kinds that people type: pairs of the training text in UPPER CASE, In Title Case, in
lower case, without a final stop, or with typing errors.

Belinkov and Bisk 2018 (arXiv 1711.02173, section 5) train on such noise, so that a model translates
text that has it nearly as well as text without.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from transformer_mt.data.spans import SYMBOL

KINDS = ("upper case", "title case", "lower case", "no final stop", "typing errors")
# A typing error changes one of this many words, and at least one.
WORDS_PER_ERROR = 8
_WORD = re.compile(r"[^\W\d_]{4,}")
_FIRST_LETTER = re.compile(r"\b[^\W\d_]")
_FINAL_STOP = re.compile(r"[.。]\s*$")


@dataclass(frozen=True)
class InputNoise:
    """Changes a share of the pairs. What becomes of a pair follows from its text alone.

    Attributes:
        share: of the pairs that are changed.
        ignored: texts that are never changed, such as the tags of `data.train`.
    """

    share: float
    ignored: tuple[str, ...] = ()

    def applied(self, source: str, target: str) -> tuple[str, str]:
        """A pair as it is trained on."""
        draw = random.Random(zlib.crc32(f"{source}\n{target}".encode("utf-8", "replace")))
        if draw.random() >= self.share:
            return source, target
        return changed(draw.choice(KINDS), source, target, draw, self._kept)

    @cached_property
    def _kept(self) -> re.Pattern[str]:
        return re.compile(f"({'|'.join([SYMBOL.pattern, *map(re.escape, self.ignored)])})")


def changed(
    kind: str, source: str, target: str, draw: random.Random, kept: re.Pattern[str] | None = None
) -> tuple[str, str]:
    """A pair with noise of one of the KINDS.

    Args:
        draw: the random numbers of typing errors.
        kept: what is never changed, as a group of a pattern.
    """

    def everywhere(text: str, change: Callable[[str], str]) -> str:
        parts = [text] if kept is None else kept.split(text)
        parts[::2] = map(change, parts[::2])
        return "".join(parts)

    if kind == "upper case":
        return everywhere(source, str.upper), everywhere(target, str.upper)
    if kind == "no final stop":
        return _FINAL_STOP.sub("", source), _FINAL_STOP.sub("", target)
    changes: dict[str, Callable[[str], str]] = {
        "title case": lambda text: _FIRST_LETTER.sub(lambda match: match[0].upper(), text),
        "lower case": str.lower,
        "typing errors": lambda text: _mistyped(text, draw),
    }
    return everywhere(source, changes[kind]), target


def _mistyped(text: str, draw: random.Random) -> str:
    """A text with typing errors: letters that change places, are doubled or are left out."""
    places = [match.span() for match in _WORD.finditer(text)]
    count = min(len(places), max(1, len(places) // WORDS_PER_ERROR))
    # From the end, so that the places before it stay right.
    for start, end in sorted(draw.sample(places, count), reverse=True):
        at = draw.randrange(start + 1, end - 1)
        pair = text[at : at + 2]
        text = text[:at] + draw.choice([pair[::-1], pair[0] + pair, pair[1]]) + text[at + 2 :]
    return text

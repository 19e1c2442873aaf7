"""The search for a good length penalty and beam size, over any function that scores a setting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from transformer_mt.config.decoding import DecodingConfig

Kind = Literal["gnmt", "average"]
# The exponents that are tried first. 0 is no penalty, which is the same for both kinds.
COARSE: dict[Kind, tuple[float, ...]] = {
    "gnmt": (0.0, 0.5, 1.0, 1.5, 2.0),
    "average": (0.5, 1.0, 1.5),
}
# The distance of the finer exponents from the best one.
FINE = 0.25
BEAM_SIZES = (1, 2, 4, 5, 8, 12)
# Scores that are equal to this number of digits count as equal.
DIGITS = 2


@dataclass(frozen=True)
class Setting:
    """A length penalty and a beam size."""

    kind: Kind
    penalty: float
    beam_size: int

    @classmethod
    def of(cls, decoding: DecodingConfig) -> Setting:
        kind, penalty = decoding.length_penalty_kind, decoding.length_penalty
        # Without a penalty the kind makes no difference, and no setting is searched twice.
        return cls(kind if penalty else "gnmt", penalty, decoding.beam_size)

    def as_keys(self) -> dict[str, Any]:
        """Returns the keys of the config's section `decoding`."""
        return {
            "length_penalty_kind": self.kind,
            "length_penalty": self.penalty,
            "beam_size": self.beam_size,
        }


def tune(
    own: Setting, n_best: int, score: Callable[[Setting], float], start: Callable[[int], object]
) -> Setting:
    """Returns the best setting of a search by coordinates: first the penalty, from coarse to fine,
    with the beam size of `own`, and then the beam size with the best penalty.

    Of settings with equal scores, the one with the smaller beam is the best, because it is faster;
    then `own`; then the one that was tried first.

    Args:
        own: the setting of the recipe, which is tried first.
        n_best: the smallest beam size, because no output may have more hypotheses than the beam.
        score: is called once for each setting that is tried. Higher is better.
        start: is called with the greatest number of settings that may be tried in all, whenever
            it is known better.
    """
    scores: dict[Setting, float] = {}

    def best() -> Setting:
        # `min` returns the first one of several, and `own` is the first one of all.
        return min(scores, key=lambda one: (-scores[one], one.beam_size))

    def try_all(settings: list[Setting], later: int) -> None:
        new = [setting for setting in dict.fromkeys(settings) if setting not in scores]
        start(len(scores) + len(new) + later)
        for setting in new:
            scores[setting] = round(score(setting), DIGITS)

    coarse = [
        Setting(kind, penalty, own.beam_size)
        for kind, penalties in COARSE.items()
        for penalty in penalties
    ]
    beams = [size for size in BEAM_SIZES if size >= n_best and size != own.beam_size]
    try_all([own, *coarse], 2 + len(beams))
    found = best()
    kinds: tuple[Kind, ...] = (found.kind,) if found.penalty else ("gnmt", "average")
    fine = [
        Setting(kind, found.penalty + step, own.beam_size)
        for kind in kinds
        for step in (-FINE, FINE)
        if 0 <= found.penalty + step <= 10  # the greatest value that the config takes
    ]
    fine = [setting if setting.penalty else replace(setting, kind="gnmt") for setting in fine]
    try_all(fine, len(beams))
    found = best()
    try_all([replace(found, beam_size=size) for size in beams], 0)
    return best()

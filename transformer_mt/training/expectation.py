"""Which BLEU a training could reach: what models of this project have on texts of such a size."""

import math
from typing import NamedTuple


class Measured(NamedTuple):
    """A score of a test set that was measured with a recipe of this project on two CPU cores.

    docs/results.md and docs/localisation.md have the commands.
    """

    pairs: int
    text: str
    bleu: float


MEASURED = [
    Measured(24_270, "short sentences zh–en", 31.3),
    Measured(29_000, "captions en–de", 40.3),
    Measured(51_506, "interface texts en–de", 37.5),
    Measured(161_826, "short sentences de–en", 54.0),
]
# With fewer pairs than this, a model learns phrases at most. Nothing was measured for a text that
# is larger than the largest one by more than this factor.
LEAST_PAIRS = 10_000
FACTOR = 3


def expectation(pairs: int, epochs: float) -> str:
    """Returns what one could expect of a model that is trained from the beginning: the scores of
    the two texts whose sizes are nearest.

    Args:
        pairs: how many there are.
        epochs: how often training sees them.
    """
    if pairs < LEAST_PAIRS:
        return f"little: fewer than {LEAST_PAIRS:,} pairs are rarely enough for translations of use"
    if pairs > FACTOR * MEASURED[-1].pairs:
        return (
            "nothing was measured here for so much text; see docs/results.md for published scores"
        )
    nearest = sorted(MEASURED, key=lambda row: abs(math.log(row.pairs / pairs)))[:2]
    scores = ", ".join(
        f"{row.bleu:.0f} BLEU with {row.pairs:,} pairs of {row.text}" for row in nearest
    )
    seen = f"seen 10 to 55 times; here, {epochs:.1f} times"
    return f"{scores}, {seen}. Longer or more varied text gives less"

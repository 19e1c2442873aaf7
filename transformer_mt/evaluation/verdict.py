"""The result of a comparison in plain sentences.

A p-value of 0.05 or more never becomes "the systems are equal": it says that this test set cannot
tell them apart.
"""

from collections.abc import Sequence
from typing import NamedTuple

from transformer_mt.evaluation.paired_tests import POWER, SIGNIFICANCE, Difference

# Estimates above this are not given as a number: nobody has such a test set.
MOST_LINES = 1_000_000
# A test set with fewer lines than this gets a note.
FEW_LINES = 100
# If fewer lines than this differ, the number of lines that it would take is not estimated.
FEW_CHANGES = 10


class Verdict(NamedTuple):
    """The result for one system.

    Attributes:
        outcome: "better" or "worse" than the baseline, "unknown", or "identical", by the first
            metric.
        sentence: of the first metric.
        others: a sentence for each further metric: whether it agrees.
    """

    outcome: str
    sentence: str
    others: list[str]

    def __str__(self) -> str:
        return " ".join([self.sentence, *self.others])


def verdict(
    system: str,
    baseline: str,
    differences: Sequence[tuple[str, Difference]],
    lines: int,
    is_identical: bool,
) -> Verdict:
    """Says whether a system is better than the baseline.

    Args:
        system, baseline: their names.
        differences: of each metric, its label and the difference in it. The first one decides.
        lines: the size of the test set.
        is_identical: whether the two systems have the same translations.
    """
    if is_identical:
        sentence = (
            f"{system} and {baseline} are identical: all {lines:,} translations are the same, so "
            "there is nothing to test."
        )
        return Verdict("identical", sentence, [])
    (label, first), *rest = differences
    others = [_other(system, first, name, difference) for name, difference in rest]
    if any(_contradicts(first, difference) for _, difference in rest):
        others.append(
            "The metrics disagree, so read the translations that differ before you decide."
        )
    if first.is_significant:
        outcome = _comparative(first)
        sentence = (
            f"{system} is {outcome} than {baseline} by {_size(first)} {label}; that is unlikely to "
            f"be chance ({p_text(first.p)})."
        )
        return Verdict(outcome, sentence, others)
    return Verdict("unknown", _undecided(system, baseline, label, first, lines), others)


def _undecided(system: str, baseline: str, label: str, first: Difference, lines: int) -> str:
    if not first.value:
        return (
            f"{system} and {baseline} have the same {label}, but not the same translations. That "
            "does not show that they are equally good; read where they differ."
        )
    side = "ahead" if first.gain > 0 else "behind"
    start = (
        f"The test set is too small to tell whether {system} or {baseline} is better: {system} is "
        f"{side} by {_size(first)} {label}, but that may be chance ({p_text(first.p)})."
    )
    needed = first.lines_needed
    if needed is None or needed <= lines or first.changed < FEW_CHANGES:
        return (
            f"{start} Only {first.changed:,} of its {lines:,} lines differ in {label}, which are "
            "too few for an estimate of how many lines it would take."
        )
    if needed > MOST_LINES:
        return (
            f"{start} A difference as small as this one would take more than {MOST_LINES:,} lines."
        )
    return (
        f"{start} If the difference really is that large, it would take about {needed:,} lines to "
        f"show it ({100 * POWER:.0f} % of test sets of that size would). There are {lines:,}."
    )


def _other(system: str, first: Difference, label: str, other: Difference) -> str:
    """Whether a further metric agrees with the first one."""
    shown = f"({other.value:+.2f}, {p_text(other.p)})"
    if _contradicts(first, other):
        return f"By {label}, {system} is {_comparative(other)} {shown}."
    if other.is_significant:
        return f"{label} agrees {shown}."
    if first.is_significant:
        return f"{label} does not confirm it {shown}."
    return f"{label} cannot tell either {shown}."


def _contradicts(first: Difference, other: Difference) -> bool:
    """Whether another metric finds a difference where the first one finds none, or the opposite
    one."""
    return other.is_significant and (not first.is_significant or first.gain * other.gain < 0)


def _comparative(difference: Difference) -> str:
    return "better" if difference.gain > 0 else "worse"


def _size(difference: Difference) -> str:
    """The size of a difference, as 0.8; a small one with its first two digits, as 0.043."""
    size = abs(difference.value)
    return f"{size:.1f}" if size >= 0.095 else f"{size:.2g}"


def p_text(p: float) -> str:
    """A p-value in a sentence, as "p = 0.003"."""
    return "p < 0.001" if p < 0.001 else f"p = {p_number(p)}"


def p_number(p: float) -> str:
    """A p-value with three digits after the point, or more where three would hide on which side of
    SIGNIFICANCE it is; "<0.001" for smaller ones."""
    if p < 0.001:
        return "<0.001"
    texts = (f"{p:.{digits}f}" for digits in range(3, 9))
    return next((t for t in texts if (float(t) < SIGNIFICANCE) == (p < SIGNIFICANCE)), str(p))


def caveats(systems: int, lines: int) -> list[str]:
    """What a reader of the verdicts has to know besides: many comparisons, a small test set.

    Args:
        systems: the number of systems that are compared with the baseline.
        lines: the size of the test set.
    """
    notes = []
    if systems > 1:
        chance = 1 - (1 - SIGNIFICANCE) ** systems
        notes.append(
            f"{systems} systems are compared with the baseline. Each comparison finds a difference "
            f"by chance in up to {100 * SIGNIFICANCE:.0f} % of cases, so at least one of {systems} "
            f"does in up to {100 * chance:.0f} %. To be as sure as with one comparison, believe "
            f"only p-values below {SIGNIFICANCE / systems:.2g} ({SIGNIFICANCE} / {systems})."
        )
    if lines < FEW_LINES:
        notes.append(
            f"There are only {lines:,} lines. Below about {FEW_LINES}, the intervals and p-values "
            "themselves are rough."
        )
    return notes

"""Whether systems differ by more than chance: sacreBLEU's paired tests, intervals, and how many
lines a test set needs.

The first system is the baseline, with which every other one is compared. The tests are those of
`sacrebleu --paired-bs` and `sacrebleu --paired-ar`, with the same seed, and give the same numbers.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from transformer_mt.scoring.metrics import DEFAULT_METRICS, METRICS, Metric, metric_of

# A p-value below this counts as a difference that is unlikely to be chance.
SIGNIFICANCE = 0.05
# The probability with which a test set of `lines_needed` finds a difference that exists.
POWER = 0.8
# The paired tests of a metric, with sacreBLEU's names for them.
TESTS = {"bootstrap": "bs", "randomisation": "ar"}


@dataclass(frozen=True)
class Difference:
    """The difference of a system from the baseline in one metric.

    Attributes:
        value: the score of the system minus that of the baseline.
        gain: the same, with the sign changed if lower scores are better.
        interval: what 95 % of the bootstrap's differences lie between.
        deviation: the standard deviation of the bootstrap's differences.
        bootstrap_p: the p-value of paired bootstrap resampling, as sacreBLEU gives it.
        randomisation_p: the p-value of paired approximate randomisation, as sacreBLEU gives it.
        changed: the number of lines with other statistics than the baseline's (n-grams, edits).
        p: the p-value for the verdict; see `cautious_p`.
        lines_needed: about how many lines would show a difference of this size; see
            `lines_needed`. None if that cannot be estimated.
    """

    value: float
    gain: float
    interval: tuple[float, float]
    deviation: float
    bootstrap_p: float
    randomisation_p: float
    changed: int
    p: float
    lines_needed: int | None

    @property
    def is_significant(self) -> bool:
        return self.p < SIGNIFICANCE and self.value != 0


@dataclass(frozen=True)
class SystemScore:
    """The score of a system in one metric.

    Attributes:
        value: the score.
        mean: the mean score of the bootstrap's resamples.
        margin: half the width of the 95 % interval around `mean`.
        difference: from the baseline; None for the baseline.
    """

    value: float
    mean: float
    margin: float
    difference: Difference | None

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the score."""
        return self.mean - self.margin, self.mean + self.margin


@dataclass(frozen=True)
class MetricComparison:
    """The scores of all systems in one metric, the baseline's first.

    Attributes:
        key: of `METRICS` or `OPTIONAL`.
        signatures: sacreBLEU's signature for each of `TESTS`.
        seed: of the random numbers of both tests; None if the environment variable SACREBLEU_SEED
            asks for another one each time.
        samples: the number of resamples or trials of each of `TESTS`.
    """

    key: str
    signatures: dict[str, str]
    seed: int | None
    samples: dict[str, int]
    scores: list[SystemScore]

    @property
    def metric(self) -> Metric:
        return metric_of(self.key)


def paired_tests(
    systems: Sequence[list[str]],
    references: Sequence[list[str]],
    tokenize: str,
    metrics: Sequence[str] = DEFAULT_METRICS,
    lowercase: bool = False,
    done: Callable[[], Any] = lambda: None,
    others: Mapping[str, tuple[Any, Sequence[list[str]]]] | None = None,
) -> list[MetricComparison]:
    """Compares each system with the first one, in each metric.

    The tests are paired bootstrap resampling (Koehn 2004, W04-3250) and paired approximate
    randomisation (Riezler and Maxwell 2005, W05-0908).

    Args:
        systems: the translations of each system, one line for each line of the references.
        references: one or several sets of reference translations.
        tokenize: the name of a tokeniser of sacreBLEU.
        metrics: keys of `METRICS`.
        done: is called after each of `TESTS` of each metric, which takes some seconds.
        others: further metrics with the interface of sacreBLEU's, by their keys in `OPTIONAL`, each
            with what it compares the translations with in place of the references.
    """
    from sacrebleu.significance import PairedTest  # which is slow to import

    # Its messages about progress would be printed if another library has set up logging.
    logging.getLogger("sacrebleu").setLevel(logging.WARNING)
    named = [(str(number), system) for number, system in enumerate(systems)]
    computers = {key: (METRICS[key].made(tokenize, lowercase), references) for key in metrics}
    comparisons = []
    for key, (metric, compared_with) in {**computers, **(others or {})}.items():
        signatures, samples, results = {}, {}, {}
        for test, short in TESTS.items():
            paired = PairedTest(named, {key: metric}, compared_with, short)
            signature_by_name, scores = paired()
            ((name, signature),) = signature_by_name.items()
            signatures[test], samples[test] = f"{name}|{signature}", paired.n_samples
            results[test] = scores[name]
            done()
        seed = paired._seed
        statistics = [
            np.array(metric._extract_corpus_statistics(system, compared_with), dtype="float32")
            for system in systems
        ]
        resampled = _resampled_scores(metric, statistics, seed, samples["bootstrap"])
        baseline, values = results["bootstrap"][0], []
        for number, (result, other) in enumerate(zip(*results.values(), strict=True)):
            difference = None
            if number:
                value = float(result.score - baseline.score)
                p_values = float(result.p_value), float(other.p_value)
                changed = int((statistics[number] != statistics[0]).any(axis=1).sum())
                differences = resampled[number] - resampled[0]
                ordered, deviation = np.sort(differences), float(differences.std())
                outside = len(ordered) // 40  # 2.5 % at each end, counted as sacreBLEU does
                difference = Difference(
                    value=value,
                    gain=value if metric_of(key).higher_is_better else -value,
                    interval=(float(ordered[outside]), float(ordered[-1 - outside])),
                    deviation=deviation,
                    bootstrap_p=p_values[0],
                    randomisation_p=p_values[1],
                    changed=changed,
                    p=cautious_p(*p_values, changed=changed),
                    lines_needed=lines_needed(len(systems[0]), value, deviation),
                )
            mean, margin = float(result.mean), float(result.ci)
            values.append(SystemScore(float(result.score), mean, margin, difference))
        comparisons.append(MetricComparison(key, signatures, seed, samples, values))
    return comparisons


def _resampled_scores(
    metric: Any, statistics: list[np.ndarray], seed: int | None, samples: int
) -> np.ndarray:
    """Returns the scores (systems, samples) of the same resamples that sacreBLEU's paired bootstrap
    draws. sacreBLEU itself gives their mean and interval, but not their differences.

    Args:
        statistics: of each system, (lines, the number of the metric's statistics).
    """
    lines = len(statistics[0])
    chosen = np.random.default_rng(seed).choice(lines, size=(samples, lines), replace=True)
    score = metric._compute_score_from_stats
    return np.array([[score(own[sample].sum(0)).score for sample in chosen] for own in statistics])


def cautious_p(*p_values: float, changed: int) -> float:
    """Returns the largest of these p-values and of 2^(1 - changed).

    Exchanging the translations of `changed` lines gives 2^changed equally likely outcomes. Two of
    them, all and none, are as far apart as what was observed, so no honest p-value is smaller than
    2^(1 - changed). sacreBLEU counts only outcomes that are further apart, so it gives p-values
    near 0 for systems that are equal or that differ in a few lines.
    """
    return min(1.0, max(*p_values, 2.0 ** (1 - changed)))


def lines_needed(lines: int, difference: float, deviation: float) -> int | None:
    """Estimates how many lines a test set needs to show a difference, to two digits.

    If the true difference is the observed one, a test set of that size shows it at p < SIGNIFICANCE
    (two-sided) with the probability POWER. The estimate takes the difference for normally
    distributed, and its standard deviation for proportional to 1 / sqrt(lines).

    Args:
        lines: the size of the test set in hand.
        difference: the one observed.
        deviation: the standard deviation of the difference for a test set of that size.

    Returns: None if there is no difference, or if its deviation is not known.
    """
    if not difference or not deviation:
        return None
    quantile = NormalDist().inv_cdf
    ratio = (quantile(1 - SIGNIFICANCE / 2) + quantile(POWER)) * deviation / abs(difference)
    return int(float(f"{lines * ratio**2:.2g}"))


# A test set with fewer lines than this gets a note.
FEW_LINES = 100
# If fewer lines than this differ, the number of lines that it would take is not estimated.
FEW_CHANGES = 10


def verdict(
    system: str,
    baseline: str,
    differences: Sequence[tuple[str, Difference]],
    lines: int,
    is_identical: bool,
) -> tuple[str, str]:
    """Says whether a system is better than the baseline.

    Args:
        system, baseline: their names.
        differences: of each metric, its label and the difference in it. The first one decides.
        lines: the size of the test set.
        is_identical: whether the two systems have the same translations.

    Returns: the outcome by the first metric ("better" or "worse" than the baseline, "unknown" or
        "identical"), and a sentence about the first metric and one for each further metric: whether
        it agrees.
    """
    if is_identical:
        text = (
            f"{system} and {baseline} are identical: all {lines:,} translations are the same, so "
            "there is nothing to test."
        )
        return "identical", text
    (label, first), *rest = differences
    outcome, text = "unknown", _undecided(system, baseline, label, first, lines)
    if first.is_significant:
        outcome = _comparative(first)
        text = (
            f"{system} is {outcome} than {baseline} by {_size(first)} {label}; that is unlikely to "
            f"be chance ({p_text(first.p)})."
        )
    for name, difference in rest:
        text += f" {_other(system, first, name, difference)}"
    if any(_contradicts(first, difference) for _, difference in rest):
        text += " The metrics disagree, so read the translations that differ before you decide."
    return outcome, text


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

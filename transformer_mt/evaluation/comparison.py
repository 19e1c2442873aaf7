"""Compares systems with a baseline: the paired tests, the verdicts, and where the systems differ.

The result is printed, drawn and kept as JSON by `reports.comparison`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from transformer_mt.evaluation.differences import Shares, most_changed, shares
from transformer_mt.evaluation.groups import Group
from transformer_mt.evaluation.metrics import DEFAULT_METRICS, Scores, score
from transformer_mt.evaluation.paired_tests import MetricComparison, paired_tests
from transformer_mt.evaluation.scoring import has_spaces_in
from transformer_mt.evaluation.sentences import sentence_scores
from transformer_mt.evaluation.suspicions import merged, suspicions
from transformer_mt.evaluation.verdict import caveats, verdict

# The metric that scores single sentences. BLEU is a poor judge of a single sentence, because most
# have no n-gram of four words in common with their reference.
SENTENCE_METRIC = "chrf"


@dataclass(frozen=True)
class Example:
    """A line that changed, with its translations by the baseline and by the system.

    Attributes:
        line: its number, from 1.
        source: None if the text that was translated is not known.
        baseline_score, system_score: in `SENTENCE_METRIC`.
    """

    line: int
    source: str | None
    references: list[str]
    baseline: str
    system: str
    baseline_score: float
    system_score: float


@dataclass(frozen=True)
class GroupResult:
    """The lines of a group.

    Attributes:
        baseline, system: their scores of the group in the first metric.
        better, worse, unchanged: how many lines are, by their sentence scores.
    """

    name: str
    baseline: float
    system: float
    better: int
    worse: int
    unchanged: int

    @property
    def lines(self) -> int:
        return self.better + self.worse + self.unchanged


@dataclass(frozen=True)
class Contrast:
    """A system beside the baseline.

    Attributes:
        outcome, verdict: see `verdict.Verdict`.
        groups: what the lines are grouped by, and the groups; empty for identical systems.
        better, worse: the lines that changed most, the largest change first.
    """

    outcome: str
    verdict: str
    shares: Shares
    groups: dict[str, list[GroupResult]]
    better: list[Example]
    worse: list[Example]


@dataclass(frozen=True)
class Comparison:
    """Everything that the command `compare` finds out.

    Attributes:
        lines: the number of lines of the test set.
        references: the number of reference translations of each line.
        systems: their names, such as the paths of their files, by their letters: A for the
            baseline, then B, C, ...
        spaces: whether spaces separate the words of the references.
        metrics: the paired tests in each metric, the first one of which decides.
        comparisons: each system but the baseline, by its letter.
        notes: what a reader of the verdicts has to know besides.
        warnings: what looks wrong with the texts.
    """

    lines: int
    references: int
    tokenize: str
    lowercase: bool
    spaces: bool
    systems: dict[str, str]
    metrics: dict[str, MetricComparison]
    comparisons: dict[str, Contrast]
    notes: list[str]
    warnings: list[str]
    sentence_metric: str = SENTENCE_METRIC

    @property
    def baseline(self) -> str:
        """The letter of the baseline."""
        return next(iter(self.systems))

    def as_dict(self) -> dict[str, Any]:
        """Returns the comparison for JSON."""
        result = asdict(self)
        del result["spaces"]  # which is for showing the examples
        result["metrics"] = {
            key: {
                "signatures": metric.signatures,
                "seed": metric.seed,
                "samples": metric.samples,
                "higher_is_better": metric.metric.higher_is_better,
                "systems": {
                    letter: {
                        "score": own.value,
                        "mean": own.mean,
                        "ci": own.margin,
                        "difference": own.difference and asdict(own.difference),
                    }
                    for letter, own in zip(self.systems, metric.scores, strict=True)
                },
            }
            for key, metric in self.metrics.items()
        }
        return result


def compare(
    systems: Sequence[tuple[str, list[str]]],
    references: Sequence[list[str]],
    sources: list[str] | None = None,
    *,
    tokenize: str,
    groupings: dict[str, list[Group]],
    metrics: Sequence[str] = DEFAULT_METRICS,
    lowercase: bool = False,
    examples: int = 5,
    notes: Iterable[str] = (),
    done: Callable[[], Any] = lambda: None,
) -> Comparison:
    """Compares each system with the first one.

    Args:
        systems: the name and the translations of each, at least two, one line for each line of
            the references.
        references: one or several sets of reference translations, none of them empty.
        sources: the text that was translated; None: it is not known.
        tokenize: the name of a tokeniser of sacreBLEU.
        groupings: groups of lines that are also compared; see `groups.groupings`.
        metrics: keys of `METRICS`; the first one decides.
        examples: at most how many of the lines that got better, and of those that got worse.
        notes: what a reader of the scores has to know.
        done: is called after each of `paired_tests.TESTS` of each metric.

    Raises:
        UserError: a package for the tokeniser is missing.
    """
    letters = [letter_of(number) for number in range(len(systems))]
    texts = [translations for _, translations in systems]
    lines = len(references[0])
    tests = paired_tests(texts, references, tokenize, metrics, lowercase, done)
    before, *others = (
        sentence_scores(text, references, tokenize, [SENTENCE_METRIC], lowercase)[SENTENCE_METRIC]
        for text in texts
    )

    def in_first_metric(group: Group, text: list[str]) -> float:
        own = group.of(text), [group.of(reference) for reference in references]
        scores = score(*own, tokenize=tokenize, metrics=metrics[:1], lowercase=lowercase)
        return scores.values[metrics[0]]

    comparisons = {}
    for number, after in enumerate(others, 1):
        result = verdict(
            letters[number],
            letters[0],
            [(metric.metric.label, metric.scores[number].difference) for metric in tests],
            lines,
            is_identical=texts[number] == texts[0],
        )
        groups = {
            title: [
                GroupResult(
                    group.name,
                    in_first_metric(group, texts[0]),
                    in_first_metric(group, texts[number]),
                    **vars(shares(group.of(before), group.of(after))),
                )
                for group in grouping
            ]
            for title, grouping in groupings.items()
            if result.outcome != "identical"
        }
        better, worse = (
            [
                Example(
                    line=line + 1,
                    source=sources[line] if sources else None,
                    references=[reference[line] for reference in references],
                    baseline=texts[0][line],
                    system=texts[number][line],
                    baseline_score=before[line],
                    system_score=after[line],
                )
                for line in changed
            ]
            for changed in most_changed(before, after, examples)
        )
        comparisons[letters[number]] = Contrast(
            result.outcome, str(result), shares(before, after), groups, better, worse
        )
    suspicious = []
    for number, (letter, text) in enumerate(zip(letters, texts, strict=True)):
        values = {metric.key: metric.scores[number].value for metric in tests}
        signatures = {metric.key: metric.signatures["bootstrap"] for metric in tests}
        scores = Scores(values, signatures, None, lines)
        suspicious.append((letter, suspicions(sources, text, references, scores)))
    return Comparison(
        lines=lines,
        references=len(references),
        tokenize=tokenize,
        lowercase=lowercase,
        spaces=has_spaces_in(references[0]),
        systems=dict(zip(letters, (name for name, _ in systems), strict=True)),
        metrics={metric.key: metric for metric in tests},
        comparisons=comparisons,
        notes=[*notes, *caveats(len(comparisons), lines)],
        warnings=merged(suspicious),
    )


def letter_of(number: int) -> str:
    """Returns A, B, ..., Z, AA, AB, ... for 0, 1, ..."""
    before, last = divmod(number, 26)
    return (letter_of(before - 1) if before else "") + chr(ord("A") + last)

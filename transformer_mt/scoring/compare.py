"""Compares systems with a baseline: the paired tests, the verdicts, and where the systems differ.

The result is printed, drawn and kept as JSON by `reports.comparison`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from transformer_mt.scoring.comet import Comet
from transformer_mt.scoring.differences import Shares, most_changed, sentence_scores, shares
from transformer_mt.scoring.groups import Group
from transformer_mt.scoring.metrics import (
    DEFAULT_METRICS,
    METRICS,
    Scores,
    has_spaces_in,
    metric_of,
    score,
)
from transformer_mt.scoring.significance import MetricComparison, caveats, paired_tests, verdict
from transformer_mt.scoring.suspicions import merged, suspicions
from transformer_mt.utils.console import table

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


# ---------------------------------------- the systems: models that have translated a text, or files


@dataclass(frozen=True)
class System:
    """What is evaluated.

    Attributes:
        name: the model or the file as it was given.
        hypotheses: its translations.
        tokenize: the tokeniser for BLEU.
        note: a remark for the reader of the scores, or "".
        seconds: the time that a model took to translate, without loading; None for a file.
    """

    name: str
    hypotheses: list[str]
    tokenize: str
    note: str = ""
    seconds: float | None = None


@dataclass(frozen=True)
class Measures:
    """What is computed of each system.

    Attributes:
        metrics: keys of `METRICS`, and "comet" with a `comet` model.
        lowercase, confidence: as in `metrics.score`.
        groups: the groups of lines that are also scored by themselves, for each way to group them.
        sentences: whether each line is also scored by itself.
    """

    metrics: Sequence[str]
    lowercase: bool
    confidence: bool
    comet: Comet | None
    groups: dict[str, list[Group]]
    sentences: bool


@dataclass(frozen=True)
class Evaluation:
    """The scores of a system.

    Attributes:
        groups: the scores of the groups by their names, for each way to group the lines.
        sentences: the scores of each line per metric, if they were asked for.
    """

    system: System
    scores: Scores
    groups: dict[str, dict[str, Scores]]
    sentences: dict[str, list[float]]

    @property
    def lines_per_second(self) -> float | None:
        seconds = self.system.seconds
        return None if seconds is None else self.scores.lines / max(1e-9, seconds)

    def as_dict(self) -> dict[str, Any]:
        if self.system.seconds is None:
            result = {"hypothesis": self.system.name, **self.scores.as_dict()}
        else:
            speed = {"seconds": self.system.seconds, "lines_per_second": self.lines_per_second}
            result = {"model": self.system.name, **self.scores.as_dict(), **speed}
        groups = {
            kind: [{"name": name, **scores.as_dict()} for name, scores in scored.items()]
            for kind, scored in self.groups.items()
        }
        return result | ({"groups": groups} if groups else {})

    def __str__(self) -> str:
        text = str(self.scores)
        if self.system.seconds is not None:
            text += f"\n  {self.lines_per_second:,.1f} lines/s: {self.system.seconds:.1f} s, "
            text += "loading not counted"
        return text


def evaluate(
    system: System,
    sources: list[str] | None,
    references: Sequence[list[str]],
    measures: Measures,
) -> Evaluation:
    """Scores the translations of a system.

    Args:
        sources: only COMET needs them.
        references: one or several sets of references, each with one line per hypothesis.

    Raises:
        UserError: as `metrics.score` does, or COMET's model cannot be loaded.
    """
    keys = [key for key in measures.metrics if key in METRICS]
    of_comet: list[float] = []
    if measures.comet is not None:
        of_comet = measures.comet.sentence_scores(sources, system.hypotheses, references[0])

    def scores_of(lines: Group) -> Scores:
        scores = score(
            lines.of(system.hypotheses),
            [lines.of(reference) for reference in references],
            system.tokenize,
            system.note,
            metrics=keys,
            lowercase=measures.lowercase,
            confidence=measures.confidence,
        )
        return measures.comet.added_to(scores, lines.of(of_comet)) if measures.comet else scores

    sentences = {}
    if measures.sentences:
        texts = system.hypotheses, references, system.tokenize
        sentences = sentence_scores(*texts, keys, measures.lowercase)
        if measures.comet is not None:
            sentences["comet"] = of_comet
    groups = {
        kind: {group.name: scores_of(group) for group in groups}
        for kind, groups in measures.groups.items()
    }
    everything = Group("", list(range(len(system.hypotheses))))
    return Evaluation(system, scores_of(everything), groups, sentences)


def as_text(evaluations: list[Evaluation]) -> Iterator[str]:
    """Yields the lines that show evaluations with the same measures: a table if there are several,
    and a table for each way to group the lines."""
    if len(evaluations) == 1:
        yield str(evaluations[0])
    else:
        yield from _side_by_side(evaluations)
    for one in evaluations:
        for kind, groups in one.groups.items():
            yield ""
            yield kind if len(evaluations) == 1 else f"{one.system.name}, {kind}"
            yield from table([_header(one.scores, "lines"), *_rows(groups)], indent="  ")


def numbers(evaluation: Evaluation) -> str:
    """Returns the scores alone, separated by tabs."""
    return "\t".join(f"{value:.4f}" for value in evaluation.scores.values.values())


def _side_by_side(evaluations: list[Evaluation]) -> Iterator[str]:
    has_speed = evaluations[0].lines_per_second is not None
    rows = [_header(evaluations[0].scores, *(["lines/s"] if has_speed else []))]
    notes: dict[str, None] = {}
    for one in evaluations:
        speed = [f"{one.lines_per_second:,.1f}"] if has_speed else []
        rows.append([one.system.name, *_cells(one.scores), *speed])
        notes |= dict.fromkeys(one.scores.notes())
    yield from table(rows)
    yield from (f"  {note}" for note in notes)


def _header(scores: Scores, *last: str) -> list[str]:
    ratio = [] if scores.length_ratio is None else ["length ratio"]
    return ["", *(metric_of(key).label for key in scores.values), *ratio, *last]


def _cells(scores: Scores) -> list[str]:
    ratio = [] if scores.length_ratio is None else [f"{scores.length_ratio:.3f}"]
    return [*map(scores.shown, scores.values), *ratio]


def _rows(groups: dict[str, Scores]) -> Iterator[list[str]]:
    for name, scores in groups.items():
        yield [name, *_cells(scores), f"{scores.lines:,}"]

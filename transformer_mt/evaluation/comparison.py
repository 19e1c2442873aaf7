"""Compares systems with a baseline: the paired tests, the verdicts, and where the systems differ.

The result is printed by `comparison_text`, drawn by `pages.comparison_page` and kept as JSON.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

from transformer_mt.evaluation.differences import Shares, most_changed, shares
from transformer_mt.evaluation.groups import Group
from transformer_mt.evaluation.metrics import DEFAULT_METRICS, METRICS, Scores, score
from transformer_mt.evaluation.paired_tests import MetricComparison, paired_tests
from transformer_mt.evaluation.scoring import has_spaces_in
from transformer_mt.evaluation.sentences import sentence_scores
from transformer_mt.evaluation.suspicions import merged, suspicions
from transformer_mt.evaluation.verdict import Verdict, caveats, verdict

# The metric that scores single sentences. BLEU is a poor judge of a single sentence, because most
# have no n-gram of four words in common with their reference.
SENTENCE_METRIC = "chrf"


class ComparedSystem(NamedTuple):
    """A system that is compared.

    Attributes:
        letter: the name in verdicts and tables: A for the baseline, then B, C, ...
        name: what the user calls it, such as the path of its file.
        translations: one per line of the test set.
    """

    letter: str
    name: str
    translations: list[str]


class Example(NamedTuple):
    """A line that changed.

    Attributes:
        line: its index, from 0.
        before, after: the sentence score of the baseline's translation and of the system's.
    """

    line: int
    before: float
    after: float


class GroupResult(NamedTuple):
    """The lines of a group, in the first metric and in the sentence scores.

    Attributes:
        before, after: the score of the group in the first metric: the baseline's, the system's.
        shares: how many of its lines got better or worse.
    """

    name: str
    before: float
    after: float
    shares: Shares


@dataclass(frozen=True)
class Contrast:
    """A system beside the baseline.

    Attributes:
        groups: what the lines are grouped by, and the groups; empty for identical systems.
        better, worse: the lines that changed most, the largest change first.
    """

    system: ComparedSystem
    verdict: Verdict
    shares: Shares
    groups: dict[str, list[GroupResult]]
    better: list[Example]
    worse: list[Example]


@dataclass(frozen=True)
class Comparison:
    """Everything that the command `compare` finds out.

    Attributes:
        sources: the text that was translated, if it is known.
        references: one or several sets of reference translations.
        spaces: whether spaces separate the words of the references.
        metrics: the paired tests in each metric, the first one of which decides.
        contrasts: each system but the baseline.
        caveats: what a reader of the verdicts has to know besides.
        warnings: what looks wrong with the texts.
    """

    systems: list[ComparedSystem]
    sources: list[str] | None
    references: Sequence[list[str]]
    tokenize: str
    lowercase: bool
    spaces: bool
    metrics: list[MetricComparison]
    contrasts: list[Contrast]
    caveats: list[str]
    warnings: list[str]

    @property
    def baseline(self) -> ComparedSystem:
        return self.systems[0]

    @property
    def lines(self) -> int:
        return len(self.references[0])

    def as_dict(self) -> dict[str, Any]:
        """Returns everything but the texts of lines that are no examples, for JSON."""
        return {
            "lines": self.lines,
            "references": len(self.references),
            "tokenize": self.tokenize,
            "lowercase": self.lowercase,
            "systems": {system.letter: system.name for system in self.systems},
            "metrics": {one.key: self._metric_as_dict(one) for one in self.metrics},
            "sentence_metric": SENTENCE_METRIC,
            "comparisons": {
                one.system.letter: self._contrast_as_dict(one) for one in self.contrasts
            },
            "notes": self.caveats,
            "warnings": self.warnings,
        }

    def _metric_as_dict(self, one: MetricComparison) -> dict[str, Any]:
        systems = {}
        for system, own in zip(self.systems, one.scores, strict=True):
            systems[system.letter] = {
                "score": own.value,
                "mean": own.mean,
                "ci": own.margin,
                "difference": own.difference and asdict(own.difference),
            }
        return {
            "signatures": one.signatures,
            "seed": one.seed,
            "samples": one.samples,
            "higher_is_better": one.metric.higher_is_better,
            "systems": systems,
        }

    def _contrast_as_dict(self, one: Contrast) -> dict[str, Any]:
        groups = {
            title: [
                {"name": group.name, "baseline": group.before, "system": group.after}
                | group.shares._asdict()
                for group in own
            ]
            for title, own in one.groups.items()
        }
        return {
            "outcome": one.verdict.outcome,
            "verdict": str(one.verdict),
            "shares": one.shares._asdict(),
            "groups": groups,
            "better": [self._example_as_dict(one.system, example) for example in one.better],
            "worse": [self._example_as_dict(one.system, example) for example in one.worse],
        }

    def _example_as_dict(self, system: ComparedSystem, example: Example) -> dict[str, Any]:
        line = example.line
        return {
            "line": line + 1,
            "source": self.sources and self.sources[line],
            "references": [reference[line] for reference in self.references],
            "baseline": self.baseline.translations[line],
            "system": system.translations[line],
            "baseline_score": example.before,
            "system_score": example.after,
        }


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
    named = [ComparedSystem(letter_of(number), *system) for number, system in enumerate(systems)]
    texts = [system.translations for system in named]
    tests = paired_tests(texts, references, tokenize, metrics, lowercase, done)
    before, *others = (
        sentence_scores(text, references, tokenize, [SENTENCE_METRIC], lowercase)[SENTENCE_METRIC]
        for text in texts
    )
    in_first_metric = partial(score, tokenize=tokenize, metrics=metrics[:1], lowercase=lowercase)
    contrasts = []
    for number, (system, after) in enumerate(zip(named[1:], others, strict=True), 1):
        result = verdict(
            system.letter,
            named[0].letter,
            [(METRICS[one.key].label, one.scores[number].difference) for one in tests],
            len(references[0]),
            is_identical=system.translations == texts[0],
        )
        groups = {
            title: [
                _group_result(
                    group, texts[0], system.translations, references, before, after, in_first_metric
                )
                for group in grouping
            ]
            for title, grouping in groupings.items()
            if result.outcome != "identical"
        }
        better, worse = (
            [Example(line, before[line], after[line]) for line in own]
            for own in most_changed(before, after, examples)
        )
        counts = shares(before, after)
        contrasts.append(Contrast(system, result, counts, groups, better, worse))
    return Comparison(
        systems=named,
        sources=sources,
        references=references,
        tokenize=tokenize,
        lowercase=lowercase,
        spaces=has_spaces_in(references[0]),
        metrics=tests,
        contrasts=contrasts,
        caveats=[*notes, *caveats(len(contrasts), len(references[0]))],
        warnings=_warnings(named, sources, references, tests),
    )


def _warnings(
    systems: list[ComparedSystem],
    sources: list[str] | None,
    references: Sequence[list[str]],
    tests: list[MetricComparison],
) -> list[str]:
    """What looks wrong with the texts, with the letters of the systems unless it is about all."""
    found = []
    for number, system in enumerate(systems):
        values = {one.key: one.scores[number].value for one in tests}
        signatures = {one.key: one.signatures["bootstrap"] for one in tests}
        scores = Scores(values, signatures, None, len(references[0]))
        own = suspicions(sources, system.translations, references, scores)
        found.append((system.letter, own))
    return merged(found)


def _group_result(
    group: Group,
    baseline: list[str],
    translations: list[str],
    references: Sequence[list[str]],
    before: list[float],
    after: list[float],
    scored: Callable[[list[str], Sequence[list[str]]], Scores],
) -> GroupResult:
    """Compares a system with the baseline on the lines of a group.

    Args:
        before, after: the sentence scores of all lines.
        scored: computes the first metric.
    """
    own = [group.of(reference) for reference in references]
    (old,), (new,) = (
        scored(group.of(texts), own).values.values() for texts in (baseline, translations)
    )
    return GroupResult(group.name, old, new, shares(group.of(before), group.of(after)))


def letter_of(number: int) -> str:
    """Returns A, B, ..., Z, AA, AB, ... for 0, 1, ..."""
    before, last = divmod(number, 26)
    return (letter_of(before - 1) if before else "") + chr(ord("A") + last)

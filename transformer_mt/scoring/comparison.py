"""Compares systems with a baseline: the paired tests, the verdicts, and where the systems differ.

The result is printed, drawn and kept as JSON by `reports.comparison`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, NamedTuple

from transformer_mt.scoring.groups import Group
from transformer_mt.scoring.metrics import (
    DEFAULT_METRICS,
    Scores,
    metric_of,
    score,
    sentence_scores,
)
from transformer_mt.scoring.significance import MetricComparison, caveats, paired_tests, verdict
from transformer_mt.scoring.suspicions import merged, suspicions
from transformer_mt.utils.languages import has_spaces_in

if TYPE_CHECKING:
    from transformer_mt.scoring.terms import TermChecker  # imports sacreBLEU, which takes a second

# The metric that scores single sentences. BLEU is a poor judge of a single sentence, because most
# have no n-gram of four words in common with their reference.
SENTENCE_METRIC = "chrf"


# Texts in which the same words occur more often than in this number of pairs, such as the endless
# repetitions of a model at the beginning of its training, would take seconds to compare.
MOST_PAIRS = 5000


class Piece(NamedTuple):
    """A part of a text: some words (or characters) in a row.

    Attributes:
        differs: whether the other text has something else at this place.
    """

    text: str
    differs: bool


def differences(first: str, second: str, spaces: bool = True) -> tuple[list[Piece], list[Piece]]:
    """Compares two texts word by word.

    Args:
        spaces: whether spaces separate the words. Without them, characters are compared.

    Returns: the pieces of each of the two texts. Joined with a space (or, without spaces, with
        nothing), they give the text back. Texts that repeat the same words very often are one
        piece that differs.
    """
    words, others = (text.split(" ") if spaces else list(text) for text in (first, second))
    glue = " " if spaces else ""
    counts, other_counts = Counter(words), Counter(others)
    if sum(counts[word] * other_counts[word] for word in counts) > MOST_PAIRS:
        return [Piece(first, first != second)], [Piece(second, first != second)]
    result: tuple[list[Piece], list[Piece]] = ([], [])
    matcher = SequenceMatcher(None, words, others, autojunk=False)
    for kind, start, end, other_start, other_end in matcher.get_opcodes():
        spans = words[start:end], others[other_start:other_end]
        for pieces, span in zip(result, spans, strict=True):
            if span:
                pieces.append(Piece(glue.join(span), kind != "equal"))
    return result


@dataclass(frozen=True)
class Shares:
    """How many lines got better, worse, or kept their score."""

    better: int
    worse: int
    unchanged: int

    @property
    def lines(self) -> int:
        return self.better + self.worse + self.unchanged


def shares(before: Sequence[float], after: Sequence[float]) -> Shares:
    """Counts the lines whose score (higher is better) rose, fell or stayed."""
    pairs = list(zip(before, after, strict=True))
    better = sum(new > old for old, new in pairs)
    worse = sum(new < old for old, new in pairs)
    return Shares(better, worse, len(pairs) - better - worse)


def most_changed(
    before: Sequence[float], after: Sequence[float], count: int
) -> tuple[list[int], list[int]]:
    """Returns the lines whose score (higher is better) rose most, and those whose score fell most.

    Returns: at most `count` indices of each, the largest change first. Equal changes are in the
        order of the lines.
    """
    changes = [new - old for old, new in zip(before, after, strict=True)]
    order = sorted(range(len(changes)), key=lambda line: -abs(changes[line]))
    risen = [line for line in order if changes[line] > 0]
    fallen = [line for line in order if changes[line] < 0]
    return risen[:count], fallen[:count]


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
class GroupResult(Shares):
    """The lines of a group, by their sentence scores.

    Attributes:
        baseline, system: their scores of the group in the first metric.
    """

    name: str
    baseline: float
    system: float


@dataclass(frozen=True)
class Contrast:
    """A system beside the baseline.

    Attributes:
        outcome, verdict: as `significance.verdict` returns them.
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
        for metric in result["metrics"].values():
            metric["higher_is_better"] = metric_of(metric.pop("key")).higher_is_better
            metric["systems"] = dict(zip(self.systems, metric.pop("scores"), strict=True))
            for system in metric["systems"].values():
                system["score"], system["ci"] = system.pop("value"), system.pop("margin")
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
    terms: TermChecker | None = None,
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
        terms: also compares how well the systems follow these terms; needs `sources`.
        done: is called after each of `significance.TESTS` of each metric.

    Raises:
        UserError: a package for the tokeniser is missing.
    """
    letters = [letter_of(number) for number in range(len(systems))]
    texts = [translations for _, translations in systems]
    lines = len(references[0])
    of_terms, term_notes = {}, []
    if terms:
        of_terms = {key: (own, [sources]) for key, own in terms.metrics().items()}
        term_notes = [terms.scores(sources, texts[0]).note()]
    tests = paired_tests(texts, references, tokenize, metrics, lowercase, done, of_terms)
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
        outcome, sentences = verdict(
            letters[number],
            letters[0],
            [(metric.metric.label, metric.scores[number].difference) for metric in tests],
            lines,
            is_identical=texts[number] == texts[0],
        )
        groups: dict[str, list[GroupResult]] = {}
        for title, grouping in groupings.items() if outcome != "identical" else ():
            groups[title] = []
            for group in grouping:
                scored = [in_first_metric(group, text) for text in (texts[0], texts[number])]
                counts = vars(shares(group.of(before), group.of(after)))
                groups[title].append(
                    GroupResult(**counts, name=group.name, baseline=scored[0], system=scored[1])
                )
        better, worse = (
            [
                Example(
                    line + 1,
                    sources[line] if sources else None,
                    [reference[line] for reference in references],
                    *(texts[0][line], texts[number][line], before[line], after[line]),
                )
                for line in changed
            ]
            for changed in most_changed(before, after, examples)
        )
        comparisons[letters[number]] = Contrast(
            outcome, sentences, shares(before, after), groups, better, worse
        )
    suspicious = []
    signatures = {metric.key: metric.signatures["bootstrap"] for metric in tests}
    for number, letter in enumerate(letters):
        values = {metric.key: metric.scores[number].value for metric in tests}
        scores = Scores(values, signatures, None, lines)
        suspicious.append((letter, suspicions(sources, texts[number], references, scores)))
    return Comparison(
        lines=lines,
        references=len(references),
        tokenize=tokenize,
        lowercase=lowercase,
        spaces=has_spaces_in(references[0]),
        systems=dict(zip(letters, (name for name, _ in systems), strict=True)),
        metrics={metric.key: metric for metric in tests},
        comparisons=comparisons,
        notes=[*notes, *term_notes, *caveats(len(comparisons), lines)],
        warnings=merged(suspicious),
    )


def letter_of(number: int) -> str:
    """Returns A, B, ..., Z, AA, AB, ... for 0, 1, ..."""
    before, last = divmod(number, 26)
    return (letter_of(before - 1) if before else "") + chr(ord("A") + last)

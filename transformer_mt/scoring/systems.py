"""The evaluation of systems: models that have translated a text, or files of translations."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transformer_mt.scoring.groups import Group, length_of
from transformer_mt.scoring.metrics import METRICS, Comet, Scores, metric_of, score, sentence_scores
from transformer_mt.utils.console import table

if TYPE_CHECKING:
    # It imports sacreBLEU, which takes a second.
    from transformer_mt.scoring.terms import TermChecker, TermScores


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
        terms: also tells how well a system follows a list of terms.
    """

    metrics: Sequence[str]
    lowercase: bool
    confidence: bool
    comet: Comet | None
    groups: dict[str, list[Group]]
    sentences: bool
    terms: TermChecker | None = None


@dataclass(frozen=True)
class Evaluation:
    """The scores of a system.

    Attributes:
        groups: the scores of the groups by their names, for each way to group the lines.
        sentences: the scores of each line per metric, and its counts of terms, if they were asked
            for.
        terms: None if there is no list of terms.
    """

    system: System
    scores: Scores
    groups: dict[str, dict[str, Scores]]
    sentences: dict[str, Sequence[float]]
    terms: TermScores | None

    @property
    def lines_per_second(self) -> float | None:
        seconds = self.system.seconds
        return None if seconds is None else self.scores.lines / max(1e-9, seconds)

    def as_dict(self) -> dict[str, Any]:
        result = self.scores.as_dict()
        if self.system.seconds is None:
            result = {"hypothesis": self.system.name, **result}
        else:
            speed = {"seconds": self.system.seconds, "lines_per_second": self.lines_per_second}
            result = {"model": self.system.name, **result, **speed}
        groups = {
            kind: [{"name": name, **scores.as_dict()} for name, scores in scored.items()]
            for kind, scored in self.groups.items()
        }
        terms = {"terms": self.terms.as_dict()} if self.terms else {}
        return result | terms | ({"groups": groups} if groups else {})

    def __str__(self) -> str:
        text = "\n".join([str(self.scores), *([str(self.terms)] if self.terms else [])])
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
        sources: only COMET and terms need them.
        references: one or several sets of references, each with one line per hypothesis.

    Raises:
        UserError: as `metrics.score` does, or COMET's model cannot be loaded.
    """
    keys = [key for key in measures.metrics if key in METRICS]
    comet, of_comet = measures.comet, {}
    if comet is not None:
        of_comet["comet"] = comet.sentence_scores(sources, system.hypotheses, references[0])

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
        return comet.added_to(scores, lines.of(of_comet["comet"])) if comet else scores

    terms = measures.terms.scores(sources, system.hypotheses) if measures.terms else None
    sentences: dict[str, Sequence[float]] = {}
    if measures.sentences:
        texts = system.hypotheses, references, system.tokenize
        sentences |= sentence_scores(*texts, keys, measures.lowercase) | of_comet
        sentences |= terms.columns() if terms else {}
    groups = {
        kind: {group.name: scores_of(group) for group in groups}
        for kind, groups in measures.groups.items()
    }
    everything = Group("", list(range(len(system.hypotheses))))
    return Evaluation(system, scores_of(everything), groups, sentences, terms)


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
            rows = [[name, *_cells(own), f"{own.lines:,}"] for name, own in groups.items()]
            yield from table([_header(one.scores, "lines"), *rows], indent="  ")


def numbers(evaluation: Evaluation) -> str:
    """Returns the scores alone, separated by tabs, and then the accuracies of terms."""
    values = evaluation.scores.values
    if evaluation.terms:
        values = values | evaluation.terms.accuracies.values
    return "\t".join(f"{value:.4f}" for value in values.values())


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
    if evaluations[0].terms:
        yield from table([[one.system.name, str(one.terms)] for one in evaluations], "<<")


def _header(scores: Scores, *last: str) -> list[str]:
    ratio = [] if scores.length_ratio is None else ["length ratio"]
    return ["", *(metric_of(key).label for key in scores.values), *ratio, *last]


def _cells(scores: Scores) -> list[str]:
    ratio = [] if scores.length_ratio is None else [f"{scores.length_ratio:.3f}"]
    return [*map(scores.shown, scores.values), *ratio]


# What would start another cell or line in some reader of tables.
_SEPARATORS = re.compile("[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")


def sentence_table(
    scores: dict[str, Sequence[float]],
    sources: list[str] | None,
    hypotheses: list[str],
    references: Sequence[list[str]],
    spaces: bool,
) -> str:
    """Returns a table with a header line and one line per sentence, whose cells are separated by
    tabs: the number of the line from 1, the length of the source, each score, the source, the
    hypothesis and the references.

    Separators in the texts become spaces. A text with double quotes is written as spreadsheets do.

    Args:
        scores: the scores of the lines per metric; whole numbers are shown as they are.
        sources: None leaves the cells of the source empty.
        spaces: whether spaces separate the words of the source. Without them, its length is in
            characters.
    """
    count = len(references)
    names = ["reference"] if count == 1 else [f"reference_{i}" for i in range(1, count + 1)]
    file = io.StringIO()
    writer = csv.writer(file, "excel-tab", lineterminator="\n")
    writer.writerow(["line", "source_length", *scores, "source", "hypothesis", *names])
    for index, hypothesis in enumerate(hypotheses):
        source = "" if sources is None else sources[index]
        texts = [source, hypothesis, *(reference[index] for reference in references)]
        length = "" if sources is None else length_of(source, spaces)
        own = [values[index] for values in scores.values()]
        numbers = [str(value) if isinstance(value, int) else f"{value:.4f}" for value in own]
        cells = [_SEPARATORS.sub(" ", text) for text in texts]
        writer.writerow([index + 1, length, *numbers, *cells])
    return file.getvalue()

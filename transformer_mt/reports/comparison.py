"""A comparison of systems as text for the terminal, as an HTML page, and as JSON. The tables and
sentences of text and page are the same."""

import json
from collections.abc import Iterator, Mapping
from textwrap import wrap

from transformer_mt.reports.page import Bars, Figure, Table, bars, render
from transformer_mt.scoring.comparison import (
    SENTENCE_METRIC,
    Comparison,
    Contrast,
    Example,
    Piece,
    Shares,
    differences,
)
from transformer_mt.scoring.metrics import METRICS
from transformer_mt.scoring.significance import (
    SIGNIFICANCE,
    Difference,
    MetricComparison,
    SystemScore,
    p_number,
)
from transformer_mt.utils import console
from transformer_mt.utils.console import visible

# ANSI escapes of the words that only the baseline has, and of those that only the system has.
_RED, _GREEN, _END = "\x1b[31m", "\x1b[32m", "\x1b[0m"
# The width of verdicts and notes, in columns.
_WIDTH = 80


def as_json(comparison: Comparison) -> str:
    """Returns everything but the texts of lines that are no examples."""
    return json.dumps(comparison.as_dict(), indent=2, ensure_ascii=False) + "\n"


def as_page(comparison: Comparison) -> str:
    """Returns a self-contained HTML page. The texts may hold anything: they are shown, never run.

    Raises:
        ModuleNotFoundError: Jinja2 or Matplotlib is not installed.
    """
    metrics = []
    series = {letter: number for number, letter in enumerate(comparison.systems, 1)}
    for metric in comparison.metrics.values():
        label = metric.metric.label
        scores = dict(zip(comparison.systems, metric.scores, strict=True))
        changes = {letter: own.difference for letter, own in scores.items() if own.difference}
        figures = [
            _figure(f"{label} of each system", label, scores, series),
            _figure(
                f"Difference from {comparison.baseline} in {label}",
                label,
                changes,
                series,
                has_zero=True,
            ),
        ]
        metrics.append((metric.metric, figures, score_table(comparison, metric)))
    baseline, *others = comparison.systems
    return render(
        "comparison.html",
        title=f"{', '.join(others)} compared with {baseline}",
        comparison=comparison,
        metrics=metrics,
        first=next(iter(comparison.metrics.values())),
        significance=SIGNIFICANCE,
        sentence_metric=METRICS[SENTENCE_METRIC].label,
        group_tables=group_tables,
        series=series,
        share_texts=share_texts,
        change_text=change_text,
    )


def _figure(
    title: str,
    label: str,
    values: Mapping[str, SystemScore | Difference],
    series: Mapping[str, int],
    has_zero: bool = False,
) -> Figure:
    """Returns a figure of a value of each system, with its 95 % interval and in its colour."""
    ends = [own.interval for own in values.values()]
    colours = [series[letter] for letter in values]
    drawn = Bars(label, [own.value for own in values.values()], ends, colours)
    figure = bars(title, list(values), label, [drawn], zoomed=True, has_zero=has_zero)
    return figure._replace(values=None)  # the page has them in its table of scores


def as_text(comparison: Comparison, colour: bool = False) -> str:
    """Returns the whole comparison as text, 80 columns wide except for sentences. Differing words
    are in [brackets].

    Args:
        colour: whether to colour these words too, by ANSI escapes.
    """
    return "\n".join(_lines(comparison, colour))


def _lines(comparison: Comparison, colour: bool) -> Iterator[str]:
    for letter, name in comparison.systems.items():
        yield f"{letter}  {visible(name)}" + "  (baseline)" * (letter == comparison.baseline)
    count = comparison.references
    references = "one reference each" if count == 1 else f"{count} references each"
    yield f"{comparison.lines:,} lines, {references}"
    yield ""
    verdicts = [contrast.verdict for contrast in comparison.comparisons.values()]
    for paragraph in (*verdicts, *(f"note: {note}" for note in comparison.notes)):
        yield from wrap(paragraph, _WIDTH)
        yield ""
    for metric in comparison.metrics.values():
        yield from _table(score_table(comparison, metric))
        yield ""
    for letter, contrast in comparison.comparisons.items():
        yield f"{letter} beside {comparison.baseline}, sentence by sentence:"
        yield f"  {share_text(contrast.shares)}"
        for table in group_tables(comparison, letter):
            yield ""
            yield from wrap(f"{table.title}:", _WIDTH)
            yield from _table(table, indent="  ")
        yield from _examples(comparison, letter, contrast, colour)
        yield ""
    for metric in comparison.metrics.values():
        yield from metric.signatures.values()


def _table(table: Table, indent: str = "") -> Iterator[str]:
    return console.table([table.columns, *table.rows], table.sides, indent)


def _examples(
    comparison: Comparison, letter: str, contrast: Contrast, colour: bool
) -> Iterator[str]:
    for side, examples in (("gained", contrast.better), ("lost", contrast.worse)):
        if examples:
            yield ""
            yield f"Sentences in which {letter} {side} most:"
        for example in examples:
            yield ""
            yield change_text(example)
            texts = [] if example.source is None else [("source", visible(example.source))]
            texts += [("reference", visible(reference)) for reference in example.references]
            pieces = differences(example.baseline, example.system, comparison.spaces)
            for name, own, code in zip(
                (comparison.baseline, letter), pieces, (_RED, _GREEN), strict=True
            ):
                texts.append((name, _marked(own, comparison.spaces, code if colour else "")))
            for label, text in texts:
                yield f"  {label:11}{text or '(empty)'}"


def _marked(pieces: list[Piece], spaces: bool, code: str) -> str:
    """A text whose differing pieces are in brackets, and in a colour if there is a code for it."""
    start, end = (code, _END) if code else ("", "")
    if not any(piece.text for piece in pieces):
        return ""
    return (" " if spaces else "").join(
        f"{start}[{visible(piece.text)}]{end}" if piece.differs else visible(piece.text)
        for piece in pieces
    )


def score_table(comparison: Comparison, metric: MetricComparison) -> Table:
    """Returns the systems' scores in a metric. The p-values are shown as "–" where a system has no
    other translations than the baseline: sacreBLEU's mean nothing there."""
    columns = ("", metric.metric.label, "95 % interval", f"minus {comparison.baseline}")
    rows = []
    for letter, own in zip(comparison.systems, metric.scores, strict=True):
        cells = [letter, f"{own.value:.2f}", _interval(own.interval)]
        if (difference := own.difference) is None:
            cells += [""] * 4
        else:
            cells += [f"{difference.value:+.2f}", _interval(difference.interval, "+")]
            p_values = difference.bootstrap_p, difference.randomisation_p
            cells += [p_number(p) if difference.changed else "–" for p in p_values]
        rows.append(cells)
    return Table((*columns, "95 % interval", "bootstrap p", "randomised p"), rows)


def _interval(ends: tuple[float, float], sign: str = "") -> str:
    lower, upper = (f"{end:{sign}.2f}" for end in ends)
    return f"{lower} to {upper}"


def group_tables(comparison: Comparison, letter: str) -> list[Table]:
    """Returns a table for each way of grouping the lines: a system beside the baseline."""
    label = next(iter(comparison.metrics.values())).metric.label
    scores = (f"{name} {label}" for name in (comparison.baseline, letter))
    columns = ("", "lines", *scores, "difference", "better", "worse", "unchanged")
    return [
        Table(
            columns,
            [
                (
                    group.name,
                    f"{group.lines:,}",
                    f"{group.baseline:.2f}",
                    f"{group.system:.2f}",
                    f"{group.system - group.baseline:+.2f}",
                    *(f"{count:,}" for count in (group.better, group.worse, group.unchanged)),
                )
                for group in groups
            ],
            title[0].upper() + title[1:],
        )
        for title, groups in comparison.comparisons[letter].groups.items()
    ]


def share_text(shares: Shares) -> str:
    """Returns, for example, "better 40 (40.0 %), worse 35 (35.0 %), unchanged 25 (25.0 %)"."""
    return ", ".join(share_texts(shares).values())


def share_texts(shares: Shares) -> dict[str, str]:
    """Returns the parts of `share_text`, by "better", "worse" and "unchanged"."""
    return {
        name: f"{name} {count:,} ({100 * count / shares.lines:.1f} %)"
        for name, count in vars(shares).items()
    }


def change_text(example: Example) -> str:
    """Returns, for example, "Line 7: chrF 41.2 → 78.9 (+37.7)"."""
    before, after = example.baseline_score, example.system_score
    label = METRICS[SENTENCE_METRIC].label
    return f"Line {example.line}: {label} {before:.1f} → {after:.1f} ({after - before:+.1f})"

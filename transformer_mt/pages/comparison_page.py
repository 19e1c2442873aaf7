"""A comparison of systems as a self-contained HTML page."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from transformer_mt.evaluation.comparison import (
    SENTENCE_METRIC,
    Comparison,
    Contrast,
    Example,
)
from transformer_mt.evaluation.comparison_text import (
    change_text,
    group_tables,
    score_rows,
    share_text,
)
from transformer_mt.evaluation.differences import Shares, differences
from transformer_mt.evaluation.metrics import METRICS
from transformer_mt.evaluation.paired_tests import SIGNIFICANCE, MetricComparison
from transformer_mt.pages.page import escaped, marked, page, section, table

# The share of a figure's width that is free at each side, in percent, so that the numbers at the
# ends of its axis are not cut.
_MARGIN = 5
# The heights of a bar with its label, of the label, and of the axis, in pixels.
_ROW, _LABEL, _AXIS = 44, 22, 30


def comparison_page(comparison: Comparison) -> str:
    """Returns the page. The texts may hold anything: they are shown, never run."""
    letters = [system.letter for system in comparison.systems]
    title = f"{', '.join(letters[1:])} compared with {letters[0]}"
    systems = "".join(
        f"<dt>{system.letter}</dt><dd>{_text(system.name)}"
        + " (baseline)" * (system is comparison.baseline)
        + "</dd>"
        for system in comparison.systems
    )
    parts = [
        f"<h1>{escaped(title)}</h1>",
        f'<p class="quiet">{comparison.lines:,} lines</p>',
        f'<div class="pair"><dl>{systems}</dl></div>',
        section("Verdict", *_verdicts(comparison), id="verdict"),
        section("Scores", *_scores(comparison), id="scores"),
        *(_contrast(comparison, contrast) for contrast in comparison.contrasts),
        section("How this was computed", *_method(comparison), id="method"),
    ]
    return page(title, "\n".join(parts))


def _paragraph(text: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f"<p{attribute}>{escaped(text)}</p>"


def _verdicts(comparison: Comparison) -> Iterator[str]:
    for contrast in comparison.contrasts:
        yield _paragraph(str(contrast.verdict), "verdict")
    for note in comparison.caveats:
        yield _paragraph(f"Note: {note}")
    for warning in comparison.warnings:
        yield _paragraph(f"Warning: {warning}")


def _scores(comparison: Comparison) -> Iterator[str]:
    yield _paragraph(
        "An interval is where a score, or a difference, would probably lie for other sentences of "
        "the same kind (95 %). The last two columns of the tables are the p-values of two paired "
        "tests, which are described below."
    )
    for one in comparison.metrics:
        better = "higher" if one.metric.higher_is_better else "lower"
        yield f"<h3>{escaped(one.metric.label)}: {better} is better</h3>"
        yield '<div class="figures">'
        yield from _figures(comparison, one)
        yield "</div>"
        head, *rows = score_rows(comparison, one)
        yield table(head, rows)


def _figures(comparison: Comparison, one: MetricComparison) -> Iterator[str]:
    """The figures of a metric: the scores, and the differences from the baseline."""
    label = one.metric.label
    pairs = list(zip(comparison.systems, one.scores, strict=True))
    yield _interval_figure(
        [Bar(system.letter, own.value, own.interval) for system, own in pairs],
        f"{label} of each system, and its interval.",
    )
    yield _interval_figure(
        [
            Bar(system.letter, own.difference.value, own.difference.interval, "+")
            for system, own in pairs
            if own.difference is not None
        ],
        f"Difference from {comparison.baseline.letter} in {label}, and its interval. If that "
        "contains 0, the test set cannot tell which one is better.",
        zero=True,
    )


class Bar(NamedTuple):
    """A value with an interval around it in a figure; `sign` is "+" to show the sign."""

    label: str
    value: float
    interval: tuple[float, float]
    sign: str = ""


def _interval_figure(bars: Sequence[Bar], caption: str, zero: bool = False) -> str:
    """Draws intervals above one another, on one axis. Coordinates along the axis are in percent, so
    that the text keeps its size on a narrow screen.

    Args:
        zero: whether to mark 0, which is then on the axis.
    """
    ends = [end for bar in bars for end in (*bar.interval, bar.value)] + [0.0] * zero
    ticks = _ticks(min(ends), max(ends))
    low, high = ticks[0], ticks[-1]

    def place(value: float) -> str:
        return f"{_MARGIN + (100 - 2 * _MARGIN) * (value - low) / (high - low):.2f}%"

    bottom = _ROW * len(bars)
    shapes = []
    for tick in ticks:
        x, kind = place(tick), "zero" if zero and tick == 0 else "grid"
        for row in range(len(bars)):  # in pieces, not through the labels
            start, end = _ROW * row + _LABEL, _ROW * (row + 1)
            shapes.append(f'<line class="{kind}" x1="{x}" x2="{x}" y1="{start}" y2="{end}"/>')
        number = f"{tick:{bars[0].sign if tick else ''}g}"
        shapes.append(f'<text class="tick" x="{x}" y="{bottom + 18}">{number}</text>')
    for row, bar in enumerate(bars):
        y = _ROW * row
        left, right = map(place, bar.interval)
        lower, upper = (f"{end:{bar.sign}.2f}" for end in bar.interval)
        text = f"{bar.label}: {bar.value:{bar.sign}.2f} ({lower} to {upper})"
        middle = y + _ROW - 14
        shapes.append(f'<text x="0" y="{y + 16}">{escaped(text)}</text>')
        shapes.append(
            f'<line class="interval" x1="{left}" x2="{right}" y1="{middle}" y2="{middle}"/>'
        )
        shapes.append(f'<circle cx="{place(bar.value)}" cy="{middle}" r="5"/>')
    drawing = "".join(shapes)
    return (
        f'<figure class="intervals"><svg style="height:{bottom + _AXIS}px" aria-hidden="true">'
        f"{drawing}</svg><figcaption>{escaped(caption)}</figcaption></figure>"
    )


def _ticks(low: float, high: float) -> list[float]:
    """Returns two to six round numbers from at most `low` to at least `high`."""
    width = high - low
    # A narrower one may be a rounding error, as of two scores of 100, and labels have six digits.
    if width <= max(1e-6, 1e-4 * abs(low), 1e-4 * abs(high)):
        width = max(1.0, abs(low) / 10)
    power = 10 ** math.floor(math.log10(width / 4))
    step = next(power * one for one in (1, 2, 5, 10) if power * one * 4 >= width)
    first, last = math.floor(low / step), max(math.ceil(high / step), math.floor(low / step) + 1)
    return [round(number * step, 10) for number in range(first, last + 1)]


def _contrast(comparison: Comparison, contrast: Contrast) -> str:
    letter, baseline = contrast.system.letter, comparison.baseline.letter
    parts = [
        "<h3>How many sentences changed</h3>",
        _share_bar(contrast.shares),
        _paragraph(share_text(contrast.shares)),
    ]
    for title, (head, *rows) in group_tables(comparison, contrast):
        parts += [f"<h3>{escaped(title[0].upper() + title[1:])}</h3>", table(head, rows)]
    for name, examples in (("gained", contrast.better), ("lost", contrast.worse)):
        if examples:
            parts.append(f"<h3>Sentences in which {letter} {name} most</h3>")
        parts += [_example(comparison, contrast, example) for example in examples]
    return section(f"Where {letter} differs from {baseline}", *parts, id=f"system-{letter}")


def _share_bar(counts: Shares) -> str:
    """Draws the shares of the lines beside each other, in the order of the text below it."""
    left, shapes = 0.0, []
    for name, count in counts._asdict().items():
        width = 100 * count / counts.total
        shapes.append(
            f'<rect class="{name}" x="{left:.2f}%" width="{width:.2f}%" y="0" height="16"/>'
        )
        left += width
    drawing = "".join(shapes)
    return f'<svg class="shares" width="100%" height="16" aria-hidden="true">{drawing}</svg>'


def _example(comparison: Comparison, contrast: Contrast, example: Example) -> str:
    line = example.line
    texts = [("Source", _text(comparison.sources[line]))] if comparison.sources else []
    texts += [("Reference", _text(reference[line])) for reference in comparison.references]
    pair = [comparison.baseline, contrast.system]
    pieces_of_both = differences(*(system.translations[line] for system in pair), comparison.spaces)
    for system, pieces in zip(pair, pieces_of_both, strict=True):
        is_empty = not system.translations[line]
        html = _text("") if is_empty else marked(pieces, comparison.spaces)
        texts.append((system.letter, html))
    rows = "".join(f'<dt>{label}</dt><dd dir="auto">{text}</dd>' for label, text in texts)
    head = f"Line {line + 1}: {change_text(example)}"
    return f'<div class="pair"><p class="quiet">{escaped(head)}</p><dl>{rows}</dl></div>'


def _text(text: str) -> str:
    return escaped(text) or '<span class="quiet">(empty)</span>'


def _method(comparison: Comparison) -> Iterator[str]:
    one = comparison.metrics[0]
    samples, trials = (f"{count:,}" for count in one.samples.values())
    yield _paragraph(
        f"The p-values are those of sacreBLEU's paired bootstrap resampling ({samples} samples) "
        f"and of its paired approximate randomisation ({trials} trials), with the seed {one.seed}. "
        f"A verdict calls a difference unlikely to be chance if both are below {SIGNIFICANCE}, and "
        "shows the larger one. A p-value above that never shows that two systems are equal."
    )
    yield _paragraph(
        "Single sentences are compared by their "
        f"{METRICS[SENTENCE_METRIC].label}. Words in which the two translations differ are marked."
    )
    yield table(
        ("metric", "test", "signature"),
        [
            (one.metric.label, test, signature)
            for one in comparison.metrics
            for test, signature in one.signatures.items()
        ],
        sides="<<<",
    )

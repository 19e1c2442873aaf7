"""Figures of lines and of bars, as SVG inside of a page, each with a table of its values.

Matplotlib draws them. Their colours are the variables of style.css, so that one figure suits dark
and light. Legends and titles are HTML, so that no name of a run reaches Matplotlib. The same values
always give the same text.
"""

import hashlib
import io
import logging
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from transformer_mt.pages.page import escaped, table
from transformer_mt.utils.console import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 360, 240  # in pixels where the page is as wide as a phone
SERIES = 6  # the colours --series-1 and so on; further series begin again with the first
# Matplotlib draws with these colours, which then become variables of the page.
_COLOURS = {f"#fe00{number:02x}": f"var(--series-{number})" for number in range(1, SERIES + 1)}
_INK, _QUIET, _LINE = "#fe0100", "#fe0200", "#fe0300"
_COLOURS |= {_INK: "var(--ink)", _QUIET: "var(--quiet)", _LINE: "var(--line)"}
_SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "transformer_mt",
    "text.parse_math": False,
    "font.size": 12,
    "axes.edgecolor": _LINE,
    "axes.labelcolor": _QUIET,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": _LINE,
    "grid.linewidth": 0.7,
    "text.color": _INK,
    "xtick.color": _LINE,
    "ytick.color": _LINE,
    "xtick.labelcolor": _QUIET,
    "ytick.labelcolor": _QUIET,
}
# A line is drawn through at most four points in each of this many parts of its range.
_PARTS = 200
# The most rows of a line in the table behind a figure.
_ROWS = 30


class Line(NamedTuple):
    """A line of a figure; a single point is drawn as a ring.

    Attributes:
        points: (x, y) in the order of x; y is None where there is no value.
        series: the number of its colour, from 1.
    """

    label: str
    points: Sequence[tuple[float, float | None]]
    series: int = 1
    dashed: bool = False


class Bars(NamedTuple):
    """A bar for each group of a figure.

    Attributes:
        values: one per group; None leaves the bar out.
        intervals: (lowest, highest) per group, or None; nothing for no intervals at all.
        series: the number of the colour, from 1.
    """

    label: str
    values: Sequence[float | None]
    intervals: Sequence[tuple[float, float] | None] = ()
    series: int = 1


def lines(
    title: str, x: str, y: str, drawn: Sequence[Line], *, log: bool = False, note: str = ""
) -> str:
    """Returns a figure of lines as HTML, with a legend if there are several, and with a table.

    Args:
        title, note: plain text above the figure, and below it.
        x, y: what the axes show, with the unit.
        log: whether the y-axis is logarithmic. Values that are not positive are then left out.
    """
    shown = [line._replace(points=_drawable(line.points, log)) for line in drawn]
    with _figure(HEIGHT) as figure:
        axes = figure.add_subplot()
        for line in shown:
            xs, ys = [point[0] for point in line.points], [point[1] for point in line.points]
            if len(xs) == 1:
                style = {"marker": "o", "markersize": 8, "markerfacecolor": "none"}
            else:
                style = {"marker": "o", "markersize": 3} if len(xs) <= 25 else {}
            style["linestyle"] = (0, (2.5, 1.5)) if line.dashed else "-"
            ys = [math.nan if value is None else value for value in ys]
            axes.plot(xs, ys, color=_colour(line.series), linewidth=1.5, **style)
        values = [value for line in shown for _, value in line.points if value is not None]
        _label(axes, x, y)
        axes.grid(axis="y")
        _set_ticks(axes, values, log)
        _make_room(figure, axes)
        svg = _svg(figure)
    described = "; ".join(_description(line) for line in drawn)
    kinds = [_swatch(line) for line in shown]
    legend = [(line.label, line.series, kind) for line, kind in zip(drawn, kinds, strict=True)]
    return _html(title, svg, f"{title}. {y} over {x}. {described}", legend, _rows(x, drawn), note)


def bars(
    title: str, groups: Sequence[str], unit: str, drawn: Sequence[Bars], note: str = ""
) -> str:
    """Returns a figure of horizontal bars as HTML: for each group, one bar of each series.

    Args:
        title, note: plain text above the figure, and below it.
        unit: what the bars measure.
    """
    thickness = 0.8 / max(len(drawn), 1)
    with _figure(56 + len(groups) * max(22, 13 * len(drawn) + 8)) as figure:
        axes = figure.add_subplot()
        for place, one in enumerate(drawn):
            for group, (value, interval) in enumerate(_pairs(one)):
                if value is None:
                    continue
                at = group + (place - (len(drawn) - 1) / 2) * thickness
                colour = _colour(one.series)
                axes.barh(at, value, thickness * 0.86, color=colour, alpha=0.75 if interval else 1)
                if interval:
                    reach = [[max(value - interval[0], 0)], [max(interval[1] - value, 0)]]
                    style = {"ecolor": _INK, "elinewidth": 1.2, "capsize": 2.5}
                    axes.errorbar(value, at, xerr=reach, fmt="none", **style)
        axes.set_yticks(range(len(groups)), [_cut(visible(group)) for group in groups])
        axes.tick_params(axis="y", length=0, labelcolor=_INK)
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.xaxis.set_major_formatter(lambda value, _: shown_number(value))
        axes.locator_params(axis="x", nbins=5)
        axes.grid(axis="x")
        _label(axes, unit, "")
        figure.set_layout_engine("constrained")
        svg = _svg(figure)
    columns = [[_with_interval(*pair) for pair in _pairs(one)] for one in drawn]
    rows = list(map(list, zip(groups, *columns, strict=True)))
    described = "; ".join(f"{group}: {', '.join(values)}" for group, *values in rows)
    legend = [(one.label, one.series, "line") for one in drawn]
    values = (["", *(one.label for one in drawn)], rows)
    return _html(title, svg, f"{title}. {unit}. {described}", legend, values, note)


def shown_number(value: float | None) -> str:
    """Returns a number with four significant digits, and all digits of those from 1,000 on."""
    if value is None or not math.isfinite(value):
        return "–"
    if abs(value) >= 1e15:
        return f"{value:.3e}"
    if abs(value) >= 1000 or value == round(value):
        return f"{value:,.0f}"
    return f"{value:.4g}"


# ------------------------------------------------------------------------------------------ values


def _drawable(points: Sequence[tuple[float, float | None]], log: bool) -> list:
    """Returns the points that make the same picture as all of them.

    Of each of `_PARTS` parts of the range, these are the first, the last, the lowest and the
    highest point, so that no peak is lost.
    """
    if log:
        points = [(x, y if y is not None and y > 0 else None) for x, y in points]
    if len(points) <= 4 * _PARTS:
        return list(points)
    first, width = points[0][0], (points[-1][0] - points[0][0]) or 1
    parts: dict[int, list[tuple[float, float | None]]] = {}
    for point in points:
        parts.setdefault(int((point[0] - first) / width * _PARTS), []).append(point)
    kept = []
    for part in parts.values():
        known = [point for point in part if point[1] is not None]
        ends = [part[0], part[-1]]
        if known:
            by_value = sorted(known, key=lambda point: point[1])
            ends += [by_value[0], by_value[-1]]
        kept += sorted(set(ends), key=lambda point: point[0])
    return kept


def _rows(x: str, drawn: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
    """Returns the head and the rows of the table behind a figure of lines."""
    columns = []
    for line in drawn:
        points = list(line.points)
        if len(points) > _ROWS:
            places = {round(i * (len(points) - 1) / (_ROWS - 1)) for i in range(_ROWS)}
            points = [points[place] for place in sorted(places)]
        columns.append(dict(points))
    rows = [
        [
            shown_number(at),
            *(shown_number(column[at]) if at in column else "" for column in columns),
        ]
        for at in sorted({at for column in columns for at in column})
    ]
    return [x, *(line.label for line in drawn)], rows


def _swatch(line: Line) -> str:
    """Returns how a legend shows a line: the name of a class of style.css."""
    return "ring" if len(line.points) == 1 else "dashed" if line.dashed else "line"


def _description(line: Line) -> str:
    """Returns the course of a line in words."""
    values = [value for _, value in line.points if value is not None]
    if not values:
        return f"{line.label}: no values"
    if len(values) == 1:
        return f"{line.label}: {shown_number(values[0])}"
    first, last, least, most = map(shown_number, (values[0], values[-1], min(values), max(values)))
    return f"{line.label}: from {first} to {last}, lowest {least}, highest {most}"


def _pairs(one: Bars) -> list[tuple[float | None, tuple[float, float] | None]]:
    return list(zip(one.values, one.intervals or [None] * len(one.values), strict=True))


def _with_interval(value: float | None, interval: tuple[float, float] | None) -> str:
    if value is None or interval is None:
        return shown_number(value)
    return f"{shown_number(value)} ({shown_number(interval[0])} to {shown_number(interval[1])})"


# ----------------------------------------------------------------------------------------- drawing


@contextmanager
def _figure(height: float) -> "Iterator[Figure]":
    """Yields an empty figure, under settings that no file of the user changes."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it reports how it finds its fonts
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of characters that its font does not have
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)
        figure.patch.set_visible(False)
        yield figure


def _colour(series: int) -> str:
    return f"#fe00{(series - 1) % SERIES + 1:02x}"


def _label(axes: "Axes", x: str, y: str) -> None:
    axes.set_xlabel(x, fontsize=11.5)
    axes.set_ylabel(y, fontsize=11.5)


def _set_ticks(axes: "Axes", values: list[float], log: bool) -> None:
    """Chooses few ticks with whole labels."""
    axes.xaxis.set_major_formatter(lambda value, _: shown_number(value))
    axes.locator_params(axis="x", nbins=5)
    axes.yaxis.set_major_formatter(lambda value, _: shown_number(value))
    if not log or not values:
        axes.locator_params(axis="y", nbins=5)
        return
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: shown_number(value))
    low, high = min(values), max(values)
    exponents = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    ticks = [factor * 10.0**exponent for exponent in exponents for factor in (1, 2, 5)]
    ticks = [tick for tick in ticks if low / 1.3 <= tick <= high * 1.3]
    axes.set_yticks(ticks[:: len(ticks) // 6 + 1])
    axes.minorticks_off()


def _make_room(figure: "Figure", axes: "Axes") -> None:
    """Leaves room for the labels of a figure of lines. Matplotlib's own layout would measure every
    text, which takes as long as drawing."""
    limits = axes.get_xlim(), axes.get_ylim()
    ticks = axes.get_xticks(), axes.get_yticks()
    columns, rows = (
        max((len(shown_number(at)) for at in places if low <= at <= high), default=0)
        for places, (low, high) in zip(ticks, limits, strict=True)
    )
    # A digit is 7.7 pixels wide, and a label stands in the middle below its tick.
    left, right = 28 + 7.7 * rows, 8 + 7.7 / 2 * columns
    figure.subplots_adjust(left / WIDTH, 44 / HEIGHT, 1 - right / WIDTH, 1 - 8 / HEIGHT)


def _svg(figure: "Figure") -> str:
    """Returns the figure as an SVG element without ids that another figure could have."""
    file = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    svg = file.getvalue()
    svg = re.sub(r"<!--.*?-->", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'<svg [^>]*(viewBox="[^"]*")[^>]*>', r"<svg \1>", svg, count=1)
    for colour, variable in _COLOURS.items():
        svg = svg.replace(colour, variable)
    # Without a family, the page's own font is used. A style element would be the whole page's.
    svg = re.sub(r" font-family: [^;\"]*;", "", svg)
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(?<=\d\.\d\d)\d+", "", tag[0]), svg)
    prefix = "f" + hashlib.sha256(svg.encode("utf-8", "replace")).hexdigest()[:10]
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
    svg = re.sub(
        r' id="([^"]*)"', lambda match: f' id="{prefix}{match[1]}"' if match[1] in used else "", svg
    )
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}", svg)
    return re.sub(r"\s*\n\s*", "\n", svg).strip()


def _cut(text: str) -> str:
    return text if len(text) <= 28 else f"{text[:27]}…"


def _html(
    title: str,
    svg: str,
    description: str,
    legend: Sequence[tuple[str, int, str]],
    values: tuple[list[str], list[list[str]]],
    note: str,
) -> str:
    """Returns the figure with its title, legend, note and table."""
    keys = "".join(
        f'<span><i class="{kind}" style="color: {_COLOURS[_colour(series)]}"></i>'
        f"{escaped(label)}</span>"
        for label, series, kind in legend
    )
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{escaped(description[:2000])}" ', 1)
    return (
        f"<figure>\n<figcaption><b>{escaped(title)}</b></figcaption>\n{svg}\n"
        + (f'<div class="legend">{keys}</div>\n' if len(legend) > 1 else "")
        + (f'<p class="note">{escaped(note)}</p>\n' if note else "")
        + f"<details><summary>Values</summary>{table(*values, sides='>')}</details>\n</figure>"
    )

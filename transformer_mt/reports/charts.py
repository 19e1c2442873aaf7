"""Figures of lines, of bars and of intervals, as SVG inside of a page, each with its values.

Matplotlib draws them. Their colours are the variables of style.css, so that one figure suits dark
and light. Legends and titles are HTML, so that no name of a run reaches Matplotlib. The same values
always give the same text.
"""

import hashlib
import io
import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from transformer_mt.reports.page import Table
from transformer_mt.utils.console import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Item = TypeVar("Item")

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
    # A line of many points is drawn as one of fewer that nobody can tell from it.
    "path.simplify_threshold": 0.5,
    "font.size": 12,
    "axes.labelsize": 11.5,
    "axes.axisbelow": True,
    "grid.linewidth": 0.7,
    "text.color": _INK,
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    **dict.fromkeys(("axes.edgecolor", "grid.color", "xtick.color", "ytick.color"), _LINE),
    **dict.fromkeys(("axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), _QUIET),
}
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


class Key(NamedTuple):
    """A line of a legend. `kind` is a class of style.css: line, dashed or ring."""

    label: str
    colour: str
    kind: str = "line"


class Figure(NamedTuple):
    """A figure for the macro of the same name in parts.html.

    Attributes:
        svg: the drawing.
        description: the drawing in words.
        values: what is drawn; None if the page has it in another table.
    """

    title: str
    svg: str
    description: str
    legend: Sequence[Key] = ()
    values: Table | None = None
    note: str = ""


def lines(
    title: str, x: str, y: str, drawn: Sequence[Line], *, log: bool = False, note: str = ""
) -> Figure:
    """Returns a figure of lines.

    Args:
        title, note: plain text above the figure, and below it.
        x, y: what the axes show, with the unit.
        log: whether the y-axis is logarithmic. Values that are not positive are then left out.
    """
    with _axes(HEIGHT) as axes:
        for line in drawn:
            xs, values = zip(*line.points, strict=True) if line.points else ((), ())
            ys = [math.nan if y is None or (log and y <= 0) else y for y in values]
            style: dict[str, Any] = {"marker": "o", "markersize": 3} if len(xs) <= 25 else {}
            if len(xs) == 1:
                style |= {"markersize": 8, "markerfacecolor": "none"}
            dash = (0, (2.5, 1.5)) if line.dashed else "-"
            axes.plot(xs, ys, color=_colour(line.series), linewidth=1.5, linestyle=dash, **style)
        axes.set(xlabel=x, ylabel=y)
        axes.grid(axis="y")
        points = [y for line in drawn for _, y in line.points if y is not None and y > 0]
        _set_ticks(axes, points if log else [])
        # Matplotlib's own layout would measure every text, which takes as long as drawing. A digit
        # is 7.7 pixels wide.
        left = 28 + 7.7 * max((len(shown_number(tick)) for tick in axes.get_yticks()), default=0)
        axes.figure.subplots_adjust(left / WIDTH, 44 / HEIGHT, 1 - 24 / WIDTH, 1 - 8 / HEIGHT)
        svg = _svg(axes)
    legend = []
    for line in drawn:
        kind = "ring" if len(line.points) == 1 else "dashed" if line.dashed else "line"
        legend.append(Key(line.label, _COLOURS[_colour(line.series)], kind))
    described = f"{title}. {y} over {x}. {'; '.join(map(_description, drawn))}"
    return Figure(title, svg, described, legend, _values(x, drawn), note)


def bars(
    title: str, groups: Sequence[str], unit: str, drawn: Sequence[Bars], note: str = ""
) -> Figure:
    """Returns a figure of horizontal bars: for each group, one bar of each series.

    Args:
        title, note: plain text above the figure, and below it.
        unit: what the bars measure.
    """
    thickness = 0.8 / max(len(drawn), 1)
    columns = []
    with _axes(56 + len(groups) * max(22, 13 * len(drawn) + 8)) as axes:
        for place, series in enumerate(drawn):
            colour, cells = _colour(series.series), []
            intervals = series.intervals or [None] * len(series.values)
            for group, (value, ends) in enumerate(zip(series.values, intervals, strict=True)):
                cells.append(shown_number(value))
                if value is None:
                    continue
                at = group + (place - (len(drawn) - 1) / 2) * thickness
                axes.barh(at, value, thickness * 0.86, color=colour, alpha=0.75 if ends else 1)
                if ends:
                    cells[-1] += f" ({shown_number(ends[0])} to {shown_number(ends[1])})"
                    axes.plot(ends, (at, at), color=_INK, linewidth=1.2, marker="|", markersize=5)
            columns.append(cells)
        axes.set_yticks(range(len(groups)), [_cut(visible(group)) for group in groups])
        axes.tick_params(axis="y", length=0, labelcolor=_INK)
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.set(xlabel=unit)
        axes.grid(axis="x")
        _set_ticks(axes, x_only=True)
        svg = _svg(axes, "constrained")
    rows = [list(row) for row in zip(groups, *columns, strict=True)]
    described = "; ".join(f"{group}: {', '.join(values)}" for group, *values in rows)
    return Figure(
        title,
        svg,
        f"{title}. {unit}. {described}",
        [Key(series.label, _COLOURS[_colour(series.series)]) for series in drawn],
        Table(["", *(series.label for series in drawn)], rows),
        note,
    )


def intervals(
    title: str, rows: Sequence[tuple[str, float, tuple[float, float]]], sign: str = ""
) -> Figure:
    """Returns a figure of values with intervals around them, above one another on one axis.

    Args:
        rows: a short label, the value, and the ends of its interval.
        sign: "+" to show the signs, and to mark 0.
    """
    labels = [
        f"{label}: {value:{sign}.2f} ({ends[0]:{sign}.2f} to {ends[1]:{sign}.2f})"
        for label, value, ends in rows
    ]
    with _axes(44 * len(rows) + 30) as axes:
        for place, (label, (_, value, ends)) in enumerate(zip(labels, rows, strict=True)):
            axes.plot(ends, (place, place), color=_colour(1), linewidth=3)
            axes.plot(value, place, "o", color=_colour(1), markersize=10)
            axes.text(0, place - 0.3, visible(label), transform=axes.get_yaxis_transform())
            if sign:
                low, high = place - 0.2, place + 0.5  # not through the label
                axes.vlines(0, low, high, color=_INK, linewidth=1, linestyle=(0, (4, 3)))
        # A range as narrow as a rounding error, as of two scores of 100, would have no ticks.
        low, high = axes.get_xlim()
        if high - low <= max(1e-6, 1e-4 * abs(low)):
            axes.set_xlim(low - 1, high + 1)
        axes.set(ylim=(len(rows) - 0.5, -0.7), yticks=[])
        axes.spines.left.set_visible(False)
        axes.grid(axis="x")
        _set_ticks(axes, x_only=True)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:{sign if value else ''}g}")
        svg = _svg(axes, "constrained")
    return Figure(title, svg, f"{title} {'; '.join(labels)}")


def shown_number(value: float | None) -> str:
    """Returns a number with four significant digits, and all digits of those from 1,000 on."""
    if value is None or not math.isfinite(value):
        return "–"
    if abs(value) >= 1e15:
        return f"{value:.3e}"
    if abs(value) >= 1000 or value == round(value):
        return f"{value:,.0f}"
    return f"{value:.4g}"


def thinned(items: Sequence[Item], most: int) -> list[Item]:
    """Returns at most `most` of the items, spread evenly, the first and the last among them."""
    last = len(items) - 1
    if last < most:
        return list(items)
    return [items[round(place * last / (most - 1))] for place in range(most)]


def _values(x: str, drawn: Sequence[Line]) -> Table:
    """Returns the table behind a figure of lines."""
    columns = []
    for line in drawn:
        columns.append(dict(thinned(line.points, _ROWS)))
    rows = []
    for at in sorted({at for column in columns for at in column}):
        cells = (shown_number(column[at]) if at in column else "" for column in columns)
        rows.append([shown_number(at), *cells])
    return Table([x, *(line.label for line in drawn)], rows, sides=">")


def _description(line: Line) -> str:
    """Returns the course of a line in words."""
    values = [value for _, value in line.points if value is not None]
    if not values:
        return f"{line.label}: no values"
    if len(values) == 1:
        return f"{line.label}: {shown_number(values[0])}"
    first, last, least, most = map(shown_number, (values[0], values[-1], min(values), max(values)))
    return f"{line.label}: from {first} to {last}, lowest {least}, highest {most}"


@contextmanager
def _axes(height: float) -> "Iterator[Axes]":
    """Yields empty axes, under settings that no file of the user changes."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it reports how it finds its fonts
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of characters that its font does not have
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield Figure(figsize=(WIDTH / 72, height / 72), dpi=72).add_subplot()


def _svg(axes: "Axes", layout: str = "none") -> str:
    """Returns the figure of these axes as an SVG element. No id in it is that of another figure."""
    figure: Any = axes.figure
    figure.set_layout_engine(layout)
    file = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    prefix = "f" + hashlib.sha256(svg.encode("utf-8", "replace")).hexdigest()[:10]
    for before in (' id="', 'href="#', "url(#"):
        svg = svg.replace(before, before + prefix)
    for colour, variable in _COLOURS.items():
        svg = svg.replace(colour, variable)
    return svg


def _colour(series: int) -> str:
    return f"#fe00{(series - 1) % SERIES + 1:02x}"


def _set_ticks(axes: "Axes", log_values: Sequence[float] = (), x_only: bool = False) -> None:
    """Chooses few ticks with whole labels; on a logarithmic y-axis for `log_values`, if there are
    any."""
    axes.xaxis.set_major_formatter(lambda value, _: shown_number(value))
    axes.locator_params(axis="x", nbins=5)
    if x_only:
        return
    if log_values:
        axes.set_yscale("log")
        low, high = min(log_values), max(log_values)
        exponents = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
        ticks = [factor * 10.0**exponent for exponent in exponents for factor in (1, 2, 5)]
        ticks = [tick for tick in ticks if low / 1.3 <= tick <= high * 1.3]
        axes.set_yticks(ticks[:: len(ticks) // 6 + 1])
        axes.minorticks_off()
    else:
        axes.locator_params(axis="y", nbins=5)
    axes.yaxis.set_major_formatter(lambda value, _: shown_number(value))


def _cut(text: str) -> str:
    return text if len(text) <= 28 else f"{text[:27]}…"

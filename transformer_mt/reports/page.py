"""What pages are made of: templates, tables and figures.

A page is one file. It fetches nothing, and its Content-Security-Policy forbids it. Text is shown
and never run, because all that a template (Jinja2) is given is escaped, as HTML or as Markdown.

Matplotlib draws the figures, as SVG inside of the page, and a table has their values. Their colours
are the variables of style.css, so that one figure suits dark and light. Titles, legends and the
units of vertical axes are HTML, which wraps on a narrow screen and never lies over a tick. So no
name of a run reaches Matplotlib. The same values always give the same text.
"""

import hashlib
import html
import io
import logging
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from transformer_mt.scoring.comparison import differences
from transformer_mt.utils.console import visible

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.axes import Axes

Item = TypeVar("Item")

TEMPLATES = Path(__file__).with_name("templates")
WIDTH, HEIGHT = 360, 240  # in pixels where the page is as wide as a phone
SERIES = 6  # the colours --series-1 and so on; further series begin again with the first
ACCENT, BACKGROUND = 2, 6  # the series of what matters where there is one run, and of the rest
# The shapes of points, by series, for whoever cannot tell the colours apart.
_MARKERS = "osD^vP"
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
    "font.sans-serif": ["DejaVu Sans"],  # it measures texts; style.css names others to show them in
    "font.size": 12,
    "axes.labelsize": 11.5,
    "axes.axisbelow": True,
    "grid.linewidth": 0.7,
    "text.color": _INK,
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    **dict.fromkeys(("axes.edgecolor", "grid.color", "xtick.color", "ytick.color"), _LINE),
    **dict.fromkeys(("axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), _QUIET),
}
# The width of a digit in pixels; in most fonts it is less.
_DIGIT = 7.7
# The most rows of a line in the table behind a figure.
_ROWS = 30


class Table(NamedTuple):
    """A table of plain text.

    Attributes:
        sides: the alignment of each column, < (text) or > (numbers); columns beyond are as the
            last one of these.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    sides: str = "<>"

    def is_number(self, column: int) -> bool:
        return self.sides[min(column, len(self.sides) - 1)] == ">"


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
        intervals: (lowest, highest) per group, or None.
        series: the number of the colour, from 1, or one per group.
    """

    label: str
    values: Sequence[float | None]
    intervals: Sequence[tuple[float, float] | None]
    series: int | Sequence[int] = 1

    def series_of(self, group: int) -> int:
        return self.series if isinstance(self.series, int) else self.series[group]


class Figure(NamedTuple):
    """A figure for the macro of the same name in parts.html.

    Attributes:
        unit: what the vertical axis shows, if that is not written beside it.
        svg: the drawing.
        values: what is drawn; None if the page has it in another table.
        legend: the label, the colour, and the class of style.css (line, dashed or ring) of each
            series.
        note: plain text below the figure.
    """

    title: str
    svg: str
    values: Table | None
    legend: Sequence[tuple[str, str, str]]
    note: str = ""
    unit: str = ""


def render(template: str, **values: Any) -> str:
    """Returns the text of a template, such as "run.html", with these values in it.

    Raises:
        ModuleNotFoundError: Jinja2 is not installed.
    """
    return _environment(template.endswith(".html")).get_template(template).render(values)


@cache
def _environment(is_html: bool) -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    plain = visible if is_html else _plain_markdown
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=is_html,
        finalize=lambda value: value if hasattr(value, "__html__") else plain(str(value)),
        extensions=["jinja2.ext.do"],
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.globals |= {"differences": differences, "number": shown_number, "Table": Table}
    environment.globals["SERIES"] = SERIES
    return environment


def _plain_markdown(text: str) -> str:
    """Returns a text as one line that means nothing in Markdown or HTML."""
    text = html.escape(" ".join(text.split()), quote=False)
    # Hubs make links of www.x.org and https://x.org.
    return re.sub(r"([\\`*_{}\[\]()#+!|~]|(?<=www)\.|:(?=//))", r"\\\1", text, flags=re.I)


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
    return [items[round(place * last / max(most - 1, 1))] for place in range(most)]


# ---- Figures


def lines(
    title: str, x: str, y: str, drawn: Sequence[Line], *, log: bool = False, note: str = ""
) -> Figure:
    """Returns a figure of lines.

    Args:
        x, y: what the axes show, with the unit. The page writes `y` above the figure.
        log: whether the y-axis is logarithmic. Values that are not positive are then left out.
    """
    legend = []
    with _axes(HEIGHT) as axes:
        for line in drawn:
            is_ring = len(line.points) == 1
            xs, values = zip(*line.points, strict=True) if line.points else ((), ())
            ys = [math.nan if y is None or (log and y <= 0) else y for y in values]
            style: dict[str, Any] = {"marker": "o", "markersize": 3} if len(xs) <= 25 else {}
            if is_ring:
                style |= {"markersize": 8, "markerfacecolor": "none"}
            dash = (0, (2.5, 1.5)) if line.dashed else "-"
            colour = _colour(line.series)
            width = 1.2 if line.series == BACKGROUND else 1.7
            axes.plot(xs, ys, color=colour, linewidth=width, linestyle=dash, **style)
            kind = "ring" if is_ring else "dashed" if line.dashed else "line"
            legend.append((line.label, _COLOURS[colour], kind))
        axes.set(xlabel=x)
        axes.grid(axis="y")
        positive = [y for line in drawn for _, y in line.points if y is not None and y > 0]
        if log and positive:
            _set_log_ticks(axes, min(positive), max(positive))
        else:
            axes.locator_params(axis="y", nbins=5)
        axes.yaxis.set_major_formatter(lambda value, _: shown_number(value))
        # Matplotlib's own layout would measure every text, which takes as long as drawing.
        left = 10 + _DIGIT * _longest(axes.get_yticks(), axes.get_ylim())
        axes.figure.subplots_adjust(left / WIDTH, 44 / HEIGHT, 1 - 24 / WIDTH, 1 - 8 / HEIGHT)
        # Steps beyond 100,000 leave room for fewer ticks.
        digits = 2 + _longest(axes.get_xticks(), axes.get_xlim())
        room = (WIDTH - 24 - left) / (_DIGIT * digits)
        axes.locator_params(axis="x", nbins=max(2, min(5, int(room))))
        svg = _svg(axes)
    # Values of the same x are in one row.
    columns = [dict(thinned(line.points, _ROWS)) for line in drawn]
    rows = [
        [shown_number(at), *(shown_number(own[at]) if at in own else "" for own in columns)]
        for at in sorted({at for column in columns for at in column})
    ]
    table = Table([x, *(line.label for line in drawn)], rows, sides=">")
    return Figure(title, svg, table, legend, note, y)


def bars(
    title: str,
    groups: Sequence[str],
    unit: str,
    drawn: Sequence[Bars],
    *,
    zoomed: bool = False,
    has_zero: bool = False,
    note: str = "",
) -> Figure:
    """Returns a figure of horizontal bars: for each group, one bar of each series.

    Args:
        unit: what the bars measure.
        zoomed: whether points stand for bars, so that the axis need not begin at 0.
        has_zero: whether a dashed line marks 0.
    """
    thickness = 0.8 / max(len(drawn), 1)
    columns = []
    with _axes(56 + len(groups) * max(22, 13 * len(drawn) + 8)) as axes:
        for place, series in enumerate(drawn):
            cells = []
            for group, (value, ends) in enumerate(
                zip(series.values, series.intervals, strict=True)
            ):
                cells.append(shown_number(value))
                if value is None:
                    continue
                number = series.series_of(group)
                colour = _colour(number)
                at = group + (place - (len(drawn) - 1) / 2) * thickness
                if zoomed:
                    axes.plot(value, at, _marker(number), color=colour, markersize=9, zorder=3)
                else:
                    axes.barh(at, value, thickness * 0.86, color=colour, alpha=0.75 if ends else 1)
                if ends:
                    cells[-1] += f" ({shown_number(ends[0])} to {shown_number(ends[1])})"
                    axes.plot(ends, (at, at), color=_INK, linewidth=1.2, marker="|", markersize=5)
            columns.append(cells)
        if has_zero:
            axes.axvline(0, color=_INK, linewidth=1, linestyle=(0, (4, 3)))
        names = (visible(group) for group in groups)
        axes.set_yticks(
            range(len(groups)), [name if len(name) <= 28 else f"{name[:27]}…" for name in names]
        )
        axes.tick_params(axis="y", length=0, labelcolor=_INK)
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.set(xlabel=unit)
        axes.grid(axis="x")
        axes.locator_params(axis="x", nbins=6)
        svg = _svg(axes, "constrained")
    table = Table(
        ["", *(series.label for series in drawn)],
        [list(row) for row in zip(groups, *columns, strict=True)],
    )
    legend = [(series.label, _COLOURS[_colour(series.series_of(0))], "line") for series in drawn]
    return Figure(title, svg, table, legend, note)


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
        figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)
        yield figure.add_subplot()


def _svg(axes: "Axes", layout: str = "none") -> str:
    """Returns the figure of these axes as an SVG element. No id in it is that of another figure."""
    figure: Any = axes.figure
    figure.set_layout_engine(layout)
    axes.xaxis.set_major_formatter(lambda value, _: shown_number(value))
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


def _marker(series: int) -> str:
    return _MARKERS[(series - 1) % len(_MARKERS)]


def _longest(ticks: Iterable[float], ends: tuple[float, float]) -> int:
    """The number of characters of the longest label of the ticks on an axis with these ends."""
    low, high = sorted(ends)
    return max((len(shown_number(tick)) for tick in ticks if low <= tick <= high), default=0)


def _set_log_ticks(axes: "Axes", low: float, high: float) -> None:
    """Chooses few ticks with short labels, for values from `low` to `high`."""
    from matplotlib.ticker import MaxNLocator

    exponents = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    ticks = [factor * 10.0**exponent for exponent in exponents for factor in (1, 2, 5)]
    ticks = [tick for tick in ticks if low / 1.3 <= tick <= high * 1.3]
    axes.set_yscale("log")
    if len(ticks) > 1:
        axes.set_yticks(ticks[:: len(ticks) // 6 + 1])
    else:  # of a range as narrow as 2.1 to 2.4
        axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.minorticks_off()

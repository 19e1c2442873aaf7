"""Figures: what is drawn is what was given, it follows the colours of the page, and text stays
text."""

import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest

from transformer_mt.reports.page import TEMPLATES, Bars, Line, bars, lines, shown_number

HOSTILE = ["</script><script>alert(1)</script>", "$x_1$ \\frac", "\u202e\u2028\0\x1b[2J", "\ud800"]


def path_data(figure):
    """The paths that are drawn in colours of series."""
    paths = ElementTree.fromstring(figure.svg).iter("{http://www.w3.org/2000/svg}path")
    styled = [
        (path.get("style", ""), path.get("d")) for path in paths if "clip-path" in path.attrib
    ]
    return [data for style, data in styled if "stroke: var(--series" in style]


def points_of(data):
    numbers = re.findall(r"[-\d.]+", data)
    return [(float(x), float(y)) for x, y in zip(*[iter(numbers)] * 2, strict=True)]


def drawn_points(points, **options):
    (data,) = path_data(lines("Loss", "step", "nats", [Line("train", points)], **options))
    return points_of(data)


def test_lines_go_through_their_points():
    """In proportion on linear axes; on a logarithmic one, equal factors are equal steps."""
    (x0, y0), (x1, y1), (x2, y2) = drawn_points([(0, 1.0), (10, 3.0), (30, 2.0)])
    assert (x2 - x0) == pytest.approx(3 * (x1 - x0), abs=0.1)
    assert (y1 - y0) == pytest.approx(2 * (y2 - y0), abs=0.1)
    assert y1 < y2 < y0  # upwards in a picture is a smaller y
    points = [(0, 1.0), (1, 10.0), (2, 0.0), (3, 100.0), (4, 1000.0)]
    (_, y0), (_, y1), (_, y2), (_, y3) = drawn_points(points, log=True)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.1) == pytest.approx(y2 - y3, abs=0.1)


def test_a_gap_where_there_is_no_value():
    figure = lines("", "step", "", [Line("a", [(0, 1.0), (1, 2.0), (2, None), (3, 2.0), (4, 1.0)])])
    (data,) = path_data(figure)
    assert data.count("M") == 2 and ["2", "–"] in figure.values.rows


def test_long_lines_keep_their_peaks():
    points = [(step, 1.0) for step in range(100_000)]
    points[54_321] = (54_321, 9.0)
    drawn = drawn_points(points)
    assert len(drawn) < 1000
    (first, low), (last, _) = drawn[0], drawn[-1]
    at, high = min(drawn, key=lambda point: point[1])
    assert high < low - 100
    assert (at - first) / (last - first) == pytest.approx(0.543, abs=0.006)


def test_the_table_has_the_values():
    points = [(step, step / 7) for step in range(0, 10_000, 10)]
    figure = lines("Loss", "step", "nats", [Line("a", points), Line("b", [(0, 2.5)], 2, True)])
    assert figure.values.columns == ["step", "a", "b"]
    rows = figure.values.rows
    assert rows[0] == ["0", "0", "2.5"] and rows[-1] == ["9,990", "1,427", ""] and len(rows) == 30
    assert [kind for _, _, kind in figure.legend] == ["line", "ring"]


def test_bars_and_intervals():
    figure = bars(
        "BLEU by length",
        ["1–10 words", "more"],
        "BLEU",
        [Bars("a", [20.0, 10.0], [(18.0, 23.0), None]), Bars("b", [40.0, None], [None, None], 2)],
    )
    assert figure.values.columns == ["", "a", "b"]
    rows = [["1–10 words", "20 (18 to 23)", "40"], ["more", "10", "–"]]
    assert figure.values.rows == rows
    widths = {"1": [], "2": []}
    for series, data in re.findall(r'<path d="([^"]*)"[^>]*fill: var\(--series-(\d)\)', figure.svg):
        xs = [x for x, _ in points_of(series)]
        widths[data].append(max(xs) - min(xs))
    assert widths["1"][0] == pytest.approx(2 * widths["1"][1], rel=0.01)
    assert widths["2"] == [pytest.approx(2 * widths["1"][0], rel=0.01)]
    assert ">1–10 words<" in figure.svg and ">BLEU<" in figure.svg


def test_each_group_can_have_a_colour():
    """And a shape of its own, for whoever cannot tell the colours apart."""
    own = Bars("BLEU", [20.0, 22.0], [(19.0, 21.0), (21.0, 23.0)], [1, 2])
    figure = bars("BLEU", ["A", "B"], "BLEU", [own], zoomed=True)
    root = ElementTree.fromstring(figure.svg)
    points = [
        element.get("style")
        for element in root.iter("{http://www.w3.org/2000/svg}use")
        if "fill: var(--series" in element.get("style", "")
    ]
    assert [re.search(r"fill: var\(--series-(\d)\)", style)[1] for style in points] == ["1", "2"]
    outlines = re.findall(r'<path id="[^"]*" d="([^"]*)" style="stroke: var\(--series', figure.svg)
    assert len(outlines) == len(set(outlines)) == 2


def test_a_narrow_range_has_ticks_on_a_logarithmic_axis():
    """2.8 to 3.4 holds no number of the usual ticks 1, 2, 5."""
    svg = lines("", "step", "", [Line("a", [(0, 2.8), (1000, 3.4)])], log=True).svg
    ticks = re.findall(r">([\d.]+)</text>", svg)
    assert len([tick for tick in ticks if 2.8 <= float(tick) <= 3.4]) >= 2


@pytest.mark.parametrize("last", [900, 90_000, 9_000_000])
def test_labels_of_steps_do_not_touch(last):
    """In a font in which a digit is 7.7 of the 360 pixels wide."""
    svg = lines("", "step", "", [Line("a", [(0, 1.0), (last, 2.0)])]).svg
    labels = re.findall(r'text-anchor: middle[^"]*" x="([\d.]+)"[^>]*>([\d,]+)<', svg)
    assert len(labels) >= 2
    ends = [(float(x), 7.7 * len(text) / 2) for x, text in labels]
    for (one, half), (other, other_half) in pairwise(ends):
        assert one + half < other - other_half


def test_the_unit_is_no_part_of_the_drawing():
    """The page writes it above the figure, where it lies over no tick."""
    figure = lines("Loss", "step", "nats per subword", [Line("a", [(0, 1.0), (1, 2.0)])])
    assert figure.unit == "nats per subword" and "nats" not in figure.svg


def test_figures_have_the_colours_of_the_page():
    figure = lines("Loss", "step", "nats", [Line("a", [(0, 1), (1, 2)], 8)])
    assert "var(--series-2)" in figure.svg  # the colours begin again
    assert not re.search(r"#[0-9a-f]{6}\b", figure.svg)
    style = (TEMPLATES / "style.css").read_text("utf-8")
    for variable in set(re.findall(r"var\((--[\w-]+)\)", figure.svg)):
        assert style.count(f"{variable}: #") >= 2


def luminance(colour):
    """WCAG 2.2, "relative luminance"."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (
        x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    dark, bright = sorted((luminance(one), luminance(other)))
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_and_lines_can_be_seen(scheme):
    """By the least contrasts of WCAG 2.2, level AA: 4.5 for text and 3 for lines."""
    style = (TEMPLATES / "style.css").read_text("utf-8").split("* { box-sizing")[0]
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", light if scheme == "light" else dark))
    backgrounds = [colours["page"], colours["panel"]]
    texts = ["ink", "quiet", "accent", "series-1", "series-2"]
    for background in backgrounds:
        assert all(contrast(colours[text], background) >= 4.5 for text in texts)
        assert all(contrast(colours[f"series-{n}"], background) >= 3 for n in range(1, 7))
    assert all(contrast(colours["ink"], colours[mark]) >= 4.5 for mark in ("mark", "mark-1"))


def test_ids_of_figures_do_not_collide():
    """And the same values give the same text."""
    values = (2, 3, 2)
    figures = [lines("Loss", "", "", [Line("a", [(0, 1), (1, last)])]).svg for last in values]
    assert figures[0] == figures.pop()
    ids = [set(re.findall(r' id="([^"]+)"', figure)) for figure in figures]
    assert ids[0] and not ids[0] & ids[1]
    for figure, own in zip(figures, ids, strict=True):
        assert set(re.findall(r'(?:url\(|href=")#([^")]+)', figure)) <= own


@pytest.mark.parametrize("text", HOSTILE)
def test_any_text_stays_text(text):
    own = Bars(text, [1, 2], [(0.0, 2.0), None])
    svg = bars(text, [text, "b"], "BLEU", [own, own]).svg
    svg.encode()
    ElementTree.fromstring(svg)
    assert "<script" not in svg and not re.search("[\u202e\u2028\0\x1b]", svg)


@pytest.mark.parametrize(
    "points",
    [[], [(5, None)], [(1, 0.0)], [(1, -2.0)], [(0, 1e29), (1, 1e-29)], [(0, 3.0), (1, 3.0)]],
)
@pytest.mark.parametrize("log", [False, True])
def test_few_or_extreme_values(points, log):
    ElementTree.fromstring(lines("Loss", "step", "nats", [Line("a", points)], log=log).svg)


@pytest.mark.parametrize(
    ("value", "ends"),
    [(100.0, (100.0 - 1e-13, 100.0)), (0.0, (0.0, 0.0)), (0.004, (-0.003, 0.008))],
)
def test_narrow_intervals(value, ends):
    figure = bars("", ["B"], "BLEU", [Bars("", [value], [ends])], zoomed=True)
    ElementTree.fromstring(figure.svg)
    assert figure.values.rows[0][1].startswith(shown_number(value))


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (float("nan"), "–"), (0.00123456, "0.001235"), (31.416, "31.42"), (8000, "8,000"),
     (1234.5, "1,234"), (2.0, "2"), (1e20, "1.000e+20"), (-0.5, "-0.5"), (7e-7, "7e-07")],
)  # fmt: skip
def test_numbers(value, shown):
    assert shown_number(value) == shown

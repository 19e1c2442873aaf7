"""Figures: what is drawn is what was given, it follows the colours of the page, and text stays
text."""

import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from transformer_mt.pages.charts import Bars, Line, bars, lines, shown_number
from transformer_mt.pages.page import page

HOSTILE = ["</script><script>alert(1)</script>", "$x_1$ \\frac", "_hidden", 'a"b\'c', "]]>&lt;",
           "\u202e\u2028\0\x1b[2J", "\ud800", "图书馆 محطة", "%s {} ${x}", ""]  # fmt: skip


def svg_of(figure):
    text = figure[figure.index("<svg") : figure.index("</svg>") + 6]
    text = text.replace("<svg ", '<svg xmlns:xlink="http://www.w3.org/1999/xlink" ', 1)
    return ElementTree.fromstring(text)


def cells(figure):
    return [re.findall("<t[dh][^>]*>(.*?)</t[dh]>", row) for row in figure.split("<tr>")[1:]]


def paths(figure):
    """The points of the lines that are drawn in colours of series."""
    found = []
    for path in svg_of(figure).iter("path"):
        if "stroke: var(--series" in path.get("style", "") and path.get("id") is None:
            numbers = re.findall(r"[-\d.]+", path.get("d"))
            found.append([(float(x), float(y)) for x, y in zip(*[iter(numbers)] * 2, strict=True)])
    return found


def test_lines_go_through_their_points():
    """In proportion: the axes are linear."""
    points = [(0, 1.0), (10, 3.0), (30, 2.0)]
    (drawn,) = paths(lines("Loss", "step", "nats", [Line("train", points)]))
    (x0, y0), (x1, y1), (x2, y2) = drawn
    assert (x2 - x0) == pytest.approx(3 * (x1 - x0), abs=0.1)
    assert (y1 - y0) == pytest.approx(2 * (y2 - y0), abs=0.1)
    assert y1 < y2 < y0  # upwards in a picture is a smaller y


def test_a_logarithmic_axis_has_equal_steps_for_equal_factors():
    points = [(0, 1.0), (1, 10.0), (2, 0.0), (3, 100.0), (4, 1000.0)]
    drawn = paths(lines("Perplexity", "step", "ppl", [Line("train", points)], log=True))
    (_, y0), (_, y1), (_, y2), (_, y3) = [point for part in drawn for point in part]
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.1) == pytest.approx(y2 - y3, abs=0.1)


def test_a_gap_where_there_is_no_value():
    points = [(0, 1.0), (1, 2.0), (2, None), (3, 2.0), (4, 1.0)]
    figure = lines("Norm", "step", "", [Line("train", points)])
    d = next(p for p in svg_of(figure).iter("path") if "stroke: var(--series" in p.get("style", ""))
    assert d.get("d").count("M") == 2
    assert ["2", "–"] in cells(figure)


def test_long_lines_keep_their_peaks():
    points = [(step, 1.0) for step in range(100_000)]
    points[54_321] = (54_321, 9.0)
    (drawn,) = paths(lines("Norm", "step", "", [Line("train", points)]))
    assert len(drawn) < 1000
    (first, low), (last, _) = drawn[0], drawn[-1]
    at, high = min(drawn, key=lambda point: point[1])
    assert high < low - 100
    assert (at - first) / (last - first) == pytest.approx(0.543, abs=0.006)


def test_the_table_and_the_description_have_the_values():
    points = [(step, step / 7) for step in range(0, 10_000, 10)]
    figure = lines("Loss", "step", "nats", [Line("a", points), Line("b", [(0, 2.5)], 2, True)])
    head, *rows = cells(figure)
    assert head == ["step", "a", "b"]
    assert rows[0] == ["0", "0", "2.5"] and rows[-1] == ["9,990", "1,427", ""]
    assert len(rows) == 30
    svg = svg_of(figure)
    assert svg.get("role") == "img"
    assert svg.get("aria-label") == (
        "Loss. nats over step. a: from 0 to 1,427, lowest 0, highest 1,427; b: 2.5"
    )
    assert 'class="dashed"' not in figure  # a single point is a ring


def test_bars_and_intervals():
    figure = bars(
        "BLEU by length",
        ["1–10 words", "more"],
        "BLEU",
        [Bars("a", [20.0, 10.0], [(18.0, 23.0), None]), Bars("b", [40.0, None], series=2)],
    )
    assert cells(figure)[0] == ["", "a", "b"]
    assert cells(figure)[1:] == [["1–10 words", "20 (18 to 23)", "40"], ["more", "10", "–"]]
    widths = {"1": [], "2": []}
    for path in svg_of(figure).iter("path"):
        if match := re.search(r"fill: var\(--series-(\d)\)", path.get("style", "")):
            xs = [float(x) for x in re.findall(r"[ML] ([\d.]+)", path.get("d"))]
            widths[match[1]].append(max(xs) - min(xs))
    assert widths["1"][0] == pytest.approx(2 * widths["1"][1], rel=0.01)
    assert widths["2"] == [pytest.approx(2 * widths["1"][0], rel=0.01)]
    texts = [text.text for text in svg_of(figure).iter("text")]
    assert "1–10 words" in texts and "BLEU" in texts


def test_figures_have_the_colours_of_the_page():
    figure = lines("Loss", "step", "nats", [Line("a", [(0, 1), (1, 2)], 8)])
    assert "var(--series-2)" in figure  # the colours begin again
    assert not re.search(r"#[0-9a-f]{6}\b", figure)
    assert "font-family" not in figure and "<style" not in figure
    style = page("", "")
    for variable in set(re.findall(r"var\((--[\w-]+)\)", figure)):
        assert style.count(f"{variable}: #") >= 2 or variable in ("--line", "--quiet", "--ink")


def test_ids_of_figures_do_not_collide():
    first = lines("Loss", "step", "nats", [Line("a", [(0, 1), (1, 2)])])
    second = lines("Loss", "step", "nats", [Line("a", [(0, 1), (1, 3)])])
    ids = [set(re.findall(r' id="([^"]+)"', figure)) for figure in (first, second)]
    assert ids[0] and not ids[0] & ids[1]
    for figure, own in zip((first, second), ids, strict=True):
        assert set(re.findall(r'(?:url\(|href=")#([^")]+)', figure)) <= own


def test_the_same_values_give_the_same_text():
    one, other = (lines("L", "s", "n", [Line("a", [(0, 1), (1, 2)])], log=True) for _ in range(2))
    assert one == other


@settings(max_examples=3)
@given(st.text(max_size=12))
@example(HOSTILE[0])
@example(HOSTILE[1])
@example(HOSTILE[5])
@example(HOSTILE[6])
def test_any_text_stays_text(text):
    for figure in (
        lines(
            text, "step", "nats", [Line(text, [(0, 1), (1, 2)]), Line(text, [(0, 2)])], note=text
        ),
        bars(text, [text, "b"], "BLEU", [Bars(text, [1, 2]), Bars(text, [1, 2])]),
    ):
        figure.encode()
        svg_of(figure)
        tags = set(re.findall(r"</?([a-zA-Z]+)", figure))
        assert "script" not in tags
        assert not re.search("[\u202e\u2028\0\x1b]", figure)


@pytest.mark.parametrize(
    "points",
    [[], [(5, None)], [(1, 0.0)], [(1, -2.0)], [(0, 1e29), (1, 1e-29)], [(0, 3.0), (1, 3.0)]],
)
@pytest.mark.parametrize("log", [False, True])
def test_few_or_extreme_values(points, log):
    svg_of(lines("Loss", "step", "nats", [Line("a", points)], log=log))


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (float("nan"), "–"), (0.00123456, "0.001235"), (31.416, "31.42"), (8000, "8,000"),
     (1234.5, "1,234"), (2.0, "2"), (1e20, "1.000e+20"), (-0.5, "-0.5"), (7e-7, "7e-07")],
)  # fmt: skip
def test_numbers(value, shown):
    assert shown_number(value) == shown

"""The page of a comparison: any text is shown and never run, and the numbers are those of the
comparison. The last tests are what a real browser makes of it."""

import html
import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.reports.elements import Elements, visit
from tests.support import demo_pairs
from transformer_mt.reports.comparison import as_page
from transformer_mt.scoring.comparison import Comparison, compare
from transformer_mt.scoring.groups import groupings
from transformer_mt.utils.console import visible

HOSTILE = [
    "<script>window.hostile = 1</script>",
    "<img src=x onerror='window.hostile = 2'>",
    "\"'&amp;</p></dd></section><style>* {display: none}</style>",
    "<!-- <svg onload=window.hostile=3>",
    "שלום \u202eevil\u202c עולם (abc) 123.",
    "\x1b[31m red \x00 \x07 bell \u2028 line \ufeff",
    "مرحبا بالعالم <b>",
    "日本語のテキスト " + "w" * 300,
    "",
    "plain text",
]


def compared(systems, reference, sources, names="abc") -> Comparison:
    return compare(
        list(zip(names, systems, strict=False)),
        [reference],
        sources,
        tokenize="13a",
        groupings=groupings(sources, reference),
        metrics=["bleu"],
        notes=[reference[0]],
        examples=20,
    )


def worse(lines):
    return [line + " <i>more</i>" for line in lines]


@pytest.fixture(scope="module")
def hostile():
    return compared([worse(HOSTILE), HOSTILE, worse(HOSTILE)], HOSTILE, HOSTILE, names=HOSTILE[:3])


def with_text(comparison, text):
    """The same comparison with one text in every place that takes one."""
    changed = {"references": [text], "source": text, "baseline": text, "system": text}
    comparisons = {
        letter: replace(
            contrast,
            verdict=text,
            better=[replace(example, **changed) for example in contrast.better],
            worse=[replace(example, **changed) for example in contrast.worse],
        )
        for letter, contrast in comparison.comparisons.items()
    }
    systems = dict.fromkeys(comparison.systems, text)
    return replace(
        comparison, systems=systems, comparisons=comparisons, notes=[text], warnings=[text]
    )


@pytest.fixture(scope="module")
def plain_tags(hostile):
    return Elements(as_page(with_text(hostile, "text"))).tags


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
@example("</script><script>alert(1)</script>")
@example("<!--<script>")
@example("]]> &quot; \" ' \\")
@example("\0\n\u2028\u202e")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=3)
def test_any_text_stays_text(hostile, plain_tags, text):
    page = Elements(as_page(with_text(hostile, text)))
    assert page.tags == plain_tags
    assert visible(text) in page.text


def test_numbers_and_verdicts_are_on_the_page():
    pairs = demo_pairs(20)
    sources, references = (list(side) for side in zip(*pairs, strict=True))
    other = [line.replace("der", "das").replace("ist", "") for line in references]
    comparison = compared([other, references], references, sources)
    page = as_page(comparison)
    contrast = comparison.comparisons["B"]
    text = Elements(page).text
    assert contrast.verdict in text
    metric = comparison.metrics["bleu"]
    for own in metric.scores:
        assert f"<td class=number>{own.value:.2f}</td>" in page
        assert f"{own.interval[0]:.2f} to {own.interval[1]:.2f}" in page
    for signature in metric.signatures.values():
        assert signature in text
    example = contrast.better[0]
    assert f"Line {example.line}: " in text and example.source in text
    assert re.search("<mark>[^<]*das", page)
    assert page.count("<svg") == page.count('role="img"') == 2
    # A system has the same colour everywhere.
    for figure, colours in zip(page.split("<svg")[1:], ["12", "2"], strict=True):
        drawn = re.findall(r"fill: var\(--series-(\d)\)", figure.split("</svg>")[0])
        assert sorted(set(drawn)) == list(colours)
    for letter, colour in zip("AB", "12", strict=True):
        assert re.search(rf"series-{colour}\)\"></i>{letter}</dt>", page)


# ---- In a real browser ----

VISIT = """<script>
const texts = selector => [...document.querySelectorAll(selector)].map(one => one.textContent);
const box = element => element.getBoundingClientRect();
addEventListener("load", () => document.documentElement.setAttribute("data-seen", JSON.stringify({
  hostile: window.hostile ?? null,
  requests: performance.getEntriesByType("resource").map(entry => entry.name),
  width: [document.documentElement.scrollWidth, innerWidth],
  background: getComputedStyle(document.body).backgroundColor,
  verdicts: texts(".verdict"),
  shown: texts("dd"),
  directions: [...document.querySelectorAll("dd")].map(one => getComputedStyle(one).direction),
  bars: [...document.querySelectorAll("svg")].map(one => [box(one).width, box(one).height]),
  marks: [...document.querySelectorAll("mark")].map(one => [box(one).width, box(one).height]),
})));
</script>"""


FRAME = """<!doctype html><body><iframe width="{width}" height="800" frameborder="0"
  srcdoc="{page}"></iframe><script>
addEventListener("load", () => {{
  const inner = document.querySelector("iframe").contentDocument.documentElement;
  document.documentElement.setAttribute("data-seen", inner.getAttribute("data-seen"));
}});
</script></body>"""


def seen_on(folder, page, width, *flags):
    """What VISIT sees in a frame of a width in pixels (windows of Chromium are at least 500 wide),
    and what the console says."""
    inner = html.escape(page.replace("</body>", VISIT + "</body>"))
    (folder / "page.html").write_text(FRAME.format(width=width, page=inner), encoding="utf-8")
    return visit(folder, *flags)


@pytest.mark.parametrize(
    ("scheme", "width", "background"),
    [(0, 360, "rgb(17, 20, 24)"), (1, 1280, "rgb(251, 251, 252)")],
)
def test_in_the_dark_and_in_the_light(hostile, tmp_path, scheme, width, background):
    flags = ["--window-size=1400,900", f"--blink-settings=preferredColorScheme={scheme}"]
    seen, console = seen_on(tmp_path, as_page(hostile), width, *flags)
    assert console == [] and seen["hostile"] is None and seen["requests"] == []
    scroll, inner = seen["width"]
    assert scroll <= inner == width and seen["background"] == background
    assert seen["verdicts"] == [one.verdict for one in hostile.comparisons.values()]
    for text in HOSTILE[:-2]:
        assert visible(text) in seen["shown"]
    assert {"ltr", "rtl"} <= set(seen["directions"])
    for own_width, height in (*seen["bars"], *seen["marks"]):
        assert 0 < own_width <= width and height > 0

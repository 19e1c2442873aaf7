"""The page of attention maps: nothing that is shown on it can get out of its place."""

import json
import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from setuptools import Distribution

from tests.reports.elements import Elements, visit
from tests.support import ROOT
from transformer_mt.reports.attention import map_of
from transformer_mt.reports.page import render


def page_of(texts, weights=None):
    """A page with a text in every place that takes one."""
    lang = texts[0]
    if weights is None:
        weights = np.full((1, 1, len(texts), 2), 0.5)
    queries = axis([(text, "unknown") for text in texts], lang)
    keys = axis([("a", ""), ("b", "")], lang)
    one = map_of(texts[0], texts[-1], queries, keys, weights)
    return rendered(texts[0], [(texts[-1], text, lang) for text in texts], [one])


def axis(tokens, lang=""):
    return {"tokens": tokens, "lang": lang}


def rendered(title, sentences, maps):
    sentences = [dict(zip(("label", "text", "lang"), own, strict=True)) for own in sentences]
    return render("attention.html", data={"title": title, "sentences": sentences, "maps": maps})


PLAIN = Elements(page_of(["text"])).tags


def data_of(elements):
    (data,) = (text for attributes, text in elements.texts if ("id", "data") in attributes)
    return data


@given(st.lists(st.text(st.characters()), min_size=1, max_size=4))
@example(["</script><script>alert(1)</script>"])
@example(["<!--<script>", "-->", "]]>"])
@example(['"', "\\", "\\u003c/script>", "&lt;", "&quot;"])
@example(["__DATA__", "\0", "\n", "\u2028", "\u202e", "\ud800"])
def test_any_text_stays_text(texts):
    text = page_of(texts)
    text.encode()  # half a surrogate pair has no place in a file
    elements = Elements(text)
    assert elements.tags == PLAIN
    # A browser's rules for "<!--" in a script are not the parser's; without "<" there are none.
    assert "<" not in data_of(elements)
    data = json.loads(data_of(elements))
    assert data["title"] == data["maps"][0]["name"] == texts[0]
    assert data["maps"][0]["caption"] == texts[-1]
    assert [sentence["text"] for sentence in data["sentences"]] == texts
    assert data["maps"][0]["queries"]["tokens"] == [[text, "unknown"] for text in texts]


def test_weights_are_rounded_to_three_digits():
    weights = np.random.default_rng(3).dirichlet([0.3] * 2, size=(3, 2, 4)).astype("float32")
    data = json.loads(data_of(Elements(page_of(["a", "b", "c", "d"], weights))))
    shown = np.array(data["maps"][0]["weights"])
    assert shown.shape == weights.shape and shown.dtype == int
    # Half of the last digit, and what float32 adds to it.
    assert np.abs(shown / 1000 - weights).max() <= 0.0005 + 1e-6


def test_the_page_needs_nothing_else():
    """No address of anything, and a policy by which a browser would not fetch it."""
    text = page_of(["text"])
    attributes = Elements(text).attributes
    assert not {"src", "href", "action", "srcset", "data"} & {name for name, _ in attributes}
    assert not re.search(r"//\w|url\(|@import|@font-face|fetch\(|XMLHttp|import\(", text)
    (policy,) = (value for _, value in attributes if value and "default-src" in value)
    assert policy.split(";")[0] == "default-src 'none'"


def test_the_template_is_installed_with_the_package(monkeypatch):
    """As is every file of the package that is no module."""
    monkeypatch.chdir(ROOT)
    distribution = Distribution()
    distribution.parse_config_files(["pyproject.toml"])
    installed = {
        path
        for package, patterns in distribution.package_data.items()
        for pattern in patterns
        for path in ROOT.joinpath(*package.split(".")).glob(pattern)
    }
    files = {path for path in (ROOT / "transformer_mt").rglob("*.*") if path.is_file()}
    assert ROOT / "transformer_mt/reports/templates/run.html" in installed
    assert installed == {path for path in files if path.suffix not in (".py", ".pyc")}


# ---- What a browser makes of it, which runs once for all tests ----

# What someone does on the page, and what is to be seen of it each time.
VISIT = """<script>
const seen = {};
const pixels = canvas => {
  const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return weights().map((row, i) => row.map((_, j) => {
    const start = (i * canvas.width + j) * 4;
    return [...data.slice(start, start + 4)];
  }));
};
const texts = selector => [...document.querySelectorAll(selector)].map(one => one.textContent);
const direction = element => getComputedStyle(element).direction;
const note = name => {
  const thumbnail = document.querySelector('#heads [aria-pressed="true"] canvas');
  seen[name] = {
    name: byId("name").textContent,
    value: byId("value").textContent,
    weights: weights(),
    rows: texts("#rows .token"),
    columns: texts("#columns .token"),
    on: [texts("#rows .on"), texts("#columns .on")],
    maps: texts('#kinds [aria-pressed="true"]'),
    canvas: pixels(document.querySelector("#cells canvas")),
    thumbnail: pixels(thumbnail),
    directions: [byId("queries"), byId("keys"), ...document.querySelectorAll("dd")].map(direction),
  };
};
const over = element => element.dispatchEvent(new PointerEvent("pointerover", {bubbles: true}));
const key = name => byId("cells").dispatchEvent(
  new KeyboardEvent("keydown", {key: name, bubbles: true}));

note("first");
byId("heads").querySelectorAll("button")[8].click();  // three of each layer, one of them the mean
note("thumbnail");
over(document.querySelectorAll("#columns .token")[1]);
note("column");
over(document.querySelectorAll("#rows .token")[1]);
note("row");
const canvas = document.querySelector("#cells canvas");
const box = canvas.getBoundingClientRect();
canvas.dispatchEvent(new PointerEvent("pointermove", {
  bubbles: true,
  clientX: box.left + box.width * 1.5 / 4,
  clientY: box.top + box.height * 1.5 / 2,
}));
note("cell");
key("ArrowLeft");
note("left");
key("ArrowUp");
key("ArrowUp");
key("ArrowLeft");
key("x");
note("edge");
byId("kinds").firstElementChild.click();
note("other map");
byId("kinds").lastElementChild.click();
note("back");
document.documentElement.setAttribute("data-seen", JSON.stringify(seen));
</script>"""
STATION, BOLD, END, LIBRARY = "\u2581محطة", "<b>&amp;</b>", "</s>", "图书馆"
# Two heads of each of three layers, two rows, four columns.
WEIGHTS = [
    [[[1, 0, 0, 0], [0, 0, 0, 1]], [[1, 0, 0, 0], [0, 0, 0, 1]]],
    [[[0.1, 0.1, 0.3, 0.5], [0, 1, 0, 0]], [[0.1, 0.3, 0.5, 0.1], [0, 0, 0, 1]]],
    [[[0.25, 0.25, 0.25, 0.25], [0.25, 0.25, 0.25, 0.25]], [[0, 1, 0, 0], [0.25, 0.25, 0.5, 0]]],
]


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    begin, end = ("<s>", "special"), (END, "special")
    rows = axis([(LIBRARY, ""), end], "zh")
    columns = axis([begin, (STATION, ""), (BOLD, ""), end], "ar")
    one = axis([(LIBRARY, "")])
    maps = [map_of("First", "", one, one, np.ones((1, 1, 1, 1))),
            map_of("Last", "", rows, columns, np.array(WEIGHTS))]  # fmt: skip
    text = rendered("title", [("Source", "محطة a", ""), ("Target", "a محطة", "")], maps)
    folder = tmp_path_factory.mktemp("page")
    (folder / "page.html").write_text(text.replace("</body>", VISIT + "</body>"), encoding="utf-8")
    return visit(folder)[0]


def test_first_there_is_the_mean_of_the_layer_before_the_last(seen):
    """Of the last map, and what its first row attends to."""
    first = seen["first"]
    assert first["maps"] == ["Last"] and first["name"] == "Last: layer 2, mean of the heads"
    assert first["columns"] == ["<s>", STATION, BOLD, END] and first["rows"] == [LIBRARY, END]
    assert first["weights"] == [[100, 200, 400, 300], [0, 500, 0, 500]]
    assert first["on"] == [[LIBRARY], []]
    assert first["value"] == (
        f"{LIBRARY} attends most to {BOLD} 0.400, {END} 0.300, {STATION} 0.200, <s> 0.100"
    )


def test_a_head_is_chosen_by_its_small_map(seen):
    chosen = seen["thumbnail"]
    assert chosen["name"] == "Last: layer 3, head 2"
    assert chosen["weights"] == [[0, 1000, 0, 0], [250, 250, 500, 0]]
    assert chosen["value"] == f"{LIBRARY} attends most to {STATION} 1.000"


def test_weights_have_their_colours(seen):
    """Those of 0, 0.25 and 1, and at sqrt(0.5) what is between the latter two."""
    low, middle, high = (255, 255, 255), (0x74, 0xAA, 0xDB), (0x08, 0x30, 0x6B)
    place = 2 * 0.5**0.5 - 1
    half = [a + (b - a) * place for a, b in zip(middle, high, strict=True)]
    expected = np.array([[low, high, low, low], [middle, middle, half, low]])
    for shown in (seen["thumbnail"]["canvas"], seen["thumbnail"]["thumbnail"]):
        np.testing.assert_allclose(np.array(shown)[:, :, :3], expected, atol=1)
        assert (np.array(shown)[:, :, 3] == 255).all()


@pytest.mark.parametrize(
    ("after", "on", "value"),
    [
        # A label of a column and of a row.
        ("column", [[], [STATION]],
         f"{STATION} is attended to most by {LIBRARY} 1.000, {END} 0.250"),
        ("row", [[END], []],
         f"{END} attends most to {BOLD} 0.500, <s> 0.250, {STATION} 0.250"),
        # A cell, and others that arrow keys lead to; not beyond the edges.
        ("cell", [[END], [STATION]], f"{END} attends to {STATION} with 0.250"),
        ("left", [[END], ["<s>"]], f"{END} attends to <s> with 0.250"),
        ("edge", [[LIBRARY], ["<s>"]], f"{LIBRARY} attends to <s> with 0.000"),
    ],
)  # fmt: skip
def test_pointer_and_keys_choose_what_is_told(seen, after, on, value):
    assert seen[after]["on"] == on
    assert seen[after]["value"] == value
    assert seen[after]["name"] == "Last: layer 3, head 2"


def test_another_map(seen):
    """It has one layer and one head: the nearest to what was shown."""
    other = seen["other map"]
    assert other["maps"] == ["First"] and other["name"] == "First: layer 1, head 1"
    assert other["rows"] == other["columns"] == [LIBRARY] and other["weights"] == [[1000]]
    assert other["value"] == f"{LIBRARY} attends most to {LIBRARY} 1.000"
    back = seen["back"]
    assert back["maps"] == ["Last"] and back["rows"] == [LIBRARY, END]
    # Its row, too, is the first again.
    assert back["on"] == [[LIBRARY], []]


def test_subwords_run_in_the_direction_of_their_text(seen):
    """Which special ones, such as the Latin one that comes first here, do not tell."""
    queries, keys, source, target = seen["first"]["directions"]
    assert (queries, keys) == ("ltr", "rtl")
    assert (source, target) == ("rtl", "ltr")

"""The page of attention maps: nothing that is shown on it can get out of its place."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from setuptools import Distribution

from tests.support import ROOT, TIMEOUT
from transformer_mt.attention_maps.page import TEMPLATE, Axis, Map, Sentence, Token, html


class Elements(HTMLParser):
    """The tags of a page with their attributes, and the text of the element with the data."""

    def __init__(self, page):
        super().__init__()
        self.tags = []
        self.data = ""
        self._is_in_data = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, attributes))
        self._is_in_data = ("id", "data") in attributes

    def handle_endtag(self, tag):
        self.tags.append(("/" + tag, []))
        self._is_in_data = False

    def handle_data(self, text):
        if self._is_in_data:
            self.data += text


def page_of(texts, weights=None):
    """A page with a text in every place that takes one."""
    tokens = [Token(text, "unknown") for text in texts]
    lang = texts[0]
    if weights is None:
        weights = np.full((1, 1, len(texts), 2), 0.5)
    one = Map(
        texts[0], texts[-1], Axis(tokens, lang), Axis([Token("a"), Token("b")], lang), weights
    )
    return html(texts[0], [Sentence(texts[-1], text, lang) for text in texts], [one])


PLAIN = Elements(page_of(["text"])).tags


@given(st.lists(st.text(st.characters()), min_size=1, max_size=4))
@example(["</script><script>alert(1)</script>"])
@example(["<!--<script>", "-->", "]]>"])
@example(['"', "\\", "\\u003c/script>", "&lt;", "&quot;"])
@example(["__DATA__", "\0", "\n", "\u2028", "\u202e", "\ud800"])
def test_any_text_stays_text(texts):
    page = page_of(texts)
    page.encode()  # half a surrogate pair has no place in a file
    elements = Elements(page)
    assert elements.tags == PLAIN
    # A browser's rules for "<!--" in a script are not the parser's; without "<" there are none.
    assert "<" not in elements.data
    data = json.loads(elements.data)
    assert data["title"] == data["maps"][0]["name"] == texts[0]
    assert data["maps"][0]["caption"] == texts[-1]
    assert [sentence["text"] for sentence in data["sentences"]] == texts
    assert data["maps"][0]["queries"]["tokens"] == [[text, "unknown"] for text in texts]


def test_weights_are_rounded_to_three_digits():
    weights = np.random.default_rng(3).dirichlet([0.3] * 2, size=(3, 2, 4)).astype("float32")
    data = json.loads(Elements(page_of(["a", "b", "c", "d"], weights)).data)
    shown = np.array(data["maps"][0]["weights"])
    assert shown.shape == weights.shape and shown.dtype == int
    # Half of the last digit, and what float32 adds to it.
    assert np.abs(shown / 1000 - weights).max() <= 0.0005 + 1e-6


def test_the_page_needs_nothing_else():
    """No address of anything, and a policy by which a browser would not fetch it."""
    page = page_of(["text"])
    attributes = [attribute for _, some in Elements(page).tags for attribute in some]
    assert not {"src", "href", "action", "srcset", "data"} & {name for name, _ in attributes}
    assert not re.search(r"//\w|url\(|@import|@font-face|fetch\(|XMLHttp|import\(", page)
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
    assert TEMPLATE in installed
    assert installed == {path for path in files if path.suffix not in (".py", ".pyc")}


# What the page has drawn, as text that no other page would have.
REPORT = """<script>
document.documentElement.setAttribute("lang", "x-" + [
  ...document.querySelectorAll("#columns .token")].map(label => label.textContent).join("|")
  + "/" + byId("value").textContent + "/" + weights());
</script>"""


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs a browser, chromium")
def test_a_browser_draws_it(tmp_path):
    """The last map, the mean of its heads, and what the first row attends to."""
    tokens = [Token("\u2581محطة"), Token("<b>&amp;</b>"), Token("</s>", "special")]
    heads = [[[0.2, 0.3, 0.5], [1, 0, 0]], [[0.4, 0.5, 0.1], [0, 0, 1]]]
    axis = Axis([Token("图书馆"), Token("</s>", "special")], "zh")
    first = Map("First", "", Axis(tokens[:1]), Axis(tokens[:1]), np.ones((1, 1, 1, 1)))
    last = Map("Last", "", axis, Axis(tokens, "ar"), np.array([heads]))
    page = html("title", [Sentence("Source", "text")], [first, last])
    path = tmp_path / "page.html"
    path.write_text(page.replace("</body>", REPORT + "</body>"), encoding="utf-8")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu",
               f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri()]  # fmt: skip
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=TIMEOUT)
    (_, attributes), *_ = (tag for tag in Elements(done.stdout).tags if tag[0] == "html")
    assert dict(attributes)["lang"] == (
        "x-\u2581محطة|<b>&amp;</b>|</s>"
        "/图书馆 attends most to <b>&amp;</b> 0.400, \u2581محطة 0.300, </s> 0.300"
        "/300,400,300,500,0,500"
    )

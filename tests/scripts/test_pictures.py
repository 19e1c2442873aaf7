"""The pictures of docs/images that need no browser."""

import re

from pictures import IMAGES, draw_terminal


def lines_of(name):
    return (IMAGES / name).read_text("utf-8").removesuffix("\n").split("\n")


def test_the_terminal_is_drawn_from_its_text():
    drawn = draw_terminal(lines_of("terminal.txt"))
    assert drawn == (IMAGES / "terminal.svg").read_text("utf-8")


def test_lines_appear_one_after_the_other():
    drawn = draw_terminal(["$ a <b>", "one", "…", "two", "", "$ c |", "> d", "three"])
    found = re.findall(
        r'<text class="([^"]*)" style="animation-delay:([\d.]+)s"[^>]*>([^<]*)<', drawn
    )
    classes, times, texts = zip(*found, strict=True)
    assert texts == ("$ a &lt;b&gt;", "one", "…", "two", "$ c |", "&gt; d", "three")
    assert list(times) == sorted(times, key=float)
    typed = [text for text, own in zip(texts, classes, strict=True) if "typed" in own]
    assert typed == ["$ a &lt;b&gt;", "$ c |", "&gt; d"] and drawn.count('class="cover"') == 3
    # Without animation, nothing is hidden, and nothing is over the text.
    still = drawn.split("@media (prefers-reduced-motion: no-preference)")[0]
    assert ".cover, .cursor { opacity: 0 }" in still and "animation" not in still

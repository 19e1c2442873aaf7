"""Protected spans: which parts of a text they are, and the symbols in their place."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_mt.config.text import PROTECTED_CLASSES
from transformer_mt.data.spans import (
    CLOSING,
    OPENING,
    STANDALONE,
    SYMBOL,
    SYMBOL_COUNT,
    SYMBOLS,
    SpanFinder,
)

ALL = SpanFinder(PROTECTED_CLASSES)
USUAL = SpanFinder([name for name in PROTECTED_CLASSES if name != "numbers"])


def found(text, finder=USUAL):
    return [text[span.start : span.end] for span in finder.find(text)]


@pytest.mark.parametrize(
    ("text", "spans"),
    {
        "Click <b>Where</b> is the {0}?": ["<b>", "</b>", "{0}"],
        'See <a href="a.html" class=x>this</a> <br/> or <img src="a>b"/>': [
            '<a href="a.html" class=x>', "</a>", "<br/>", '<img src="a>b"/>',
        ],
        '<g id="1">One</g> <x id="2"/> <ph id="3">&lt;br&gt;</ph> <bx id="4"/>': [
            '<g id="1">', "</g>", '<x id="2"/>', '<ph id="3">&lt;br&gt;</ph>', '<bx id="4"/>',
        ],
        "a < b and c > d, 1<2, x<y and z>w": [],
        "{count, plural, one {# file} other {{count} files}} of {name}": [
            "{count, plural, one {# file} other {{count} files}}", "{name}",
        ],
        "%s of %1$d, %(name)s, %-5.2f, %@, %lu and %n %1 %L2": [
            "%s", "%1$d", "%(name)s", "%-5.2f", "%@", "%lu", "%n", "%1", "%L2",
        ],
        "100% sure, 50 % of them, 5%d, 100%ige Sicherheit, 20%off": [],
        "$HOME ${x} __x__ {{x}} {%if%} #{y} %{z} $[officename] US$ 5 $5": [
            "$HOME", "${x}", "__x__", "{{x}}", "{%if%}", "#{y}", "%{z}", "$[officename]",
        ],
        "Go to https://a.b/c?d=1&e={f}. (See http://x.y/z), or www.example.com!": [
            "https://a.b/c?d=1&e={f}", "http://x.y/z", "www.example.com",
        ],
        "请访问https://a.b/c。": ["https://a.b/c"],
        "Mail me@example.com or a.b+c@d-e.co.uk.": ["me@example.com", "a.b+c@d-e.co.uk"],
        "Tom &amp; Jerry &#39; &#x27; &nosuchname; R&D; AT&T": ["&amp;", "&#39;", "&#x27;"],
        "Use `code` or ``a`b`` and [this text](http://x.y/(z)) ![alt](a.png)": [
            "`code`", "``a`b``", "[", "](http://x.y/(z))", "![", "](a.png)",
        ],
        "\ue000**\ue001bold\ue000**\ue001 and \ue000<w:br/>\ue001": [
            "\ue000**\ue001", "\ue000**\ue001", "\ue000<w:br/>\ue001",
        ],
        "literal \u27e60\u27e7 and \u27e61:\u27e7": ["\u27e60\u27e7", "\u27e61:\u27e7"],
        "<b>{x</b>": ["<b>", "</b>"],
    }.items(),
)  # fmt: skip
def test_what_is_a_span(text, spans):
    assert found(text) == spans


def test_numbers_only_on_demand():
    text = "Version 2.5 has 1,000 files of 3 GB, 20 °C or 50%."
    assert found(text) == []
    assert found(text, ALL) == ["2.5", "1,000", "3 GB", "20 °C", "50%"]


def test_regular_expressions_of_the_user():
    finder = SpanFinder([r"ISBN [\d-]+", "tags"])
    assert found("<b>ISBN 3-16-1</b> {0}", finder) == ["<b>", "ISBN 3-16-1", "</b>"]


def test_pairs_nest():
    text = "<b>a <i>b</b> c</i> <br> d</b>"
    spans = USUAL.find(text)
    partners = [
        text[spans[s.partner].start : spans[s.partner].end] if s.partner >= 0 else None
        for s in spans
    ]
    # <i> is not closed inside of the pair that it is in.
    assert partners == ["</b>", None, "<b>", None, None, None]


@pytest.mark.parametrize(
    "text",
    [
        '<bpt i="1" x="1">{b}</bpt>a<bpt i="2">{i}</bpt>b<ept i="2">{/i}</ept><ept i="1">/</ept>',
        '<bpt id="1">{b}</bpt>a<bx id="2" rid="7"/>b<ex id="3" rid="7"/><ept id="1">{/b}</ept>',
        '<sc id="s1"/>a<pc id="9">b</pc><ec startRef="s1"/>',
    ],
)
def test_halves_of_pairs_in_xliff_and_tmx(text):
    """They are named by attributes, which may be of other kinds in the two halves."""
    assert USUAL.in_symbols(text).text == "⟦0:⟧a⟦1:⟧b⟦:1⟧⟦:0⟧"


def test_symbols_tell_pairs_from_other_spans():
    assert USUAL.in_symbols("<b>x</b> {a} <br/>").text == (
        f"{OPENING[0]}x{CLOSING[0]} {STANDALONE[0]} {STANDALONE[1]}"
    )


def test_spans_of_both_sides_belong_together_by_content_then_by_order():
    source, target, is_matched = USUAL.pair_in_symbols(
        "{a} and {b} at http://x.en <b>bold</b>", "<b>fett</b> http://x.de {b} und {a}"
    )
    assert is_matched
    a, b, address, opening, closing = SYMBOL.findall(source)
    assert SYMBOL.findall(target) == [opening, closing, address, b, a]
    assert (opening in OPENING, closing in CLOSING) == (True, True)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("{a} x", "x"),
        ("x", "<b>x</b>"),
        ("{a}", "{a} {a}"),
        ("<b>x</b>", "<b>x"),
        ("%s", "{0} {1}"),
    ],
)
def test_spans_without_a_partner_stay_text(source, target):
    own, other, is_matched = USUAL.pair_in_symbols(source, target)
    assert not is_matched
    assert len(SYMBOL.findall(own)) == len(SYMBOL.findall(other))


def test_more_spans_than_symbols():
    text = " ".join(f"{{{i}}}" for i in range(40))
    source, target, is_matched = USUAL.pair_in_symbols(text, text)
    assert source == target
    assert not is_matched
    symbols = SYMBOL.findall(source)
    assert len(symbols) == len(set(symbols)) == SYMBOL_COUNT


def test_every_symbol_is_given_to_some_text():
    """Otherwise some would never be learnt."""
    texts = [f"{{x}} <b>{i}</b>" for i in range(300)]
    given = {
        symbol for text in texts for symbol in SYMBOL.findall(USUAL.pair_in_symbols(text, text)[0])
    }
    assert given == set(SYMBOLS)


PIECES = [
    *("<b>", "</b>", "<i>", "</i>", "{0}", "{x", "}", "%s", "http://a.b", "&amp;", "[a](b)", "`"),
    *("\ue000", "\ue001", "\u27e60\u27e7", " ", "word", "<", ">", "**", "。", "中文"),
]
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=20).map("".join)


@given(TEXTS)
def test_spans_come_back_in_place_of_their_symbols(text):
    replaced = ALL.in_symbols(text)
    spans = [text[start:end] for start, end in replaced.spans]
    assert spans == found(text, ALL)
    pieces = iter(spans)
    assert SYMBOL.sub(lambda match: next(pieces), replaced.text) == text
    # Whatever stands between symbols is where it was.
    for match in re.finditer(r"[^\u27e6\u27e7]+", SYMBOL.sub("\u27e6", replaced.text)):
        assert match[0] in text


@given(TEXTS, TEXTS)
def test_both_sides_have_the_same_symbols_each_once(source, target):
    own, other, is_matched = ALL.pair_in_symbols(source, target)
    symbols = SYMBOL.findall(own)
    assert sorted(symbols) == sorted(SYMBOL.findall(other)) or not is_matched
    assert ALL.pair_in_symbols(source, source)[2] or len(found(source, ALL)) > SYMBOL_COUNT


@given(TEXTS, st.integers(0, 60), st.integers(0, 60))
def test_places_are_found_again(text, first, last):
    """What is not in a span is found where it was; a span is found as a whole."""
    replaced = USUAL.in_symbols(text)
    start, end = sorted(min(place, len(replaced.text)) for place in (first, last))
    inside = {place for a, b in replaced.places for place in range(a + 1, b)}
    if start == end or {start, end} & inside:
        return
    original_start, original_end = replaced.at((start, end))
    places = zip(replaced.places, replaced.spans, strict=True)
    pieces = iter([text[c:d] for (a, b), (c, d) in places if start <= a and b <= end])
    expected = SYMBOL.sub(lambda match: next(pieces), replaced.text[start:end])
    assert text[original_start:original_end] == expected

"""Subtitles: SubRip and WebVTT."""

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_mt.formats.balanced import balanced
from transformer_mt.formats.document import MARK_END, MARK_START, MARKUP
from transformer_mt.formats.subtitles import SRTDocument, VTTDocument
from transformer_mt.utils.errors import UserError

LANGUAGES = ("en", "de")

SRT = r"""1
00:00:01,000 --> 00:00:03,500
Good morning.

2
00:00:04,000 --> 00:00:07,000  X1:100 X2:600
{\an8}<i>This is a long line,
and this is</i> another one.

3
00:00:08,000 --> 00:00:09,000
- Is 3 < 4?
- Yes & no.


4
00:00:10,000 --> 00:00:11,000

5
00:00:12,000 --> 00:00:13,000
Before a blank line

and after it
6
"""
VTT = """WEBVTT - A film
Kind: captions

STYLE
::cue { color: papayawhip; }

NOTE A remark
over two lines

REGION
id:fred

intro
00:01.000 --> 00:03.500 align:start line:0
<v Mary Ann>Tom &amp; Jerry&nbsp;are
<c.loud>here</c> <00:00:02.000>now &lt;3

00:01:04.000 --> 00:01:07.000
Last one"""


def srt(content: str, language: str = "de") -> SRTDocument:
    return SRTDocument(content.encode(), "x.srt", ("en", language))


def vtt(content: str) -> VTTDocument:
    return VTTDocument(content.encode(), "x.vtt", LANGUAGES)


def marked(text: str) -> str:
    """A text in which markup is between brackets as the documents have it."""
    return text.replace("⟦", MARK_START).replace("⟧", MARK_END)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("kind, text", [(SRTDocument, SRT), (VTTDocument, VTT)])
@pytest.mark.parametrize("end", ["", "\n\n\n"])
def test_without_translations_every_byte_stays(newline, encoding, kind, text, end):
    content = (text + end).replace("\n", newline).encode(encoding)
    assert kind(content, "x", LANGUAGES).render({}, "") == content


def test_units_are_the_cues():
    assert [(unit.name, unit.source) for unit in srt(SRT).units] == [
        ("line 3", "Good morning."),
        (
            "line 7",
            marked(r"⟦{\an8}⟧⟦<i>⟧This is a long line, and this is⟦</i>⟧ another one."),
        ),
        ("line 12", "Is 3 < 4?\nYes & no."),
        ("line 21", "Before a blank line"),
        ("line 23", "and after it 6"),
    ]
    assert [(unit.name, unit.source) for unit in vtt(VTT).units] == [
        (
            "line 15",
            marked("⟦<v Mary Ann>⟧Tom & Jerry\xa0are ⟦<c.loud>⟧here⟦</c>⟧ ⟦<00:00:02.000>⟧now <3"),
        ),
        ("line 19", "Last one"),
    ]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_translations_have_at_most_as_many_lines(newline):
    document = srt(SRT.replace("\n", newline))
    written = document.render(
        {
            0: "Guten Morgen, alle miteinander.",
            1: marked(r"⟦{\an8}⟧⟦<i>⟧Das ist eine lange Zeile, und das⟦</i>⟧ eine andere."),
            2: "Ist 3 < 4?\nJa & nein, aber ich weiß es nicht so genau.",
        },
        "",
    )
    expected = SRT.replace("Good morning.", "Guten Morgen, alle miteinander.")
    expected = expected.replace(
        "{\\an8}<i>This is a long line,\nand this is</i> another one.",
        "{\\an8}<i>Das ist eine lange Zeile,\nund das</i> eine andere.",
    ).replace(
        "- Is 3 < 4?\n- Yes & no.",
        "- Ist 3 < 4?\n- Ja & nein, aber ich weiß es nicht so genau.",
    )
    assert written.decode() == expected.replace("\n", newline)


def test_vtt_is_escaped_outside_of_markup():
    text = marked("⟦<v Mary Ann>⟧Tom & Jerry --> sind ⟦<c.loud>⟧da⟦</c>⟧ <3")
    assert vtt(VTT).render({0: text}, "").decode() == VTT.replace(
        "<v Mary Ann>Tom &amp; Jerry&nbsp;are\n<c.loud>here</c> <00:00:02.000>now &lt;3",
        "<v Mary Ann>Tom &amp; Jerry\n--&gt; sind <c.loud>da</c> &lt;3",
    )


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Co"])), min_size=2, max_size=2))
def test_arbitrary_translations(texts):
    document = vtt(VTT)
    written = document.render(dict(enumerate(texts)), "").decode()
    blocks = re.split("\n\n+", written)
    # A translation does not add cues, lines or blank lines, nor take part in the next one.
    again = vtt(written)
    assert len(blocks) <= len(VTT.split("\n\n"))
    units = [unit for unit in again.units if MARKUP.sub("", unit.source)]
    assert [unit.source.split() for unit in units] == [
        text.split() for text in texts if "".join(text.split())
    ]
    for block in blocks:
        for line in block.split("\n")[2:]:
            assert "-->" not in line and html.unescape(line) is not None


@given(
    st.text(st.sampled_from("ab，。「」 ") | st.characters(exclude_categories=["Cs", "Co"])),
    st.integers(1, 5),
    st.sampled_from(["de", "zh", "ja", "th"]),
)
def test_balanced_lines_are_the_text(text, count, language):
    lines = balanced(text, count, language)
    assert "".join(lines) == text and 1 <= len(lines) <= count and (all(lines) or not text)


@pytest.mark.parametrize(
    "text, count, language, expected",
    [
        ("one two three four", 2, "de", ["one two ", "three four"]),
        ("one two", 5, "de", ["one ", "two"]),
        ("Donaudampfschifffahrt", 2, "de", ["Donaudampfschifffahrt"]),
        ("今天天气很好，我们去公园吧。", 2, "zh", ["今天天气很好，", "我们去公园吧。"]),
        ("他说「你好」。", 2, "zh-CN", ["他说「你", "好」。"]),
        ("我用 Python 写程序", 2, "zh", ["我用 ", "Python 写程序"]),
        ("ประเทศไทย สวยงาม", 2, "th", ["ประเทศไทย ", "สวยงาม"]),
        (marked("⟦<font color='a b c d e f'>⟧ab cd"), 2, "de", None),
    ],
)
def test_lines_break_where_the_language_allows_it(text, count, language, expected):
    expected = expected or [text.removesuffix("cd"), "cd"]
    assert balanced(text, count, language) == expected


@pytest.mark.parametrize(
    "kind, content, message",
    [
        (SRTDocument, b"1\nHello\n", "x, line 1: no time"),
        (
            SRTDocument,
            b"1\n00:01,0 --> 00:02,0\na\n2\n00:03,0 --> 00:04,0\nb\n",
            "x, line 5: a time of a cue without a blank line",
        ),
        (SRTDocument, b"1\n00:01,0 --> 00:02,0\n\xe4\n", "x, line 3: not UTF-8"),
        (VTTDocument, b"00:01.0 --> 00:02.0\na\n", "x, line 1: a WebVTT file begins"),
        (VTTDocument, b"WEBVTTX\n", "x, line 1: a WebVTT file begins"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(kind, content, message):
    with pytest.raises(UserError, match=message):
        kind(content, "x", LANGUAGES)

"""The scanner of XML: places, text, and what it refuses."""

import gzip
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.xml_files import LANGUAGES, TMX
from transformer_mt.formats import xml
from transformer_mt.formats.android import AndroidStrings
from transformer_mt.formats.document import MARKUP
from transformer_mt.formats.qt import QtLinguist
from transformer_mt.formats.tmx import Tmx
from transformer_mt.formats.xliff import Xliff
from transformer_mt.formats.xml import Scanner
from transformer_mt.formats.xml_document import with_attributes
from transformer_mt.utils.errors import UserError

etree = pytest.importorskip("lxml.etree")

# Characters of text and attributes, with those that XML knows and that tests of ends get wrong.
TEXT = st.text(
    st.one_of(
        st.sampled_from("<>&'\"]-/? \n\t中"), st.characters(codec="utf-8", exclude_categories=["C"])
    )
)
NAMES = st.sampled_from(["a", "b", "x:c", "d-"])


@st.composite
def written(draw, depth=3):
    """An element as someone may write it, with the strings of XML in the wrong places."""
    quote = draw(st.sampled_from("'\""))
    value = draw(TEXT).replace("&", "&amp;").replace("<", "&lt;").replace(quote, "&#x22;&#39;"[:6])
    name = draw(NAMES)
    space = draw(st.sampled_from([" ", "\n  ", "\t"]))
    tag = f"{name}{space}y{draw(st.sampled_from(['=', ' = ']))}{quote}{value}{quote}"
    if draw(st.booleans()):
        return f"<{tag}{draw(st.sampled_from(['', ' ']))}/>"
    text = TEXT.map(lambda text: text.replace("&", "&amp;").replace("<", "&lt;")).map(
        lambda text: text.replace("]]>", "]]&gt;")
    )
    pieces = [
        text,
        TEXT.map(lambda text: f"<![CDATA[{text.replace(']]>', '')}]]>"),
        TEXT.map(lambda text: f"<!--{text.replace('-', '')}-->"),
        TEXT.map(lambda text: f"<?p {text.replace('?', '')}?>"),
    ]
    if depth:
        pieces.append(written(depth - 1))
    content = "".join(draw(st.lists(st.one_of(pieces), max_size=5)))
    return f"<{tag}>{content}</{name}{draw(st.sampled_from(['', ' ']))}>"


def scanned(text: str, wanted: set[str], size: int = 1 << 16, keep: bool = True):
    content = text.encode()
    blocks = [content[start : start + size] for start in range(0, len(content), size)]
    return Scanner(blocks, "file.xml", frozenset(wanted), keep)


@given(st.lists(written(), max_size=4), st.integers(1, 50), st.booleans())
def test_places_and_texts_are_those_of_lxml(elements, size, keep):
    text = "<!-- > --><r xmlns:x='u'>\n" + "\n".join(f"<w>{e}</w>" for e in elements) + "</r>"
    expected = etree.fromstring(text.encode()).findall("w")
    scanner = scanned(text, {"w"}, size, keep)
    found = 0
    for element, other in zip(scanner, expected, strict=True):
        assert scanner.raw(element.start, element.end) == f"<w>{elements[found]}</w>"
        found += 1
        # What lies between the markup is the text.
        plain = MARKUP.sub("", scanner.text(element))
        assert plain == texts(other)
        inner, names = [element], []
        for node in inner:
            assert scanner.raw(node.start, node.end)[-1] == ">"
            inner += node.children
            names += [] if node.name[0] in "!?" else [node.attributes]
        others = sorted(str(dict(node.attrib)) for node in other.iter(etree.Element))
        assert sorted(str(attributes) for attributes in names) == others
    assert found == len(elements)


def texts(element) -> str:
    """The text of an element without that of comments and instructions."""
    parts = [element.text or ""] if isinstance(element.tag, str) else []
    for child in element:
        parts += [texts(child), child.tail or ""]
    return "".join(parts)


def test_references():
    text = "&#65;&#x4E2D;&#00000000000000066;&lt;&amp;amp;&apos;&quot;&gt;\r\nx\ry&#13;"
    scanner = scanned(f"<r><w>{text}</w></r>", {"w"})
    (element,) = scanner
    assert scanner.text(element) == "A中B<&amp;'\">\nx\ny\r"


def test_a_number_of_thousands_of_digits():
    scanner = scanned(f"<r><w>&#{'0' * 6000}65;</w></r>", {"w"})
    (element,) = scanner
    assert scanner.text(element) == "A"


def test_an_entity_of_a_dtd_elsewhere_stays():
    text = '<!DOCTYPE r SYSTEM "http://127.0.0.1:9/r.dtd"><r><w>a&nbsp;b</w></r>'
    scanner = scanned(text, {"w"})
    (element,) = scanner
    assert scanner.text(element) == "a\ue000&nbsp;\ue001b"


def test_attributes_are_changed_in_place():
    tag = "<a x = '1 y=\"2\"'\n  y='3'  z=\"4\" />"
    assert with_attributes(tag, {"y": "5 & \"6'", "z": None, "n": "<"}) == (
        '<a x = \'1 y="2"\'\n  y="5 &amp; &quot;6\'" n="&lt;" />'
    )
    assert with_attributes(tag, {"y": "3"}) == tag


ENTITIES = {
    "laughs": '<!DOCTYPE r [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><r>&b;</r>',
    "external": '<!DOCTYPE r [<!ENTITY x SYSTEM "file:///etc/hostname">]><r>&x;</r>',
    "parameter": '<!DOCTYPE r [<!ENTITY % p SYSTEM "http://127.0.0.1:9/x"> %p;]><r/>',
    "unparsed": '<!DOCTYPE r [<!NOTATION n SYSTEM "n"><!ENTITY u SYSTEM "u" NDATA n>]><r/>',
}
BROKEN = {
    "unbalanced": (b"<tmx>\n<body>\n</tmx>", "line 3: not well-formed"),
    "unquoted": (b"<tmx version=1/>", "line 1: not well-formed"),
    "empty": (b"", "line 1: not well-formed XML: no element found"),
    "cut": (TMX[:500].encode(), "not well-formed"),
    "deep": (b"<tmx>" + b"<a>" * 10_000 + b"</a>" * 10_000 + b"</tmx>", "200 elements within"),
    "encoding": (TMX.replace("&amp;", "\xe9").encode("latin-1"), "line 16: not UTF-8"),
    "unknown": (b'<?xml version="1.0" encoding="klingon"?>\n<tmx/>', "klingon is not known"),
    "codec": (b'<?xml version="1.0" encoding="utf-7"?>\n<tmx/>', "utf-7 is not known"),
    "not text": (b'<?xml version="1.0" encoding="zip"?>\n<tmx/>', "zip is not known"),
    "not wide": (b'<?xml version="1.0" encoding="UTF-16"?>\n<tmx/>', "it is not"),
    "half": ("\ufeff<tmx/>".encode("utf-16-le")[:-1], "not UTF-16-LE"),
    "root": (b"<other><tu/></other>", "not TMX: the root element is <other>"),
    "binary": (bytes(range(256)), "not"),
    "undefined": (b"<tmx>&nbsp;</tmx>", "undefined entity"),
}


@pytest.mark.parametrize("name", ENTITIES)
def test_entities_are_refused(name):
    content = ENTITIES[name].replace("<r", "<tmx").replace("</r>", "</tmx>").encode()
    with pytest.raises(UserError, match=r"^a\.tmx, line 1: declares the entity"):
        Tmx(content, "a.tmx", LANGUAGES)


@pytest.mark.parametrize("name", BROKEN)
def test_bad_files_give_one_message(name, tmp_path):
    content, message = BROKEN[name]
    with pytest.raises(UserError, match=r"^bad\.tmx") as error:
        Tmx(content, "bad.tmx", LANGUAGES)
    assert message in str(error.value)
    path = tmp_path / "bad.tmx"
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        list(Tmx.pairs(path, LANGUAGES))
    assert str(error.value).startswith(str(path)) and message in str(error.value)


@given(st.binary())
def test_no_content_is_an_error_of_another_kind(content):
    for kind in (Tmx, Xliff):
        with suppress(UserError):
            assert kind(content, "x", LANGUAGES).render({}, "m") == content


@given(st.data())
def test_damaged_files_are_read_or_refused(data):
    content = bytearray(TMX.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 9))] = data.draw(
            st.sampled_from([b"", b"<", b">", b'"', b"&", b"</seg>", b"<seg>", b"\xff", b"]]>"])
        )
    try:
        document = Tmx(bytes(content), "x", LANGUAGES)
    except UserError:
        return
    etree.fromstring(document.render(dict.fromkeys(range(len(document.units)), "<&>"), "m"))


def test_kinds_of_files_are_told_by_their_roots():
    assert QtLinguist.fits(b"\xef\xbb\xbf<?xml version='1.0'?><!DOCTYPE TS>\n<TS version='2.1'>")
    assert QtLinguist.fits("<TS>".encode("utf-16"))
    assert AndroidStrings.fits(b"<!-- x --><resources/>")
    for content in (b"const a: Array<TS> = [];", b"G\x40\x00\x10" * 100, b"", b"<html>", b"<TS"):
        assert not QtLinguist.fits(content) and not AndroidStrings.fits(content)


def large(path, count):
    variant = '<tuv xml:lang="{}"><seg>Number {} &amp; more</seg></tuv>'
    with open(path, "w", encoding="utf-8") as file:
        file.write('<tmx version="1.4"><header/><body>\n')
        for number in range(count):
            file.write(f"<tu>{variant.format('en', number)}{variant.format('de', number)}</tu>\n")
        file.write("</body></tmx>\n")
    return path


def peak(function):
    """What a function returns, and the bytes that it needed at once."""
    tracemalloc.start()
    try:
        result = function()
        return result, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_large_memory_is_read_as_a_stream(tmp_path):
    small, great = large(tmp_path / "small.tmx", 1000), large(tmp_path / "great.tmx", 4000)
    _, of_small = peak(lambda: sum(1 for _ in Tmx.pairs(small, LANGUAGES)))
    count, of_great = peak(lambda: sum(1 for _ in Tmx.pairs(great, LANGUAGES)))
    assert count == 4000
    # What is needed is for the block that is read.
    assert of_great < 1.2 * of_small
    # A document has all units, but not all elements.
    document, whole = peak(lambda: Tmx(great.read_bytes(), "great.tmx", LANGUAGES))
    assert len(document.units) == 4000
    assert whole - of_small < 6 * great.stat().st_size


def test_streams_may_be_compressed_and_in_utf_16(tmp_path):
    path = tmp_path / "wide.tmx.gz"
    path.write_bytes(gzip.compress(TMX.replace("UTF-8", "UTF-16").encode("utf-16")))
    assert list(Tmx.pairs(path, LANGUAGES)) == [("A long & wide line", "Eine lange Zeile")]


@given(TEXT)
def test_escaped_text_is_read_as_the_same(text):
    for written_text in (xml.escaped(text), xml.as_cdata(text)):
        assert (etree.fromstring(f"<a>{written_text}</a>".encode()).text or "") == text
    value = etree.fromstring(f'<a b="{xml.escaped_value(text)}"/>'.encode()).get("b")
    assert value == text.replace("\n", " ").replace("\t", " ")

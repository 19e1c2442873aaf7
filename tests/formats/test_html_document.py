"""HTML: lxml, which is another parser, reads what was read and what was written."""

import re
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from transformer_mt.formats.document import MARK_END, MARK_START, MARKUP
from transformer_mt.formats.html import HTMLDocument
from transformer_mt.utils.errors import UserError

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Fish &amp; Chips</title>
<meta name="description" content="A page about &quot;fish&quot;.">
<style>p { color: red }</style><script>if (a<b) { x("</p>") }</script></head>
<body class=x>Loose text <b>here</b>
<p>Hello, <a href="x?a=1&b=2" title="Tip">big <i>world</i></a>!<br>
Next   line <img src=a.png alt='It&#39;s a picture'> <code>x &lt; y</code> end.
<p>Not closed <b>bold
<ul><li><a href="#">Item</a><li>Two<ul><li>Three</ul></ul>
<pre>keep <b>me</b></pre><p translate="no">No <b>no</b></p>
<p><i class="icon">&#xe001;</i> Icon &#xE002;&copy; here</p>
<select><option>One<option>Two</select><input type=submit value=Send><input placeholder=Name>
<table><tr><td>12.5<td>Cell <span class="notranslate">ACME</span> x</table>
<!-- a comment --><p>a &nbsp; b <!-- inner --> c</p><textarea>mine</textarea>
<svg><text>drawn</text></svg> <button aria-label="Close it">X</button>
</body></html>
"""


def read(text: str, name: str = "page.html") -> HTMLDocument:
    return HTMLDocument(text.encode("utf-8", "surrogatepass"), name, ("en", "de"))


def shown(text: str) -> str:
    return text.replace(MARK_START, "⟦").replace(MARK_END, "⟧")


def marked(text: str) -> str:
    return text.replace("⟦", MARK_START).replace("⟧", MARK_END)


def in_capitals(source: str) -> str:
    """A translation that keeps the markup."""
    parts = re.split(f"({MARKUP.pattern})", source)
    return "".join(part if MARKUP.fullmatch(part) else part.upper() for part in parts)


def translate(document: HTMLDocument, translation=lambda source: source) -> bytes:
    translations = {place: translation(unit.source) for place, unit in enumerate(document.units)}
    return document.render(translations, "model")


class Events(HTMLParser):
    """What Python's own parser finds in a page; texts without blanks."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[object] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, attrs))

    def handle_endtag(self, tag):
        self.found.append(tag)

    def handle_comment(self, data):
        self.found.append(("comment", data))

    def handle_data(self, data):
        text = "".join(data.split())
        if text:
            self.found.append(("text", text))


def test_units_are_the_texts_of_blocks_and_what_attributes_say():
    assert [(unit.name, shown(unit.source)) for unit in read(PAGE).units] == [
        ("line 2", "Fish & Chips"),
        ("line 3, attribute", 'A page about "fish".'),
        ("line 5", "Loose text ⟦<b>⟧here⟦</b>⟧"),
        (
            "line 6",
            'Hello, ⟦<a href="x?a=1&b=2" title="Tip">⟧big ⟦<i>⟧world⟦</i>⟧⟦</a>⟧!⟦\n⟧ Next line '
            "⟦<img src=a.png alt='It&#39;s a picture'>⟧ ⟦<code>x &lt; y</code>⟧ end.",
        ),
        ("line 6, attribute", "Tip"),
        ("line 7, attribute", "It's a picture"),
        ("line 8", "Not closed ⟦<b>⟧bold"),
        ("line 9", "Item"),
        ("line 9", "Two"),
        ("line 9", "Three"),
        ("line 11", "Icon ⟦&#xe002;⟧© here"),
        ("line 12", "One"),
        ("line 12", "Two"),
        ("line 12, attribute", "Send"),
        ("line 12, attribute", "Name"),
        ("line 13", 'Cell ⟦<span class="notranslate">ACME</span>⟧ x'),
        ("line 14", "a \xa0 b ⟦<!-- inner -->⟧ c"),
        ("line 15, attribute", "Close it"),
        ("line 15", "X"),
    ]
    assert read(PAGE).source_lang == "en"


def test_a_translated_page_has_the_same_elements_and_other_texts():
    html = pytest.importorskip("lxml.html")
    document = read(PAGE)
    assert document.render({}, "model") == PAGE.encode()
    assert Events(translate(document).decode()).found == Events(PAGE).found
    before = html.document_fromstring(PAGE)
    after = html.document_fromstring(translate(document, in_capitals).decode())
    untouched = ("script", "style", "pre", "code", "textarea", "svg")
    for element, its in zip(before.iter(), after.iter(), strict=True):
        assert element.tag == its.tag
        assert {k: v.upper() for k, v in element.attrib.items()} == {
            k: v.upper() for k, v in its.attrib.items()
        }
        assert element.get("href") == its.get("href") and element.get("class") == its.get("class")
        if element.tag in untouched or "translate" in element.attrib:
            assert html.tostring(element, with_tail=False) == html.tostring(its, with_tail=False)
    assert after.findtext(".//title") == "FISH & CHIPS"
    assert after.xpath("//meta/@content") == ['A PAGE ABOUT "FISH".']
    assert after.xpath("//img/@alt") == ["IT'S A PICTURE"]


def test_a_unit_is_one_line():
    page = "<p>see\n  <a\r\n  href='x'>the\npage</a></p>"
    document = read(page)
    assert shown(document.units[0].source) == "see ⟦<a   href='x'>⟧the page⟦</a>⟧"
    assert translate(document).decode() == "<p>see <a\r\n  href='x'>the page</a></p>"


def test_what_is_not_translated_stays_byte_for_byte():
    document = read(PAGE)
    places = {shown(unit.source): place for place, unit in enumerate(document.units)}
    written = document.render(
        {places["Item"]: '<Posten> & "mehr"', places["Name"]: "a \"b\" 'c'"}, "model"
    ).decode()
    assert written == PAGE.replace(">Item<", '>&lt;Posten&gt; &amp; "mehr"<').replace(
        "placeholder=Name", "placeholder=\"a &quot;b&quot; 'c'\""
    )
    # An attribute inside of a text, with and without that text.
    alt, text = places["It's a picture"], places[shown(document.units[3].source)]
    written = document.render({alt: "x 'y'"}, "model").decode()
    assert written == PAGE.replace("It&#39;s a picture", "x &#39;y&#39;")
    marks = MARKUP.findall(document.units[3].source)
    written = document.render({text: marks[5] + "nur", alt: "x"}, "model").decode()
    assert "<p><img src=a.png alt='x'>nur<br><code>x &lt; y</code>\n<p>Not" in written


@pytest.mark.parametrize(
    ("source", "translation", "written"),
    [
        ("a <b>b</b> c", "a b⟦</b>⟧ c", "a b c"),
        ("a <b>b</b> c", "⟦<b>⟧a⟦</b>⟧ ⟦<b>⟧b⟦</b>⟧ c", "<b>a</b> b c"),
        ("a <b>b <i>c</i></b> d", "⟦<b>⟧a⟦<i>⟧b⟦</b>⟧c⟦</i>⟧", "<b>ab</b>c"),
        ("a <b>b <i>c</i></b> d", "⟦<i>⟧a ⟦<b>⟧b⟦</b>⟧⟦</i>⟧", "<i>a <b>b</b></i>"),
        ("a <img> b <br> c", "a ⟦\n⟧⟦\n⟧⟦<script>⟧ b", "a <br> b<img>"),
        ("see <a>the page</a>!", "⟦</a>⟧siehe⟦<a>⟧", "siehe"),
        ("a </b> c <i> d", "x", "x</b><i>"),
    ],
)
def test_markup_of_a_translation_is_mended(source, translation, written):
    document = read(f"<p>{source}</p>")
    assert document.render({0: marked(translation)}, "m").decode() == f"<p>{written}</p>"


@pytest.mark.parametrize(
    ("page", "charset"),
    [
        ("<meta charset=gb2312><p>中文</p>", "gb18030"),
        ("<meta charset='windows-1251'><p>Привет</p>", "windows-1251"),
        (
            '<meta http-equiv="content-type" content="text/html; charset=Shift_JIS"><p>表示</p>',
            "cp932",
        ),
        ("<meta charset=latin1><p>“naïve” €</p>", "windows-1252"),
        ('<?xml version="1.0" encoding="iso-8859-2"?><p>Łódź</p>', "iso-8859-2"),
        ("\ufeff<p>é中</p>", "utf-8"),
        ("\ufeff<p>é中</p>", "utf-16-le"),
        ("\ufeff<p>é中</p>", "utf-16-be"),
        ("<p>é中</p>", "utf-8"),
    ],
)
def test_the_charset_of_a_page_is_kept(page, charset):
    content = page.encode(charset)
    document = HTMLDocument(content, "page.html", ("en", "de"))
    (unit,) = document.units
    assert unit.source in page and unit.source
    assert document.render({}, "model") == content
    assert document.render({0: unit.source}, "model") == content
    # What the charset lacks is a reference.
    written = document.render({0: "x😀ß"}, "model").decode(charset)
    assert re.sub("&#([0-9]+);", lambda match: chr(int(match[1])), written) == page.replace(
        unit.source, "x😀ß"
    )


def test_bytes_that_are_not_of_the_charset_stay():
    content = b"<meta charset=utf-8><p>a \xff</p><p title='x'>b</p><!-- \xfe -->"
    document = HTMLDocument(content, "page.html", ("en", "de"))
    assert document.units[0].source == "a \ufffd"
    assert document.render({2: "c"}, "model") == content.replace(b">b<", b">c<")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<p>\xff</p>", "names no charset, and is not UTF-8"),
        (b"<meta charset=klingon><p>x</p>", "names the charset klingon, which is unknown"),
        (b"<meta charset=rot13><p>x</p>", "unknown"),
        (b"<meta charset=utf-7><p>+ADw-</p>", "cannot be read as|unknown"),
        (b"\xff\xfe<\0p", "cannot be read as|utf-16"),
    ],
)
def test_charsets_that_cannot_be_read_are_refused(content, message):
    with pytest.raises(UserError, match=message):
        HTMLDocument(content, "page.html", ("en", "de"))


def test_xhtml_has_elements_without_content():
    page = (
        '<?xml version="1.0"?><html><title/><script src="a"/>'
        "<p>Text<br/>more <![CDATA[a<b]]></p></html>"
    )
    document = read(page, "page.xhtml")
    assert [shown(unit.source) for unit in document.units] == ["Text⟦\n⟧more"]
    assert translate(document).decode() == page
    # In HTML, the script has no end.
    assert not read(page[21:]).units


@pytest.mark.parametrize(
    "page",
    [
        "<p>a<b " + "x" * 9,
        "<p>a<b x='y>",
        "<p>text<!-- never ends",
        "<script>var a = '<p>x</p>';",
        "<pre><p>x</p>",
        "<p>a < b > c & d</p>",
        "</p></b>x</i><b></p>",
        "<p translate=no>x<p>y",
        "<title>a<b>c</title>",
        "<p" * 3000,
        "<b>" * 5000 + "x" + "</b>" * 5000,
        "<div>" * 20000 + "x",
        "<code>" * 20000 + "x",
        "<p>x" + "</b>" * 20000,
        "<!" * 20000,
        "<a '" * 20000,
        "<title>" * 20000,
    ],
)
def test_broken_pages_are_written_as_they_were_read(page):
    document = read(page)
    assert document.render({}, "m").decode() == page
    if not re.search(r"[<>&] |<title>a", page):
        assert translate(document).decode() == page


TAGS = "p b i a div ul li td br img code pre script style title textarea svg select option"
OTHERS = (
    "a Word &amp; &lt &nbsp; &#xe000; < > & é \ue000 <!-- --> <! <?php ?> <a/> <![CDATA[ ]]> </"
)
PARTS = st.sampled_from(
    [f"<{slash}{tag}>" for tag in TAGS.split() for slash in ("", "/")]
    + [*OTHERS.split(), " ", "\n", "<a title='x \"y\"'>", '<img alt="&lt;t">', "<img alt=q>"]
    + ["<p translate=no>", "<i class='a notranslate'>", '<b x="']
)


@given(st.lists(PARTS, max_size=25).map("".join), st.sampled_from(["a.html", "a.xhtml"]))
@example("<p>\x00a\r\nb \x85 c\u2028d</p>", "a.html")
@example("<code><p>a</code>b", "a.html")
def test_any_page_is_written_as_it_was_read(page, name):
    document = read(page, name)
    assert document.render({}, "model").decode() == page
    written = translate(document).decode()
    again = read(written, name)
    # What has no quotes gets some.
    assert [unit.source.replace('alt="q"', "alt=q") for unit in again.units] == [
        unit.source for unit in document.units
    ]
    if "\ue000" not in page:
        assert translate(again).decode() == written


@given(
    st.lists(PARTS, max_size=25).map("".join), st.lists(st.integers(0, 9) | st.text(), max_size=8)
)
def test_any_translation_leaves_the_tags_of_blocks(page, parts):
    page = page.replace("title>", "h1>")  # in a title, tags are text
    document = read(page)

    def translation(source):
        pieces = MARKUP.findall(source) or [""]
        return "w" + "".join(
            part if isinstance(part, str) else pieces[part % len(pieces)] for part in parts
        )

    blocks = re.compile("</?(?:p|div|ul|li|td|pre|select|option)[ >]")
    assert blocks.findall(translate(document, translation).decode()) == blocks.findall(page)
    assert len(read(translate(document, translation).decode()).units) == len(document.units)

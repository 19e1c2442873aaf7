"""Office documents that are damaged, protected, or made to harm whoever reads them."""

import contextlib
import io
import struct
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_mt.formats.docx import DOCXDocument
from transformer_mt.formats.html import HTMLDocument
from transformer_mt.formats.odt import ODTDocument
from transformer_mt.formats.pptx import PPTXDocument
from transformer_mt.utils.errors import UserError

LANGUAGES = ("en", "de")
WORD = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
SLIDE = "application/vnd.openxmlformats-officedocument.presentationml.slide+xml"
W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def types(*parts: tuple[str, str]) -> str:
    overrides = "".join(
        f'<Override PartName="/{name}" ContentType="{kind}"/>' for name, kind in parts
    )
    return f'<?xml version="1.0"?><Types xmlns="x">{overrides}</Types>'


def zipped(members: dict[str, str | bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def paragraphs(text: str) -> str:
    return f'<w:document xmlns:w="{W}"><w:body>{text}</w:body></w:document>'


def word(content: str | bytes, **others: bytes) -> bytes:
    return zipped(
        {
            "[Content_Types].xml": types(("word/document.xml", WORD)),
            "word/document.xml": content,
            **others,
        }
    )


GOOD = word(paragraphs("<w:p><w:r><w:t>Text</w:t></w:r></w:p>"))


def read(content: bytes) -> DOCXDocument:
    return DOCXDocument(content, "a.docx", LANGUAGES)


def changed(content: bytes, offset_in_header: int, value: bytes) -> bytes:
    """A zip file with a field of each entry of its directory changed."""
    data, place = bytearray(content), 0
    while (place := data.find(b"PK\x01\x02", place)) != -1:
        data[place + offset_in_header : place + offset_in_header + len(value)] = value
        place += 4
    return bytes(data)


def test_the_document_that_the_others_differ_from_is_read():
    assert [unit.source for unit in read(GOOD).units] == ["Text"]


@pytest.mark.parametrize("factory", [DOCXDocument, PPTXDocument, ODTDocument])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "damaged"),
        (b"no zip file", "damaged"),
        (bytes(range(256)) * 20, "damaged"),
        (GOOD[:-30], "damaged"),
        (GOOD[: len(GOOD) // 2], "damaged"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 600, "protected by a password"),
        (changed(GOOD, 8, b"\1\0"), "is encrypted"),
        (changed(GOOD, 10, b"\x0c\0"), "compressed in a way"),
        (zipped({"../x": "y"}), "named like a file outside"),
        (zipped({"/etc/x": "y"}), "named like a file outside"),
        (zipped({"a/..\\x": "y"}), "named like a file outside"),
        (zipped({"C:/x": "y"}), "named like a file outside"),
        (zipped({"x": b"\0" * (11 << 20)}), "100 times as large"),
        (zipped({}), "is not a document of"),
        (zipped({"x": "y"}), "is not a document of"),
    ],
)
def test_zip_files_that_are_no_documents_are_refused(factory, content, message):
    with pytest.raises(UserError, match=message) as caught:
        factory(content, "the.file", LANGUAGES)
    assert str(caught.value).startswith("the.file") and "\n" not in str(caught.value)


def test_sizes_are_limited_whatever_a_file_declares():
    # Each member may be large, but not all of them. Nothing is decompressed to find out.
    large = struct.pack("<LL", 60 << 20, 70 << 20)
    with pytest.raises(UserError, match="more than 200 MB"):
        read(changed(word("x", a=b"", b=b"", c=b""), 20, large))
    # A member that is larger than it declares is not read further.
    bomb = word(b"<x>" + b" " * (9 << 20))
    with pytest.raises(UserError, match=r"damaged|not well-formed"):
        read(changed(bomb, 24, struct.pack("<L", 100)))


def test_two_members_of_a_name_are_refused():
    file = io.BytesIO(GOOD)
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("word/document.xml", "x")
    with pytest.raises(UserError, match="is there twice"):
        read(file.getvalue())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not well-formed"),
        (b"<w:p>", "not well-formed"),
        (b"\x00\xff" * 50, "not well-formed|not UTF-8"),
        (
            '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>' + paragraphs("<w:p>&a;</w:p>"),
            "declares the entity",
        ),
        (
            '<!DOCTYPE x [<!ENTITY % a SYSTEM "http://127.0.0.1:1/x">%a;]>' + paragraphs(""),
            "declares the entity",
        ),
        (
            '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">]>' + paragraphs("&b;"),
            "declares the entity",
        ),
        (paragraphs("<w:p>" * 250 + "</w:p>" * 250), "200 elements within each other"),
        (paragraphs("<w:p><w:r><w:t>&a;</w:t></w:r></w:p>"), "not well-formed"),
        (paragraphs("<w:p/>").encode("utf-16"), "not UTF-8"),
    ],
)
def test_xml_that_is_broken_or_declares_entities_is_refused(content, message):
    with pytest.raises(UserError, match=message) as caught:
        read(word(content))
    assert str(caught.value).startswith("a.docx, word/document.xml")


def test_a_member_that_the_content_types_name_must_be_there():
    with pytest.raises(UserError, match=r"a\.docx is not a document of Word"):
        read(zipped({"[Content_Types].xml": types(("word/document.xml", WORD))}))
    other = {"[Content_Types].xml": types(("x.xml", SLIDE)), "x.xml": "<x/>"}
    with pytest.raises(UserError, match="is not a document of Word"):
        read(zipped(other))
    assert PPTXDocument(zipped(other), "a.pptx", LANGUAGES).units == []


def test_protected_text_documents_are_refused():
    manifest = "<manifest:manifest><manifest:encryption-data/></manifest:manifest>"
    content = zipped({"content.xml": b"\x01\x02", "META-INF/manifest.xml": manifest})
    with pytest.raises(UserError, match="protected by a password"):
        ODTDocument(content, "a.odt", LANGUAGES)
    with pytest.raises(UserError, match="protected by a password"):
        ODTDocument(zipped({"encrypted-package": b"x"}), "a.odt", LANGUAGES)


def test_macros_and_unknown_members_stay():
    macros = bytes(range(256)) * 8
    content = word(
        paragraphs("<w:p><w:r><w:t>Text</w:t></w:r></w:p>"), **{"vbaProject.bin": macros}
    )
    written = read(content).render({0: "x"}, "model")
    with zipfile.ZipFile(io.BytesIO(written)) as file:
        assert file.read("vbaProject.bin") == macros


@given(st.data())
def test_damaged_documents_are_read_or_refused(data):
    content = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(UserError):
        document = read(bytes(content))
        document.render(dict.fromkeys(range(len(document.units)), "x"), "model")


@given(st.binary(max_size=200))
def test_any_bytes_are_read_as_html_or_refused(content):
    with contextlib.suppress(UserError):
        assert HTMLDocument(content, "a.html", LANGUAGES).render({}, "m") == content


TOKENS = [
    "<w:p>",
    "</w:p>",
    "<w:r>",
    "</w:r>",
    "<w:t>",
    "</w:t>",
    "<w:pPr/>",
    "<w:rPr><w:b/></w:rPr>",
]
TOKENS += [
    "<w:hyperlink>",
    "</w:hyperlink>",
    "<w:tab/>",
    "<w:proofErr/>",
    "<w:sdt>",
    "</w:sdt>",
    "Text",
]
TOKENS += [
    "<w:sdtContent>",
    "</w:sdtContent>",
    "<w:t>a b</w:t>",
    "<w:r><w:t>c</w:t></w:r>",
    "&amp;",
]
TOKENS += [f'<w:fldChar w:fldCharType="{kind}"/>' for kind in ("begin", "separate", "end")]
TOKENS += [
    "<w:instrText>HYPERLINK</w:instrText>",
    "<w:p/>",
    "<!-- -->",
    "<![CDATA[<]]>",
    "<w:del/>",
]


@given(st.lists(st.sampled_from(TOKENS), max_size=30), st.booleans())
def test_any_xml_is_written_as_xml(tokens, is_lost):
    # Elements are closed where they would end in one another.
    opened, xml = [], ""
    for token in tokens:
        name = token.strip("</>")
        if token.startswith("</"):
            if name not in opened:
                continue
            while opened[-1] != name:
                xml += f"</{opened.pop()}>"
            opened.pop()
        elif token in ("<w:p>", "<w:r>", "<w:t>", "<w:hyperlink>", "<w:sdt>", "<w:sdtContent>"):
            opened.append(name)
        xml += token
    xml += "".join(f"</{name}>" for name in reversed(opened))
    document = read(word(paragraphs(f"<w:p><w:r><w:t>x</w:t></w:r></w:p>{xml}")))
    translations = {
        place: "y" if is_lost else unit.source for place, unit in enumerate(document.units)
    }
    again = read(document.render(translations, "model"))
    assert len(again.units) == len(document.units)
    if not is_lost:
        assert [u.source for u in again.units] == [u.source for u in document.units]

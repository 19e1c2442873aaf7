"""Word, PowerPoint and OpenDocument: libraries of each format write files and read them again."""

import io
import re
import zipfile

import pytest

from transformer_mt.formats.document import MARK_END, MARK_START, MARKUP
from transformer_mt.formats.docx import DOCXDocument
from transformer_mt.formats.odt import ODTDocument
from transformer_mt.formats.pptx import PPTXDocument

LANGUAGES = ("en", "de")
# A picture of one dot.
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8cfc000"
    "000301010018dd8db00000000049454e44ae426082"
)
W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"


def shown(text: str) -> str:
    return text.replace(MARK_START, "⟦").replace(MARK_END, "⟧")


def marked(text: str) -> str:
    return text.replace("⟦", MARK_START).replace("⟧", MARK_END)


def in_capitals(source: str) -> str:
    """A translation that keeps the markup."""
    parts = re.split(f"({MARKUP.pattern})", source)
    return "".join(part if MARKUP.fullmatch(part) else part.upper() for part in parts)


def translate(document, translation=in_capitals) -> bytes:
    translations = {place: translation(unit.source) for place, unit in enumerate(document.units)}
    return document.render(translations, "model")


def sources(document) -> list[str]:
    return [shown(unit.source) for unit in document.units]


def members(content: bytes) -> list[tuple]:
    """What stays in a zip file of members that are not changed."""
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        return [
            (info.filename, info.date_time, info.compress_type, info.external_attr)
            for info in file.infolist()
        ]


def with_member(content: bytes, name: str, change) -> bytes:
    """The file with a member that is changed, or with a new one."""
    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as file, zipfile.ZipFile(result, "w") as new:
        for info in file.infolist():
            data = file.read(info)
            new.writestr(info, change(data) if info.filename == name else data)
    return result.getvalue()


def part(content: bytes, name: str) -> str:
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        return file.read(name).decode()


def body(xml: str) -> bytes:
    """A document of Word with paragraphs in XML."""
    docx = pytest.importorskip("docx")
    file = io.BytesIO()
    docx.Document().save(file)
    new = f"<w:body>{xml}".encode()
    return with_member(
        file.getvalue(), "word/document.xml", lambda data: data.replace(b"<w:body>", new)
    )


# ------------------------------------------------------------------------------------------ Word


@pytest.fixture(scope="module")
def docx_file() -> bytes:
    docx = pytest.importorskip("docx")
    document = docx.Document()
    document.add_heading("Annual report", 1)
    paragraph = document.add_paragraph("Plain text and ")
    paragraph.add_run("bold").bold = True
    paragraph.add_run(" and more.\tAfter a tab")
    paragraph.add_run().add_picture(io.BytesIO(PNG))
    paragraph.add_run(" and ")
    paragraph.add_run("italics").italic = True
    document.add_paragraph("12.5 %")
    document.add_paragraph("First item", style="List Bullet")
    table = document.add_table(2, 2)
    table.cell(0, 0).text = "Name"
    table.cell(1, 1).text = "Fish & <Chips>"
    table.cell(1, 0).add_table(1, 1).cell(0, 0).text = "Inner"
    section = document.sections[0]
    section.header.paragraphs[0].text = "Our header"
    section.footer.paragraphs[0].text = "Our footer"
    document.add_comment(paragraph.runs[:1], text="A comment", author="x")
    file = io.BytesIO()
    document.save(file)
    return file.getvalue()


def test_word_units_are_paragraphs(docx_file):
    document = DOCXDocument(docx_file, "a.docx", LANGUAGES)
    found = [(unit.name, shown(unit.source)) for unit in document.units]
    assert found[1][1].startswith('Plain text and ⟦<x id="1"/>⟧')  # the comment ends here
    assert found[1][1].endswith(
        '⟦<g id="3">⟧bold⟦</g>⟧ and more.⟦\n⟧After a tab⟦<x id="4"/>⟧ and ⟦<g id="5">⟧italics⟦</g>⟧'
    )
    assert [found[0], *found[2:]] == [
        ("document, paragraph 1", "Annual report"),
        ("document, paragraph 3", "First item"),
        ("document, paragraph 4", "Name"),
        ("document, paragraph 5", "Inner"),
        ("document, paragraph 6", "Fish & <Chips>"),
        ("header1, paragraph 1", "Our header"),
        ("footer1, paragraph 1", "Our footer"),
    ]


def test_word_documents_are_written_as_they_were_read(docx_file):
    import docx

    document = DOCXDocument(docx_file, "a.docx", LANGUAGES)
    assert document.render({}, "model") == docx_file
    content = translate(document)
    assert members(content) == members(docx_file)
    before, after = (docx.Document(io.BytesIO(data)) for data in (docx_file, content))
    assert [p.text.upper() for p in before.paragraphs] == [p.text for p in after.paragraphs]
    assert [p.style.name for p in before.paragraphs] == [p.style.name for p in after.paragraphs]
    for look in ("bold", "italic"):
        old, new = (
            ["".join(run.text for run in p.runs if getattr(run, look)) for p in file.paragraphs]
            for file in (before, after)
        )
        assert [text.upper() for text in old] == new and any(new)
    assert len(after.inline_shapes) == len(before.inline_shapes) == 1
    cells = [[c.text for t in file.tables for c in t._cells] for file in (before, after)]
    assert [text.upper() for text in cells[0]] == cells[1]
    assert after.sections[0].header.paragraphs[0].text == "OUR HEADER"
    assert [comment.text for comment in after.comments] == ["A comment"]
    assert sources(DOCXDocument(content, "a.docx", LANGUAGES)) == [
        shown(in_capitals(unit.source)) for unit in document.units
    ]
    for name in ("word/styles.xml", "word/comments.xml", "[Content_Types].xml"):
        assert part(content, name) == part(docx_file, name)


def test_other_paragraphs_stay_byte_for_byte(docx_file):
    document = DOCXDocument(docx_file, "a.docx", LANGUAGES)
    content = document.render({3: "Ein Name & <x>"}, "model")
    assert part(content, "word/document.xml") == part(docx_file, "word/document.xml").replace(
        "<w:r><w:t>Name</w:t></w:r>", "<w:r><w:t>Ein Name &amp; &lt;x&gt;</w:t></w:r>"
    )
    assert part(content, "word/header1.xml") == part(docx_file, "word/header1.xml")


RUN = "<w:r>{}<w:t xml:space='preserve'>{}</w:t></w:r>"
BOLD = "<w:rPr><w:b/></w:rPr>"


def field(instruction: str, result: str) -> str:
    return (
        "<w:r><w:fldChar w:fldCharType='begin'/></w:r>"
        f"<w:r><w:instrText> {instruction} </w:instrText></w:r>"
        f"<w:r><w:fldChar w:fldCharType='separate'/></w:r>{RUN.format('', result)}"
        "<w:r><w:fldChar w:fldCharType='end'/></w:r>"
    )


@pytest.mark.parametrize(
    ("xml", "source"),
    [
        # What spelling and the language divide is one text.
        (
            "<w:proofErr w:type='spellStart'/>"
            + RUN.format("<w:rPr><w:lang w:val='de'/></w:rPr>", "Wo")
            + RUN.format("", "rd"),
            "Word",
        ),
        # The most frequent formatting is not shown.
        (RUN.format(BOLD, "Long bold") + RUN.format("", " x"), 'Long bold⟦<g id="1">⟧ x⟦</g>⟧'),
        (
            RUN.format("", "See ")
            + "<w:hyperlink w:anchor='x'>"
            + RUN.format("<w:rPr><w:rStyle w:val='Link'/></w:rPr>", "this page")
            + "</w:hyperlink>"
            + RUN.format("", "!"),
            'See ⟦<g id="1">⟧this page⟦</g>⟧!',
        ),
        (
            RUN.format("", "Page ") + field("PAGE", "7") + RUN.format("", " of it"),
            'Page ⟦<x id="1"/>⟧ of it',
        ),
        (
            RUN.format("", "See ") + field('HYPERLINK "x"', "that") + RUN.format("", "."),
            'See ⟦<g id="1">⟧that⟦</g>⟧.',
        ),
        (
            "<w:del w:id='1'><w:r><w:delText>old</w:delText></w:r></w:del>"
            + "<w:ins w:id='2'>"
            + RUN.format("", "new")
            + "</w:ins>"
            + RUN.format("", " text"),
            '⟦<g id="1">⟧new⟦</g>⟧ text',
        ),
        (
            RUN.format("", "Note")
            + "<w:r><w:footnoteReference w:id='2'/></w:r>"
            + "<w:r><w:br/><w:t>new<!-- c --> line</w:t><w:noBreakHyphen/><w:t>x</w:t></w:r>",
            'Note⟦<x id="1"/>⟧⟦\n⟧new line\u2011x',
        ),
        (
            # A pair ends with a word, but an index and a capital letter are not one.
            RUN.format("", "Open the ")
            + RUN.format(BOLD, "docu")
            + RUN.format("", "ment, ")
            + RUN.format(BOLD, "K")
            + RUN.format("", "eys and V")
            + RUN.format(BOLD, "max")
            + RUN.format("", " of un")
            + RUN.format("<w:rPr><w:i/></w:rPr>", "do")
            + RUN.format("", "ing"),
            'Open the ⟦<g id="1">⟧document⟦</g>⟧, ⟦<g id="2">⟧K⟦</g>⟧eys and '
            'V⟦<g id="3">⟧max⟦</g>⟧ of ⟦<g id="4">⟧undoing⟦</g>⟧',
        ),
        (
            "<w:sdt><w:sdtPr/><w:sdtContent>" + RUN.format("", "Field") + "</w:sdtContent></w:sdt>",
            "Field",
        ),
    ],
)
def test_runs_of_word(xml, source):
    content = body(f"<w:p><w:pPr><w:keepNext/></w:pPr>{xml}</w:p>")
    document = DOCXDocument(content, "a.docx", LANGUAGES)
    assert sources(document) == [source]
    written = translate(document)
    again = DOCXDocument(written, "a.docx", LANGUAGES)
    assert sources(again) == [shown(in_capitals(document.units[0].source))]
    before, after = part(content, "word/document.xml"), part(written, "word/document.xml")
    for element in ("w:hyperlink", "w:del", "w:ins", "w:fldChar", "w:footnoteReference", "w:sdt>"):
        assert before.count(f"<{element}") == after.count(f"<{element}")
    assert "<w:p><w:pPr><w:keepNext/></w:pPr>" in after
    assert translate(again) == written


@pytest.mark.parametrize(
    ("translation", "text", "bold"),
    [
        ('⟦<x id="2"/>⟧ A ⟦<g id="1">⟧B⟦</g>⟧', "# A B", "B"),
        ("A B", "A B#", ""),  # what was lost is at the end
        ('A⟦<g id="1">⟧B ⟦<x id="2"/>⟧⟦<x id="2"/>⟧', "AB #", ""),
        ('⟦<g id="1">⟧A⟦</g>⟧⟦<g id="1">⟧B⟦</g>⟧⟦<x id="9"/>⟧⟦</g>⟧', "AB#", "A"),
        ("  A\x00\x0b\ud800B  ", "  AB  #", ""),
        ("", "#", ""),
    ],
)
def test_any_translation_makes_a_valid_paragraph(translation, text, bold):
    docx = pytest.importorskip("docx")
    xml = f"<w:p>{RUN.format('', 'Text and ')}{RUN.format(BOLD, 'bold')}"
    xml += "<w:r><w:endnoteReference w:id='2'/></w:r>" + RUN.format("", " end") + "</w:p>"
    document = DOCXDocument(body(xml), "a.docx", LANGUAGES)
    assert sources(document) == ['Text and ⟦<g id="1">⟧bold⟦</g>⟧⟦<x id="2"/>⟧ end']
    content = document.render({0: marked(translation)}, "model")
    paragraph = docx.Document(io.BytesIO(content)).paragraphs[0]
    found = {f"{W}t": lambda e: e.text, f"{W}endnoteReference": lambda _: "#"}
    assert "".join(found[e.tag](e) for e in paragraph._p.iter(*found)) == text
    assert "".join(run.text for run in paragraph.runs if run.bold) == bold


def test_text_boxes_are_translated_with_the_paragraph_around_them_and_without_it():
    inner = "<w:p><w:r><w:t>Inside</w:t></w:r></w:p>"
    box = f"<w:r><w:pict><w:txbxContent>{inner}</w:txbxContent></w:pict></w:r>"
    content = body(f"<w:p>{RUN.format('', 'Before ')}{box}{RUN.format('', 'after')}</w:p>")
    document = DOCXDocument(content, "a.docx", LANGUAGES)
    assert sources(document) == ['Before ⟦<x id="1"/>⟧after', "Inside"]
    for chosen in ({0}, {1}, {0, 1}):
        translations = {place: in_capitals(document.units[place].source) for place in chosen}
        again = DOCXDocument(document.render(translations, "m"), "a.docx", LANGUAGES)
        assert [text.isupper() for text in (again.units[0].source[:6], again.units[1].source)] == [
            0 in chosen,
            1 in chosen,
        ]


def test_a_table_of_contents_is_text_over_many_paragraphs():
    start = "<w:r><w:fldChar w:fldCharType='begin'/></w:r><w:r><w:instrText>TOC</w:instrText></w:r>"
    start += "<w:r><w:fldChar w:fldCharType='separate'/></w:r>"
    line = RUN.format("", "Chapter one") + "<w:r><w:tab/></w:r>" + field("PAGEREF x", "3")
    end = "<w:r><w:fldChar w:fldCharType='end'/></w:r>"
    content = body(f"<w:p>{start}{line}</w:p><w:p>{line}</w:p><w:p>{end}</w:p>")
    document = DOCXDocument(content, "a.docx", LANGUAGES)
    assert sources(document) == ["Chapter one", "Chapter one"]
    written = part(translate(document), "word/document.xml")
    order = re.findall("'(begin|separate|end)'|(CHAPTER)", written)
    assert ["".join(found) for found in order] == [
        *("begin", "separate", "CHAPTER", "begin", "separate", "end"),
        *("CHAPTER", "begin", "separate", "end", "end"),
    ]


# ------------------------------------------------------------------------------------ PowerPoint


def test_a_link_that_is_most_of_a_paragraph_is_no_usual_formatting():
    pptx = pytest.importorskip("pptx")
    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[1])
    paragraph = slide.placeholders[1].text_frame.paragraphs[0]
    for text, bold, address in (
        ("See ", None, None),
        ("the long name ", None, "http://example.org/"),
        ("of a link", True, "http://example.org/"),
    ):
        run = paragraph.add_run()
        run.text, run.font.bold, run.hyperlink.address = text, bold, address
    for run in paragraph.runs[2:]:  # as PowerPoint has it: one relation for both runs
        run._r.rPr.hlinkClick.rId = paragraph.runs[1]._r.rPr.hlinkClick.rId
    file = io.BytesIO()
    deck.save(file)
    document = PPTXDocument(file.getvalue(), "a.pptx", LANGUAGES)
    assert sources(document) == ['See ⟦<g id="1">⟧the long name ⟦<g id="2">⟧of a link⟦</g>⟧⟦</g>⟧']
    written = document.render({0: marked('⟦<g id="1">⟧Der Verweis⟦</g>⟧ dort')}, "m")
    runs = (
        pptx.Presentation(io.BytesIO(written))
        .slides[0]
        .placeholders[1]
        .text_frame.paragraphs[0]
        .runs
    )
    assert [(run.text, run.hyperlink.address) for run in runs] == [
        ("Der Verweis", "http://example.org/"),
        (" dort", None),
    ]


def test_presentations_are_written_as_they_were_read():
    pptx = pytest.importorskip("pptx")
    deck = pptx.Presentation()
    for number in range(11):  # slide 2 is before slide 10
        slide = deck.slides.add_slide(deck.slide_layouts[1])
        slide.shapes.title.text = f"Title {number}"
    frame = deck.slides[0].placeholders[1].text_frame
    frame.text = "The first\nTwo\vbroken"
    run = frame.paragraphs[0].add_run()
    run.text, run.font.bold = " bold", True
    run = frame.paragraphs[0].add_run()
    run.text, run.hyperlink.address = " link", "http://example.org/"
    table = deck.slides[1].shapes.add_table(1, 2, 0, 0, 10, 10).table
    table.cell(0, 1).text = "Cell"
    deck.slides[1].shapes.add_picture(io.BytesIO(PNG), 0, 0)
    deck.slides[0].notes_slide.notes_text_frame.text = "My notes"
    file = io.BytesIO()
    deck.save(file)
    content = file.getvalue()

    document = PPTXDocument(content, "a.pptx", LANGUAGES)
    found = [(unit.name, shown(unit.source)) for unit in document.units]
    assert found[:6] == [
        ("slide1, paragraph 1", "Title 0"),
        (
            "slide1, paragraph 2",
            'The first⟦<g id="1">⟧ bold⟦</g>⟧⟦<g id="2">⟧ link⟦</g>⟧',
        ),
        ("slide1, paragraph 3", "Two⟦\n⟧broken"),
        ("slide2, paragraph 1", "Title 1"),
        ("slide2, paragraph 2", "Cell"),
        ("slide3, paragraph 1", "Title 2"),
    ]
    assert found[-1] == ("notesSlide1, paragraph 1", "My notes")
    assert document.render({}, "model") == content

    written = translate(document)
    assert members(written) == members(content)
    after = pptx.Presentation(io.BytesIO(written))
    for slide, its in zip(deck.slides, after.slides, strict=True):
        assert [shape.shape_type for shape in slide.shapes] == [s.shape_type for s in its.shapes]
        for shape, other in zip(slide.shapes, its.shapes, strict=True):
            if shape.has_text_frame:
                assert other.text_frame.text == shape.text_frame.text.upper()
    runs = after.slides[0].placeholders[1].text_frame.paragraphs[0].runs
    assert [r.text for r in runs if r.font.bold] == [" BOLD"]
    assert [r.hyperlink.address for r in runs if "LINK" in r.text] == ["http://example.org/"]
    assert after.slides[1].shapes[-2].table.cell(0, 1).text == "CELL"
    assert after.slides[0].notes_slide.notes_text_frame.text == "MY NOTES"


# ---------------------------------------------------------------------------------- OpenDocument


@pytest.fixture(scope="module")
def odt_file() -> bytes:
    pytest.importorskip("odf")
    from odf import style, table, text
    from odf.opendocument import OpenDocumentText

    document = OpenDocumentText()
    bold = style.Style(name="T1", family="text")
    bold.addElement(style.TextProperties(fontweight="bold"))
    document.automaticstyles.addElement(bold)
    layout = style.PageLayout(name="L")
    document.automaticstyles.addElement(layout)
    master = style.MasterPage(name="Standard", pagelayoutname=layout)
    header = style.Header()
    header.addElement(text.P(text="Our header"))
    master.addElement(header)
    document.masterstyles.addElement(master)
    document.text.addElement(text.H(outlinelevel=1, text="Heading"))
    paragraph = text.P(text="Some ")
    paragraph.addElement(text.Span(stylename=bold, text="bold text"))
    paragraph.addText(" then")
    paragraph.addElement(text.S(c=3))
    paragraph.addElement(text.A(href="http://example.org/", text="a link"))
    note = text.Note(noteclass="footnote")
    note.addElement(text.NoteCitation(text="1"))
    note_body = text.NoteBody()
    note_body.addElement(text.P(text="A foot note"))
    note.addElement(note_body)
    paragraph.addElement(note)
    paragraph.addText(" to the end")
    paragraph.addElement(text.Tab())
    paragraph.addText("here.")
    document.text.addElement(paragraph)
    grid = table.Table(name="G")
    row = table.TableRow()
    cell = table.TableCell()
    cell.addElement(text.P(text="Cell & more"))
    row.addElement(cell)
    grid.addElement(row)
    document.text.addElement(grid)
    file = io.BytesIO()
    document.save(file)
    return file.getvalue()


def test_text_documents_are_written_as_they_were_read(odt_file):
    from odf import opendocument, table, teletype, text

    document = ODTDocument(odt_file, "a.odt", LANGUAGES)
    assert [(unit.name, shown(unit.source)) for unit in document.units] == [
        ("content, paragraph 1", "Heading"),
        (
            "content, paragraph 2",
            'Some ⟦<g id="1">⟧bold text⟦</g>⟧ then   ⟦<g id="2">⟧a link⟦</g>⟧⟦<x id="3"/>⟧ '
            "to the end⟦\n⟧here.",
        ),
        ("content, paragraph 3", "A foot note"),
        ("content, paragraph 4", "Cell & more"),
        ("styles, paragraph 1", "Our header"),
    ]
    assert document.render({}, "model") == odt_file
    written = translate(document)
    assert members(written) == members(odt_file)
    assert members(written)[0][0] == "mimetype"
    before, after = (opendocument.load(io.BytesIO(data)) for data in (odt_file, written))
    for kind in (text.P, text.H, text.Span, text.A, text.S, text.Tab, text.Note, table.TableCell):
        old, new = before.getElementsByType(kind), after.getElementsByType(kind)
        assert [teletype.extractText(element) for element in new] == [
            teletype.extractText(element).upper() for element in old
        ]
    assert sources(ODTDocument(written, "a.odt", LANGUAGES)) == [
        shown(in_capitals(unit.source)) for unit in document.units
    ]
    one = document.render({0: "  Neue   Überschrift "}, "model")
    old, new = part(odt_file, "content.xml"), part(one, "content.xml")
    assert new == old.replace(
        ">Heading<", '><text:s text:c="2"/>Neue <text:s text:c="2"/>Überschrift <'
    )


def odt_with(odt_file: bytes, xml: str) -> bytes:
    new = f"<office:text>{xml}".encode()
    return with_member(odt_file, "content.xml", lambda data: data.replace(b"<office:text>", new))


def test_a_range_begins_before_its_end(odt_file):
    """Of a bookmark or a tracked change, a translation may have the marks in another order."""
    swapped = '⟦<x id="2"/>⟧A⟦<x id="1"/>⟧'
    xml = "<w:p>{0}<w:bookmarkStart w:id='7' w:name='n'/>{0}<w:bookmarkEnd w:id='7'/>{0}</w:p>"
    content = body(xml.format(RUN.format("", "a")))
    document = DOCXDocument(content, "a.docx", LANGUAGES)
    assert sources(document) == ['a⟦<x id="1"/>⟧a⟦<x id="2"/>⟧a']
    written = part(document.render({0: marked(swapped)}, "m"), "word/document.xml")
    assert re.findall("bookmark[SE]|>A<", written) == ["bookmarkS", ">A<", "bookmarkE"]

    xml = "a<text:{0}-start text:{1}='c'/>a<text:{0}-end text:{1}='c'/>a"
    for kind, name in (("change", "change-id"), ("bookmark", "name")):
        content = odt_with(odt_file, f"<text:p>{xml.format(kind, name)}</text:p>")
        document = ODTDocument(content, "a.odt", LANGUAGES)
        written = part(document.render({0: marked(swapped)}, "m"), "content.xml")
        assert re.findall(f"{kind}-[se]|>A<", written)[:3] == [f"{kind}-s", ">A<", f"{kind}-e"]


@pytest.mark.parametrize(
    ("xml", "source"),
    [
        ("<text:p>\n  Two\n  lines\n</text:p>", "Two lines"),
        # The style of a session of editing looks like none.
        (
            "<text:p>One <text:span text:style-name='R'>te</text:span>xt</text:p>",
            "One text",
        ),
        (
            "<text:p><text:bookmark text:name='b'/>Text<office:annotation><text:p>Comment</text:p>"
            "</office:annotation> with</text:p>",
            'Text⟦<x id="1"/>⟧ with',
        ),
        (
            "<text:tracked-changes><text:p>Deleted</text:p></text:tracked-changes>"
            "<text:p>Page <text:page-number>1</text:page-number> of<text:line-break/>it</text:p>",
            'Page ⟦<x id="1"/>⟧ of⟦\n⟧it',
        ),
        (
            "<text:p><text:span text:style-name='T1'>A<text:span text:style-name='T2'>B</text:span>"
            "CD</text:span></text:p>",
            'A⟦<g id="1">⟧B⟦</g>⟧CD',
        ),
        (
            "<text:p><draw:frame><draw:text-box><text:p>Box</text:p></draw:text-box></draw:frame>"
            "12</text:p>",
            "Box",
        ),
    ],
)
def test_paragraphs_of_opendocument(odt_file, xml, source):
    content = with_member(
        odt_with(odt_file, xml),
        "content.xml",
        lambda data: data.replace(
            b"<office:automatic-styles>",
            b'<office:automatic-styles><style:style style:name="R" style:family="text">'
            b'<style:text-properties officeooo:rsid="001"/></style:style>',
        ),
    )
    document = ODTDocument(content, "a.odt", LANGUAGES)
    assert sources(document)[0] == source
    written = translate(document)
    assert sources(ODTDocument(written, "a.odt", LANGUAGES)) == [
        shown(in_capitals(unit.source)) for unit in document.units
    ]
    for kept in ("Comment", "Deleted"):
        assert part(written, "content.xml").count(kept) == part(content, "content.xml").count(kept)

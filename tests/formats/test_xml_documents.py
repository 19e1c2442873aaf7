"""Documents in XML: what is a unit, and what translations change."""

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.xml_files import ANDROID, FILES, LANGUAGES, QT, RESX, TMX, XLIFF_1, XLIFF_2
from transformer_mt.formats.android import AndroidStrings, decoded, encoded
from transformer_mt.formats.document import MARK_END, MARK_START, MARKUP, OtherLanguagesError
from transformer_mt.formats.qt import QtLinguist
from transformer_mt.formats.resx import Resx
from transformer_mt.formats.tbx import terms
from transformer_mt.formats.tmx import Tmx
from transformer_mt.formats.xliff import Xliff
from transformer_mt.utils.errors import UserError
from transformer_mt.utils.languages import closest

etree = pytest.importorskip("lxml.etree")

XML = "{http://www.w3.org/XML/1998/namespace}"
V1, V2 = "{urn:oasis:names:tc:xliff:document:1.2}", "{urn:oasis:names:tc:xliff:document:2.0}"
ENCODINGS = {
    "utf-8": lambda text: text.encode(),
    "mark": lambda text: codecs.BOM_UTF8 + text.encode(),
    "crlf": lambda text: text.replace("\n", "\r\n").encode(),
    "utf-16": lambda text: declared(text, "UTF-16").encode("utf-16"),
    "utf-16-be": lambda text: codecs.BOM_UTF16_BE + declared(text, "utf-16").encode("utf-16-be"),
    "latin-1": lambda text: declared(text, "ISO-8859-1").encode("latin-1"),
    "gb18030": lambda text: declared(text, "GB18030").encode("gb18030"),
}
# Text of people, without the characters that stand around markup.
TEXT = st.text(
    st.one_of(
        st.sampled_from("<>&'\"]\\@? \n\t中ü\u2028"),
        st.characters(codec="utf-8", exclude_categories=["Cc", "Co"]),
    ),
    min_size=1,
).filter(lambda text: text.strip() and not {"\ufffe", "\uffff"} & set(text))


def declared(text: str, encoding: str) -> str:
    first, rest = text.split("\n", 1)
    assert first.startswith("<?xml")
    return f'<?xml version="1.0" encoding="{encoding}"?>\n{rest}'


def read(name: str, encoding: str = "utf-8"):
    kind, text = FILES[name]
    content = ENCODINGS[encoding](text)
    return kind(content, name, LANGUAGES), content


def marked(text: str) -> str:
    """Text with its markup in braces."""
    return text.replace(MARK_START, "{").replace(MARK_END, "}")


def unmarked(text: str) -> str:
    return text.replace("{", MARK_START).replace("}", MARK_END)


def translated(content: str, kind: type, translations: dict[int, str], made_by: str = "m"):
    out = kind(content.encode(), "x", LANGUAGES).render(
        {number: unmarked(text) for number, text in translations.items()}, made_by
    )
    return etree.fromstring(out), out.decode()


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", FILES)
def test_files_stay_as_they_are(name, encoding):
    document, content = read(name, encoding)
    plain, _ = read(name)
    for unit in document.units:
        unit.source = unit.source.replace("\r\n", "\n")  # within tags
    assert document.units == plain.units
    assert document.render({}, "model") == content


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", FILES)
def test_only_translations_change(name, encoding):
    """Where each unit has its source as translation, it can be read as such."""
    document, _ = read(name, encoding)
    sources = {number: unit.source for number, unit in enumerate(document.units)}
    out = document.render(sources, "model")
    etree.fromstring(out)
    again = type(document)(out, name, LANGUAGES)
    assert [unit.source for unit in again.units] == list(sources.values())
    if document.target_lang or name in ("xliff_2", "tmx"):
        assert [unit.target for unit in again.units] == list(sources.values())
        assert not any(unit.is_done for unit in again.units)
        assert again.target_lang and again.target_lang.lower().startswith("de")
    # A second time, there is nothing left to change.
    assert again.render(sources, "model") == out
    lines = out.decode(again._encoding).split("\n")
    assert encoding != "crlf" or all(line.endswith("\r") for line in lines[:-1])


@pytest.mark.parametrize("name", FILES)
@given(data=st.data())
def test_any_text_comes_back(name, data):
    document, _ = read(name, data.draw(st.sampled_from(sorted(ENCODINGS))))
    number = data.draw(st.integers(0, len(document.units) - 1))
    unit = document.units[number]
    pieces = [data.draw(TEXT)]
    for piece in MARKUP.findall(unit.source):
        pieces += [piece, data.draw(TEXT)]
    translation = "".join(pieces)
    out = document.render({number: translation}, "model")
    etree.fromstring(out)
    again = type(document)(out, name, LANGUAGES).units[number]
    is_source = name in ("android", "resx")
    text = again.source if is_source else again.target
    # A CDATA section has no markup; then these texts have none either.
    assert text == translation


def test_xliff_1():
    root, text = translated(
        XLIFF_1,
        Xliff,
        {
            0: 'Hallo, {<g id="1">}große & {<x id="2"/>} Welt{</g>}!',
            2: "Schließen",
            3: '{<ph id="1">&lt;br/&gt;</ph>}1 < 2{<mrk mtype="protected">Acme</mrk>}',
            4: "<p>Hallo & tschüss]]></p>",
        },
        "en-de 1",
    )
    units = {unit.get("id"): unit for unit in root.iter(f"{V1}trans-unit")}
    assert [child.tag for child in units["1"] if isinstance(child.tag, str)] == [
        f"{V1}source",
        f"{V1}target",
        f"{V1}note",
    ]
    target = units["1"].find(f"{V1}target")
    assert dict(target.attrib) == {
        "state": "needs-review-translation",
        "state-qualifier": "mt-suggestion",
    }
    assert "".join(target.itertext()) == "Hallo, große &  Welt!"
    assert '\n          <target state="needs-review-translation"' in text
    assert units["2"].find(f"{V1}target").get("state") == "final"
    assert units["3"].get("approved") == "no"
    assert units["3"].find(f"{V1}target").get(f"{XML}lang") == "de"
    assert "<p>Hallo & tschüss]]></p>" in "".join(units["6"].find(f"{V1}target").itertext())
    assert "<![CDATA[<p>Hallo &" in text
    assert "10" not in [unit.name for unit in Xliff(XLIFF_1.encode(), "x", LANGUAGES).units]
    notes = [note for note in root.iter(f"{V1}note") if note.get("from")]
    assert [(note.get("from"), note.text) for note in notes] == [
        ("transformer_mt", "Machine translations by en-de 1")
    ]


def test_what_is_done_in_xliff():
    done = [(unit.name, unit.target) for unit in read("xliff_1")[0].units if unit.is_done]
    assert done == [("2", "Öffnen"), ("3", "Zu")]
    done = [(unit.name, unit.target) for unit in read("xliff_2")[0].units if unit.is_done]
    assert done == [("u2", "Ja")]


def test_xliff_without_a_header_and_a_target_language():
    text = (
        XLIFF_1.replace(' target-language = "de"', "")
        .replace("<header>", "")
        .replace('<tool tool-id="x" tool-name="X &amp; Y"/></header>\n', "")
    )
    root, _ = translated(text, Xliff, {1: "Auf", 2: "Zu"})
    file = root.find(f"{V1}file")
    assert file.get("target-language") == "de"
    assert [child.tag for child in file] == [f"{V1}header", f"{V1}body"]


def test_xliff_2():
    root, text = translated(XLIFF_2, Xliff, {0: '{<pc id="1" dataRefStart="d1">}Welt{</pc>}!'})
    assert root.get("trgLang") == "de"
    file = root.find(f"{V2}file")
    assert [child.tag for child in file] == [f"{V2}notes", f"{V2}unit", f"{V2}group"]
    segment = file.find(f"{V2}unit/{V2}segment")
    assert (segment.get("state"), segment.get("subState")) == (
        "translated",
        "transformer_mt:needs-review",
    )
    assert "".join(segment.find(f"{V2}target").itertext()) == "Welt!"
    assert '<pc id="1" dataRefStart="d1">Welt</pc>!</target>' in text


def test_markup_is_made_well_formed():
    """Whatever a translation has done to tags, each that is open is closed."""
    source = "<source>{<g id='1'>}a{<g id='2'>}b{</g>}{</g>}{<x/>}</source>"
    file = (
        f"<xliff version='1.2'><file><body><trans-unit>{source}</trans-unit></body></file></xliff>"
    )
    file = file.replace("{", "").replace("}", "")
    for translation, expected in {
        "{<g id='1'>}A{<x/>}": "<g id='1'>A<x/></g>",
        "{</g>}A{<g id='2'>}B": "A<g id='2'>B</g>",
        "A{</g>}B{</g>}": "AB",
        "{<g id='1'>}{<g id='2'>}A{</g>}{</g>}{</g>}": "<g id='1'><g id='2'>A</g></g>",
        "{<script>}A": "&lt;script&gt;A",
        "{<x/>}{A}": "<x/>A",
    }.items():
        _, text = translated(file, Xliff, {0: translation})
        assert f">{expected}</target>" in text


def test_tmx():
    root, text = translated(TMX, Tmx, {0: "Jetzt {<hi>}OK{</hi>}.", 1: "Neu"}, "en-de")
    first, second = root.findall("body/tu")[:2]
    assert [variant.get(f"{XML}lang") for variant in first.findall("tuv")] == ["en-US", "fr", "de"]
    made = first.findall("tuv")[2]
    assert (made.get("creationtool"), made.get("creationid")) == ("transformer_mt", "en-de")
    assert "        <seg>Jetzt <hi>OK</hi>.</seg>\n      </tuv>\n    </tu>" in text
    assert second.findall("tuv")[1].find("seg").text == "Neu"
    assert second.findall("tuv")[1].get("creationtool") == "transformer_mt"


def test_languages_that_a_tmx_does_not_have():
    with pytest.raises(UserError, match=r"x\.tmx: has no text in ja; its languages are .*fr"):
        Tmx(TMX.encode(), "x.tmx", ("ja", "de"))


def test_the_closest_language():
    codes = ["pt-PT", "zh_TW", "de", "EN-us", "zh", "x-none"]
    for language, expected in {
        **{"en": "EN-us", "eng": "EN-us", "de-AT": "de", "zh-TW": "zh_TW", "zh-CN": "zh"},
        **{"chi": "zh", "pt-BR": None, "fr": None, "pt": "pt-PT"},
    }.items():
        assert closest(codes, language) == expected, language


def test_qt():
    root, text = translated(QT, QtLinguist, {0: '&Öffnen "%1"', 1: "Gut", 2: "%n Datei", 5: "Ping"})
    messages = root.findall("context/message")
    assert messages[0].find("translation").text == '&Öffnen "%1"'
    assert "&amp;Öffnen &quot;%1&quot;" in text
    assert messages[1].find("translation").get("type") == "unfinished"
    forms = messages[2].findall("translation/numerusform")
    assert [form.text for form in forms] == ["%n Datei", "%n Datei"]
    assert messages[6].find("translation").text == "Ping"
    done = [unit.source for unit in read("qt")[0].units if unit.is_done]
    assert done == ["Done", "%n day(s)"]


def test_android():
    document, _ = read("android")
    units = {unit.name: marked(unit.source) for unit in document.units}
    assert units == {
        "welcome": "Don't panic, {<b>}%1$s{</b>}!\nIt’s <i>fine</i>",
        "quoted": "  It's   here  ",
        "wrapped": "Two lines",
        "left": 'You have {<xliff:g id="count" example="5">%1$d</xliff:g>} left',
        "at": '@home \\ "x" ?',
        "html": '<a href="x">Terms & more</a>',
        "songs[one]": "%d song",
        "songs[other]": "%d songs",
        "planets[0]": "Mercury",
        "planets[1]": "Venus",
    }
    _, text = translated(
        ANDROID,
        AndroidStrings,
        {0: "L'été, {<b>}%1$s{</b>}\n", 2: "@zwei", 5: '<a href="x">A&B</a>'},
    )
    assert r"""<string name="welcome">L\'été, <b>%1$s</b>\n</string>""" in text
    assert '<string name="wrapped">\n        \\@zwei\n    </string>' in text
    assert r"""<string name="html"><![CDATA[<a href=\"x\">A&B</a>]]></string>""" in text


def test_escapes_of_android():
    for raw, text in {
        r"\u0041\ud83d\ude00\n\t\#\z": "A😀\n\t#z",
        '  a  b " c  "  d ': "a b  c   d",
        r"\u0020a\u0020\u0020": " a  ",
        "\\": "\\",
    }.items():
        assert decoded(raw) == text


@given(TEXT)
def test_escapes_of_android_are_read_as_the_text(text):
    assert decoded(encoded(text)) == text


def test_resx():
    document, _ = read("resx")
    assert [unit.name for unit in document.units] == ["Hello", "Bye"]
    root, _ = translated(RESX, Resx, {0: "Hallo <b>{0}</b>\n".replace("{0}", "0"), 1: "Tschüss"})
    values = {data.get("name"): data.find("value").text for data in root.findall("data")}
    assert values["Hello"] == "Hallo <b>0</b>\n" and values["Bye"] == "Tschüss"
    assert values["Icon"] == "a.ico" and values[">>button.Name"] == "button"


def test_characters_that_an_encoding_lacks():
    content = declared(XLIFF_1, "ISO-8859-1").encode("latin-1")
    out = Xliff(content, "x", LANGUAGES).render({1: "打开", 4: "<打>"}, "模型")
    root = etree.fromstring(out)
    targets = {
        unit.get("id"): unit.findtext(f"{V1}target") for unit in root.iter(f"{V1}trans-unit")
    }
    assert targets["2"] == "打开" and targets["6"] == "<打>"


def test_characters_that_xml_lacks():
    root, _ = translated(QT, QtLinguist, {0: "a\x00b\x1b\ud800\uffffc"})
    assert root.findtext("context/message/translation") == "abc"


def test_pairs(tmp_path):
    for name, expected in {
        "xliff_1": [("Open", "Öffnen"), ("Close", "Zu")],
        "xliff_2": [("Yes", "Ja")],
        "tmx": [("A long & wide line", "Eine lange Zeile")],
        "qt": [("Done", "Fertig"), ("%n day(s)", "%n Tage")],
    }.items():
        path = tmp_path / name
        path.write_text(FILES[name][1], "utf-8")
        assert list(FILES[name][0].pairs(path, LANGUAGES)) == expected
    with pytest.raises(OtherLanguagesError, match=r"no text from fr to de, only from en-US to de$"):
        list(Xliff.pairs(tmp_path / "xliff_1", ("fr", "de")))
    with pytest.raises(
        OtherLanguagesError, match="from en to es, only from EN-us to DE-DE, from en to"
    ):
        list(Tmx.pairs(tmp_path / "tmx", ("en", "es")))


def test_pairs_with_markup(tmp_path):
    path = tmp_path / "x.xlf"
    path.write_text(
        '<xliff version="1.2"><file source-language="en" target-language="de"><body><trans-unit>'
        '<source>A <g id="1">b</g>.</source><seg-source><mrk mtype="seg" mid="1">A <g id="1">b</g>'
        '.</mrk></seg-source><target><g id="1">B</g>\n A.</target></trans-unit></body></file>'
        "</xliff>"
    )
    assert list(Xliff.pairs(path, LANGUAGES)) == [('A <g id="1">b</g>.', '<g id="1">B</g> A.')]


OLD_TBX = """<?xml version='1.0'?>
<!DOCTYPE martif SYSTEM "TBXcoreStructV02.dtd">
<martif type="TBX" xml:lang="en"><text><body>
  <termEntry id="c1">
    <descrip type="definition">x</descrip>
    <langSet xml:lang="en"><tig><term>hard <hi>disk</hi></term></tig>
      <tig><term>drive</term></tig></langSet>
    <langSet xml:lang="de-DE">
      <ntig><termGrp><term>Laufwerk</term>
        <termNote type="administrativeStatus">admittedTerm-admn-sts</termNote></termGrp></ntig>
      <tig><term>Festplatte</term>
        <termNote type="administrativeStatus">preferredTerm-admn-sts</termNote></tig>
      <tig><term>Platte</term>
        <termNote type="administrativeStatus">deprecatedTerm-admn-sts</termNote></tig>
    </langSet>
  </termEntry>
  <termEntry><langSet xml:lang="en"><tig><term>alone</term></tig></langSet></termEntry>
</body></text></martif>
"""
NEW_TBX = """<tbx style="dct" type="TBX-Min" xml:lang="en" xmlns="urn:iso:std:iso:30042:ed-2"
  xmlns:min="http://www.tbxinfo.net/ns/min"><text><body><conceptEntry id="1">
  <langSec xml:lang="en"><termSec><term>mouse</term></termSec></langSec>
  <langSec xml:lang="de"><termSec><term>Maus</term></termSec>
    <termSec><term>Nager</term><min:administrativeStatus>supersededTerm-admn-sts</min:administrativeStatus>
    </termSec></langSec></conceptEntry></body></text></tbx>
"""


def test_terms(tmp_path):
    path = tmp_path / "x.tbx"
    path.write_text(OLD_TBX)
    assert list(terms(path, LANGUAGES)) == [
        ("hard disk", ["Festplatte", "Laufwerk"], False),
        ("hard disk", ["Platte"], True),
        ("drive", ["Festplatte", "Laufwerk"], False),
        ("drive", ["Platte"], True),
    ]
    with pytest.raises(UserError, match="has no terms in fr; its languages are de-DE, en"):
        list(terms(path, ("fr", "de")))
    path.write_text(NEW_TBX)
    assert list(terms(path, LANGUAGES)) == [("mouse", ["Maus"], False), ("mouse", ["Nager"], True)]
    path.write_text("<html/>")
    with pytest.raises(UserError, match="not TBX: the root element is <html>"):
        list(terms(path, LANGUAGES))

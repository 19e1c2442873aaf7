"""The command `translate` with documents, and with translation memories."""

import csv
import gzip
import io
import json
import re
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import assert_refused, demo_pairs, make_config, make_model_directory
from transformer_mt import Translator
from transformer_mt.commands import memories
from transformer_mt.config.text import PROTECTED_CLASSES
from transformer_mt.data.spans import SYMBOLS
from transformer_mt.decoding.documents import protected_in_documents, translate_document
from transformer_mt.decoding.memory import Memory
from transformer_mt.export import registry as engines
from transformer_mt.formats import registry
from transformer_mt.formats.document import clean

LINE = "A dog runs."
# Files with the source and the place of its translation, and files with what should be there.
TEXTS = {
    "a.po": (
        'msgid ""\nmsgstr "Language: de\\n"\n\n#: a.c\nmsgid "{source}"\nmsgstr ""\n',
        'msgid ""\nmsgstr "Language: de\\n"\n\n#: a.c\n#, fuzzy\nmsgid "{source}"\n'
        'msgstr "{target}"\n',
    ),
    "a.xlf": (
        '<?xml version="1.0"?>\n<xliff version="1.2"><file source-language="en" '
        'target-language="de" original="a" datatype="x"><header/><body>\n'
        '<trans-unit id="1"><source>{source}</source></trans-unit>\n'
        '<trans-unit id="2"><source>Yes</source><target>Ja</target></trans-unit>\n'
        "</body></file></xliff>\n",
        '<?xml version="1.0"?>\n<xliff version="1.2"><file source-language="en" '
        'target-language="de" original="a" datatype="x"><header><note from="transformer_mt">'
        "Machine translations by model</note></header><body>\n"
        '<trans-unit id="1"><source>{source}</source><target state="needs-review-translation" '
        'state-qualifier="mt-suggestion">{target}</target></trans-unit>\n'
        '<trans-unit id="2"><source>Yes</source><target>Ja</target></trans-unit>\n'
        "</body></file></xliff>\n",
    ),
    "a.xliff": (
        '<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en" '
        'trgLang="de"><file id="f"><notes/><unit id="u"><segment><source>{source}</source>'
        "</segment></unit></file></xliff>",
        '<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en" '
        'trgLang="de"><file id="f"><notes><note category="transformer_mt">Machine translations by '
        'model</note></notes><unit id="u"><segment {state}><source>{source}</source>'
        "<target>{target}</target></segment></unit></file></xliff>",
    ),
    "a.tmx": (
        '<tmx version="1.4"><header srclang="en"/><body><tu><tuv xml:lang="en"><seg>{source}</seg>'
        "</tuv></tu></body></tmx>",
        '<tmx version="1.4"><header srclang="en"/><body><tu><tuv xml:lang="en"><seg>{source}</seg>'
        '</tuv><tuv xml:lang="de" creationtool="transformer_mt" creationid="model">'
        "<seg>{target}</seg></tuv></tu></body></tmx>",
    ),
    "a.ts": (
        '<!DOCTYPE TS>\n<TS version="2.1" language="de"><context><name>c</name><message>'
        '<source>{source}</source><translation type="unfinished"></translation></message>'
        "</context></TS>\n",
        '<!DOCTYPE TS>\n<TS version="2.1" language="de"><context><name>c</name><message>'
        '<source>{source}</source><translation type="unfinished">{target}</translation></message>'
        "</context></TS>\n",
    ),
    "strings.xml": (
        '<resources>\n  <!-- x -->\n  <string name="a">{source}</string>\n  '
        '<string name="b" translatable="false">No</string>\n</resources>\n',
        None,
    ),
    "a.resx": (
        '<root><resheader name="version"><value>2.0</value></resheader>'
        '<data name="a" xml:space="preserve"><value>{source}</value></data></root>',
        None,
    ),
    "a.properties": ("# {{}}\na.b = {source}\r\n", None),
    "a.json": ('{{"a" :\t"{source}", "b": 1.50}}', None),
    "a.yaml": ("a: &x\n  b:   {source}   # comment\n", None),
    "a.srt": ("1\n00:00:01,000 --> 00:00:02,000\n{source}\n", None),
    "a.vtt": ("WEBVTT\n\nNOTE x\n\n00:01.000 --> 00:02.000\n{source}\n", None),
    "a.html": ('<!doctype html>\n<p  CLASS=x>\n {source}<br>\n<script>"A dog"</script>\n', None),
    "a.md": ("---\nx: y\n---\n# {source} #\n\n```\nA dog\n```\n", None),
}


@pytest.fixture(scope="session")
def target(model) -> str:
    """The translation of LINE."""
    text = Translator.load(model, device="cpu").translate([LINE])[0]
    assert re.fullmatch("[A-Za-z]+", text)  # No format has to write it in another way.
    return text


@pytest.fixture
def translate(call, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments, code=0):
        done = call("translate", model, *arguments, "--device", "cpu", "--threads", "1")
        assert done.returncode == code, done.stderr
        return done

    return run


def written(path: str | Path, content: str) -> Path:
    path = Path(path)
    path.write_text(content, "utf-8", newline="")
    return path


# ---- Every format, end to end ----


@pytest.mark.parametrize("name", TEXTS)
def test_a_document_gets_its_translations(translate, target, name):
    before, after = TEXTS[name]
    written(name, before.format(source=LINE))
    output = "b" + Path(name).suffix
    done = translate(name, output)
    found = Path(output).read_text("utf-8")
    if after is None:
        after = before.replace("{source}", "{target}")
    if name == "a.xliff":
        state = re.search("<segment (.*?)>", found)[1]
        assert 'state="translated"' in state
        after = after.replace("{state}", state)
    with open(output, newline="", encoding="utf-8") as file:
        assert file.read() == after.format(source=LINE, target=target)
    assert f"{name}: units translated: 1, taken from the memory: 0" in done.stderr
    assert not done.stdout


def docx_file() -> bytes:
    docx = pytest.importorskip("docx")
    document = docx.Document()
    document.add_paragraph(LINE)
    return saved(document)


def pptx_file() -> bytes:
    pptx = pytest.importorskip("pptx")
    document = pptx.Presentation()
    document.slides.add_slide(document.slide_layouts[5]).shapes.title.text = LINE
    return saved(document)


def odt_file() -> bytes:
    pytest.importorskip("odf")
    from odf.opendocument import OpenDocumentText
    from odf.text import P

    document = OpenDocumentText()
    document.text.addElement(P(text=LINE))
    return saved(document)


def saved(document) -> bytes:
    file = io.BytesIO()
    document.save(file)
    return file.getvalue()


@pytest.mark.parametrize("make", [docx_file, pptx_file, odt_file])
def test_an_office_document_gets_its_translations(translate, target, make):
    ending = "." + make.__name__.partition("_")[0]
    Path(f"a{ending}").write_bytes(make())
    translate(f"a{ending}", f"b{ending}")
    parts = [zipfile.ZipFile(f"{name}{ending}") for name in "ab"]
    assert parts[0].namelist() == parts[1].namelist()
    changed = 0
    for name in parts[0].namelist():
        before, after = (part.read(name) for part in parts)
        if before != after:
            assert after.count(target.encode()) == 1 and LINE.encode() not in after
            changed += 1
    assert changed == 1


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
def test_columns_of_tables(translate, target, name):
    rows = [("id", "en", "de"), ("1", LINE, ""), ("2", "Yes", "Ja")]
    separator = "," if name == "a.csv" else "\t"
    content = "".join(separator.join(row) + "\n" for row in rows)
    if name == "a.jsonl":
        content = "".join(
            json.dumps(dict(zip(rows[0], row, strict=True))) + "\n" for row in rows[1:]
        )
    written(name, content)
    translate(name, f"b{name}", "--columns", "en,de")
    field = '"de": ""' if name == "a.jsonl" else LINE + separator
    assert field in content
    filled = f'"de": "{target}"' if name == "a.jsonl" else field + target
    assert Path(f"b{name}").read_text() == content.replace(field, filled)
    translate(name, f"c{name}", "--columns", "en")  # replaces the source
    assert Path(f"c{name}").read_text().startswith(content.partition(LINE)[0] + target)
    # Without columns, they are lines of text.
    translate(name, f"d{name}")
    assert len(Path(f"d{name}").read_text().split("\n")) == len(content.split("\n"))


@pytest.fixture(scope="module")
def model_with_symbols(tmp_path_factory) -> Path:
    """A model that has learnt nothing, but reads and writes the symbols of protected spans."""
    folder = tmp_path_factory.mktemp("symbols")
    config = make_config(folder, subword={"user_symbols": SYMBOLS, "vocab_size": 300})
    return make_model_directory(folder / "model", demo_pairs(200), config).path


@pytest.mark.parametrize("protect", [None, "", "numbers", "urls,tags"])
@pytest.mark.parametrize("name", ["model", "model_with_symbols"])
def test_markup_is_whole_whatever_is_protected(call, request, tmp_path, monkeypatch, name, protect):
    monkeypatch.chdir(tmp_path)
    source = (
        "<p>A <b\nclass='x y'>dog <i>runs</i></b> and <img alt='' src=a.png>two men <br/>are "
        "here.</p>"
    )
    written("a.html", source)
    options = [] if protect is None else ["--protect", protect]
    folder = request.getfixturevalue(name)
    assert call("translate", folder, "a.html", "b.html", "--threads", "1", *options).returncode == 0
    found = Path("b.html").read_text()
    tags = "<[^>]*>"
    assert sorted(re.findall(tags, found)) == sorted(re.findall(tags, source))
    assert re.sub(tags, "", found) != re.sub(tags, "", source)


def test_placeholders_are_protected_unless_the_user_says_otherwise(translate):
    written("a.json", json.dumps({"a": "A dog {name} and %s"}))
    translate("a.json", "b.json")
    found = Path("b.json").read_text()
    assert "{name}" in found and "%s" in found
    translate("a.json", "c.json", "--protect", "")
    assert "{name}" not in Path("c.json").read_text()  # The model has no braces.


def test_what_is_protected_in_documents(model):
    config = engines.find(model, device="cpu").config

    def asked(protect, of_data=()):
        sections = {
            "decoding": config.decoding.model_copy(update={"protect": protect}),
            "data": config.data.model_copy(update={"protect": list(of_data)}),
        }
        return protected_in_documents(config.model_copy(update=sections))

    assert set(asked(None)) == set(PROTECTED_CLASSES) - {"numbers"}
    assert asked(None, ["urls"]) == ["urls"]
    assert asked(["tags"], ["urls"]) == ["tags"]
    assert asked([], ["urls"]) not in ([], ["urls"])


def test_lines_of_a_unit_are_translated_one_by_one(translate, target):
    text = f"  {LINE}\n\n\t{LINE} \r\n{LINE}\n"
    written("a.json", json.dumps({"a": text, "b": LINE, "c": "\n"}))
    done = translate("a.json", "b.json")
    found = json.loads(Path("b.json").read_text())
    assert found == {"a": text.replace(LINE, target), "b": target, "c": "\n"}
    assert "a.json: units translated: 2," in done.stderr


def test_equal_lines_are_translated_once(tmp_path):
    path = written(tmp_path / "a.json", json.dumps([LINE, f"{LINE}\nx", f" {LINE} "]))
    asked = []

    def reverse(lines):
        asked.append(dict(lines))
        return [line[::-1] for line in lines]

    found = translate_document(registry.read(path, ("en", "de")), reverse, "")
    assert asked == [{LINE: "0", "x": "1"}]
    reversed_line = LINE[::-1]
    expected = [reversed_line, f"{reversed_line}\nx", f" {reversed_line} "]
    assert json.loads(found.content) == expected
    assert (found.translated, found.from_memory, found.kept) == (3, 0, 0)


def test_segments_of_xliff_are_lines():
    """Their marks stay where they are, and other marks go with the words."""
    inner = """<mrk mtype="seg" mid="1">One <mrk mtype="term">two</mrk>.</mrk> \
<mrk mtype="seg" mid="2">Three.</mrk>"""
    content = (
        "<xliff version='1.2'><file source-language='en' target-language='de'><body><trans-unit "
        f"id='1'><source>One two. Three.</source><seg-source>{inner}</seg-source></trans-unit>"
        "</body></file></xliff>"
    )
    german = {"One": "Eins", "two": "zwei", "Three": "Drei"}

    def translate(lines):
        return [re.sub("|".join(german), lambda word: german[word[0]], line) for line in lines]

    document = registry.parse(content.encode(), "a.xlf", ("en", "de"))
    target = re.search(
        "<target[^>]*>(.*)</target>", translate_document(document, translate, "").content.decode()
    )[1]
    (expected,) = translate([inner])
    assert target == expected
    # Each is a line.
    asked = []
    translate_document(document, lambda lines: asked.extend(lines) or list(lines), "")
    assert [clean(line) for line in asked] == ['One <mrk mtype="term">two</mrk>.', "Three."]


def test_tabs_and_line_breaks_end_lines():
    """In a menu, the keys of a command stand behind a tab, and in HTML, <br> ends a line."""
    asked = []

    def reverse(lines):
        asked.extend(lines)
        return [clean(line)[::-1] for line in lines]

    text = registry.parse(b'{"a": "Save\\t\\tCtrl+S"}', "a.json", ("en", "de"))
    page = registry.parse(b"<p>One <b>two<br/>\nthree</b> four", "a.html", ("en", "de"))
    marks = registry.parse(b"First  \nline<br>more\n", "a.md", ("en", "de"))
    assert translate_document(text, reverse, "").content == b'{"a": "evaS\\t\\tS+lrtC"}'
    assert translate_document(page, reverse, "").content.startswith(b"<p>owt")
    assert translate_document(marks, reverse, "").content == b"tsriF  \nenil<br>erom\n"
    bare = [clean(line) for line in asked]
    assert bare == ["Save", "Ctrl+S", "One <b>two", "three</b> four", "First", "line", "more"]


def test_what_is_translated_as_itself_stays_as_the_file_writes_it():
    """Only beside its source, a translation is written all the same."""
    for name, content in (
        ("a.json", rb'{"a": "https://a.b/", "b": "\/ \u0041 x"}'),
        ("a.properties", b"a = caf\\u00E9 \\\n   x\n"),
        (
            "strings.xml",
            b"<resources><string name='a'>&quot;a&quot;  b &#169;</string></resources>",
        ),
        ("a.html", b"<p title='&#65; b'>A&mdash;B <b>&copy; x</b>"),
        ("a.md", b"One\\*\ntwo &amp; three\n"),
    ):
        document = registry.parse(content, name, ("en", "de"))
        found = translate_document(document, list, "")
        assert found.content == content
        assert found.translated == len(document.units) > 0
    table = registry.parse(b"a,b\nOK,\n", "a.csv", ("en", "de"), ("a", "b"))
    assert translate_document(table, list, "").content == b"a,b\nOK,OK\n"


@given(
    st.text(st.characters(exclude_categories=["Cs"]))
    | st.text("ab \t\n\r\x1e\x1f\u2028\ue000\ue001")
)
def test_what_is_translated_by_itself_stays(text):
    content = json.dumps({"a": f"x{text}"}).encode()
    found = translate_document(registry.parse(content, "a.json", ("en", "de")), list, "")
    assert found.content == content
    assert found.translated == 1
    beside = registry.parse(content, "a.jsonl", ("en", "de"), ("a", "b"))
    found = translate_document(beside, list, "")
    assert json.loads(found.content) == {"a": f"x{text}", "b": f"x{clean(text)}"}


# ---- What is done ----

DONE = '# x\nmsgid "A dog"\nmsgstr "Ein Hund"\n\nmsgid "Two"\nmsgstr "Zwei"\n'


def test_what_is_done_stays_unless_all_is_asked_for(translate, monkeypatch):
    written("a.po", DONE)
    with monkeypatch.context() as patch:
        patch.setattr(engines.EngineSpec, "load", None)  # The model is not needed.
        done = translate("a.po", "b.po")
    assert Path("b.po").read_bytes() == Path("a.po").read_bytes()
    assert "a.po: units translated: 0, taken from the memory: 0, left as they are: 2" in done.stderr
    done = translate("a.po", "c.po", "--all")
    assert Path("c.po").read_text().count("#, fuzzy") == 2
    assert "units translated: 2," in done.stderr


def test_a_template_becomes_a_po_file(translate):
    written("a.pot", f'msgid "{LINE}"\nmsgstr ""\n')
    translate("a.pot", "b.po")
    assert Path("b.po").read_text().startswith("#, fuzzy")
    assert translate("a.pot").stdout == Path("b.po").read_text()


def test_other_languages_are_a_warning(translate):
    before, _ = TEXTS["a.xlf"]
    written("a.xlf", before.format(source=LINE).replace('"en"', '"it"').replace('"de"', '"fr-CA"'))
    messages = translate("a.xlf", "b.xlf").stderr
    assert "a.xlf: its source language is it, but that of the model is en" in messages
    assert "a.xlf: its target language is fr-CA, but that of the model is de" in messages


def test_warnings_name_units(translate):
    written("a.json", json.dumps({"first": "A dog", "menu": {"second": "日本語 語語語語"}}))
    assert "warning: menu.second: " in translate("a.json", "b.json").stderr


# ---- Memories ----


def test_a_memory_is_used_for_documents(translate, target):
    written("a.html", f"<p>Yes</p><p>A <b>big</b> <i>dog</i></p><p>{LINE}</p><p>A <b>cat</b></p>")
    written(
        "m.csv",
        "source,target\nYes,Nein\n Yes ,Ja\nA <b>big</b> <i>dog</i>,Ein <i>Hund</i> <b>groß</b>\n"
        "A <b>cat</b>,Eine Katze\nYess,x\n",
    )
    options = "--memory", "m.csv", "--fuzzy", "70", "--memory-report", "r.tsv"
    done = translate("a.html", "b.html", *options)
    found = Path("b.html").read_text()
    assert found.startswith(f"<p>Ja</p><p>Ein <i>Hund</i> <b>groß</b></p><p>{target}</p><p>")
    assert found.count("<b>") == 2  # The entry without markup is not used.
    assert "units translated: 2, taken from the memory: 2, left as they are: 0" in done.stderr
    assert ". Lines with similar entries in the memory: 1" in done.stderr
    assert rows_of("r.tsv") == [
        ["place", "kind", "score", "source", "target"],
        ["line 1", "exact", "100", "Yes", "Ja"],
        ["line 1", "exact", "100", "A <b>big</b> <i>dog</i>", "Ein <i>Hund</i> <b>groß</b>"],
        ["line 1", "fuzzy", "100", "A <b>cat</b>", "Eine Katze"],
    ]


def rows_of(path: str) -> list[list[str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def test_a_memory_is_used_for_lines(translate, target):
    written("a.txt", f"Yes\n\n{LINE}\n  Yes \nA doog runs!\n")
    written("m.po", 'msgid "Yes"\nmsgstr "Ja"\n\nmsgid "No"\nmsgstr "Nein"\n')
    written("n.tsv", "en\tde\nA dog runs!\tEin Hund rennt!\n")
    alone = translate("a.txt", "plain.txt")
    options = "--memory", "m.po", "--memory", "n.tsv"
    done = translate("a.txt", "b.txt", *options)
    plain = Path("plain.txt").read_text().split("\n")
    assert Path("b.txt").read_text().split("\n") == ["Ja", "", target, "Ja", plain[4], ""]
    assert "lines taken from the memory: 2\n" in done.stderr
    assert "memory" not in alone.stderr
    options += "--fuzzy", "80", "--memory-report", "r.tsv"
    done = translate("a.txt", "c.txt", *options)
    assert Path("c.txt").read_bytes() == Path("b.txt").read_bytes()
    expected = "lines taken from the memory: 2. Lines with similar entries in the memory: 2\n"
    assert expected in done.stderr
    assert rows_of("r.tsv")[1:] == [
        ["line 1", "exact", "100", "Yes", "Ja"],
        ["line 3", "fuzzy", "90.9", "A dog runs!", "Ein Hund rennt!"],
        ["line 4", "exact", "100", "Yes", "Ja"],
        ["line 5", "fuzzy", "91.6", "A dog runs!", "Ein Hund rennt!"],
    ]


def test_a_memory_with_a_stream_of_lines(call, model, tmp_path):
    path = written(tmp_path / "m.csv", "source,target\nYes,Ja\n")
    done = call("translate", model, "--memory", path, "--device", "cpu", stdin="Yes\n\nYes")
    assert (done.returncode, done.stdout) == (0, "Ja\n\nJa\n")


@pytest.mark.parametrize("name", [n for n in TEXTS if registry.FORMATS[Path(n).suffix].has_pairs])
def test_every_format_of_pairs_is_a_memory(translate, name):
    before, after = TEXTS[name]
    finished = after.format(source="Yes", target="Ja", state='state="final"')
    for mark in ("#, fuzzy\n", ' creationtool="transformer_mt"', ' type="unfinished"'):
        finished = finished.replace(mark, "")
    finished = re.sub(' state="needs[^>]*"', "", finished)
    written(f"memory{Path(name).suffix}", finished)
    written(name, before.format(source="Yes"))
    output = f"b{Path(name).suffix}"
    done = translate(name, output, "--memory", f"memory{Path(name).suffix}")
    assert "units translated: 0, taken from the memory: 1" in done.stderr
    assert "Ja" in Path(output).read_text()


def test_resuming_needs_the_same_memory(translate, monkeypatch):
    lines = [f"{n} Yes" for n in range(3)]
    written("a.txt", "\n".join(lines) + "\n")
    for name in "mn":
        written(f"{name}.csv", "source,target\n" + "".join(f"{x},{name}{x}\n" for x in lines))
    monkeypatch.setattr("transformer_mt.commands.translate.WINDOW", 1)
    monkeypatch.setattr("transformer_mt.decoding.lines.WINDOW", 1)
    taken = memories.Recall.next

    def stops(self):
        if (found := taken(self)) == "m2 Yes":
            raise KeyboardInterrupt
        return found

    with monkeypatch.context() as patch:
        patch.setattr(memories.Recall, "next", stops)
        with pytest.raises(KeyboardInterrupt):
            translate("a.txt", "b.txt", "--memory", "m.csv")
    options = "--resume", "--memory"
    assert_refused(translate("a.txt", "b.txt", *options, "n.csv", code=2), 2, "another --memory")
    assert_refused(translate("a.txt", "b.txt", "--resume", code=2), 2, "another --memory")
    done = translate("a.txt", "b.txt", *options, "m.csv")
    assert "going on after line 2" in done.stderr
    assert Path("b.txt").read_text() == "m0 Yes\nm1 Yes\nm2 Yes\n"


def test_the_score_is_that_of_the_edit_distance():
    from rapidfuzz.distance import Levenshtein

    entries = ["abcd efgh", "abcd efg", "xyz", "ABCD EFGH"]
    memory = Memory(((entry, entry.upper()) for entry in entries), fuzzy=50)
    for text in ("abcd efgi", "abc", "xyza", "qqqqqqqqq", "", "  "):
        best = max(entries, key=lambda entry: Levenshtein.normalized_similarity(text, entry))
        score = 100 * Levenshtein.normalized_similarity(text, best)
        found = memory.find(text)
        if score < 50 or not text.strip():
            assert found is None
        else:
            assert found.score == pytest.approx(score) and not found.is_exact
    assert memory.find(" xyz ").is_exact


def test_fuzzy_matches_need_a_package(translate, monkeypatch):
    written("a.txt", "Yes\n")
    written("m.csv", "source,target\nYes,Ja\n")
    monkeypatch.setitem(sys.modules, "rapidfuzz", None)
    translate("a.txt", "b.txt", "--memory", "m.csv")
    options = "--memory", "m.csv", "--fuzzy", "80", "--memory-report", "r.tsv"
    assert_refused(translate("a.txt", "b.txt", *options, code=2), 2, "pip install rapidfuzz")
    assert not Path("r.tsv").exists()


def test_a_memory_without_pairs_is_a_warning(translate):
    written("a.txt", "Yes\n")
    written("m.po", 'msgid "Yes"\nmsgstr ""\n')
    assert "m.po has no finished translations from en to de" in (
        translate("a.txt", "b.txt", "--memory", "m.po").stderr
    )


# ---- What is wrong ----


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["a.json", "b.yaml"], 2, "b.yaml: a translated document stays in its format"),
        (["a.json", "b.json.gz"], 2, "ends in .json"),
        (["a.csv", "b.tsv", "--columns", "1"], 2, "ends in .csv"),
        (["a.json", "a.json"], 2, "are the same file"),
        (["a.json", "b.json", "--format", "tsv"], 2, "--format: a.json is a document"),
        (["a.json", "b.json", "--alignment"], 2, "--alignment: a.json is a document"),
        (["a.json", "b.json", "--prefix", "a.txt"], 2, "--prefix: a.json is a document"),
        (["a.json", "b.json", "--resume"], 2, "--resume: a.json is a document"),
        (["a.json", "b.json", "--n-best", "2"], 2, "a document has one translation"),
        (["a.json", "b.json", "--columns", "a"], 2, "have no columns"),
        (["a.csv", "b.csv", "--columns", "x"], 2, "there is no x"),
        (["a.csv", "b.csv", "--columns", "1,2,3"], 2, "expected SOURCE or SOURCE,TARGET"),
        (["none.json", "b.json"], 2, "none.json: there is no such file"),
        (["a.txt", "b.txt", "--all"], 2, "--all: a.txt is read as lines of text"),
        (["a.txt", "b.txt", "--columns", "a"], 2, "--columns: a.txt is read as lines of text"),
        (["--all"], 2, "--all: the standard input is read as lines of text"),
        (["a.txt", "b.txt", "--fuzzy", "80"], 2, "add --memory FILE"),
        (["a.txt", "b.txt", "--memory", "a.csv", "--fuzzy", "80"], 2, "add --memory-report"),
        (["a.txt", "b.txt", "--memory", "a.csv", "--fuzzy", "0"], 2, "from 1 to 100"),
        (["a.txt", "b.txt", "--memory-report", "r"], 2, "add --memory FILE"),
        (["a.txt", "b.txt", "--memory", "a.csv", "--memory-report", "a.csv"], 2, "same file"),
        (["a.txt", "b.txt", "--memory", "a.txt"], 2, "a.txt: not a file of pairs"),
        (["a.txt", "b.txt", "--memory", "none.po"], 2, "none.po: there is no such file"),
        (["a.txt", "b.txt", "--memory", "a.csv", "--format", "tsv"], 2, "have no scores"),
        (["a.txt", "b.txt", "--memory", "a.csv", "--prefix", "a.txt"], 2, "given prefix"),
        (["a.tmx.gz", "b.tmx"], 2, "Unpack it"),
    ],
)
def test_arguments_that_do_not_fit(translate, arguments, code, words):
    written("a.json", '{"a": "A dog"}')
    Path("a.tmx.gz").write_bytes(gzip.compress(b"<tmx/>"))
    written("a.csv", "source,target\nA dog,Ein Hund\n")
    written("a.txt", "A dog\n")
    before = sorted(Path().iterdir())
    assert_refused(translate(*arguments, code=code), code, words)
    assert sorted(Path().iterdir()) == before
    assert Path("a.json").read_text() == '{"a": "A dog"}'


BOMB = (
    b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><resources>&b;</resources>'
)


@pytest.mark.parametrize("ending", [e for e, own in registry.FORMATS.items() if own.document])
@pytest.mark.parametrize(
    "content",
    [
        b"\x00\xff\xfe\x80" * 30,
        b"PK\x03\x04" + b"\xff" * 60,
        b"<" * 500,
        b"[" * 5000,
        b"<a><b></a>",
        BOMB,
        b"<feed/>",
        b'msgid "',
        b'"a',
    ],
    ids=["binary", "zip", "tags", "brackets", "nesting", "entities", "root", "po", "quote"],
)
def test_hostile_input_is_one_message(call, model, tmp_path, ending, content):
    path = tmp_path / f"a{ending}"
    path.write_bytes(content)
    output = tmp_path / f"b{ending}"
    columns = ["--columns", "a"] if registry.FORMATS[ending].has_columns else []
    done = call("translate", model, path, output, *columns, "--device", "cpu")
    if done.returncode:
        errors = [line for line in done.stderr.split("\n") if line and "warning: " not in line]
        assert len(errors) == 1 and str(path) in errors[0]
        assert not output.exists()
    else:
        assert output.exists()


def test_xml_that_is_not_androids_is_told(translate):
    written("a.xml", "<feed><title>A dog</title></feed>")
    done = translate("a.xml", "b.xml", code=1)
    assert "a.xml: not a strings.xml file of Android: the root element is <feed>" in done.stderr


# ---- In Python ----


def test_documents_in_python(model, tmp_path, target):
    translator = Translator.load(model, device="cpu")
    source = written(tmp_path / "a.json", json.dumps({"a": LINE, "b": "Yes"}))
    memory = written(tmp_path / "m.csv", "source,target\nYes,Ja\n")
    counts = []
    found = translator.translate_document(
        source, tmp_path / "b.json", memory=[memory], finished=counts.append
    )
    assert json.loads((tmp_path / "b.json").read_text()) == {"a": target, "b": "Ja"}
    assert (found.translated, found.from_memory, found.kept, sum(counts)) == (1, 1, 0, 1)
    done = written(tmp_path / "a.po", DONE)
    translator.translate_document(str(done), str(tmp_path / "b.po"))
    assert (tmp_path / "b.po").read_bytes() == done.read_bytes()
    assert translator.translate_document(done, tmp_path / "b.po", all=True).translated == 2
    table = written(tmp_path / "a.csv", f"x,y\n{LINE},\n")
    translator.translate_document(table, tmp_path / "b.csv", columns=("x", "y"))
    assert (tmp_path / "b.csv").read_text() == f"x,y\n{LINE},{target}\n"

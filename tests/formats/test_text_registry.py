"""Finding the format of a file; and what holds for all text-based formats."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_mt.formats import registry
from transformer_mt.formats.json_values import JSONDocument
from transformer_mt.formats.jsonl import JSONLDocument
from transformer_mt.formats.po import PODocument
from transformer_mt.formats.properties import PropertiesDocument
from transformer_mt.formats.subtitles import SRTDocument, VTTDocument
from transformer_mt.formats.tables import TableDocument
from transformer_mt.formats.yaml_values import YAMLDocument
from transformer_mt.utils.errors import UsageError, UserError

LANGUAGES = ("en", "de")
KINDS = {
    "x.po": PODocument,
    "x.properties": PropertiesDocument,
    "x.json": JSONDocument,
    "x.yml": YAMLDocument,
    "x.srt": SRTDocument,
    "x.vtt": VTTDocument,
    "x.csv": TableDocument,
    "x.tsv": TableDocument,
    "x.jsonl": JSONLDocument,
}
COLUMNS = {"x.csv": ("1", "2"), "x.tsv": ("1", "2"), "x.jsonl": ("a", "b")}


def document(name: str, content: bytes):
    columns = (COLUMNS[name],) if name in COLUMNS else ()
    return KINDS[name](content, name, LANGUAGES, *columns)


PIECES = [
    *"\"'\\:,;-{}[]#|>!%=ab1ü😀",
    r"\n",
    r"\u00e4",
    "&a ",
    "*a",
    "---\n",
    "<i>",
    "NOTE ",
    "''",
]
PIECES += ["{0}", "msgid ", "msgstr ", '"a"', "#, ", '{"a":"b"}', "a: ", "-->", "00:02.000"]
SPACES = ["\n", "\r\n", "\r", " ", "  ", "\t", "\ufeff", "\x00", "\u2028", "\x85"]
WHOLE = [
    'msgid "a"\nmsgstr ""\n',
    "#, fuzzy\n",
    "a: b\n",
    "WEBVTT\n\n",
    "00:01.000 --> 00:02.000\n",
    "1\n00:00:01,000 --> 00:00:02,000\n",
    "- |\n  a\n",
]
SOUP = st.lists(st.sampled_from([*PIECES, *SPACES, *WHOLE])).map("".join)


@pytest.mark.parametrize("name", KINDS)
@given(content=st.binary() | SOUP.map(str.encode) | SOUP.map(lambda text: text.encode("utf-16")))
def test_any_content_stays_or_is_refused(name, content):
    try:
        read = document(name, content)
    except UserError as error:
        assert str(error).startswith(name)
        return
    assert read.render({}, "a model") == content
    translations = dict.fromkeys(range(len(read.units)), "ä: 'b' \"c\"\n{0}")
    again = document(name, read.render(translations, "a model"))
    assert len(again.units) == len(read.units)


@pytest.mark.parametrize("name", KINDS)
def test_an_empty_file_has_no_units(name):
    for content in (b"", b"\n", b"\xef\xbb\xbf", b"\r\n\r\n"):
        read = document(name, content)
        assert not read.units and read.render({}, "") == content


LARGE = {
    "x.po": (
        b'msgid ""\nmsgstr "Language: de"\n',
        lambda n: f'\n#: a.c\nmsgid "t {n}"\nmsgstr ""\n',
    ),
    "x.properties": (b"", lambda n: f"key.{n} = t {n}\n"),
    "x.json": (b'{"": 0', lambda n: f',\n"k{n}": {{"x": "t {n}"}}'),
    "x.yml": (b"", lambda n: f"k{n}:\n  x: t {n}\n"),
    "x.srt": (b"", lambda n: f"{n}\n00:00:01,000 --> 00:00:02,000\nt {n}\n\n"),
    "x.vtt": (b"WEBVTT\n\n", lambda n: f"00:01.000 --> 00:02.000\nt {n}\n\n"),
    "x.csv": (b"", lambda n: f't {n},"","a ""b"""\n'),
    "x.tsv": (b"", lambda n: f"t {n}\t\tx\n"),
    "x.jsonl": (b"", lambda n: f'{{"a": "t {n}"}}\n'),
}


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", KINDS)
def test_many_units(name, count):
    start, entry = LARGE[name]
    end = "}" if name == "x.json" else ""
    content = start + ("".join(map(entry, range(count))) + end).encode()
    read = document(name, content)
    assert [unit.source for unit in read.units] == [f"t {n}" for n in range(count)]
    assert read.render({}, "") == content
    assert read.render({count - 1: "Ende"}, "").count(b"Ende") == 1


@pytest.mark.parametrize(
    "content",
    [b'"' * 200_000, b"\\" * 200_000, b"\\\n" * 100_000, b" " * 200_000, b"<" * 200_000,
     b"a: &a " * 20_000, b'"a' * 100_000, b"=" * 200_000, b"{\\" * 100_000, b"\n" * 200_000,
     b"1\n00:01.0 --> 00:02.0\n" + b"a b\n" * 50_000],
)  # fmt: skip
@pytest.mark.parametrize("name", KINDS)
def test_repetitions_take_no_endless_time(name, content):
    content = b"WEBVTT\n\n" + content if name == "x.vtt" else content
    try:
        read = document(name, content)
    except UserError:
        return
    read.render(dict.fromkeys(range(len(read.units)), "a b\nc"), "")


# The registry


def test_documents_are_known_by_their_endings(tmp_path):
    for name in ("a.po", "a.POT", "b.properties", "c.json", "d.yaml", "d.yml", "e.srt", "f.vtt"):
        assert registry.is_document(tmp_path / name)
    for name in ("a.txt", "a", "a.de", "a.parquet", "a.json.gz", "a.csv", "a.tsv", "a.jsonl"):
        assert not registry.is_document(tmp_path / name)
    for name in ("a.csv", "a.tsv", "a.jsonl"):
        assert registry.is_document(tmp_path / name, ("source", None))


def test_every_format_can_be_loaded():
    for found in registry.FORMATS.values():
        module = found.load()
        assert found.document is None or isinstance(getattr(module, found.document), type)
        assert callable(getattr(module, "pairs", None)) or not found.has_pairs


def test_reading_by_the_registry(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"a": "b"}', "utf-8")
    assert registry.read(path, LANGUAGES).units[0].source == "b"
    path = tmp_path / "a.csv"
    path.write_text("x,y\nb,c\n", "utf-8")
    assert registry.read(path, LANGUAGES, ("x", "y")).units[0].target == "c"
    assert list(registry.pairs(path, LANGUAGES, ("x", "y"))) == [("b", "c")]


@pytest.mark.parametrize(
    "name, columns, message",
    [
        ("a.txt", None, "not a document. Their names end in .po, "),
        ("a.parquet", None, "not a document"),
        ("a.json", None, "there is no such file"),
        ("a.json", ("a", None), "have no columns"),
        ("a.csv", None, "must be named"),
        ("folder.json", None, "can't be read"),
    ],
)
def test_what_cannot_be_read(tmp_path, name, columns, message):
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(UsageError, match=message):
        registry.read(tmp_path / name, LANGUAGES, columns)


@pytest.mark.parametrize("name", ["a.txt", "a.json", "a.gz", "b.po", "b.csv", "b.parquet"])
def test_what_has_no_pairs(tmp_path, name):
    with pytest.raises(UsageError):
        list(registry.pairs(tmp_path / name, LANGUAGES))


def test_the_registry_imports_no_format():
    code = (
        "import sys, json; from transformer_mt.formats import registry; "
        "print(json.dumps(sorted(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(result.stdout))
    assert not loaded & {"yaml", "pyarrow", "transformer_mt.formats.po"}

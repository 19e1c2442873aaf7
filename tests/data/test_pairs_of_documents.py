"""Training text in translation memories, messages and tables is trained on as plain text is."""

import gzip
import json
import os
from functools import partial
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow.parquet import write_table

from tests.data.test_corpus import data_config
from tests.formats.xml_files import QT, TMX, XLIFF_1
from tests.support import demo_pairs, make_config, run_command, run_here, write_lines, write_pairs
from transformer_mt import cli
from transformer_mt.commands import new
from transformer_mt.config import file as config_file
from transformer_mt.data.corpus import open_corpus
from transformer_mt.data.prepare import prepare
from transformer_mt.training import run
from transformer_mt.training.recipes import timing
from transformer_mt.utils.errors import UsageError, UserError

PAIRS = demo_pairs(120)
MEMORY, MAIN, MORE = PAIRS[:70], PAIRS[70:100], PAIRS[100:]
FEW = PAIRS[:4]


def tmx(pairs, languages=("en-US", "de-DE"), encoding="utf-8") -> bytes:
    units = "".join(
        "<tu>"
        + "".join(
            f'<tuv xml:lang="{language}"><seg>{escape(text)}</seg></tuv>'
            for language, text in zip(languages, pair, strict=True)
        )
        + "</tu>\n"
        for pair in pairs
    )
    return (
        f'<?xml version="1.0" encoding="{encoding}"?>\n<tmx version="1.4">'
        f'<header srclang="{languages[0]}"/><body>\n{units}</body></tmx>\n'
    ).encode(encoding)


def po(pairs, language="de") -> bytes:
    entries = "".join(
        f"msgid {json.dumps(source, ensure_ascii=False)}\n"
        f"msgstr {json.dumps(target, ensure_ascii=False)}\n\n"
        for source, target in pairs
    )
    header = f'"Content-Type: text/plain; charset=UTF-8\\n"\n"Language: {language}\\n"\n\n'
    return f'msgid ""\nmsgstr ""\n{header}{entries}'.encode()


def jsonl(records) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "text" / "memory.tmx", tmx(MEMORY))
    put(tmp_path / "text" / "po" / "a" / "main.po", po(MAIN))
    put(tmp_path / "text" / "po" / "more.po", po(MORE, "de_DE.UTF-8"))
    put(tmp_path / "text" / "po" / "fr.po", po(PAIRS[:5], "fr"))
    put(tmp_path / "text" / "po" / "a" / ".old" / "main.po", po(PAIRS[:5]))
    put(tmp_path / "text" / "po" / "README", b"messages")
    return tmp_path


def config_for(folder: Path, **keys):
    return data_config(folder / "text", cache=str(folder / "cache"), **keys)


def pairs_of(folder: Path, train) -> list[tuple[str, str]]:
    split = open_corpus(config_for(folder, train=train)).train
    pairs = list(split.pairs())
    assert split.line_count == len(pairs)
    return pairs


def entries(folder: Path) -> set[str]:
    cache = folder / "cache"
    return {path.name for path in cache.iterdir()} - {".lock"} if cache.is_dir() else set()


# ---- The same training as on plain text ----


def test_prepared_data_is_that_of_plain_text(folder):
    write_pairs(folder / "text", "news", MEMORY)
    write_pairs(folder / "text", "messages", MAIN + MORE)
    write_pairs(folder / "text", "valid", PAIRS[:9])
    put(folder / "text" / "valid.tmx", tmx(PAIRS[:9]))

    def prepared(first, second, dev, cache):
        texts = [first, {"text": second, "weight": 0.5}, {"text": first, "reverse": True}]
        data = {"train": texts, "dev": dev, "held_out": 4, "cache": str(folder / cache)}
        return prepare(make_config(folder, data=data))

    plain = prepared("news", "messages", "valid", "cache")
    other = prepared("memory.tmx", "po", "valid.tmx", "another cache")
    # The name of an entry is a hash of everything that it was made from.
    assert other.key == plain.key and other.dev.key == plain.dev.key
    assert other.subwords.content() == plain.subwords.content()
    for side in ("source", "target"):
        first, second = getattr(plain.train, side), getattr(other.train, side)
        assert np.array_equal(first.ids, second.ids)
        assert np.array_equal(first.offsets, second.offsets)
    assert other.texts == plain.texts and other.texts[1].weight == 0.5
    assert other.test_split.text == plain.test_split.text and len(other.test_split.text[0]) == 4
    for key in other.facts.keys() - {"files", "texts"}:
        assert other.facts[key] == plain.facts[key]
    # It is recorded under the names that the user knows.
    text = folder / "text"
    names = [str(text / name) for name in ("memory.tmx", "po", "memory.tmx")]
    assert other.facts["files"]["train"] == names
    assert other.facts["files"]["dev"] == [str(text / "valid.tmx")]
    moved = other.with_held_out_in(folder / "model").facts["files"]
    assert moved["dev"] == [str(text / "valid.tmx")]
    assert moved["test"] == [str(folder / "model" / f"test.{side}") for side in ("en", "de")]


def test_a_folder_is_read_in_order_without_other_languages(folder, capsys):
    assert pairs_of(folder, "po") == MAIN + MORE
    messages = capsys.readouterr().err
    assert "po: 50 pairs" in messages and "left out: 1 of 3 files" in messages
    assert "fr.po: has no text from en to de, only to fr" in messages
    assert pairs_of(folder, ["po/a", "memory.tmx"]) == MAIN + MEMORY
    put(folder / "text" / "po" / "z.tsv", b"One\tEins\n")
    assert pairs_of(folder, "po") == [*MAIN, *MORE, ("One", "Eins")]
    # Text files of this name are what it has always meant.
    write_pairs(folder / "text", "po", FEW)
    write_pairs(folder / "text", "memory.tmx", FEW)
    assert pairs_of(folder, "po") == pairs_of(folder, "memory.tmx") == FEW


def test_the_cache_has_each_content_once(folder):
    pairs_of(folder, "memory.tmx")
    (name,) = entries(folder)
    entry = folder / "cache" / name
    assert {"text.en", "text.de"} < set(os.listdir(entry))
    before = (entry / "text.en").stat()
    os.rename(folder / "text" / "memory.tmx", folder / "text" / "renamed.tmx")
    assert pairs_of(folder, "renamed.tmx") == MEMORY
    assert entries(folder) == {name} and (entry / "text.en").stat() == before
    put(folder / "text" / "renamed.tmx", tmx(MORE))
    assert pairs_of(folder, "renamed.tmx") == MORE and len(entries(folder)) == 2
    # A damaged entry is made again.
    (entry / "text.de").write_text("x\n")
    put(folder / "text" / "renamed.tmx", tmx(MEMORY))
    assert pairs_of(folder, "renamed.tmx") == MEMORY and len(entries(folder)) == 2


# ---- The formats ----


@pytest.mark.parametrize(
    ("name", "content", "pairs"),
    [
        ("x.tmx", TMX.encode(), [("A long & wide line", "Eine lange Zeile")]),
        ("x.TMX", tmx(FEW, encoding="utf-16"), FEW),
        ("x.tmx.gz", gzip.compress(tmx(FEW)), FEW),
        ("x.tmx", tmx([pair[::-1] for pair in FEW], ("de", "en")), FEW),
        ("x.xlf", XLIFF_1.encode(), [("Open", "Öffnen"), ("Close", "Zu")]),
        ("x.xliff", XLIFF_1.encode(), [("Open", "Öffnen"), ("Close", "Zu")]),
        ("x.ts", QT.encode(), [("Done", "Fertig"), ("%n day(s)", "%n Tage")]),
        ("x.po", b'msgid "a\\nb"\nmsgstr "c"\n#, fuzzy\nmsgid "d"\nmsgstr "e"\n', [("a b", "c")]),
        ("x.csv", b'de,en\n"Ja, ja",Yes\nNein,\n', [("Yes", "Ja, ja")]),
        ("x.tsv", b"One\tEins\n", [("One", "Eins")]),
        ("x.jsonl", jsonl([{"translation": {"en": "a\ud800", "de": "b\n"}}]), [("a\ufffd", "b")]),
    ],
)  # fmt: skip
def test_formats(folder, name, content, pairs):
    put(folder / "text" / name, content)
    assert pairs_of(folder, name) == pairs


def test_parquet(folder):
    table = pyarrow.table({"source": [pair[0] for pair in FEW], "to": [pair[1] for pair in FEW]})
    write_table(table.rename_columns(["source", "target"]), folder / "text" / "x.parquet")
    write_table(table, folder / "text" / "y.parquet")
    named = {"text": "y.parquet", "columns": ["source", "to"]}
    assert pairs_of(folder, ["x.parquet", named]) == FEW + FEW


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("x.csv", b"id,English,German\n1,One,Eins\n", ["English", "German"]),
        ("x.csv", b"Eins;One\n", ["2", "1"]),
        ("x.tsv", b"id\tEnglish\tGerman\n1\tOne\tEins\n", ["English", "German"]),
        ("x.tsv", b"1\tOne\tEins\n", ["2", "3"]),
        ("x.jsonl", jsonl([{"a": {"b": "One"}, "c": "Eins"}]), ["a.b", "c"]),
    ],
)
def test_columns(folder, name, content, columns):
    put(folder / "text" / name, content)
    assert pairs_of(folder, [{"text": name, "columns": columns}]) == [("One", "Eins")]


@given(pairs=st.lists(st.tuples(st.text(), st.text()), min_size=1))
def test_any_text_stays_in_step(tmp_path_factory, pairs):
    """Whatever a text holds, its number of lines is that of the pairs."""
    folder = tmp_path_factory.mktemp("text")
    # Each pair is in the file behind one that says how many there are before.
    numbered = [(f"{n} {source}", f"{n} {target}") for n, (source, target) in enumerate(pairs)]
    records = [dict(zip(("source", "target"), pair, strict=True)) for pair in numbered]
    put(folder / "text" / "x.jsonl", jsonl(records))
    found = pairs_of(folder, "x.jsonl")
    assert [int(source.split()[0]) for source, _ in found] == list(range(len(pairs)))
    assert [int(target.split()[0]) for _, target in found] == list(range(len(pairs)))


# ---- What is refused ----


@pytest.mark.parametrize(
    ("train", "content", "message"),
    [
        ("x.tmx", tmx(FEW, ("en", "fr")), "x.tmx: has no text from en to de, only from en to fr"),
        ("x.tmx", tmx(FEW, ("es", "fr")), "x.tmx: has no text in en; its languages are es, fr"),
        ("x.tmx", tmx([("", "")]), "x.tmx: there is no finished pair from en to de"),
        ("x.tmx", tmx(FEW)[:-20], "x.tmx, line 6: not well-formed XML"),
        ("x.tmx", b"", "x.tmx, line 1: not well-formed XML"),
        ("x.tmx", b"<tmx/>", "x.tmx: there is no finished pair"),
        ("x.tmx", QT.encode(), "x.tmx: not TMX: the root element is <TS>"),
        ("x.tmx", tmx([("\xe4", "b")]).decode().encode("latin1"), "x.tmx, line 3: not UTF-8"),
        ("x.xlf", XLIFF_1.replace('"de"', '"fr"').encode(), "only from en-US to fr"),
        ("x.po", po(FEW, "fr"), "x.po: has no text from en to de, only to fr"),
        ("x.po", b'msgid "a', "x.po, line 1: not a line of a PO file"),
        ("x.csv", b"a,b\n", "must be named"),
        ("x.csv", b"source,target\n\xff,b\n", "x.csv, line 2: not UTF-8"),
        ("x.parquet", b"PAR1", "x.parquet: can't be read as a Parquet file"),
        ("d", None, "d: in this folder, there are no files of pairs"),
        ("y.tmx", None, "data.train: there is no file y.tmx "),
        ("po/fr.po", None, "only to fr"),
        ([{"text": "x.csv", "columns": ["a", "c"]}], b"a,b\n", "there is no c. It has a, b"),
        ([{"text": "x.tmx", "columns": ["a", "c"]}], tmx(FEW), "have no columns"),
        ([{"text": "news", "columns": ["a", "c"]}], None, "news: only tables, JSON Lines and"),
    ],
)  # fmt: skip
def test_what_is_refused_leaves_nothing(folder, train, content, message):
    (folder / "text" / "d").mkdir()
    if content is not None:
        put(folder / "text" / (train if isinstance(train, str) else train[0]["text"]), content)
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        open_corpus(config_for(folder, train=train))
    assert not entries(folder)


def test_messages_of_a_command(folder):
    path = folder / "my.yaml"
    data = {"train": "memory.tmx", "held_out": 4}
    path.write_text(config_file.dump(make_config(folder, data=data)))
    for train, code in (("po/fr.po", 1), ("nothing.tmx", 2)):
        done = run_here("train", path, "--check", "--device=cpu", f"data.train={train}")
        assert done.returncode == code and train in done.stderr
        assert "Traceback" not in done.stderr and not entries(folder)


# ---- new ----


@pytest.fixture
def make(folder, monkeypatch):
    """Writes a recipe, and returns the section `data` of its config."""
    monkeypatch.setattr(timing, "MEASURED_SECONDS", 0.01)
    monkeypatch.setattr(run, "seconds_per_step", partial(run.seconds_per_step, seconds=0.01))

    def make(**flags):
        run_command("new", "my.yaml", "--force", device="cpu", minutes=1, **flags)
        return config_file.load("my.yaml").data

    return make


def test_new_takes_the_languages_of_the_file(folder, make, capsys):
    data = make(train="text/memory.tmx", dev="text/po/a/main.po")
    assert (data.root, data.train, data.dev) == ("text", "memory.tmx", "po/a/main.po")
    assert (data.source_lang, data.target_lang) == ("en-US", "de-DE")
    assert f"text         {len(MEMORY) - 7} pairs to train on" in capsys.readouterr().out
    before = entries(folder / "data")
    run_command("train", "my.yaml", "--check", device="cpu")
    assert entries(folder / "data") == before


def test_new_with_a_folder(folder, make):
    (folder / "text" / "po" / "fr.po").unlink()
    data = make(train="text/po/", source_lang="en")
    assert (data.root, data.train) == ("text", "po")
    assert (data.source_lang, data.target_lang) == ("en", "de")


def languages(train, *flags):
    options = cli.parse(["new", "my.yaml", f"--train={train}", *flags])
    new.set_languages(options)
    return options.source_lang, options.target_lang


def test_languages_that_a_file_names(folder):
    put(folder / "three.tmx", tmx([("a", "b", "c")], ("en", "de", "fr")))
    with pytest.raises(UsageError, match="has text from en to de, from en to fr"):
        languages("three.tmx")
    assert languages("three.tmx", "--target-lang=fr") == ("en", "fr")
    assert languages("three.tmx", "--source-lang=de") == ("de", "en")
    assert languages("text/memory.tmx", "--source-lang=de") == ("de", "en-US")
    assert languages("text/memory.tmx", "--source-lang=es") == ("es", None)
    # A PO file names the target alone.
    assert languages("text/po/a") == (None, "de")
    assert languages("text/po/a", "--target-lang=fr") == (None, "fr")
    with pytest.raises(UsageError, match="has text to de, to fr"):
        languages("text/po")
    for name, content in {"a.xlf": XLIFF_1.encode(), "a.ts": QT.encode()}.items():
        put(folder / "one" / name, content)
    assert languages("one/a.xlf") == ("en-US", "de")
    assert languages("one/a.ts") == ("en", "de-DE")
    assert languages("one/a.jsonl") == languages("text/nothing") == (None, None)
    put(folder / "order" / "x.tmx", tmx(FEW).replace(b"srclang", b"x"))
    put(folder / "order" / "y.tmx", tmx(FEW[:1], ("en", "de")))
    assert languages("order/x.tmx") == ("en-US", "de-DE")
    assert languages("order") == ("en", "de")


def test_new_says_what_is_wrong(folder, make):
    with pytest.raises(UserError, match="no text from en to es, only from en-US to de-DE"):
        make(train="text/memory.tmx", source_lang="en", target_lang="es")
    with pytest.raises(UsageError, match="--source-lang: not given"):
        make(train="text/po/a")
    write_lines(folder / "broken.tmx", ["<tmx>"])
    with pytest.raises(UserError, match="line 2: not well-formed XML"):
        make(train="broken.tmx")
    assert not (folder / "my.yaml").exists() and not entries(folder / "data")

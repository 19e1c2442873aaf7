"""CSV, TSV and JSON Lines, read again by the csv and the json module; and pairs of them, and of
Parquet, which pyarrow writes."""

import csv
import gzip
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_mt.formats import jsonl, parquet, tables
from transformer_mt.formats.jsonl import JSONLDocument
from transformer_mt.formats.tables import TableDocument
from transformer_mt.utils.errors import UsageError, UserError

LANGUAGES = ("en", "de")
TEXT = st.text(st.characters(exclude_categories=["Cs", "Co"]) | st.sampled_from("\n\r\t\",;' "))


def table(content: str | bytes, columns, name="x.csv") -> TableDocument:
    content = content if isinstance(content, bytes) else content.encode()
    return TableDocument(content, name, LANGUAGES, columns)


def read_csv(content: bytes, delimiter=",") -> list[list[str]]:
    return list(csv.reader(io.StringIO(content.decode(), newline=""), delimiter=delimiter))


CSV = """\
id,source,"target",note
1,Hello,,"a ""note"", with commas"
2,"Quoted, text",Fertig,5" pipe

3,"two
lines","",
4,short
5
6,   ,x,y
7,Last,"",end"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["", "\n"])
def test_csv_without_translations_stays(newline, encoding, end):
    content = (CSV + end).replace("\n", newline).encode(encoding)
    assert table(content, ("source", "target")).render({}, "") == content


def test_csv_units_are_the_sources_of_the_rows():
    document = table(CSV, ("source", "target"))
    assert [(u.name, u.source, u.target, u.is_done) for u in document.units] == [
        ("line 2", "Hello", "", False),
        ("line 3", "Quoted, text", "Fertig", True),
        ("line 5", "two\nlines", "", False),
        ("line 7", "short", "", False),
        ("line 10", "Last", "", False),
    ]


def test_csv_reads_what_was_written():
    document = table(CSV, ("source", "target"))
    written = document.render({0: "Hallo", 2: 'a "b"', 3: "x,y", 4: "z"}, "")
    expected = read_csv(CSV.encode())
    expected[1][2] = "Hallo"
    expected[4][2] = 'a "b"'
    expected[5].append("x,y")
    expected[8][2] = "z"
    assert read_csv(written) == expected


@pytest.mark.parametrize(
    "content, columns, expected",
    [
        ("a;b\n1,5;x\n", ("b", None), "a;b\n1,5;T\n"),
        ("a,b\nx,\n", ("1", "2"), "a,T0\nx,T1\n"),
        ("x\ny\n", ("1", None), "T0\nT1\n"),
        ("x\ty\n", ("2", None), "x\tT\n"),
        ("en|de\nx|\n", ("en", "de"), "en|de\nx|T\n"),
        ("en,de,fr\nx\n", ("en", "fr"), "en,de,fr\nx,,T\n"),
        ('"a,b";c\n"x";\n', ("a,b", "c"), '"a,b";c\n"x";T\n'),
        ("2,en\nx,y\n", ("en", "1"), "2,en\nT,y\n"),
    ],
)
def test_columns_are_names_or_numbers(content, columns, expected):
    document = table(content, columns)
    texts = {n: "T" if len(document.units) == 1 else f"T{n}" for n in range(len(document.units))}
    assert document.render(texts, "").decode() == expected


@given(st.lists(st.tuples(TEXT, TEXT, TEXT), max_size=5), st.sampled_from(",;\t|"), st.data())
def test_arbitrary_csv(rows, delimiter, data):
    buffer = io.StringIO(newline="")
    quoting = data.draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    newline = data.draw(st.sampled_from(["\n", "\r\n"]))
    writer = csv.writer(buffer, delimiter=delimiter, quoting=quoting, lineterminator=newline)
    writer.writerows([("source", "x", "target"), *rows])
    content = buffer.getvalue().encode()
    document = table(content, ("source", "target"))
    assert document.render({}, "") == content
    numbers = [number for number, row in enumerate(rows) if row[0].strip()]
    assert [unit.source for unit in document.units] == [rows[number][0] for number in numbers]
    texts = data.draw(st.lists(TEXT, min_size=len(numbers), max_size=len(numbers)))
    expected = [list(row) for row in rows]
    for number, text in zip(numbers, texts, strict=True):
        expected[number][2] = text
    written = document.render(dict(enumerate(texts)), "")
    assert read_csv(written, delimiter)[1:] == expected


@given(st.text(st.sampled_from('ab",\n\r') | st.characters(exclude_categories=["Cs", "Co"])))
def test_arbitrary_text_is_a_table_for_both_readers_or_for_none(text):
    """`pairs` reads by the csv module, and documents by their own scanner."""
    text = text.replace("\r", "")
    try:
        expected = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error:
        expected = None
    try:
        document = table(text, ("1", None), "x.csv")
        document._separator = ","
        rows = [[document._value(*f) for f in fields] for _, fields in document._rows()]
    except UserError:
        rows = None
    if text.removeprefix("\ufeff") == text and ";" not in text and "|" not in text:
        assert rows == (None if expected is None else [row for row in expected if row])


TSV = 'en\tde\n"Hello," he said.\t\n"She ""quoted"" it"\t\n"All"\t"x"\nlast\t'


def test_quotes_in_tsv_are_text_unless_they_are_doubled():
    document = table(TSV, ("en", "de"), "X.TSV")
    assert document.render({}, "") == TSV.encode()
    assert [unit.source for unit in document.units] == [
        '"Hello," he said.',
        'She "quoted" it',
        '"All"',
        "last",
    ]
    written = document.render({0: '"Hallo", sagte er.', 1: "a", 3: "b\tc\nd"}, "")
    assert written.decode() == TSV.replace("said.\t", 'said.\t"Hallo", sagte er.').replace(
        'it"\t', 'it"\ta'
    ).replace("last\t", "last\tb c d")


@pytest.mark.parametrize(
    "content, columns, message",
    [
        ("a,b\n1,2\n", ("c", "b"), r"x.csv: there is no c. It has a, b"),
        ("a,b\n1,2\n", ("3", None), r"x.csv: there is no 3"),
        ("a,b\n1,2\n", ("0", None), r"x.csv: there is no 0"),
    ],
)
def test_a_missing_column_is_told(content, columns, message):
    with pytest.raises(UsageError, match=message):
        table(content, columns)


@pytest.mark.parametrize(
    "content, message",
    [
        ('a,b\n1,"2\n3,4\n', "x.csv, line 2: a field begins with a quote"),
        ('a,b\n1,"2"3\n', "x.csv, line 2: a field begins with a quote"),
        (b"a,b\n\n1,\xff\n", "x.csv, line 3: not UTF-8"),
    ],
)
def test_what_is_wrong_in_csv_is_told_with_its_place(content, message):
    with pytest.raises(UserError, match=message):
        table(content, ("a", "b"))


# JSON Lines


def records(content: str | bytes, columns) -> JSONLDocument:
    content = content if isinstance(content, bytes) else content.encode()
    return JSONLDocument(content, "x.jsonl", LANGUAGES, columns)


JSONL = """\
{"id": 1, "en": "Hello", "de": ""}
{"id":2,"en":"World"}

{"id": 3, "en": "Done", "de": "Fertig", "more": [1, {"a": null}]}
{"id": 4, "de": null, "en": "Null" }
{"id": 5}
{"id": 6, "en": "x", "en": "Twice"}"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["", "\n"])
def test_jsonl_without_translations_stays(newline, encoding, end):
    content = (JSONL + end).replace("\n", newline).encode(encoding)
    assert records(content, ("en", "de")).render({}, "") == content


def test_jsonl_fields_are_filled_in_or_added():
    document = records(JSONL, ("en", "de"))
    assert [(u.name, u.source, u.target, u.is_done) for u in document.units] == [
        ("line 1", "Hello", "", False),
        ("line 2", "World", "", False),
        ("line 4", "Done", "Fertig", True),
        ("line 5", "Null", "", False),
        ("line 7", "Twice", "", False),
    ]
    written = document.render({0: "Hällo", 1: "Welt", 3: "0", 4: "2"}, "").decode()
    assert written.split("\n") == [
        '{"id": 1, "en": "Hello", "de": "Hällo"}',
        '{"id":2,"en":"World","de":"Welt"}',
        "",
        '{"id": 3, "en": "Done", "de": "Fertig", "more": [1, {"a": null}]}',
        '{"id": 4, "de": "0", "en": "Null" }',
        '{"id": 5}',
        '{"id": 6, "en": "x", "en": "Twice", "de": "2"}',
    ]


@pytest.mark.parametrize(
    "content, columns, expected",
    [
        ('{"a": "x"}', ("a", None), '{"a": "T"}'),
        ('{"t": {"en": "x"}}', ("t.en", "t.de"), '{"t": {"en": "x", "de": "T"}}'),
        ('{"t": {}, "a": "x"}', ("a", "t.de"), '{"t": {"de": "T"}, "a": "x"}'),
        ('{"a":"x"}', ("a", "t.u.de"), '{"a":"x","t":{"u":{"de":"T"}}}'),
        ('{"m": [{"c": "x"}]}', ("m.0.c", "m.0.d"), '{"m": [{"c": "x", "d": "T"}]}'),
        ('{"a.b": "x"}', ("a.b", "c"), '{"a.b": "x", "c": "T"}'),
        ('{"a": "x",\t"b": "}" }', ("a", "c"), '{"a": "x",\t"b": "}", "c": "T" }'),
    ],
)
def test_fields_within_fields(content, columns, expected):
    assert records(content, columns).render({0: "T"}, "").decode() == expected


@given(st.lists(st.dictionaries(st.sampled_from(["en", "x", "y"]), TEXT | st.none())), st.data())
def test_arbitrary_jsonl(rows, data):
    ascii_only = data.draw(st.booleans())
    lines = [json.dumps(row, ensure_ascii=ascii_only) for row in [{"en": "x"}, *rows]]
    content = "\n".join(lines).encode()
    document = records(content, ("en", "de"))
    assert document.render({}, "") == content
    texts = data.draw(st.lists(TEXT, min_size=len(document.units), max_size=len(document.units)))
    written = document.render(dict(enumerate(texts)), "").decode()
    left = iter(texts)
    for line, row in zip(written.split("\n"), [{"en": "x"}, *rows], strict=True):
        expected = {**row, "de": next(left)} if (row.get("en") or "").strip() else row
        assert json.loads(line) == expected
    assert not list(left)


@pytest.mark.parametrize(
    "content, columns, message",
    [
        ('{"a": "x"}\n{"a": }\n', ("a", None), "x.jsonl, line 2: not JSON"),
        ('{"a": "x"}\n["a"]\n', ("a", None), "x.jsonl, line 2: not a JSON object"),
        ('{"a": "x"}\n\n{"a": "x", "b": 5}', ("a", "b"), "x.jsonl, line 3: the field b has"),
        ('{"a": "x", "b": 5}', ("a", "b.c"), "x.jsonl, line 1: b is no object"),
        ('{"a": "x"}', ("c", None), "x.jsonl: no line has a text in the field c"),
        ('{"a": ' + "[" * 100_000, ("a", None), "x.jsonl, line 1: its values are nested"),
        (b'{"a": "x"}\n{"a": "\xff"}', ("a", None), "x.jsonl, line 2: not UTF-8"),
    ],
)
def test_what_is_wrong_in_jsonl_is_told_with_its_place(content, columns, message):
    with pytest.raises(UserError, match=message):
        records(content, columns)


# Pairs

PAIRS = [("one", "eins"), ("two lines", "zwei Zeilen"), ('"q"', '"z"')]
ROWS = [("one", "eins"), ("two\nlines", " zwei\r\nZeilen "), ("", "x"), ("y", ""), ('"q"', '"z"')]


@pytest.mark.parametrize("names", [("source", "target"), LANGUAGES, ("x", "y")])
@pytest.mark.parametrize("delimiter", [",", ";"])
@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_pairs_of_csv(tmp_path, names, delimiter, ending):
    path = tmp_path / f"corpus{ending}"
    with (gzip.open if ending.endswith("gz") else open)(path, "wt", newline="") as file:
        rows = [(source, "note", target) for source, target in ROWS]
        csv.writer(file, delimiter=delimiter).writerows([(names[0], "z", names[1]), *rows, ["w"]])
    columns = names if names == ("x", "y") else None
    assert list(tables.pairs(path, LANGUAGES, columns)) == PAIRS


def test_pairs_of_tsv(tmp_path):
    path = tmp_path / "corpus.tsv"
    path.write_text('one\teins\n"a" b\t"c" d\n\n"e ""f"""\tg\nalone\n', "utf-8")
    assert list(tables.pairs(path, LANGUAGES, ("1", "2"))) == [
        ("one", "eins"),
        ('"a" b', '"c" d'),
        ('e "f"', "g"),
    ]


@pytest.mark.parametrize("kind", ["flat", "languages", "translation"])
def test_pairs_of_jsonl_and_parquet(tmp_path, kind):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    names = ("source", "target") if kind == "flat" else LANGUAGES
    rows = [dict(zip(names, row, strict=True)) for row in ROWS]
    if kind == "translation":
        rows = [{"id": 1, "translation": row} for row in rows]
        rows.append({"id": 2, "translation": None})
    else:
        rows.append({names[0]: None, names[1]: "x"})
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    assert list(jsonl.pairs(path, LANGUAGES)) == PAIRS

    path = tmp_path / "corpus.parquet"
    write_table(pyarrow.Table.from_pylist(rows), path)
    assert list(parquet.pairs(path, LANGUAGES)) == PAIRS
    with pytest.raises(UsageError, match="there is no nothing"):
        list(parquet.pairs(path, LANGUAGES, ("nothing", "target")))


def test_parquet_that_has_no_pairs(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    path = tmp_path / "x.parquet"
    with pytest.raises(UsageError, match="no such file"):
        list(parquet.pairs(path, LANGUAGES))
    path.write_bytes(b"PAR1 something else PAR1")
    with pytest.raises(UserError, match="can't be read"):
        list(parquet.pairs(path, LANGUAGES))
    write_table(pyarrow.table({"source": [1], "target": ["x"]}), path)
    with pytest.raises(UserError, match="source has something else"):
        list(parquet.pairs(path, LANGUAGES))
    write_table(pyarrow.table({"a": ["x"]}), path)
    with pytest.raises(UsageError, match=r"must be named\. It has a"):
        list(parquet.pairs(path, LANGUAGES))


@pytest.mark.parametrize(
    "name, content, columns, message",
    [
        ("x.csv", b'source,target\n"a,b\n', None, "x.csv, line 2: unexpected end"),
        ("x.csv", b"a,b\nx,y\n", None, "x.csv: there is neither source and target nor en"),
        ("x.csv", b"source,target\n\xff,b\n", None, "x.csv, line 2: not UTF-8"),
        ("x.jsonl", b'{"a": "b"}', None, "x.jsonl, line 1: there is neither"),
        ("x.jsonl", b'{"a": "b"}', ("a", "c"), "x.jsonl: no line has texts in the fields a and c"),
        ("x.jsonl", b'{"source": "a", "target": "b"}\n{', None, "x.jsonl, line 2: not JSON"),
    ],
)
def test_files_that_have_no_pairs(tmp_path, name, content, columns, message):
    path = tmp_path / name
    path.write_bytes(content)
    module = tables if name == "x.csv" else jsonl
    with pytest.raises(UserError, match=message):
        list(module.pairs(path, LANGUAGES, columns))

"""PO files: read again by polib, and checked by msgfmt where gettext is installed."""

import shutil
import subprocess

import polib
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_mt.formats.po import PODocument, pairs
from transformer_mt.utils.errors import UserError

LANGUAGES = ("en", "de")
HEADER = r"""# German translations for demo.
# Copyright (C) 2024 The demo authors
#
msgid ""
msgstr ""
"Project-Id-Version: demo 1.0\n"
"MIME-Version: 1.0\n"
"Content-Type: text/plain; charset=UTF-8\n"
"Content-Transfer-Encoding: 8bit\n"
"Language: de_AT\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\n"

"""
FILE = (
    HEADER
    + r"""#. A greeting.
#: src/main.c:12 src/other.c:7
msgid "Hello, \"world\"!\t\\o/"
msgstr ""

#  translator's comment
#: src/main.c:20
#, c-format
msgctxt "menu"
msgid "Open %s"
msgstr ""

#, fuzzy, c-format
#| msgid "Close the %s"
msgid "Close %s"
msgstr "Schließ den %s"

#| msgid "Old"
msgid "New"
msgstr ""

msgid ""
"First line\n"
"  second line\n"
msgstr ""

msgid ""
"A very long message that goes beyond the width of a page and so is "
"wrapped by gettext."
msgstr "Eine lange Meldung."

#, c-format
msgid "%d file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""

msgctxt "empty"
msgid ""
msgstr ""

#, fuzzy
#~ msgid "Gone"
#~ msgstr "Weg"

msgid "Last"
msgstr "Letzte"
"""
)


def read(text: str | bytes) -> PODocument:
    return PODocument(text if isinstance(text, bytes) else text.encode(), "x.po", LANGUAGES)


def shout(document: PODocument) -> bytes:
    """All units translated, by themselves."""
    return document.render(
        {index: unit.source.upper() for index, unit in enumerate(document.units)}, "a model"
    )


def check(content: bytes, tmp_path) -> None:
    """Checks a file as gettext does. `--check-header` is left out, for half a header."""
    if shutil.which("msgfmt") is None:
        return
    path = tmp_path / "checked.po"
    path.write_bytes(content)
    command = ["msgfmt", "--check-format", "--use-fuzzy", "-o", "/dev/null", str(path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("cut", [0, 1])
def test_without_translations_every_byte_stays(newline, mark, cut):
    content = mark + FILE[: len(FILE) - cut].replace("\n", newline).encode()
    assert read(content).render({}, "a model") == content


def test_units_are_the_messages_and_the_header_names_the_language():
    document = read(FILE)
    assert document.target_lang == "de_AT"
    assert [(unit.source, unit.target, unit.is_done) for unit in document.units] == [
        ('Hello, "world"!\t\\o/', "", False),
        ("Open %s", "", False),
        ("Close %s", "Schließ den %s", False),
        ("New", "", False),
        ("First line\n  second line\n", "", False),
        (
            "A very long message that goes beyond the width of a page and so is wrapped by "
            "gettext.",
            "Eine lange Meldung.",
            True,
        ),
        ("%d file", "", False),
        ("%d files", "", False),
        ("Last", "Letzte", True),
    ]
    assert document.units[0].name == "line 15"


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_polib_reads_what_was_written_and_msgfmt_accepts_it(newline, tmp_path):
    document = read(FILE.replace("\n", newline))
    translated = {0: 'Grüß "Gott"!\t\\o/', 1: "%s öffnen", 2: "%s zu", 3: "Neu"}
    translated |= {4: "Erste Zeile\n  zweite", 6: "%d Datei", 7: "%d Dateien"}
    written = document.render(translated, "a model")
    assert written.count(b"\r\n") == (written.count(b"\n") if newline == "\r\n" else 0)
    check(written.replace(b"\r\n", b"\n"), tmp_path)

    entries = {entry.msgid: entry for entry in polib.pofile(written.decode())}
    assert entries['Hello, "world"!\t\\o/'].msgstr == 'Grüß "Gott"!\t\\o/'
    assert entries["Open %s"].msgstr == "%s öffnen"
    assert entries["Open %s"].flags == ["fuzzy", "c-format"]
    assert entries["Close %s"].flags == ["fuzzy", "c-format"]
    assert entries["New"].msgstr == "Neu" and entries["New"].fuzzy
    assert entries["First line\n  second line\n"].msgstr == "Erste Zeile\n  zweite\n"
    assert entries["%d file"].msgstr_plural == {0: "%d Datei", 1: "%d Dateien"}
    assert entries["%d file"].flags == ["fuzzy", "c-format"]
    assert not entries["Last"].fuzzy

    again = read(written)
    for index, text in translated.items():
        assert again.units[index].target.strip() == text.strip()
        assert not again.units[index].is_done


def test_flags_and_wrapping_are_written_as_gettext_writes_them():
    written = read(FILE).render({1: "%s auf", 3: "Neu", 4: "Eins\nzwei\n"}, "a model").decode()
    for part in (
        '#: src/main.c:20\n#, fuzzy, c-format\nmsgctxt "menu"\n',
        '\n#, fuzzy\n#| msgid "Old"\nmsgid "New"\nmsgstr "Neu"\n',
        'msgstr ""\n"Eins\\n"\n"zwei\\n"\n',
    ):
        assert part in written


@pytest.mark.parametrize(
    "formula, expected",
    [
        ("nplurals=1; plural=0;", {0: "MANY"}),
        ("nplurals=2; plural=n > 1;", {0: "ONE", 1: "MANY"}),
        (
            "nplurals=4; plural=(n%100==1 ? 1 : n%100==2 ? 2 : n%100==3 || n%100==4 ? 3 : 0);",
            {0: "MANY", 1: "ONE", 2: "MANY", 3: "MANY"},
        ),
        ("nplurals=2; plural=import os;", {0: "ONE", 1: "MANY"}),
        ("nplurals=2; plural=n / 0;", {0: "ONE", 1: "MANY"}),
        ("nplurals=2; plural=" + "(" * 900 + ";", {0: "ONE", 1: "MANY"}),
        ("nplurals=INTEGER; plural=EXPRESSION;", {0: "ONE", 1: "MANY"}),
    ],
)
def test_the_singular_is_the_form_of_one(formula, expected):
    header = HEADER.replace("nplurals=2; plural=(n != 1);", formula)
    forms = "".join(f'msgstr[{number}] ""\n' for number in expected)
    document = read(f'{header}msgid "one"\nmsgid_plural "many"\n{forms}')
    assert polib.pofile(shout(document).decode())[0].msgstr_plural == expected


def test_forms_that_a_person_wrote_stay():
    document = read(
        HEADER + 'msgid "a"\nmsgid_plural "b"\nmsgstr[0] "x"\nmsgstr[1] ""\nmsgstr[2] "y"\n'
    )
    written = document.render({1: "B"}, "a model").decode()
    assert polib.pofile(written)[0].msgstr_plural == {0: "x", 1: "B", 2: "y"}


def test_percent_signs_of_printf_are_escaped(tmp_path):
    message = '#, {}\nmsgid "100%% of %d, %(a)s"\nmsgstr ""\n'
    document = read(message.format("python-format"))
    assert document.units[0].source == "100% of %d, %(a)s"
    written = document.render({0: "100 % der %(a)s, 5 %, %d %s"}, "").decode()
    assert polib.pofile(written)[0].msgstr == "100 %% der %(a)s, 5 %%, %d %%s"
    # Without the flag, and with one that denies it, a percent sign is one.
    for flag in ("no-c-format", "qt-format"):
        document = read(message.format(flag))
        assert document.units[0].source == "100%% of %d, %(a)s"
        written = document.render({0: "100 % der"}, "").decode()
        assert polib.pofile(written)[0].msgstr == "100 % der"
    # What is read of a translation is what is written of it.
    done = tmp_path / "a.po"
    done.write_text('#, c-format\nmsgid "%d%% done"\nmsgstr "%d %% fertig"\n')
    assert list(pairs(done, ("en", "de"))) == [("%d% done", "%d % fertig")]


def test_a_template_gets_its_encoding(tmp_path):
    template = FILE.replace("charset=UTF-8", "charset=CHARSET").replace("ß", "ss")
    document = read(template)
    assert document.render({}, "") == template.encode()
    written = document.render({0: 'Grüß "dich"!'}, "a model")
    assert b"charset=UTF-8" in written
    check(written, tmp_path)


def test_a_file_keeps_its_encoding():
    content = FILE.replace("UTF-8", "ISO-8859-1").encode("latin-1")
    document = read(content)
    assert document.render({}, "") == content
    assert document.units[2].target == "Schließ den %s"
    assert "Grüß".encode("latin-1") in document.render({0: "Grüß"}, "a model")
    with pytest.raises(UserError, match="ISO-8859-1 lacks"):
        document.render({0: "你好"}, "a model")


TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc", "Co"]) | st.sampled_from('\n\t\\"'))


@given(st.lists(st.tuples(TEXT, TEXT, st.booleans()), max_size=4, unique_by=lambda row: row[0]))
def test_arbitrary_messages(rows):
    rows = [(f"{source}.", f"{target}.", fuzzy) for source, target, fuzzy in rows]
    file = polib.POFile(wrapwidth=40)
    file.metadata = {"Content-Type": "text/plain; charset=UTF-8"}
    for source, _, is_fuzzy in rows:
        entry = polib.POEntry(msgid=source, msgstr="", flags=["fuzzy"] if is_fuzzy else [])
        file.append(entry)
    content = str(file).encode()
    document = read(content)
    assert document.render({}, "") == content
    assert [unit.source for unit in document.units] == [source for source, _, _ in rows]
    written = document.render({n: target for n, (_, target, _) in enumerate(rows)}, "a model")
    for entry, (source, target, _) in zip(polib.pofile(written.decode()), rows, strict=True):
        start = source[: len(source) - len(source.lstrip("\n"))]
        assert (entry.msgid, entry.msgstr) == (source, start + target.strip("\n"))
        assert entry.flags == ["fuzzy"]


def test_pairs_are_what_is_finished(tmp_path):
    path = tmp_path / "x.po"
    path.write_text(
        FILE
        + '\nmsgid "%d day"\nmsgid_plural "%d days"\nmsgstr[0] "%d Tag"\nmsgstr[1] "%d Tage"\n'
        + '\nmsgid ""\n"one\\n"\n"two"\nmsgstr "eins\\n\\nzwei"\n',
        "utf-8",
    )
    assert list(pairs(path, LANGUAGES)) == [
        (
            "A very long message that goes beyond the width of a page and so is wrapped by "
            "gettext.",
            "Eine lange Meldung.",
        ),
        ("Last", "Letzte"),
        ("%d day", "%d Tag"),
        ("one two", "eins zwei"),
    ]


@pytest.mark.parametrize(
    "content, message",
    [
        (b'msgid "a"\nmsgstr "b\n', "x.po, line 2: not a line"),
        (b'"a"\n', "x.po, line 1: a text without a keyword"),
        (b'msgid "a"\nmsgid "b"\nmsgstr ""\n', "x.po, line 2: a second msgid"),
        (b'msgstr "b"\n', "x.po, line 1: a message without msgid"),
        (b'\nmsgid "a"\n', "x.po, line 2: the last message has no msgstr"),
        (b'msgid "a"\nmsgstr "\xff"\n', "x.po, line 2: not UTF-8"),
        (b'msgid ""\nmsgstr "Content-Type: x; charset=nonsense\\n"\n', "x.po: not NONSENSE"),
        (b'msgid ""\nmsgstr "Content-Type: x; charset=base64\\n"\n', "x.po: not BASE64"),
        (b'msgid ""\nmsgstr "Content-Type: x; charset=a\0\\n"\n', "x.po: not A"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(content, message):
    with pytest.raises(UserError, match=message):
        read(content)

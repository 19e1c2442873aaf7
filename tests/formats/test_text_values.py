"""Interface texts in JSON, YAML and .properties, read again by the json module, PyYAML, and a
reader of properties that follows the words of java.util.Properties."""

import json
import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_mt.formats.json_values import JSONDocument
from transformer_mt.formats.properties import PropertiesDocument
from transformer_mt.formats.yaml_values import YAMLDocument
from transformer_mt.utils.errors import UserError

LANGUAGES = ("en", "de")
# Without private use: the marks of inline markup are among it.
TEXT = st.text(st.characters(exclude_categories=["Cs", "Co"]) | st.sampled_from("\n \t\\\"'#:{}-"))
NAME = st.text("abc", min_size=1, max_size=3)
TREES = st.recursive(
    TEXT | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAME, inner, max_size=3),
    max_leaves=12,
)


def read_json(content: str | bytes) -> JSONDocument:
    return JSONDocument(
        content if isinstance(content, bytes) else content.encode(), "x.json", LANGUAGES
    )


def read_yaml(content: str | bytes) -> YAMLDocument:
    return YAMLDocument(
        content if isinstance(content, bytes) else content.encode(), "x.yml", LANGUAGES
    )


def read_properties(content: str | bytes) -> PropertiesDocument:
    return PropertiesDocument(
        content if isinstance(content, bytes) else content.encode(), "x.properties", LANGUAGES
    )


def translated(tree: object, texts: list[str]) -> object:
    """A tree in which each string that is not blank is the next one of `texts`."""
    if isinstance(tree, dict):
        return {key: translated(value, texts) for key, value in tree.items()}
    if isinstance(tree, list):
        return [translated(value, texts) for value in tree]
    return texts.pop(0) if isinstance(tree, str) and tree.strip() else tree


def all_of(texts: list[str]) -> dict[int, str]:
    return dict(enumerate(texts))


# JSON

I18NEXT = r"""{
  "title": "Welcome to \"Demo\"",
    "nested" : { "count_one":"{{count}} file", "count_other" : "{{count}} files" },
  "list": [ "a", 1.50e3, true, null, ["b\n"], {} ],
  "empty": "", "title": "twice",
  "escaped \u00fc key": "slash / and \t tab"
}"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["", "\n"])
def test_json_without_translations_stays(newline, encoding, end):
    content = (I18NEXT + end).replace("\n", newline).encode(encoding)
    assert read_json(content).render({}, "") == content


def test_json_units_are_named_by_their_keys():
    assert [(unit.name, unit.source) for unit in read_json(I18NEXT).units] == [
        ("title", 'Welcome to "Demo"'),
        ("nested.count_one", "{{count}} file"),
        ("nested.count_other", "{{count}} files"),
        ("list.0", "a"),
        ("list.4.0", "b\n"),
        ("title", "twice"),
        ("escaped ü key", "slash / and \t tab"),
    ]


def test_only_values_change_in_json():
    written = read_json(I18NEXT).render({1: "{{count}} Datei", 4: 'ä"\n'}, "").decode()
    # The file has an escape and is ASCII, so the translation has escapes too.
    assert written == I18NEXT.replace('{{count}} file"', '{{count}} Datei"').replace(
        r"b\n", r"\u00e4\"\n"
    )


@pytest.mark.parametrize(
    "content, expected",
    [
        ('{"a": "x"}', '{"a": "ü/😀"}'),
        ('{"a": "x", "b": "é"}', '{"a": "ü/😀", "b": "é"}'),
        (r'{"a": "x", "b": "\u00e9"}', r'{"a": "\u00fc/\ud83d\ude00", "b": "\u00e9"}'),
        (r'{"a": "x", "b": "\u0007"}', r'{"a": "ü/😀", "b": "\u0007"}'),
        (r'{"a": "x", "b": "1\/2"}', r'{"a": "ü\/😀", "b": "1\/2"}'),
        (r'{"a": "x", "b": "\\/"}', r'{"a": "ü/😀", "b": "\\/"}'),
    ],
)
def test_json_escapes_are_those_of_the_file(content, expected):
    assert read_json(content).render({0: "ü/😀"}, "").decode() == expected


def test_halves_of_surrogate_pairs_do_no_harm():
    document = read_json(r'{"a": "x \ud83d y", "b": "\ud83d\ude00"}')
    assert [unit.source for unit in document.units] == ["x \ufffd y", "😀"]
    assert json.loads(document.render({0: "z"}, "")) == {"a": "z", "b": "😀"}


@given(TREES, st.booleans(), st.sampled_from([None, 2, "\t"]), st.data())
def test_arbitrary_json(tree, ascii_only, indent, data):
    content = json.dumps(tree, ensure_ascii=ascii_only, indent=indent).encode()
    document = read_json(content)
    assert document.render({}, "") == content
    count = len(document.units)
    texts = data.draw(st.lists(TEXT, min_size=count, max_size=count))
    assert json.loads(document.render(all_of(texts), "")) == translated(tree, texts)


@pytest.mark.parametrize(
    "content, message",
    [
        ('{"a": 1,\n "b": }', r"x.json, line 2: not JSON: Expecting value"),
        ('{"a": "x\n"}', r"x.json, line 1: not JSON: Invalid control character"),
        ('{"a": "x', r"x.json, line 1: not JSON: Unterminated string"),
        ("[" * 100_000, r"nested too deeply"),
        ("[" * 100_000 + "]" * 100_000, r"nested too deeply"),
        (b'{\n"a": "\xe4"}', r"x.json, line 2: not UTF-8"),
    ],
)
def test_what_is_wrong_in_json_is_told_with_its_place(content, message):
    with pytest.raises(UserError, match=message):
        read_json(content)


# YAML

RAILS = """\
# Texts of the application
en:
  hello: Hello, world   # plain
  "no": 'It''s quoted'
  yes: "Caf\\u00e9 \\
    bar"
  count: 12
  off_text: "off"
  date: 2024-01-01
  nested: &shared
      - one item
      - {title: flow text, "other": [a, 'b c']}
  merged: *shared
  password: !secret wifi
  tagged: !!str 123
  anchored: &name   # a comment
    "anchored text"
  literal: |
    First line
      indented

    last line
  folded: >-
    one line
    in two

    second paragraph


  kept: |+
    kept

  digits: |2
     begins with a space
  multi: plain text
    on two lines
  ? complex key
  : complex value
  empty:
---
second: document
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("cut", [0, 1])
def test_yaml_without_translations_stays(newline, encoding, cut):
    content = RAILS[: len(RAILS) - cut].replace("\n", newline).encode(encoding)
    assert read_yaml(content).render({}, "") == content


def test_yaml_units_are_named_by_their_keys():
    assert [(unit.name, unit.source) for unit in read_yaml(RAILS).units] == [
        ("en.hello", "Hello, world"),
        ("en.no", "It's quoted"),
        ("en.yes", "Café bar"),
        ("en.off_text", "off"),
        ("en.nested.0", "one item"),
        ("en.nested.1.title", "flow text"),
        ("en.nested.1.other.0", "a"),
        ("en.nested.1.other.1", "b c"),
        ("en.tagged", "123"),
        ("en.anchored", "anchored text"),
        ("en.literal", "First line\n  indented\n\nlast line\n"),
        ("en.folded", "one line in two\nsecond paragraph"),
        ("en.kept", "kept\n\n"),
        ("en.digits", " begins with a space\n"),
        ("en.multi", "plain text on two lines"),
        ("en.complex key", "complex value"),
        ("second", "document"),
    ]


class TagsAsText(yaml.SafeLoader):
    """Reads !secret too."""


TagsAsText.add_constructor("!secret", lambda loader, node: f"!secret {node.value}")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "make",
    [
        str.upper,
        lambda text: text.replace(" ", ": "),
        lambda text: "no",
        lambda text: "é – 你好 😀 # x",
        lambda text: "- a, b]}" + text,
        lambda text: f" {text.strip()} ",
        lambda text: 'a\nb\n\n"c"\\d',
        lambda text: "a\n b\n\tc",
        lambda text: "line\u2028separator\x85\x07",
        lambda text: "",
    ],
)
def test_yaml_reads_what_was_written(newline, make):
    content = RAILS.replace("\n", newline)
    document = read_yaml(content)
    texts = [make(unit.source) for unit in document.units]
    written = document.render(all_of(texts), "").decode()
    if newline == "\r\n":
        assert written.count("\n") == written.count("\r\n")

    def strip(tree: object) -> object:
        # A block keeps its line ends, which are those of its source.
        if isinstance(tree, dict):
            return {key: strip(value) for key, value in tree.items()}
        if isinstance(tree, list):
            return [strip(value) for value in tree]
        return tree.strip("\n") if isinstance(tree, str) else tree

    # Its own reading is checked by PyYAML's, which walks another way.
    again = [unit.source.strip("\n") for unit in read_yaml(written).units]
    assert again == [text.strip("\n") for text in texts if text.strip()]
    old, new = (list(yaml.load_all(text, TagsAsText)) for text in (content, written))
    assert shape(new) == shape(old)
    assert [strip(new)[0]["en"][key] for key in (True, "literal", "digits")] == [
        strip(texts[place]) for place in (2, 10, 13)
    ]


def shape(tree: object) -> object:
    if isinstance(tree, dict):
        return {key: shape(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [shape(value) for value in tree]
    return str if isinstance(tree, str) else tree


def test_yaml_styles_stay():
    written = (
        read_yaml(RAILS)
        .render(
            {
                0: "Hallo, Welt",
                1: "Geht's",
                2: "Tee",
                5: "Text",
                10: "Eins\n  zwei\n",
                11: "eins\nzwei",
            },
            "",
        )
        .decode()
    )
    for part in (
        "  hello: Hallo, Welt   # plain\n  \"no\": 'Geht''s'\n  yes: \"Tee\"\n  count: 12\n",
        "      - {title: Text, \"other\": [a, 'b c']}\n",
        "  literal: |\n    Eins\n      zwei\n  folded: >-\n    eins\n\n    zwei\n\n\n  kept: |+\n",
    ):
        assert part in written


STYLES = st.sampled_from([None, "'", '"', "|", ">"])


@settings(deadline=None)
@given(TREES, STYLES, st.sampled_from([True, False, None]), st.booleans(), st.data())
def test_arbitrary_yaml(tree, style, flow, unicode, data):
    content = yaml.safe_dump(
        tree, default_style=style, default_flow_style=flow, allow_unicode=unicode, width=30
    ).encode()
    try:
        tree = yaml.load(content, yaml.CSafeLoader)
    except yaml.YAMLError:
        return  # PyYAML writes some texts in ways that it can't read
    document = read_yaml(content)
    assert document.render({}, "") == content
    count = len(document.units)
    texts = data.draw(st.lists(TEXT, min_size=count, max_size=count))
    # Line ends around a text stay those of its source.
    expected = [
        re.match("\n*", unit.source)[0] + text.strip("\r\n") + re.search("\n*\\Z", unit.source)[0]
        if text.strip("\r\n")
        else text
        for unit, text in zip(document.units, texts, strict=True)
    ]
    written = document.render(all_of(texts), "").decode()
    for loader in (yaml.CSafeLoader, yaml.SafeLoader):
        assert yaml.load(written, loader) == translated(tree, list(expected))


@pytest.mark.parametrize("content", ["a: b\n  \t\nc: d\n", "b\n\t", "- b\n \t\n# e\n"])
def test_tabs_after_a_plain_text(content):
    written = read_yaml(content).render({0: "x: y"}, "").decode()
    tree = yaml.load(content, yaml.CSafeLoader)  # PyYAML refuses tabs that libyaml and YAML allow
    assert yaml.load(written, yaml.CSafeLoader) == translated(tree, ["x: y", "d"])


def test_libyaml_and_pyyaml_have_the_same_places(monkeypatch):
    fast = read_yaml(RAILS)
    monkeypatch.setattr("transformer_mt.formats.yaml_values._Loader", yaml.SafeLoader)
    slow = read_yaml(RAILS)
    texts = all_of(["Text"] * len(fast.units))
    assert slow.units == fast.units and slow.render(texts, "") == fast.render(texts, "")


@pytest.mark.parametrize(
    "content, message",
    [
        ("a: b\nc: [d\n", "x.yml, line 3: not YAML"),
        ('a: "b\n', "x.yml, line 2: not YAML"),
        ("a: b\n\tc: d\n", "x.yml, line 2: not YAML"),
        ("ä: b\nc: \x07\n", r"x.yml, line 2: not YAML: U\+0007 is not allowed"),
        ("[" * 100_000, "x.yml, line 1: nested too deeply"),
        ("- " * 100_000, "x.yml, line 1: nested too deeply"),
        (b"a: b\nc: \xe4\n", "x.yml, line 2: not UTF-8"),
        ("a: *nothing\n---\n]", "x.yml, line 3: not YAML"),
    ],
)
def test_what_is_wrong_in_yaml_is_told_with_its_place(content, message):
    with pytest.raises(UserError, match=message):
        read_yaml(content)


def test_yaml_runs_nothing_and_grows_nothing():
    bomb = "a: &a [x]\n" + "".join(
        f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    )
    assert [unit.source for unit in read_yaml(bomb).units] == ["x"]
    assert not read_yaml("a: !!python/object/apply:os.system [x]\n").units[1:]


# .properties


def java_properties(text: str) -> dict[str, str]:
    """Reads as java.util.Properties.load documents it: natural lines, then logical ones."""
    logical, open_line = [], None
    for line in re.split("\r\n|\r|\n", text):
        line = line.lstrip(" \t\f")
        if open_line is None and (not line or line[0] in "#!"):
            continue
        whole = (open_line or "") + line
        slashes = len(line) - len(line.rstrip("\\"))
        if slashes % 2:
            open_line = whole[:-1]
        else:
            logical.append(whole)
            open_line = None
    if open_line:
        logical.append(open_line)
    found = {}
    for line in logical:
        at = 0
        while at < len(line) and line[at] not in "=: \t\f":
            at += 2 if line[at] == "\\" else 1
        key, rest = line[:at], line[at:].lstrip(" \t\f")
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(" \t\f")
        found[java_unescaped(key)] = java_unescaped(rest)
    return found


def java_unescaped(text: str) -> str:
    result, at = "", 0
    while at < len(text):
        if text[at] != "\\":
            result += text[at]
            at += 1
        elif text[at + 1 : at + 2] == "u":
            result += chr(int(text[at + 2 : at + 6], 16))
            at += 6
        else:
            letter = text[at + 1 : at + 2]
            result += {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}.get(letter, letter)
            at += 2
    return result.encode("utf-16", "surrogatepass").decode("utf-16")


PROPERTIES = r"""# A comment \
! another = one

hello=Hello
  spaced\ \:\ key  :   Value with \u00fc and \\ and trailing \u0020
no.separator value
long=one two \
     three four \
     five
    lines: first\n\
    second\n\
    third
empty=
argument=Can''t open {0}
plain=It's open
=without key
last=end\
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
@pytest.mark.parametrize("cut", [0, 1])
def test_properties_without_translations_stay(newline, encoding, cut):
    text = PROPERTIES.replace("Hello", "Grüße")
    content = text[: len(text) - cut].replace("\n", newline).encode(encoding)
    assert read_properties(content).render({}, "") == content


def test_properties_units_are_named_by_their_keys():
    assert [(unit.name, unit.source) for unit in read_properties(PROPERTIES).units] == [
        ("hello", "Hello"),
        ("spaced : key", "Value with ü and \\ and trailing  "),
        ("no.separator", "value"),
        ("long", "one two three four five"),
        ("lines", "first\nsecond\nthird"),
        ("argument", "Can't open {0}"),
        ("plain", "It's open"),
        ("", "without key"),
        ("last", "end"),
    ]


def test_properties_are_written_as_their_neighbours():
    written = read_properties(PROPERTIES).render(
        {
            0: "Grüße 😀",
            2: "= Wert",
            3: "eins zwei drei vier fünf sechs",
            4: "eins\nzwei",
            5: "Öffnen von {0} geht's nicht",
            6: "'s ist offen",
        },
        "",
    )
    text = written.decode("ascii")
    for part in (
        "\nhello=Gr\\u00fc\\u00dfe \\ud83d\\ude00\n",
        "\nno.separator \\= Wert\n",
        "\nlong=eins zwei \\\n     drei vier \\\n     f\\u00fcnf sechs\n",
        "\n    lines: eins\\n\\\n    zwei\n",
        "\nargument=\\u00d6ffnen von {0} geht''s nicht\nplain='s ist offen\n",
    ):
        assert part in text
    assert "long" in java_properties(text)


@pytest.mark.parametrize(
    "content, expected",
    [
        ("a=é\nb=x".encode(), "a=é\nb=ü".encode()),
        ("a=é\nb=x".encode("latin-1"), "a=é\nb=\\u00fc".encode("latin-1")),
        (b"b=x", b"b=\\u00fc"),
    ],
)
def test_properties_in_utf_8_have_no_escapes(content, expected):
    document = read_properties(content)
    assert document.render({len(document.units) - 1: "ü"}, "") == expected


@given(
    st.text(
        st.sampled_from("ab=: \t\\\n\r#!ü\f'{0") | st.characters(exclude_categories=["Cs", "Co"])
    )
)
def test_arbitrary_properties_are_read_as_java_does(text):
    # A malformed \u is an error in Java too.
    text = text.replace("\\u", "\\x").removeprefix("\ufeff")
    document = read_properties(text.encode())
    assert document.render({}, "") == text.encode()
    expected = {key: value for key, value in java_properties(text).items() if value.strip()}
    found = {unit.name: unit.source for unit in document.units}
    for key, value in expected.items():
        assert found[key] in (value, value.replace("''", "'"))


@given(st.lists(TEXT.filter(str.strip), min_size=9, max_size=9))
def test_arbitrary_translations_of_properties(texts):
    document = read_properties(PROPERTIES)
    found = java_properties(document.render(all_of(texts), "").decode())
    for unit, text in zip(document.units, texts, strict=True):
        doubled = text.replace("'", "''") if unit.name == "argument" else text
        assert found[unit.name] == doubled


def test_a_wrong_escape_in_properties_is_told_with_its_place():
    with pytest.raises(UserError, match=r"x.properties, line 2: \\u without"):
        read_properties("a=b\nc=\\u00g0\n")

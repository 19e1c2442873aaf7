"""Markdown: markdown-it renders what was read and what was written, and both are compared."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from transformer_mt.formats.document import MARK_END, MARK_START, MARKUP
from transformer_mt.utils.errors import UserError

markdown_it = pytest.importorskip("markdown_it")
from transformer_mt.formats.markdown import MarkdownDocument  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("docs/*.md")), ROOT / "README.md", ROOT / "README.zh.md"]

PAGE = """\
---
title: Front matter
---
# Title *here* #

Some **bold** text, `code`, a [link *em*](http://a.b/c "T") and ![img](x.png)
after break\\
again. A [ref] and [other][ref], ***both** x*, foo_bar_baz, https://x.y/a_b?c=1.
See <https://auto.link> &amp; \\*stars\\* <b>html</b> <br> <kbd>Ctrl</kbd>.[^1]

[ref]: http://example.org
[^1]: Foot note text.

> [!NOTE]
> Quoted *text*
> over lines\x20\x20
> and more

- [x] Done item
  continued
- 1. nested
     deep

| A | B \\| C |
|---|---|
| cell `a\\|b` | **x** y |

```
code
```

    indented code

<div>
block of HTML
</div>

Setext
===

中文段落
第二行 **粗体**。
"""


def read(text: str) -> MarkdownDocument:
    return MarkdownDocument(text.encode("utf-8", "surrogatepass"), "page.md", ("en", "de"))


def shown(text: str) -> str:
    return text.replace(MARK_START, "⟦").replace(MARK_END, "⟧")


def parser() -> markdown_it.MarkdownIt:
    return markdown_it.MarkdownIt("commonmark").enable(["table", "strikethrough"])


def rendered(text: str) -> str:
    """The page without blanks, because lines are joined."""
    return "".join(parser().render(text).split())


def blocks(text: str) -> list[tuple[str, str]]:
    """The blocks of a page, with what is in those that have no units."""
    found = parser().parse(text)
    return [(token.type, "" if token.type == "inline" else token.content) for token in found]


def in_capitals(source: str) -> str:
    """A translation that keeps the markup."""
    parts = re.split(f"({MARKUP.pattern})", source)
    return "".join(part if MARKUP.fullmatch(part) else part.upper() for part in parts)


def translate(document: MarkdownDocument, translation=lambda source: source) -> str:
    translations = {place: translation(unit.source) for place, unit in enumerate(document.units)}
    return document.render(translations, "model").decode()


def test_units_are_the_texts_with_their_markup_between_marks():
    assert [(unit.name, shown(unit.source)) for unit in read(PAGE).units] == [
        ("line 4", "Title ⟦*⟧here⟦*⟧"),
        (
            "line 6",
            'Some ⟦**⟧bold⟦**⟧ text, ⟦`code`⟧, a ⟦[⟧link ⟦*⟧em⟦*⟧⟦](http://a.b/c "T")⟧ and '
            "⟦![img](x.png)⟧ after break⟦\n⟧again. A ⟦[⟧ref⟦]⟧ and ⟦[⟧other⟦][ref]⟧, "
            "⟦*⟧⟦**⟧both⟦**⟧ x⟦*⟧, foo_bar_baz, ⟦https://x.y/a_b?c=1⟧. See ⟦<https://auto.link>⟧ "
            "& *stars* ⟦<b>⟧html⟦</b>⟧ ⟦\n⟧ ⟦<kbd>Ctrl</kbd>⟧.",
        ),
        ("line 12", "Foot note text."),
        ("line 14", "Quoted ⟦*⟧text⟦*⟧ over lines⟦\n⟧and more"),
        ("line 19", "Done item continued"),
        ("line 21", "nested deep"),
        ("line 24", "A"),
        ("line 24", "B | C"),
        ("line 26", "cell"),
        ("line 26", "⟦**⟧x⟦**⟧ y"),
        ("line 38", "Setext"),
        ("line 41", "中文段落第二行 ⟦**⟧粗体⟦**⟧。"),
    ]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_pages_of_every_kind_keep_their_structure(end):
    page = PAGE.replace("\n", end)
    document = read(page)
    assert document.render({}, "model") == page.encode()
    assert rendered(translate(document)) == rendered(page)
    assert translate(read(translate(document))) == translate(document)
    written = translate(document, in_capitals)
    assert blocks(written) == blocks(page)
    assert "# TITLE *HERE* #" in written and "front matter" in written.lower()
    assert "> [!NOTE]" + end + "> QUOTED *TEXT* OVER LINES  " + end + "> AND MORE" in written
    assert "| A | B \\| C |" in written and "| CELL `a\\|b` | **X** Y |" in written
    assert "A [REF][ref] and".upper().replace("[REF][REF]", "[REF][ref]") in written


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_projects_own_pages_are_written_as_they_were_read(path):
    page = path.read_text("utf-8")
    document = read(page)
    assert document.units
    assert document.render({}, "model").decode() == page
    assert rendered(translate(document)) == rendered(page)
    assert blocks(translate(document, in_capitals)) == blocks(page)
    one = document.render({0: "x"}, "model").decode()
    half = len(page.split("\n")) // 2
    assert one.split("\n")[-half:] == page.split("\n")[-half:]


@pytest.mark.parametrize(
    "translation",
    [
        "# kein Titel",
        "- keine Liste",
        "1. keine Liste",
        "1) keine Liste",
        "> kein Zitat",
        "+ nichts",
        "***",
        "---",
        "===",
        "```",
        "~~~",
        "    kein Code",
        "<div>",
        "<!-- x",
        "[x]: y",
        "|---| x",
        "a * b * c _d_ `e` [f](g) ![h](i) <j> &amp; \\n ~~k~~",
        "zwei\nZeilen\n\nund mehr",
        "\\",
        "#",
        "C #",
        "",
    ],
)
@pytest.mark.parametrize(
    "page",
    ["Text\n", "# Text\n", "Text\n---\n", "- Text\n- b\n", "> Text\n", "|Text|\n|--|\n|b|\n"],
)
def test_text_that_looks_like_markup_stays_text(page, translation):
    document = read(page)
    written = document.render({0: translation}, "model").decode()
    before, after = parser().parse(page), parser().parse(written)
    if translation:
        assert [token.type for token in after] == [token.type for token in before]
        inline = next(token for token in after if token.type == "inline")
        assert {child.type for child in inline.children} <= {"text"}
        assert "".join(inline.content.split()) or translation == ""
        text = "".join(child.content for child in inline.children)
        assert text.split() == translation.split()


@pytest.mark.parametrize(
    ("source", "translation", "written"),
    [
        # Beside punctuation, emphasis between letters needs a space.
        ("**Note:** read this", "⟦**⟧注意：⟦**⟧请读", "**注意：** 请读"),
        ("**Note** this", "⟦**⟧注意⟦**⟧这个", "**注意**这个"),
        # Pieces that were lost, doubled, in a wrong order or made up.
        ("a **b** c", "a b⟦**⟧ c", "a b c"),
        ("a **b** c", "⟦**⟧a⟦**⟧ ⟦**⟧b⟦**⟧ c", "**a** b c"),
        ("a **b *c* d** e", "⟦**⟧a⟦*⟧b⟦**⟧c⟦*⟧", "**ab**c"),
        ("a `x` b `y` c", "a ⟦`y`⟧⟦`y`⟧⟦`z`⟧ b", "a `y` b`x`"),
        ("see [the page](u)", "⟦](u)⟧siehe⟦[⟧", "siehe"),
        ("see ![a](u) there", "dort", "dort![a](u)"),
    ],
)
def test_markup_of_a_translation_is_mended(source, translation, written):
    marked = translation.replace("⟦", MARK_START).replace("⟧", MARK_END)
    assert read(f"{source}\n").render({0: marked}, "m").decode() == f"{written}\n"


words = st.text(alphabet="ab X1*_~`[]()!<>#|&\\-+=.: \n\t中。é", max_size=40)
MARKUP_WORDS = (
    "a Word ** * _ __ ~~ ` `` [a](b) [a] ![i](j) <b> </b> \\ &amp; | |--| 中 http://x.y/z"
)
WORDS = st.sampled_from(
    [*MARKUP_WORDS.split(), "\n", "\n\n", "  \n", "\\\n", "> ", "- ", "1. ", "# ", " ", "\t", "\r"]
) | st.sampled_from(["\n[a]: u\n", "\n```\n", "[^1]", "***", "~~~~", "\r\n", "<kbd>", "</kbd>"])


@given(st.lists(WORDS, max_size=25).map("".join) | words)
@example("**a****b**")
@example("*a **b* c**")
@example("a ~~~b~~~ c")
@example("a****a*a***")
@example("~~~~\\~~~~")
@example("\\![i](j)")
@example("|a|\n|--|\n|b \\| c|d|")
@example("\ufeffa *b*")
@example("a\x00b *c*")
@example("a\u2028b *c*\x0c\n# d")
def test_any_text_is_written_as_it_was_read(page):
    document = read(page)
    assert document.render({}, "model").decode() == page
    written = translate(document)
    assert blocks(written) == blocks(page)
    # Which of two pairs of `*` in each other a `*` belongs to, the text of a unit does not show.
    if not re.search(r"<(em|strong|s)>(?:(?!</\1>).)*<\1>", rendered(page)):
        assert rendered(written) == rendered(page)


@given(
    st.lists(WORDS, max_size=25).map("".join),
    st.lists(WORDS | st.integers(0, 9), max_size=8),
)
def test_any_translation_leaves_the_blocks_as_they_are(page, parts):
    document = read(page)

    def translation(source):
        pieces = MARKUP.findall(source) or [""]
        return "w" + "".join(
            part if isinstance(part, str) else pieces[part % len(pieces)] for part in parts
        )

    written = translate(document, translation)
    assert [kind for kind, _ in blocks(written)] == [kind for kind, _ in blocks(page)]


def test_without_markdown_it_the_message_says_what_to_install():
    code = (
        "import sys; sys.modules['markdown_it'] = None\n"
        "from transformer_mt.formats.markdown import MarkdownDocument\n"
        "from transformer_mt.utils.errors import UsageError\n"
        "try:\n    MarkdownDocument(b'x', 'page.md', ('en', 'de'))\n"
        "except UsageError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert "pip install markdown-it-py" in done.stdout, done.stderr


def test_bytes_that_are_not_utf_8_are_refused():
    with pytest.raises(UserError, match=r"page\.md is not UTF-8 \(byte 1\)"):
        MarkdownDocument(b"a\xff", "page.md", ("en", "de"))


@pytest.mark.parametrize(
    "page", ["[" * 5000, "> " * 3000 + "a", "*a " * 5000, "`" * 9000, "<" * 9000]
)
def test_deep_nesting_is_read(page):
    document = read(page)
    assert document.render({}, "m").decode() == page

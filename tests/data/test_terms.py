"""Lists of terms, and where terms are in a text."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_mt.data.terms import Term, Terms, has_form, parse, read
from transformer_mt.utils.errors import UserError


def found(text, *sources, language="en"):
    terms = Terms([Term(source, ("x",)) for source in sources], language)
    return [text[own.start : own.end] for own in terms.find(text)]


def test_terms_are_whole_words_in_any_case():
    assert found("The main window. Main Window, domain windows", "main window") == [
        "main window", "Main Window",
    ]  # fmt: skip
    assert found("Open the CELL and the Cell", "Cell") == ["Cell"]
    assert found("It is in the US, not with us", "US") == ["US"]
    assert found("C++ and C", "C++", "C") == ["C++", "C"]


def test_the_longer_of_two_terms_counts():
    text = "the print preview window shows a print"
    assert found(text, "print", "print preview", "preview window") == ["print preview", "print"]


def test_languages_without_spaces():
    assert found("打开主窗口和打印预览Cell", "窗口", "打印预览", "Cell", language="zh") == [
        "窗口", "打印预览", "Cell",
    ]  # fmt: skip


def test_a_later_entry_replaces_earlier_ones():
    terms = Terms([Term("a", ("x",)), Term("a", ("y",)), Term("a", ("z",), True)], "en")
    assert [own.term.forms for own in terms.find("a b")] == [("y",), ("z",)]


WORDS = st.sampled_from(["main", "window", "cell", "Cell", "print", "x", ".", "-", "é"])


@given(st.lists(WORDS, max_size=12), st.lists(st.lists(WORDS, min_size=1, max_size=3), max_size=4))
def test_against_a_search_word_by_word(words, sources):
    """By the definition, for texts whose words are separated by spaces."""
    text = " ".join(words)
    sources = [
        " ".join(source) for source in sources if any(any(map(str.isalnum, w)) for w in source)
    ]
    expected, at = [], 0
    while at < len(words):
        best = 0
        for source in sources:
            parts = source.split()
            own = words[at : at + len(parts)]
            same = own == parts or (source == source.lower() and [w.lower() for w in own] == parts)
            if same:
                best = max(best, len(parts))
        if best:
            expected.append(" ".join(words[at : at + best]))
        at += best or 1
    assert found(text, *sources) == expected


def test_a_file(tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_text(
        "# English\tGerman\n\ncell\tZelle\tZellen\nwindow\tFenster\nbox\tKiste\tforbidden\n",
        "utf-8",
    )
    assert read(path, ("en", "de")) == [
        Term("cell", ("Zelle", "Zellen")),
        Term("window", ("Fenster",)),
        Term("box", ("Kiste",), is_forbidden=True),
    ]
    path.write_text("cell\tZelle\nwindow\n")
    with pytest.raises(UserError, match=re.escape(f"{path}, line 2")):
        read(path, ("en", "de"))


def test_a_translation_that_is_called_forbidden():
    assert parse(["verboten", "forbidden"]) == Term("verboten", ("forbidden",))
    assert parse(["Verbot", "ban", "forbidden", "forbidden"]).is_forbidden


def test_forms_in_a_text():
    term = Term("cell", ("Zelle", "Zellen"))
    assert has_form(term, "In den zellen.", "de")
    assert not has_form(term, "Zellenname", "de")
    assert has_form(Term("window", ("窗口",)), "打开窗口。", "zh")
    assert has_form(Term("C++", ("C++",)), "Es ist C++.", "de")

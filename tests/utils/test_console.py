"""What people read: no control characters, and paths that can be typed."""

import io
import subprocess
import sys
import unicodedata
from datetime import datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support import demo_pairs, make_config, make_model_directory
from transformer_mt import cli
from transformer_mt.utils import console

# Clears the screen, sets the title, and shows what follows from right to left.
EVIL = "\x1b[2J\x1b]0;title\x07\x9b31m\u202e\u2066\u2028\r\x00"


def is_harmless(text):
    return not any(
        (unicodedata.category(c) == "Cc" and c not in "\n\t")
        or unicodedata.bidirectional(c)
        in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
        or c in "\u2028\u2029"
        for c in text
    )


@given(st.text())
@example("a\tb\n\x1b[1m é \u202e\u2029שלום\u200f")
@example(EVIL)
@example("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029\x7f\x80\x85\x9f")
def test_what_is_visible(text):
    shown = console.visible(text)
    assert is_harmless(shown)
    assert is_harmless(text) == (shown == text)


@pytest.mark.parametrize(
    ("command", "character", "encoding"),
    [
        ("compare --reference a a b", "\u732b", "latin-1"),
        ("compare --reference a a b", "\u732b", "utf-8"),
        ("evaluate --reference a --hypothesis b --groups", "\u2013", "ascii"),  # 1 to 2 times
    ],
)
def test_a_terminal_that_lacks_characters_shows_their_escapes(
    command, character, encoding, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for name, word in (("a", "\u732b"), ("b", "Kater")):
        lines = [f"Die {word} Nummer {number} schl\u00e4ft.\n" for number in range(20)]
        (tmp_path / name).write_text("".join(lines), encoding="utf-8")
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding))
    assert cli.main(command.split()) == 0
    text = printed.getvalue().decode(encoding)
    assert (character if encoding == "utf-8" else f"\\u{ord(character):04x}") in text


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """In a folder whose name a shell would take apart."""
    folder = tmp_path_factory.mktemp("console") / "R&D $HOME 'x'"
    return make_model_directory(folder / "model", demo_pairs(100), make_config(folder))


# ---- Paths in commands ----


@pytest.mark.parametrize(
    "path", ["a", "b_c-1.2", "a b", "R&D", "it's", "$HOME", "~", "-rf", "--help", "a\nb", "ü", "*"]
)
def test_a_quoted_path_can_be_typed(path, tmp_path):
    (tmp_path / path).write_text("")
    command = f"ls -d {console.quoted(path)}"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout in (f"{path}\n", f"./{path}\n")


# ---- Warnings that repeat, and the log of a run ----


def test_warnings_of_a_kind_are_counted_after_the_third(capsys):
    for line in range(1, 84):
        console.warn(f"line {line} is long", kind="lines were translated in parts")
    console.warn("another kind", kind="others")
    said = capsys.readouterr().err.splitlines()
    assert said[:3] == [f"warning: line {line} is long" for line in (1, 2, 3)]
    assert said[3:] == ["warning: another kind"]
    console.say_counts()
    console.say_counts()
    assert capsys.readouterr().err == "... and 80 more lines were translated in parts\n"


def test_the_log_keeps_what_was_printed_before_it_was_opened(tmp_path, capsys):
    console.end_log()
    console.say("before")
    console.keep_log(tmp_path / "train.log")
    console.show(f"result {EVIL}\nin two lines")
    console.say("\udcff")  # a byte of a name that is not UTF-8
    console.end_log()
    console.say("after")
    lines = (tmp_path / "train.log").read_text(encoding="utf-8").splitlines()
    texts = [line[21:] for line in lines]
    shown = console.visible(f"result {EVIL}\nin two lines").split("\n")
    assert texts == ["before", *shown, "\\udcff"]
    assert all(datetime.fromisoformat(line[:19]) for line in lines)
    assert is_harmless("".join(lines))

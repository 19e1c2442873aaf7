"""Lines as they come: of files, and through pipes with their pauses."""

import bz2
import gzip
import lzma
import os
import threading
import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from transformer_mt.decoding import lines as lines_module
from transformer_mt.decoding.lines import arriving, in_windows, input_lines
from transformer_mt.utils.console import say_counts
from transformer_mt.utils.errors import UserError


def piped(*writes, pause=0.15):
    """The windows that come of these writes, with pauses between them."""
    reader, writer = os.pipe()

    def write():
        for number, block in enumerate(writes):
            if number:
                time.sleep(pause)
            os.write(writer, block)
        os.close(writer)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        return list(arriving(reader, "stdin"))
    finally:
        thread.join()
        os.close(reader)


# ---- Windows ----


@pytest.fixture
def small_windows(monkeypatch):
    monkeypatch.setattr(lines_module, "WINDOW", 3)


def test_a_file_is_cut_into_windows(small_windows):
    assert list(in_windows(range(8))) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert list(in_windows([])) == []


def test_a_pause_ends_a_window(small_windows):
    assert piped(b"1\n2\n", b"3\n", b"4\n5\n6\n7\n") == [
        ["1", "2"], [], ["3"], [], ["4", "5", "6"], ["7"]
    ]  # fmt: skip


def test_a_pause_within_a_line(small_windows):
    assert piped(b"1\ntw", b"o\nth", b"ree") == [["1"], [], ["two"], [], ["three"]]
    # After whole windows too, what is translated must come out.
    assert piped(b"1\n2\n3\nfo", b"ur") == [["1", "2", "3"], [], ["four"]]


def test_a_fast_writer_waits_for_a_slow_reader():
    """The pipe is all that is read ahead of what was asked for."""
    reader, writer = os.pipe()
    written = []

    def write():
        for _ in range(400):
            written.append(os.write(writer, b"x" * 99 + b"\n" + b"y\n" * 5000))
        os.close(writer)

    thread = threading.Thread(target=write)
    thread.start()
    windows = arriving(reader, "stdin")
    next(windows)
    time.sleep(0.2)
    assert sum(written) < 300_000
    assert 1 + sum(map(len, windows)) > 2_000_000 - lines_module.WINDOW
    thread.join()
    os.close(reader)


@given(st.binary(max_size=40), st.lists(st.integers(1, 20), max_size=4))
def test_a_pipe_has_the_lines_of_a_file(tmp_path_factory, content, cuts):
    """However it is cut into blocks."""
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(gzip.compress(content) if len(content) % 2 else content)
    # What is another encoding, or has the lines of old Macintoshes, is refused.
    assume(not {0, 13, 254, 255} & set(content))
    blocks, start = [], 0
    for cut in [*cuts, len(content)]:
        blocks.append(content[start : start + cut])
        start += cut
    windows = piped(*filter(None, blocks), pause=0)
    assert [line for window in windows for line in window] == list(input_lines(path))


# ---- Text as it is ----


def test_bytes_that_are_not_utf8(tmp_path, capsys):
    path = tmp_path / "in.txt"
    path.write_bytes("one\nM\xe4rz\nthree\n\xff\xfe".encode("latin-1"))
    assert list(input_lines(path)) == ["one", "M\ufffdrz", "three", "\ufffd\ufffd"]
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 2
    assert f"{path}, line 2" in warnings[0] and f"{path}, line 4" in warnings[1]
    assert "not UTF-8" in warnings[0] and "U+FFFD" in warnings[0]
    # Those of lines that are left out have been said before.
    assert list(input_lines(path, 2)) == ["three", "\ufffd\ufffd"]
    assert capsys.readouterr().err.splitlines() == warnings[1:]
    say_counts()  # after three warnings of a kind, others are only counted
    assert capsys.readouterr().err == ""
    assert piped(b"x\n", b"\xff\n") == [["x"], [], ["\ufffd"]]
    assert "stdin, line 2: not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [b"", b"\n", b"\r\n"])
def test_byte_order_mark_line_ends_and_a_missing_last_newline(tmp_path, ending, last, capsys):
    path = tmp_path / "in.txt"
    expected = ["one", "", "\ufefftwo\u2028\x85\x0b\x0c\x1c.", "a\rb", "last"]
    content = b"\xef\xbb\xbf" + ending.join(row.encode() for row in expected) + last
    path.write_bytes(content)
    assert list(input_lines(path)) == expected
    assert piped(content) == [expected]
    assert list(input_lines(path, 1)) == expected[1:]
    assert capsys.readouterr().err == ""


COMPRESS = [gzip.compress, bz2.compress, lzma.compress]


@pytest.mark.parametrize("compress", COMPRESS)
def test_compressed_text_in_a_pipe(compress):
    content = compress(b"".join(b"%d\n" % number for number in range(5000)))
    # The first byte alone does not say what it is.
    windows = piped(content[:1], content[1:20], content[20:], pause=0.05)
    assert [line for window in windows for line in window] == list(map(str, range(5000)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("Where is it?\n".encode("utf-16"), "stdin: the encoding is UTF-16,.* < FILE"),
        ("Where is it?\n".encode("utf-16-le"), "stdin: the encoding is UTF-16LE"),
        (b"\x28\xb5\x2f\xfd....\n", r"stdin: a \.zst file"),
        (b"one\rtwo\r", "stdin: its lines end in a carriage return alone"),
        (gzip.compress(b"text\n")[:-9], "stdin: can't be read to its end"),
    ],
    ids=["utf-16", "utf-16-le", "zst", "cr", "cut"],  # the bytes hold the time
)
def test_what_is_no_text_in_a_pipe(content, message):
    with pytest.raises(UserError, match=message):
        piped(content[:1], content[1:], pause=0.05)


def test_the_first_line_comes_out_at_once():
    """Nothing waits for more than the first line to find out what the text is."""
    reader, writer = os.pipe()
    windows = arriving(reader, "stdin")
    os.write(writer, b"PK\n")
    assert next(windows) == ["PK"]
    os.close(writer)
    assert not any(windows)
    os.close(reader)

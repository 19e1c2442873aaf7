"""Files appear whole or not at all, and lines end in \\n alone."""

import errno
import gzip
import hashlib
import os
import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_mt.errors import Interrupted, UsageError, UserError
from transformer_mt.files import atomic, byte_lines, content_hash, count_lines, lines

# Everything that some other reader of text takes for the end of a line.
NO_ENDS = "a\x0bb\x0cc\x1cd\x85e\u2028f\u2029g\rh"


# ------------------------------------------------------------------------------------- reading


def test_lines_end_in_newline_alone(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(f"{NO_ENDS}\nsecond\r\n\n\r\nlast".encode())
    assert list(lines(path)) == [NO_ENDS, "second", "", "", "last"]
    assert count_lines(path) == 5


@pytest.mark.parametrize(
    "content, expected",
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\n\n", ["a", ""]),
        (b"a\r\r\n", ["a\r"]),
        (b"a\r", ["a\r"]),  # nothing ends this line, so its \r is text
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),  # only the first is a mark
        (b"\xef\xbb\xbf", [""]),
        (b"a\0b\n", ["a\0b"]),
    ],
)
def test_the_ends_of_files(tmp_path, content, expected):
    path = tmp_path / "text"
    path.write_bytes(content)
    assert list(lines(path)) == expected
    assert count_lines(path) == len(expected)


# A line that begins with a byte order mark or ends in \r reads differently, by definition.
any_line = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])).filter(
    lambda line: not line.endswith("\r") and not line.startswith("\ufeff")
)


@given(
    text=st.lists(st.tuples(any_line, st.sampled_from(["\n", "\r\n"]))),
    last=any_line,
    compressed=st.booleans(),
)
def test_lines_are_what_was_written(text, last, compressed, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / ("any.gz" if compressed else "any")
    content = ("".join(line + end for line, end in text) + last).encode()
    path.write_bytes(gzip.compress(content) if compressed else content)
    expected = [line for line, _ in text] + ([last] if last else [])
    assert list(lines(path)) == expected
    assert list(byte_lines(path)) == [line.encode() for line in expected]
    assert count_lines(path) == len(expected)
    assert content_hash(path) == hashlib.sha256(content).hexdigest()


def test_counting_over_the_blocks_it_reads(tmp_path):
    path = tmp_path / "long"
    path.write_bytes(b"x" * (1 << 20) + b"\n" + b"y" * (1 << 20))
    assert count_lines(path) == 2


def test_invalid_utf8_names_file_line_and_byte(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("gut\nü\n".encode() + "schön".encode("latin-1") + b"\nrest\n")
    found = []
    with pytest.raises(UserError) as caught:
        found.extend(lines(path))
    assert found == ["gut", "ü"]
    assert str(caught.value).startswith(f"{path}, line 3: not UTF-8 (byte 0xf6 at position 4)")
    assert "iconv" in str(caught.value)


def _truncated(content: bytes) -> bytes:
    return gzip.compress(content)[:-12]


def _damaged(content: bytes) -> bytes:
    compressed = bytearray(gzip.compress(content))
    compressed[10] = 0xFF  # the first byte behind the header: a kind of block that there is not
    return bytes(compressed)


def _other_content(content: bytes) -> bytes:
    return gzip.compress(content)[:-8] + bytes(8)  # where the checksum and the size are


@pytest.mark.parametrize("damage", [_truncated, _damaged, _other_content, bytes])
@pytest.mark.parametrize("read", [lambda path: list(lines(path)), count_lines, content_hash])
def test_a_damaged_gz_names_the_file(tmp_path, damage, read):
    path = tmp_path / "text.gz"
    path.write_bytes(damage(random.Random(1).randbytes(3000).hex().encode()))
    with pytest.raises(UserError, match=r"text\.gz: can't be read to its end") as caught:
        read(path)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("read", [lambda path: list(lines(path)), count_lines, content_hash])
def test_what_can_not_be_opened(tmp_path, read):
    with pytest.raises(UsageError, match="no: there is no such file"):
        read(tmp_path / "no")
    with pytest.raises(UsageError, match="can't be read: Is a directory"):
        read(tmp_path)


# ------------------------------------------------------------------------------------- writing


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_content_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "out"
    path.write_text("old")
    with atomic(path) as file:
        file.write(f"ä\r\n{NO_ENDS}\n")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_bytes() == f"ä\r\n{NO_ENDS}\n".encode()
    with atomic(path, "wb") as file:
        file.write(b"\xff\n")
    assert path.read_bytes() == b"\xff\n"
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("old", [None, "old"])
@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        UserError("its own words"),
        UsageError("its own words"),
        Interrupted(2),
        KeyboardInterrupt(),
        # The trouble of another file, which is none of this one's.
        FileNotFoundError(errno.ENOENT, "No such file or directory", "elsewhere"),
        BrokenPipeError(errno.EPIPE, "Broken pipe"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_inside_is_passed_on_and_leaves_no_trace(tmp_path, error, old):
    path = tmp_path / "out"
    if old:
        path.write_text(old)
    with pytest.raises(type(error)) as caught, atomic(path) as file:
        file.write("new")
        raise error
    assert caught.value is error
    assert names(tmp_path) == (["out"] if old else [])
    assert not old or path.read_text() == old


def test_a_write_that_fails_is_about_this_file(tmp_path):
    path = tmp_path / "out"
    with pytest.raises(UserError) as caught, atomic(path) as file:
        file.write("new")
        raise OSError(errno.ENOSPC, "No space left on device")  # as a write would
    assert str(caught.value) == f"{path}: can't be written: No space left on device"
    assert caught.value.exit_code == 1 and names(tmp_path) == []


@pytest.mark.parametrize(
    "path, reason",
    [
        ("no/out", "No such file or directory"),
        ("file/out", "Not a directory"),
        ("folder", "Is a directory"),
        (".", "Is a directory"),
        ("x" * 300, "File name too long"),
    ],
)
def test_where_nothing_can_be_written(tmp_path, monkeypatch, path, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=f"can't be written: {reason}"), atomic(path) as file:
        file.write("x")
    assert names(tmp_path) == ["file", "folder"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full, as Linux has it")
def test_a_full_device():
    message = "/dev/full: can't be written: No space left"
    with pytest.raises(UserError, match=message), atomic("/dev/full") as file:
        file.write("x")
    assert not os.path.isfile("/dev/full")


def test_devices_and_pipes_stay_what_they_are(tmp_path):
    """A rename would put a file in their place."""
    with atomic(os.devnull) as file:
        file.write("x")
    assert not os.path.isfile(os.devnull)

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()))
    reader.start()
    with atomic(pipe) as file:
        file.write("through\n")
    reader.join(timeout=10)
    assert received == ["through\n"] and pipe.is_fifo()


def test_a_link_is_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real/file")
    with atomic(tmp_path / "link") as file:
        file.write("x")
    assert (tmp_path / "link").is_symlink() and names(tmp_path / "real") == ["file"]
    assert names(tmp_path) == ["link", "real"]

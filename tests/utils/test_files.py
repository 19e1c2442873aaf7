"""Files appear whole or not at all, and lines end in \\n alone."""

import bz2
import errno
import gzip
import hashlib
import lzma
import os
import random
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from transformer_mt.utils import files
from transformer_mt.utils.errors import Interrupted, UsageError, UserError
from transformer_mt.utils.files import atomic, byte_lines, content_of, lines

ROOT = Path(__file__).resolve().parents[2]
# Everything that some other reader of text takes for the end of a line.
NO_ENDS = "a\x0bb\x0cc\x1cd\x85e\u2028f\u2029g\rh"


# ------------------------------------------------------------------------------------- reading


def test_lines_end_in_newline_alone(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(f"{NO_ENDS}\nsecond\r\n\n\r\nlast".encode())
    assert list(lines(path)) == [NO_ENDS, "second", "", "", "last"]
    assert content_of(path).line_count == 5


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
        (b"\0", ["\0"]),
        (b"x" * (1 << 20) + b"\n" + b"y" * (1 << 20), ["x" * (1 << 20), "y" * (1 << 20)]),
    ],
    ids=range(12),
)
def test_the_ends_of_files(tmp_path, content, expected):
    path = tmp_path / "text"
    path.write_bytes(content)
    assert list(lines(path)) == expected
    assert content_of(path).line_count == len(expected)


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
    assume(b"\n" in content or b"\r" not in content)  # those are the lines of old Macintoshes
    path.write_bytes(gzip.compress(content) if compressed else content)
    expected = [line for line, _ in text] + ([last] if last else [])
    assert list(lines(path)) == expected
    assert list(byte_lines(path)) == [line.encode() for line in expected]
    assert content_of(path).line_count == len(expected)
    assert content_of(path).sha256 == hashlib.sha256(content).hexdigest()


def test_invalid_utf8_names_file_line_and_byte(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("gut\nü\n".encode() + "schön".encode("latin-1") + b"\nrest\n")
    found = []
    with pytest.raises(UserError) as caught:
        found.extend(lines(path))
    assert found == ["gut", "ü"]
    assert str(caught.value).startswith(f"{path}, line 3: not UTF-8 (byte 0xf6 at position 4)")
    assert "iconv" in str(caught.value)


WIDE_TEXT = "Schöne neue Welt, liebe Grüße.\n" * 10
# The first two have a mark.
ENCODINGS = ["utf-16", "utf-32", "utf-16-le", "utf-16-be", "latin-1"]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_another_encoding_is_named_with_a_command_that_works(tmp_path, encoding, ending):
    path = tmp_path / f"it's the text{ending}"
    content = WIDE_TEXT.encode(encoding)
    path.write_bytes(gzip.compress(content) if ending else content)
    told = encoding.upper().replace("-LE", "LE").replace("-BE", "BE")
    expected = "line 1: not UTF-8" if encoding == "latin-1" else f"the encoding is {told}, not"
    readers = [lambda path: list(lines(path))]
    readers += [] if encoding == "latin-1" else [content_of, lambda path: list(byte_lines(path))]
    for read in readers:
        with pytest.raises(UserError, match=expected) as caught:
            read(path)
    command = re.search(r"Convert the file: (.*?)(\. For Chinese|$)", str(caught.value))[1]
    command = command.replace("ENCODING", "LATIN1")
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    assert list(lines(tmp_path / "NEW_FILE")) == WIDE_TEXT.splitlines()


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("text", ["Hi", "Où est la gare ?\n"])
def test_short_text_in_another_encoding_without_a_mark(tmp_path, encoding, text):
    (tmp_path / "text").write_bytes(text.encode(encoding))
    with pytest.raises(UserError, match=r"the encoding is UTF-.*, not UTF-8"):
        list(byte_lines(tmp_path / "text"))


def test_what_can_not_be_read_is_named(tmp_path):
    whole = gzip.compress(random.Random(1).randbytes(3000).hex().encode())
    no_block = whole[:10] + b"\xff" + whole[11:]  # a kind of block that there is not
    for read in (lambda path: list(lines(path)), content_of):
        for content in (whole[:-12], no_block, whole[:-8] + bytes(8)):
            (tmp_path / "text.gz").write_bytes(content)
            with pytest.raises(UserError, match=r"text\.gz: can't be read to its end"):
                read(tmp_path / "text.gz")
        for path, problem in (("no", "no such file"), (".", "Is a directory")):
            with pytest.raises(UsageError, match=problem):
                read(tmp_path / path)


def test_the_lines_of_old_macintoshes_are_refused_with_a_command_that_works(tmp_path):
    for content in (b"one\rtwo\r", gzip.compress(b"one\rtwo\r")):
        (tmp_path / "text").write_bytes(content)
        with pytest.raises(UserError, match="carriage return alone") as caught:
            list(lines(tmp_path / "text"))
        _, _, command = str(caught.value).partition("Convert the file: ")
        subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
        assert list(lines(tmp_path / "NEW_FILE")) == ["one", "two"]


COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("name", ["text", "text.xz"])
@pytest.mark.parametrize("compress", COMPRESS.values())
def test_compressed_text_is_known_by_its_content(tmp_path, name, compress):
    path = tmp_path / name
    for rows in (["Käse", ""], [], ["x" * 200_000]):
        content = "".join(f"{row}\n" for row in rows).encode()
        # Files that are joined are one file, as `cat a.gz b.gz` makes it.
        for packed, expected in ((content, rows), (compress(content) * 2, rows * 2)):
            path.write_bytes(packed)
            assert list(lines(path)) == expected
            assert content_of(path).line_count == len(expected)


def test_what_is_compressed_twice_is_named_with_a_command(tmp_path):
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(gzip.compress(b"one\n")))
    with pytest.raises(UserError, match="compressed twice"):
        list(lines(path))


@pytest.mark.parametrize("ending", ["zst", "7z", "zip", "tar", "gztar"])
def test_what_can_not_be_decompressed_is_named_with_a_command(tmp_path, ending):
    begins = {"zst": b"\x28\xb5\x2f\xfd", "7z": b"7z\xbc\xaf\x27\x1c"}
    if ending in begins:
        (tmp_path / "text").write_bytes(begins[ending] + bytes(20))
    else:
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "text").write_text("text")
        made = shutil.make_archive(str(tmp_path / "archive"), ending, tmp_path / "folder")
        os.rename(made, tmp_path / "text")
    ending = rf"\.{ending.removeprefix('gz')}"
    with pytest.raises(UserError, match=f"text: a {ending} file.* Unpack it: .*/text > NEW_FILE"):
        list(byte_lines(tmp_path / "text"))


def test_text_that_begins_like_an_archive(tmp_path):
    (tmp_path / "text").write_bytes(b"BZh9 is a name\nPK too\n")
    assert list(lines(tmp_path / "text")) == ["BZh9 is a name", "PK too"]


@pytest.mark.parametrize(("ending", "decompress"), [
    ("gz", gzip.decompress), ("bz2", bz2.decompress), ("XZ", lzma.decompress),
])  # fmt: skip
@pytest.mark.parametrize("mode", ["w", "wb"])
def test_what_is_written_is_compressed_as_its_name_says(tmp_path, ending, decompress, mode):
    path, again = tmp_path / f"out.de.{ending}", tmp_path / f"again.{ending}"
    text = "Käse\r\n" * 10_000
    for one in (path, again):
        with atomic(one, mode) as file:
            file.write(text if mode == "w" else text.encode())
    assert decompress(path.read_bytes()) == text.encode()
    assert path.read_bytes() == again.read_bytes() and list(lines(path)) == ["Käse"] * 10_000
    assert names(tmp_path) == sorted([path.name, again.name])
    files.write_atomically(path, b"as it is", as_is=True)
    assert path.read_bytes() == b"as it is"


# ------------------------------------------------------------------------------------- writing


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_content_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "out"
    path.write_text("old")
    with atomic(path) as file:
        file.write(f"ä\r\n{NO_ENDS}\n\udcff")  # Python's place of a byte that is not UTF-8
        file.flush()
        assert path.read_text() == "old"
    assert path.read_bytes() == f"ä\r\n{NO_ENDS}\n\\udcff".encode()
    with atomic(path, "wb") as file:
        file.write(b"\xff\n")
    assert path.read_bytes() == b"\xff\n"
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        UserError("its own words"),
        Interrupted(2),
        # The trouble of another file, which is none of this one's.
        FileNotFoundError(errno.ENOENT, "No such file or directory", "elsewhere"),
        BrokenPipeError(errno.EPIPE, "Broken pipe"),
        # As a write would fail, which is about this file.
        OSError(errno.ENOSPC, "No space left on device"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_inside_is_passed_on_and_leaves_no_trace(tmp_path, error):
    is_ours = type(error) is OSError
    path = tmp_path / "out"
    for old in ([], ["out"]):
        with pytest.raises(UserError if is_ours else type(error)) as caught, atomic(path) as file:
            file.write("new")
            raise error
        if is_ours:
            assert str(caught.value) == f"{path}: can't be written: No space left on device"
        else:
            assert caught.value is error
        assert names(tmp_path) == old
        path.write_text("old")
    for place in ("no/out", "out/out", ".", "x" * 300):
        with pytest.raises(UserError, match="can't be written"), atomic(tmp_path / place) as file:
            file.write("x")
    assert names(tmp_path) == ["out"] and path.read_text() == "old"


def test_devices_and_pipes_stay_what_they_are(tmp_path):
    """A rename would put a file in their place."""
    with atomic(os.devnull) as file:
        file.write("x")
    assert not os.path.isfile(os.devnull)

    if os.path.exists("/dev/full"):
        message = "/dev/full: can't be written: No space left"
        with pytest.raises(UserError, match=message), atomic("/dev/full") as file:
            file.write("x")
    with pytest.raises(UserError, match="fd/987: can't be written"), atomic("/dev/fd/987"):
        pass
    (tmp_path / "link").symlink_to("real")
    with atomic(tmp_path / "link") as file:
        file.write("x")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "x"

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()))
    reader.start()
    with atomic(pipe) as file:
        file.write("through\n")
    reader.join(timeout=10)
    assert received == ["through\n"] and pipe.is_fifo()


# ---- Descriptors: what a shell has redirected is written to, and not replaced ----

WRITE_TO = """
import pathlib, sys
from transformer_mt.utils.files import atomic
print("before")
with atomic(pathlib.Path(sys.argv[1])) as file:
    file.write("written\\n")
print("after")
"""


def write_to(path, folder, **streams):
    command = [sys.executable, "-c", WRITE_TO, str(path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=folder, check=True, timeout=60, env=environment, **streams)


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1"])
def test_what_was_redirected_to_is_not_replaced(tmp_path, name):
    path = tmp_path / "log"
    path.write_text("old\n")
    before = path.stat().st_ino
    with open(path, "a") as stdout:  # as >> does
        write_to(name, tmp_path, stdout=stdout)
    assert path.read_text() == "old\nbefore\nwritten\nafter\n"
    with open(path, "w") as stdout:  # as > does
        write_to(name, tmp_path, stdout=stdout)
    assert path.read_text() == "before\nwritten\nafter\n"
    assert path.stat().st_ino == before
    assert names(tmp_path) == ["log"]


# ---- The same file by another name ----


def test_files_are_told_apart_by_what_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("in", "other"):
        (tmp_path / name).write_text(name)
    os.link("in", "hard")
    (tmp_path / "soft").symlink_to("in")
    (tmp_path / "folder").mkdir()
    (tmp_path / "to_folder").symlink_to("folder")
    files.require_distinct({"--output": Path("out")}, {"--input": Path("in"), "--prefix": None})
    files.require_distinct({"--output": Path("other"), "stdout": None}, {"--input": Path("in")})
    same = ["in", "./in", tmp_path / "in", "hard", "soft", "folder/../in", "to_folder/../hard"]
    for name in same:
        message = f"--output {name} and --prefix in are the same file. Write into another one"
        with pytest.raises(UsageError) as caught:
            inputs = {"--input": Path("other"), "--prefix": Path("in")}
            files.require_distinct({"--output": Path(name)}, inputs)
        assert str(caught.value).startswith(message.replace(" ./in", " in"))
    # Neither is there yet.
    for one, other in (("x", "./x"), ("folder/x", "to_folder/x")):
        with pytest.raises(UsageError, match=r"--json .*x and --output .*x are the same file"):
            files.require_distinct({"--output": Path(one), "--json": Path(other)}, {})


def test_streams_and_devices(tmp_path):
    """Descriptors are files too, if a shell has made them so."""
    path = tmp_path / "file"
    path.touch()
    with open(path) as file:
        with pytest.raises(UsageError, match=r"^--output .*file and stdin are the same file"):
            files.require_distinct({"--output": path}, {"stdin": file.fileno()})
        with pytest.raises(UsageError, match=r"^stdout and --input .*file are the same file"):
            files.require_distinct({"stdout": file.fileno()}, {"--input": path})
        with pytest.raises(UsageError, match=r"--output /dev/fd/.* are the same file"):
            files.require_distinct(
                {"--output": Path(f"/dev/fd/{file.fileno()}")}, {"--input": path}
            )
    null = Path(os.devnull)
    files.require_distinct({"--output": null, "--json": null}, {"--input": null})
    reading, writing = os.pipe()
    files.require_distinct({"stdout": writing}, {"stdin": reading})
    for descriptor in (reading, writing):
        os.close(descriptor)


# ---- What a process that was killed has left ----

HOLD = """
import sys
from transformer_mt.utils.files import atomic
with atomic(sys.argv[1]) as file:
    file.write("from another process")
    file.flush()
    print("here", flush=True)
    sys.stdin.read()
"""


def writing_process(path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"here\n"
    return process


def test_what_was_killed_leaves_nothing_for_long(tmp_path):
    path = tmp_path / "out"
    with writing_process(path) as killed:
        killed.kill()
    (left,) = names(tmp_path)
    assert left == f".out.{killed.pid}.tmp"
    # What has another name is none of ours.
    others = [".out.tmp", ".out.x1.tmp", f".other.{killed.pid}.tmp", f".out.{killed.pid}.tmp2"]
    for name in others:
        (tmp_path / name).touch()
    with writing_process(path) as living:
        with atomic(path) as file:
            file.write("x")
        assert names(tmp_path) == sorted([*others, f".out.{living.pid}.tmp", "out"])
        living.stdin.close()
        assert living.wait(timeout=60) == 0
    assert path.read_text() == "from another process"
    assert names(tmp_path) == sorted([*others, "out"])

"""An output file that can be gone on with."""

import bz2
import gzip
import resource

import pytest

from transformer_mt.decoding.lines import resumable_file
from transformer_mt.utils.errors import Interrupted, UsageError, UserError

FROM = {"model": "abc", "--beam-size": 5}


def write(path, lines, resume=False, made_from=FROM, fail=None):
    """Writes what is not there yet, and fails before the line of this number."""
    with resumable_file(path, made_from, 3, resume) as file:
        for number in range(file.lines, lines):
            if number == fail:
                raise Interrupted(2)
            file.write_line(f"line {number}")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def text(lines):
    return "".join(f"line {i}\n" for i in range(lines))


@pytest.fixture
def begun(tmp_path):
    """A file of ten lines, of which seven were written; there is an older one of its name."""
    path = tmp_path / "out"
    path.write_text("older")
    with pytest.raises(Interrupted):
        write(path, 10, fail=7)
    return path


@pytest.mark.parametrize(
    ("ending", "decompress"), [("gz", gzip.decompress), ("bz2", bz2.decompress)]
)
def test_a_compressed_file_is_resumed_too(tmp_path, ending, decompress):
    path = tmp_path / f"out.{ending}"
    with pytest.raises(Interrupted):
        write(path, 10, fail=7)
    assert not path.exists()
    write(path, 10, resume=True)
    assert decompress(path.read_bytes()) == text(10).encode() and names(tmp_path) == [path.name]


def test_what_is_left_is_gone_on_with(begun, tmp_path, capsys):
    assert begun.read_text() == "older"
    assert names(tmp_path) == [".out.partial", ".out.partial.json", "out"]
    partial = tmp_path / ".out.partial"
    assert partial.read_text() == text(7)
    for torn in (text(7), text(6), text(7) + "lin", text(8)[:-1]):
        partial.write_text(torn)
        with pytest.raises(Interrupted):
            write(begun, 10, resume=True, fail=6)
        assert partial.read_text() == text(6)
        messages = capsys.readouterr().err
        assert "going on after line 6" in messages and "6 lines are kept" in messages
    write(begun, 10, resume=True)
    assert begun.read_text() == text(10) and names(tmp_path) == ["out"]


def test_less_than_a_chunk_is_not_kept(tmp_path, capsys):
    path = tmp_path / "out"
    with pytest.raises(Interrupted):
        write(path, 10, fail=2)
    assert names(tmp_path) == [] and capsys.readouterr().err == ""


def test_nothing_to_go_on_with(tmp_path, capsys):
    path = tmp_path / "out"
    write(path, 4, resume=True)
    assert path.read_text() == text(4)
    assert "nothing to continue" in capsys.readouterr().err
    (tmp_path / ".out.partial").write_text("")  # killed before the first lines
    write(path, 5, resume=True)
    assert path.read_text() == text(5) and names(tmp_path) == ["out"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"model": "b"}, "model."), ({"model": "", "--beam-size": 1}, "model, --beam-size.")],
)
def test_another_command_does_not_go_on(begun, tmp_path, changes, named):
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UsageError, match=f"--resume: .*out was begun with another .*{named}"):
        write(begun, 10, resume=True, made_from=FROM | changes)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / ".out.partial.json").write_text("{")
    with pytest.raises(UsageError, match="begun with another model, --beam-size"):
        write(begun, 10, resume=True)
    write(begun, 10)  # anew
    assert begun.read_text() == text(10) and names(tmp_path) == ["out"]


def test_two_at_once(begun, tmp_path):
    with resumable_file(begun, {}, 3, False):
        for resume in (True, False):
            with pytest.raises(UserError, match="out is being written by another process"):
                write(begun, 4, resume)
    assert begun.read_bytes() == b""
    write(begun, 4)


def test_a_link_is_followed(tmp_path):
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "folder" / "out")
    write(link, 2)
    assert link.is_symlink() and (tmp_path / "folder" / "out").read_text() == text(2)


# Within a line, at the end of a chunk, and where the buffer ends.
@pytest.mark.parametrize("limit", [50_000, 101 * 300, 8192 * 4])
def test_a_file_that_can_not_grow_keeps_what_there_is(tmp_path, limit, capsys):
    """As if the disk were full. Lines have some 100 bytes; the buffer of a file holds 80."""
    path = tmp_path / "out"
    whole = [f"{number:0100d}" for number in range(1000)]

    def write_whole(resume):
        with resumable_file(path, {}, 3, resume) as file:
            for line in whole[file.lines :]:
                file.write_line(line)

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for resume in (False, True):  # the second time, there is as little room as before
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            with pytest.raises(UserError, match="out: can't be written: File too large"):
                write_whole(resume)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        kept = (tmp_path / ".out.partial").read_text()
        assert "".join(f"{line}\n" for line in whole).startswith(kept) and len(kept) > limit - 303
        lines = kept.count("\n") // 3 * 3
        said = capsys.readouterr().err
        assert f"{lines:,} lines are kept; to continue, add --resume" in said
        assert (f"going on after line {lines:,}" in said) == resume
    write_whole(resume=True)
    assert path.read_text().splitlines() == whole and names(tmp_path) == ["out"]

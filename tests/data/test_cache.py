"""Entries of the cache are made once, whole or not at all, also by several processes at once."""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from transformer_mt.data.cache import entry
from transformer_mt.utils.errors import Interrupted, UserError


def write(folder: Path) -> None:
    (folder / "file").write_text("whole")


def never(folder: Path) -> None:
    pytest.fail("it is made again")


def is_whole(folder: Path) -> bool:
    return (folder / "file").is_file() and (folder / "file").read_text() == "whole"


def entries(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.name != ".lock")


def test_an_entry_is_made_once(tmp_path):
    folder = tmp_path / "cache" / "a"
    for make in (write, never):
        assert entry(folder, make) == folder and is_whole(folder)
    assert entries(tmp_path / "cache") == ["a"]


def test_a_damaged_entry_is_made_anew(tmp_path, capsys):
    folder = entry(tmp_path / "a", write)
    (folder / "file").write_text("who")
    (folder / "left over").touch()
    assert is_whole(entry(folder, write))
    assert entries(folder) == ["SHA256SUMS", "file"]
    assert capsys.readouterr().err == f"{folder} is damaged; it is made again\n"


@pytest.mark.parametrize("error", [UserError("x"), KeyError("x"), Interrupted(2)], ids=repr)
def test_an_error_leaves_nothing(tmp_path, error):
    def make(folder: Path) -> None:
        write(folder)
        raise error

    with pytest.raises(type(error)) as caught:
        entry(tmp_path / "a", make)
    assert caught.value is error and entries(tmp_path) == []
    entry(tmp_path / "a", write)  # and the lock is free


def test_an_error_of_the_disk_names_the_cache(tmp_path):
    def make(folder: Path) -> None:
        (folder / "no" / "file").write_text("")

    with pytest.raises(UserError, match=r"data\.cache: .*/a: can't be written: No such file"):
        entry(tmp_path / "a", make)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"data\.cache: .*/file/b: can't be written: Not a dir"):
        entry(tmp_path / "file" / "b" / "a", write)


# ---------------------------------------------------------------------------- several processes

# Makes the entry of its first argument; while it does, it waits for the file `go` beside it.
PROGRAM = """
import sys, time
from pathlib import Path
from transformer_mt.data import cache
folder = Path(sys.argv[1])
def make(temporary):
    (folder.parent.parent / f"made by {sys.argv[2]}").touch()
    while not (folder.parent.parent / "go").exists():
        time.sleep(0.01)
    (temporary / "file").write_text("whole")
cache.entry(folder, make)
print((folder / "file").read_text())
"""


def start(folder: Path, name: str) -> subprocess.Popen:
    command = [sys.executable, "-c", PROGRAM, str(folder), name]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )


def wait_until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_of_two_processes_one_makes_it(tmp_path):
    folder = tmp_path / "cache" / "a"
    first = start(folder, "first")
    wait_until((tmp_path / "made by first").exists)
    second = start(folder, "second")
    said = second.stderr.readline()
    assert said == f"another process prepares data in {tmp_path / 'cache'}; waiting for it ...\n"
    (tmp_path / "go").touch()
    for process in (first, second):
        output, _ = process.communicate(timeout=60)
        assert (process.returncode, output) == (0, "whole\n")
    assert not (tmp_path / "made by second").exists()
    assert entries(tmp_path / "cache") == ["a"]


def test_a_cache_that_is_deleted_meanwhile_is_made_again(tmp_path):
    first = start(tmp_path / "cache" / "a", "first")
    wait_until((tmp_path / "made by first").exists)
    second = start(tmp_path / "cache" / "a", "second")
    assert "waiting" in second.stderr.readline()
    shutil.rmtree(tmp_path / "cache")
    first.kill()
    (tmp_path / "go").touch()
    first.communicate(timeout=60)
    output, messages = second.communicate(timeout=60)
    assert (second.returncode, output) == (0, "whole\n"), messages


def test_one_that_is_killed_holds_nobody_up(tmp_path):
    folder = tmp_path / "cache" / "a"
    process = start(folder, "first")
    wait_until((tmp_path / "made by first").exists)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    (left,) = entries(tmp_path / "cache")
    assert left.startswith(".a.") and left.endswith(".tmp")
    assert is_whole(entry(tmp_path / "cache" / "b", write))
    assert is_whole(entry(folder, write))
    assert entries(tmp_path / "cache") == ["a", "b"]


def test_a_whole_entry_needs_no_lock(tmp_path):
    """A long build of another corpus does not hold up a run that has all it needs."""
    whole = entry(tmp_path / "cache" / "whole", write)
    process = start(tmp_path / "cache" / "a", "first")
    wait_until((tmp_path / "made by first").exists)
    assert entry(whole, never) == whole and process.poll() is None
    process.kill()
    process.communicate(timeout=60)

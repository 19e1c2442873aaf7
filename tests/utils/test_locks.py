"""Locks of files and folders."""

import os
import threading
import time

import pytest

from transformer_mt.utils.files import open_locked

FLAGS = os.O_RDWR | os.O_CREAT


def test_only_one_holds_it(tmp_path):
    held = open_locked(tmp_path / "file", FLAGS)
    with pytest.raises(BlockingIOError):
        open_locked(tmp_path / "file", FLAGS)
    os.close(held)
    os.close(open_locked(tmp_path / "file", FLAGS))


@pytest.mark.parametrize("change", ["replaced", "deleted"])
def test_who_waits_gets_the_file_that_is_there_then(tmp_path, change):
    """The one before may put another file in its place, or delete it."""
    path, found = tmp_path / "file", []
    held = open_locked(path, FLAGS)
    waiting = threading.Thread(target=lambda: found.append(open_locked(path, FLAGS, wait=True)))
    waiting.start()
    time.sleep(0.2)  # if it were too short, the test would still pass
    if change == "replaced":
        (tmp_path / "new").touch()
        os.replace(tmp_path / "new", path)
    else:
        path.unlink()
    os.close(held)
    waiting.join(timeout=60)
    (descriptor,) = found
    assert os.path.samestat(os.fstat(descriptor), os.stat(path))
    os.close(descriptor)

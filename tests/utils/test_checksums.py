"""Checksums of folders and of text, against the sha256sum command."""

import os
import subprocess

import pytest

from transformer_mt.utils.folders import is_sealed, sealed, verify, write_checksums


@pytest.fixture
def folder(tmp_path):
    for name in ("a", "b.model", "b with spaces"):
        (tmp_path / name).write_text(f"content of {name}")
    write_checksums(tmp_path)
    return tmp_path


def test_sha256sum_agrees(folder):
    command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count(": OK") == 3
    assert verify(folder) is None
    assert verify(folder, "b*") is None and verify(folder, "a") is None


def test_hidden_files_are_nobodys_business(folder):
    (folder / ".nfs0001").write_text("")
    assert verify(folder) is None


def change(folder):
    (folder / "a").write_text("content of A")
    return "a is not as it was written"


def lose(folder):
    (folder / "a").unlink()
    return "a is missing"


def add(folder):
    (folder / "a vocabulary").write_text("")
    return "does not name a vocabulary"


def pipe(folder):
    (folder / "a").unlink()
    os.mkfifo(folder / "a")
    return "a is not a file"


def nest(folder):
    (folder / "a").unlink()
    (folder / "a").mkdir()
    return "a is not a file"


def link(folder):
    outside = folder.parent / f"{folder.name}-outside"
    (folder / "a").rename(outside)
    (folder / "a").symlink_to(outside)
    return "a is a link that leads out of the folder"


def name_outside(folder):
    with open(folder / "SHA256SUMS", "a") as file:
        file.write(f"{'0' * 64}  ../a\n")
    return "SHA256SUMS is not as it was written"


def lose_sums(folder):
    (folder / "SHA256SUMS").unlink()
    return "SHA256SUMS is missing"


@pytest.mark.parametrize(
    "spoil",
    [change, lose, add, pipe, nest, link, name_outside, lose_sums],
    ids=lambda f: f.__name__,
)
def test_what_is_wrong_is_named(folder, spoil):
    problem = spoil(folder)
    assert problem in verify(folder)
    assert problem in verify(folder, "a*")


def test_a_file_that_nobody_lists(folder):
    assert verify(folder, "c") == "there is no c"


def test_a_seal_breaks_with_any_change():
    text = "model:\n  d_model: 16\n"
    whole = sealed(text).encode()
    assert whole.startswith(text.encode()) and is_sealed(whole)
    for place in range(len(whole)):
        assert not is_sealed(whole[:place])
        assert not is_sealed(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    assert not is_sealed(whole + b"\n") and not is_sealed(b"")

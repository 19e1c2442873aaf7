"""Checksums of folders and of text, against the sha256sum command."""

import subprocess

import pytest

from transformer_mt.utils.folders import is_sealed, listed, sealed, verify, write_checksums


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("a", "b.model", "b with spaces"):
        (folder / name).write_text(f"content of {name}")
    write_checksums(folder)
    return folder


def test_a_damaged_line_hides_no_other_name(folder):
    """So that the files which it names are still protected."""
    sums = (folder / "SHA256SUMS").read_text()
    (folder / "SHA256SUMS").write_text(sums[:-30])
    assert listed(folder) == {"a", "b with spaces"}


def test_sha256sum_agrees(folder):
    command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count(": OK") == 3
    assert verify(folder) is None
    assert verify(folder, "b*") is None and verify(folder, "a") is None


@pytest.mark.parametrize(
    ("commands", "problem"),
    [
        ("echo A > a", "a is not as it was written"),
        ("rm a", "a is missing"),
        ("touch 'a vocabulary'", "does not name a vocabulary"),
        ("rm a; mkfifo a", "a is not a file"),
        ("rm a; mkdir a", "a is not a file"),
        ("mv a ../outside; ln -s ../outside a", "a is a link that leads out of the folder"),
        (f"echo '{'0' * 64}  ../a' >> SHA256SUMS", "SHA256SUMS is missing or damaged"),
        ("rm SHA256SUMS", "SHA256SUMS is missing"),
        ("touch .nfs0001", None),  # hidden files are nobody's business
    ],
)
def test_what_is_wrong_is_named(folder, commands, problem):
    subprocess.run(["sh", "-c", commands], cwd=folder, check=True)
    for pattern in ((), ("a*",)):
        said = verify(folder, *pattern)
        assert said is None if problem is None else problem in said
    assert verify(folder, "c") is not None


def test_a_seal_breaks_with_any_change():
    text = "model:\n  d_model: 16\n"
    whole = sealed(text).encode()
    assert whole.startswith(text.encode()) and is_sealed(whole)
    for place in range(len(whole)):
        assert not is_sealed(whole[:place])
        assert not is_sealed(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    assert not is_sealed(whole + b"\n") and not is_sealed(b"")

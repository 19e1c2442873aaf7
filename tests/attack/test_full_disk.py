"""A full disk at every write: one message, nothing that was whole is lost, and with room again the
same command ends as if nothing had been."""

import subprocess

import pytest

from tests.attack.support import files_of
from tests.support import run, write_lines


@pytest.fixture
def disk(tmp_path):
    """A small file system of its own, and what makes it of another size."""
    path = tmp_path / "disk"
    path.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", path], check=False)
    if made.returncode:
        pytest.skip("needs the right to mount a file system")

    def resize(kilobytes: int) -> None:
        options = f"remount,size={kilobytes}k"
        subprocess.run(["mount", "-o", options, path], check=True)

    yield path, resize
    subprocess.run(["umount", "-l", path], check=True)


def is_said(code: int, said: str) -> None:
    assert code == 1, said
    assert "Traceback" not in said and "This should not happen" not in said
    assert "No space left" in said or "disk is full" in said or "File too large" in said, said


def test_of_training(recipe, disk, is_large):
    path, resize = disk
    whole = run("train", recipe, f"model_dir={recipe.parent / 'whole'}", "--restart")
    assert whole.returncode == 0, whole.stderr
    command = "train", recipe, f"model_dir={path / 'model'}"
    for kilobytes in range(16, 400, 24) if is_large else (120,):
        resize(kilobytes)
        done = run(*command)
        if done.returncode == 0:
            break
        is_said(done.returncode, done.stderr)
    resize(4000)
    done = run(*command)
    assert done.returncode == 0, done.stderr
    for file in files_of(recipe.parent / "whole" / "checkpoints"):
        if file.suffix == ".safetensors":
            found = path / "model" / file.relative_to(recipe.parent / "whole")
            assert found.read_bytes() == file.read_bytes(), file


@pytest.mark.slow  # tests/commands/test_translate.py fills a disk once
def test_of_translating(model, disk, tmp_path, is_large):
    path, resize = disk
    source = write_lines(tmp_path / "source", ["A dog runs.", "Where is the cat?"] * 2100)
    whole = tmp_path / "whole"
    options = "--input", source, "--beam-size", 1
    assert run("translate", model, *options, "--output", whole).returncode == 0
    size = whole.stat().st_size
    for share in [0.1 * i for i in range(1, 10)] if is_large else [0.7]:
        resize(max(8, int(share * size) // 1024))
        done = run("translate", model, *options, "--output", path / "out", "--resume")
        is_said(done.returncode, done.stderr)
        if share > 0.55:  # nearly a half is a chunk
            assert "lines are kept; to continue, add --resume" in done.stderr
    resize(2 * size // 1024 + 64)
    done = run("translate", model, *options, "--output", path / "out", "--resume")
    assert done.returncode == 0 and "going on after line" in done.stderr
    assert (path / "out").read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("verb", ["export", "average", "attention", "score", "translate"])
def test_of_the_other_commands(driver, model, tmp_path, verb):
    """Without a right to mount: a limit for the size of a file."""
    out = tmp_path / "out"
    source, target = model.parent / "source", model.parent / "target"
    arguments = {
        "export": (model, "--format", "ctranslate2", "--output", out),
        "average": (model, "--last", 2),
        "attention": (model, "--text", "A dog.", "--output", out),
        "score": (model, "--source", source, "--target", target, "--output", out),
        "translate": (model, "--input", source, "--format", "jsonl", "--output", out),
    }[verb]
    if verb in ("score", "translate"):
        source.write_text(source.read_text() * 50)
        target.write_text(target.read_text() * 50)
        arguments += ("--threads", 1)
    before = {path: path.read_bytes() for path in files_of(model)}
    with driver.limited(1000):
        answer = driver.run(verb, *arguments)
    is_said(answer.code, answer.stderr)
    assert [path.name for path in tmp_path.iterdir()] == []
    assert {path: path.read_bytes() for path in files_of(model)} == before

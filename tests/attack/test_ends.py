"""Ends that nobody wants: a kill at a random moment, a full disk at every write, and a signal
during a start. The same command then goes on, and ends bit for bit as if nothing had been.

Kills and full disks of a translation are in tests/commands/test_translate.py."""

import random
import signal
import subprocess
import time

import pytest

from tests.attack.support import files_of, write_recipe
from tests.support import demo_pairs, examples, run, start

PAIRS = demo_pairs(460)
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
# Seconds until Python itself is up on a busy machine; before that, the system ends a process.
UP = 0.5


@pytest.fixture(scope="module")
def long_recipe(tmp_path_factory):
    """A run of some seconds with all that has a state; its whole end is in `whole`."""
    folder = tmp_path_factory.mktemp("kills")
    training = {"max_steps": examples(20, 30), "validate_every": 10, "save_every": 4}
    training |= {"batch_tokens": 800, "device_tokens": 400, "average_last": 2, "keep_last": 3}
    path = write_recipe(
        folder,
        *(PAIRS[:400], PAIRS[400:430], PAIRS[430:]),
        subword={"vocab_size": 300, "sampling": 0.1},
        model={"d_model": 32, "d_ff": 64, "dropout": 0.2},
        training=training,
    )
    started = time.monotonic()
    ends(run("train", path, f"model_dir={folder / 'whole'}"))
    return path, time.monotonic() - started


@pytest.fixture
def disk(tmp_path):
    """A small file system of its own, and what makes it of another size."""
    path = tmp_path / "disk"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", path]).returncode:
        pytest.skip("needs the right to mount a file system")

    def resize(kilobytes: int) -> None:
        options = f"remount,size={kilobytes}k"
        subprocess.run(["mount", "-o", options, path], check=True)

    yield path, resize
    subprocess.run(["umount", "-l", path], check=True)


def ends(done: subprocess.CompletedProcess) -> None:
    assert done.returncode == 0, done.stderr


def end_of(model_dir) -> dict[str, bytes]:
    """What must be the same: weights, optimiser, translations, and which is the best."""
    kept = [path for path in files_of(model_dir) if path.suffix in (".safetensors", ".hypothesis")]
    return {str(path.relative_to(model_dir)): path.read_bytes() for path in kept}


def is_said(code: int, said: str) -> None:
    assert code == 1, said
    assert "Traceback" not in said and "This should not happen" not in said
    assert "No space left" in said or "disk is full" in said or "File too large" in said, said


def test_a_killed_training(long_recipe, tmp_path, is_large):
    recipe, seconds = long_recipe
    drawn = random.Random(20)
    for number in range(12 if is_large else 1):
        command = "train", recipe, f"model_dir={tmp_path / str(number)}"
        for _ in range(2 if is_large else 1):
            process = start(*command, stderr=subprocess.DEVNULL)
            try:
                process.wait(drawn.uniform(0.2, 1.0) * seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(drawn.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
                process.wait()
        ends(run(*command))
        assert end_of(tmp_path / str(number)) == end_of(recipe.parent / "whole"), f"run {number}"


def test_a_training_on_a_full_disk(trained, disk, is_large):
    path, resize = disk
    command = "train", trained, f"model_dir={path / 'model'}"
    for kilobytes in range(16, 400, 24) if is_large else (120,):
        resize(kilobytes)
        done = run(*command)
        if done.returncode == 0:
            break
        is_said(done.returncode, done.stderr)
    resize(4000)
    ends(run(*command))
    assert end_of(path / "model") == end_of(trained.parent / "model")


@pytest.mark.parametrize("verb", ["export", "average", "attention", "score", "translate"])
def test_the_other_commands_on_a_full_disk(driver, model, tmp_path, verb):
    """Without a right to mount: a limit for the size of a file."""
    out = "--output", tmp_path / "out"
    source, target = model.parent / "source", model.parent / "target"
    arguments = {
        "export": ("--format", "ctranslate2", *out),
        "average": ("--last", 2),
        "attention": ("--text", "A dog.", *out),
        "score": ("--source", source, "--target", target, "--threads", 1, *out),
        "translate": ("--input", source, "--format", "jsonl", "--threads", 1, *out),
    }[verb]
    if verb in ("score", "translate"):
        for file in (source, target):
            file.write_text(file.read_text() * 50)
    before = {path: path.read_bytes() for path in files_of(model)}
    with driver.limited(1000):
        answer = driver.run(verb, model, *arguments)
    is_said(answer.code, answer.stderr)
    assert not list(tmp_path.iterdir())
    assert {path: path.read_bytes() for path in files_of(model)} == before


@pytest.mark.slow  # tests/utils/test_signals.py has signals at some moments of a start
@pytest.mark.parametrize("verb", ["translate", "train"])
def test_a_signal_during_a_start(recipe, model, verb, is_large):
    """Most of a start is the import of Paddle: the process ends at once or at the end of the
    import, with its exit code, and without a trace of anybody's code."""
    command = [verb, model, "--threads", 1] if verb == "translate" else [verb, recipe, "--restart"]
    if verb == "train":
        command.append("training.max_steps=1000000")
    count = 70 if is_large else 4
    drawn = random.Random(verb)
    for number in range(count):
        after = UP + 4.0 * (number + drawn.random()) / count
        kind = drawn.choice(list(CODES))
        where = f"{verb}, {kind.name} after {after:.2f} s"
        process = start(*command, is_fresh=True, stdin=subprocess.PIPE)
        time.sleep(after)
        process.send_signal(kind)
        try:
            stdout, stderr = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"{where}: it hangs") from None
        assert process.returncode == CODES[kind], f"{where}: {process.returncode}\n{stderr}"
        assert verb == "train" or stdout == "", where
        for word in ("Traceback", "C++", "This should not happen", "FatalError", "Error:"):
            assert word not in stdout + stderr, f"{where}\n{stdout}{stderr}"

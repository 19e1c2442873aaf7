"""Processes killed at random moments: the same command goes on, and ends bit for bit as if nothing
had been."""

import random
import signal
import subprocess
import time

import pytest

from tests.attack.support import files_of, write_recipe
from tests.support import demo_pairs, examples, run, start, write_lines

PAIRS = demo_pairs(460)


@pytest.fixture(scope="module")
def long_recipe(tmp_path_factory):
    """A run of some seconds with all that has a state; its whole end is in `whole`."""
    folder = tmp_path_factory.mktemp("kills")
    training = {
        "max_steps": examples(30, 60),
        "validate_every": 10,
        "save_every": 4,
        "keep_last": 3,
    }
    training |= {"batch_tokens": 800, "device_tokens": 400, "average_last": 2}
    path = write_recipe(
        folder,
        *(PAIRS[:400], PAIRS[400:430], PAIRS[430:]),
        subword={"vocab_size": 300, "sampling": 0.1},
        model={"d_model": 32, "d_ff": 64, "dropout": 0.2},
        training=training,
    )
    started = time.monotonic()
    done = run("train", path, f"model_dir={folder / 'whole'}")
    assert done.returncode == 0, done.stderr
    return path, time.monotonic() - started


def end_of(model_dir) -> dict[str, bytes]:
    """What must be the same: weights, optimiser, translations, and which is the best."""
    kept = (".safetensors", ".hypothesis")
    return {
        str(path.relative_to(model_dir)): path.read_bytes()
        for path in files_of(model_dir)
        if path.suffix in kept
    }


def test_training(long_recipe, tmp_path, is_large):
    recipe, seconds = long_recipe
    drawn = random.Random(20)
    for number in range(12 if is_large else 1):
        model_dir = tmp_path / f"{number}"
        kills = 0
        while kills < (2 if is_large else 1):
            after = drawn.uniform(0.2, 1.0) * seconds
            process = start("train", recipe, f"model_dir={model_dir}", stderr=subprocess.DEVNULL)
            try:
                process.wait(after)
            except subprocess.TimeoutExpired:
                process.send_signal(drawn.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
                process.wait()
            kills += 1
        done = run("train", recipe, f"model_dir={model_dir}")
        assert done.returncode == 0, done.stderr
        assert end_of(model_dir) == end_of(recipe.parent / "whole"), f"run {number}, seed 20"


@pytest.mark.slow  # tests/commands/test_translate.py kills a translation once
def test_translating(long_recipe, tmp_path, is_large):
    model = long_recipe[0].parent / "whole"
    source = tmp_path / "source"
    write_lines(source, [source for source, _ in PAIRS] * 9)
    drawn = random.Random(21)
    threads = ("--threads", 2)
    started = time.monotonic()
    whole = tmp_path / "whole"
    done = run("translate", model, "--input", source, "--output", whole, *threads)
    assert done.returncode == 0, done.stderr
    seconds = time.monotonic() - started
    for number in range(15 if is_large else 1):
        output = tmp_path / f"{number}"
        command = "translate", model, "--input", source, "--output", output, *threads, "--resume"
        process = start(*command, stderr=subprocess.DEVNULL)
        try:
            process.wait(drawn.uniform(0.3, 1.0) * seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(drawn.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
            process.wait()
        done = run(*command)
        assert done.returncode == 0, done.stderr
        assert output.read_bytes() == whole.read_bytes(), f"run {number}, seed 21"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []

"""Damage to every part of every file: it is noticed, or changes nothing. A translation that differs
without a word is the one thing that must not be."""

import random
import shutil
from itertools import pairwise

import pytest

from tests.attack.support import files_of, read_by_training
from transformer_mt.model_directory import ModelDirectory


def damaged(content: bytes, parts: int, drawn: random.Random):
    """Ways to damage a file: a flipped bit in each of so many parts of it, a cut, nothing left."""
    edges = [len(content) * i // parts for i in range(parts + 1)]
    for start, end in pairwise(edges):
        if start < end:
            place = drawn.randrange(start, end)
            flipped = content[place] ^ (1 << drawn.randrange(8))
            yield f"byte {place}", content[:place] + bytes([flipped]) + content[place + 1 :]
    place = drawn.randrange(len(content))
    yield f"cut at {place}", content[:place]
    yield "empty", b""
    yield "zeros", bytes(len(content))
    yield "longer", content + b"\n# more\n"


@pytest.mark.parametrize("kind", [".", "export/ctranslate2", "export/paddle_inference"])
def test_of_what_is_translated_with(driver, model, kind, is_large):
    folder = model / kind
    arguments = "translate", folder, "--threads", 1, "--input", model.parent / "source"
    expected = driver.run(*arguments)
    assert expected.code == 0, expected.stderr
    best = ModelDirectory(model).checkpoint()
    for path in files_of(folder):
        within = path.relative_to(folder).parts
        is_other = within[0] == "checkpoints" and path.parent != best and not is_large
        if is_other or (kind == "." and within[0] == "export"):
            continue
        content = path.read_bytes()
        drawn = random.Random(f"{kind} {path.name}")
        for how, other in damaged(content, 60 if is_large else 3, drawn):
            path.write_bytes(other)
            answer = driver.run(*arguments)
            answer.require_clear()
            is_told = answer.code or "warning: " in answer.stderr
            assert is_told or answer.stdout == expected.stdout, f"{path}, {how}: {answer.stderr}"
        path.write_bytes(content)
    assert driver.run(*arguments) == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["model", "cache"])
def test_of_what_is_trained_with(driver, trained, tmp_path, kind, is_large):
    """A run that goes on, or begins with the text of the cache, ends as it would have, or says what
    is wrong."""
    root = trained.parent
    steps = {"model": 9, "cache": 3}[kind]

    def train(folder):
        changes = [f"training.max_steps={steps}"]
        if kind == "cache":
            changes += ["data.test=null", f"data.cache={folder / 'cache'}"]
        answer = driver.run("train", trained, f"model_dir={folder / 'model'}", *changes)
        answer.require_clear()
        last = folder / "model" / "checkpoints" / f"step_{steps}"
        names = "model.safetensors", "optimizer.safetensors"
        return None if answer.code else [(last / name).read_bytes() for name in names]

    work = tmp_path / "work"
    shutil.copytree(root / kind, work / kind)
    expected = train(work)
    assert expected
    attacked = files_of if is_large or kind == "cache" else read_by_training
    for path in attacked(root / kind):
        drawn = random.Random(path.name)
        ways = list(damaged(path.read_bytes(), 15 if is_large else 1, drawn))
        for how, other in ways if is_large else drawn.sample(ways, 1):
            shutil.rmtree(work)
            shutil.copytree(root / kind, work / kind)
            (work / path.relative_to(root)).write_bytes(other)
            assert train(work) in (expected, None), f"{path}, {how}"

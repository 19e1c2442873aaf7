"""Damage to every part of every file: it is noticed, or changes nothing. A translation that differs
without a word is the one thing that must not be."""

import random
import shutil
from itertools import pairwise

import pytest

from tests.attack.support import files_of, read_by_training
from tests.support import examples
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
    source = model.parent / "source"
    arguments = "translate", folder, "--threads", 1, "--input", source
    expected = driver.run(*arguments)
    assert expected.code == 0, expected.stderr
    best = ModelDirectory(model).checkpoint()
    for path in files_of(folder):
        within = path.relative_to(folder).parts
        if kind == "." and within[0] == "export":
            continue
        if within[0] == "checkpoints" and path.parent != best and not is_large:
            continue
        content = path.read_bytes()
        drawn = random.Random(f"{kind} {path.name}")
        for how, other in damaged(content, 60 if is_large else 4, drawn):
            path.write_bytes(other)
            answer = driver.run(*arguments)
            where = f"{path}, {how}: {answer.stderr}"
            answer.require_clear()
            if answer.code == 0:
                is_told = "warning: " in answer.stderr
                assert answer.stdout == expected.stdout or is_told, where
        path.write_bytes(content)
    assert driver.run(*arguments) == expected


@pytest.mark.slow
def test_of_a_run_that_goes_on(driver, recipe, tmp_path, is_large):
    """It ends as it would have, or says what is wrong."""
    root = recipe.parent
    assert driver.run("train", recipe).code == 0
    end = "training.max_steps=9"
    shutil.copytree(root / "model", tmp_path / "whole")
    assert driver.run("train", recipe, f"model_dir={tmp_path / 'whole'}", end).code == 0
    last = tmp_path / "whole" / "checkpoints" / "step_9"
    expected = {path.name: path.read_bytes() for path in files_of(last)}
    attacked = files_of if is_large else read_by_training
    for number, path in enumerate(attacked(root / "model")):
        drawn = random.Random(path.name)
        ways = list(damaged(path.read_bytes(), 15 if is_large else 1, drawn))
        for how, other in ways if is_large else drawn.sample(ways, examples(1, 2)):
            work = tmp_path / f"{number}"
            shutil.copytree(root / "model", work)
            (work / path.relative_to(root / "model")).write_bytes(other)
            answer = driver.run("train", recipe, f"model_dir={work}", end)
            answer.require_clear()
            if answer.code == 0:
                for name in ("model.safetensors", "optimizer.safetensors"):
                    found = (work / "checkpoints" / "step_9" / name).read_bytes()
                    assert found == expected[name], f"{path}, {how}: {answer.stderr}"
            shutil.rmtree(work)


@pytest.mark.slow
def test_of_the_cache(driver, recipe, tmp_path, is_large):
    """What is damaged is made anew: training is as it was."""
    root = recipe.parent
    common = "training.max_steps=3", "data.test=null"

    def train(name, cache):
        model_dir = tmp_path / name
        answer = driver.run(
            "train", recipe, f"model_dir={model_dir}", f"data.cache={cache}", *common
        )
        answer.require_clear()
        if answer.code == 0:
            return (model_dir / "checkpoints" / "step_3" / "model.safetensors").read_bytes()
        return None

    expected = train("whole", root / "cache")
    for number, path in enumerate(files_of(root / "cache")):
        drawn = random.Random(path.name)
        ways = list(damaged(path.read_bytes(), 12 if is_large else 1, drawn))
        for how, other in ways if is_large else drawn.sample(ways, 1):
            cache = tmp_path / "cache"
            shutil.copytree(root / "cache", cache)
            (cache / path.relative_to(root / "cache")).write_bytes(other)
            assert train(f"{number}", cache) in (expected, None), f"{path}, {how}"
            shutil.rmtree(cache)
            shutil.rmtree(tmp_path / f"{number}", ignore_errors=True)

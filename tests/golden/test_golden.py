"""What the program did when the golden models were made, it still does.

Texts are compared exactly, numbers within a tolerance. Another kind of CPU adds the same float32
products in another order (SSE, AVX2 or AVX-512 instructions), so every sum has another relative
error of about 1e-7. Layers add such errors up, and texts are of models that are sure of them.
GOLDEN_TOLERANCE=0 in the environment asks for equal numbers, to the last bit; that can only hold on
a CPU of the kind that recorded them.
"""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.golden import corpus, make, observe

FACTOR = float(os.environ.get("GOLDEN_TOLERANCE", 1))
RELATIVE, ABSOLUTE = 3e-5 * FACTOR, 1e-5 * FACTOR

OBSERVATIONS = {
    (name, title): observation
    for name, observations in observe.all_observations().items()
    for title, observation in observations.items()
}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """The current folder, with copies of the golden models and what they read."""
    folder = tmp_path_factory.mktemp("golden")
    before = Path.cwd()
    os.chdir(folder)
    corpus.write(folder)
    for path in make.MODELS.iterdir():
        shutil.copytree(path, path.name)
    yield folder
    os.chdir(before)


@pytest.fixture(scope="module")
def expected():
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in make.EXPECTED.glob("*.json")
    }


@pytest.mark.parametrize(("name", "title"), OBSERVATIONS)
def test_it_is_as_it_was(expected, name, title):
    found = observe.observe(name, OBSERVATIONS[name, title])
    found = json.loads(make.as_json(found))
    problems = differences(expected[name][title], found)
    assert not problems, "\n".join(problems[:20])


def test_every_record_is_compared(expected):
    recorded = {(name, title) for name, titles in expected.items() for title in titles}
    assert recorded == set(OBSERVATIONS)


def differences(expected, found, where="") -> list[str]:
    """What differs, as lines of text, each with its place."""
    if isinstance(expected, dict) and isinstance(found, dict):
        lines = [f"{where}/{key}: only in one" for key in sorted(expected.keys() ^ found.keys())]
        for key in expected.keys() & found.keys():
            lines += differences(expected[key], found[key], f"{where}/{key}")
        return lines
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        return [
            line
            for index, pair in enumerate(zip(expected, found, strict=True))
            for line in differences(*pair, f"{where}/{index}")
        ]
    if isinstance(expected, float) and isinstance(found, float):
        equal = abs(found - expected) <= ABSOLUTE + RELATIVE * abs(expected)
    else:
        equal = type(expected) is type(found) and expected == found
    return [] if equal else [f"{where}: was {expected!r}, is {found!r}"]

"""Attacks: small ones in every run, large ones with `bash scripts/test.sh --all`."""

import pytest

from tests.attack.support import Driver
from tests.support import demo_pairs, make_config, make_model_directory, write_lines, write_pairs
from transformer_mt.config_file import dump
from transformer_mt.export.run import export


@pytest.fixture(scope="session")
def is_large(request) -> bool:
    """Whether the large attack was asked for."""
    return request.config.getoption("--all")


@pytest.fixture(scope="module")
def driver():
    made = Driver()
    yield made
    made.close()


PAIRS = demo_pairs(260)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """A config with its text, and beside it `model`, a run of it that is done."""
    folder = tmp_path_factory.mktemp("recipe")
    for name, pairs in (("train", PAIRS[:220]), ("dev", PAIRS[220:240]), ("test", PAIRS[240:])):
        write_pairs(folder / "text", name, pairs)
    training = {"devices": 1, "max_steps": 6, "validate_every": 3, "save_every": 3}
    data = {"dev": "dev", "test": "test", "held_out": 0}
    path = folder / "recipe.yaml"
    config = make_config(folder, data=data, training=training)
    path.write_text(dump(config), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model directory with exports for both backends."""
    folder = tmp_path_factory.mktemp("model")
    path = make_model_directory(folder / "model", PAIRS, make_config(folder)).path
    export(str(path), "ctranslate2")
    export(str(path), "paddle")
    write_lines(folder / "source", [source for source, _ in PAIRS[:8]])
    write_lines(folder / "target", [target for _, target in PAIRS[:8]])
    return path

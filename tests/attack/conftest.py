"""Attacks: small ones in every run, large ones with `bash scripts/test.sh --attack`."""

import shutil

import pytest

from tests.attack.support import MAX_LENGTH, Driver, write_recipe
from tests.support import demo_pairs, make_config, make_model_directory, run_command, write_lines

PAIRS = demo_pairs(260)


@pytest.fixture(scope="session")
def is_large(request) -> bool:
    """Whether the large attack was asked for."""
    return request.config.getoption("--attack")


@pytest.fixture(scope="session")
def driver():
    made = Driver()
    yield made
    made.close()


@pytest.fixture(scope="session")
def recipe(tmp_path_factory):
    """A config with its text."""
    training = {"max_steps": 6, "validate_every": 3, "save_every": 3}
    folder = tmp_path_factory.mktemp("recipe")
    return write_recipe(folder, PAIRS[:220], PAIRS[220:240], PAIRS[240:], training=training)


@pytest.fixture(scope="session")
def trained(recipe, driver):
    """The recipe, with a run of it that is done beside it, `model`, and its cache."""
    assert driver.run("train", recipe).code == 0
    return recipe


@pytest.fixture(scope="session")
def whole_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    config = make_config(folder, data={"max_length": MAX_LENGTH})
    path = make_model_directory(folder / "model", PAIRS, config).path
    run_command("export", path, format="ctranslate2")
    run_command("export", path, format="paddle")
    for side, name in enumerate(("source", "target")):
        write_lines(folder / name, [pair[side] for pair in PAIRS[:8]])
    return path


@pytest.fixture(scope="module")
def model(whole_model, tmp_path_factory):
    """A model directory with exports for both backends, beside text; for one module alone."""
    folder = shutil.copytree(whole_model.parent, tmp_path_factory.mktemp("model") / "copy")
    return folder / "model"

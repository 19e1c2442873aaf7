"""The shipped recipes are valid, and the manual is complete."""

import re
from operator import attrgetter

import pytest
import yaml

from tests.support import ROOT
from transformer_mt.config import file as config_file
from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.config.file import parse_yaml
from transformer_mt.config.schema import SECTIONS

SHIPPED = sorted((ROOT / "configs").glob("*.yaml"))
# The recipes for text of the user's own.
TEMPLATES = sorted((ROOT / "configs").glob("template*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=[path.name for path in SHIPPED])
def test_the_shipped_configs(path, tmp_path):
    config = config_file.load(path)
    own_name = "runs/my" if path in TEMPLATES else f"runs/{path.stem}"
    assert config.model_dir == own_name
    (tmp_path / "config.yaml").write_text(config_file.dump(config), encoding="utf-8")
    assert config_file.load(tmp_path / "config.yaml") == config


# For each recipe of an option, the keys that turn it on.
TURNED_ON_BY = {
    "scheduled_sampling": ["scheduled_sampling.decay"],
    "copying": ["model.copying"],
    "guided_attention": ["guided_attention.by"],
    "non_autoregressive": ["model.non_autoregressive"],
}


@pytest.mark.parametrize("path", SHIPPED, ids=[path.name for path in SHIPPED])
def test_a_recipe_turns_on_its_option_and_no_other(path):
    config = config_file.load(path)
    keys = [key for keys in TURNED_ON_BY.values() for key in keys]
    assert [key for key in keys if attrgetter(key)(config)] == TURNED_ON_BY.get(path.stem, [])


@pytest.mark.parametrize("path", TEMPLATES, ids=[path.name for path in TEMPLATES])
def test_a_template_is_for_text_files(path):
    """It loads as it is, and the keys that it leaves out are those that nobody must set."""
    given = yaml.safe_load(path.read_text(encoding="utf-8"))
    config = config_file.load(path)
    assert config.data.dataset == "files"
    assert given["model_dir"] == config.model_dir
    for name in given.keys() - {"model_dir"}:
        assert given[name].keys() <= SECTIONS[name].model_fields.keys(), name
    for key in ("root", "train", "source_lang", "target_lang", "dev", "test"):
        assert key in given["data"]


# --------------------------------------------------------------------------------- the manual


def test_the_manual_has_every_key_and_its_default():
    path = ROOT / "configs" / "demo.yaml"
    text = path.read_text(encoding="utf-8")
    given = yaml.safe_load(text)
    # Where the search is as it is by default, the manual says so.
    assert config_file.load(path).decoding == DecodingConfig()
    for name, section in SECTIONS.items():
        assert list(given[name]) == list(section.model_fields), name
        own = re.split(r"\n\n", text.split(f"\n{name}:\n")[1])[0]
        for key, field in section.model_fields.items():
            line = re.search(rf"(?m)^  {key}: [^#\n]*(#.*)?$", own)
            above = re.search(r"(?:^|\n)(?: +#.*\n)*$", own[: line.start()])[0]
            comment = " ".join(f"{above}{line[1] or ''}".replace("#", "").split())
            if field.is_required():
                assert comment.endswith(" It is required."), key
                continue
            value = re.search(r" Default: (.*)$", comment)[1]
            assert parse_yaml(value) == field.default, key


# ---------------------------------------------------------------------- the form of the texts

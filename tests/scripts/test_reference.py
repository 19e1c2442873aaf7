"""The comments of configs/demo.yaml are up to date, and the references of the site are whole."""

import ast
import inspect
import re
import textwrap
from typing import Annotated, Literal

import pytest
import yaml
from pydantic import Field

import write_reference
from tests.support import ROOT
from transformer_mt.cli import COMMANDS, EXIT_CODES
from transformer_mt.config.rules import RULES
from transformer_mt.config.schema import SECTIONS
from transformer_mt.config.section import PositiveFloat, PositiveInt, Section

CONFIG = write_reference.config_reference()


def test_demo_yaml_is_current():
    text = write_reference.DEMO.read_text("utf-8")
    assert write_reference.demo_yaml(text) == text, (
        "it is out of date: run .venv/bin/python scripts/write_reference.py"
    )


def test_demo_yaml_keeps_its_values():
    text = (ROOT / "configs" / "demo.yaml").read_text("utf-8")
    old = re.sub(r"(?m)^  # .*\n", "", text).replace("beam_size: 5", "beam_size:   7 # old")
    new = write_reference.demo_yaml(old)
    expected = yaml.safe_load(text)
    expected["decoding"]["beam_size"] = 7
    assert yaml.safe_load(new) == expected
    assert new.split("\n\n")[0] == text.split("\n\n")[0]  # the header


class Example(Section):
    size: PositiveInt = 3
    """A key."""
    rate: PositiveFloat | None = None
    """A key."""
    pair: Annotated[list[PositiveFloat], Field(min_length=2)] = Field([0.5, 2.0])
    """A key."""
    share: Annotated[float, Field(ge=0.5, le=2)] = 1e-9
    """A key."""
    kind: Literal["a", "b"] | None = "a"
    """See configs/demo.yaml, and --format tsv.
    a  one
    b  `f(x)`
    """
    is_on: bool
    """A key."""
    name: str = "x"
    """A key."""


def test_a_key_on_the_page():
    assert "\n".join(write_reference._key("## `kind`", Example, "kind")) == (
        "## `kind`\n\n`a`, `b` or `null` · default: `a`\n\n"
        "See [configs/demo.yaml](../configs/demo.yaml), and `--format` tsv.\n\n"
        "- `a`: one\n- `b`: `f(x)`\n"
    )


def test_what_is_beyond_a_range_of_the_page_is_refused():
    """The page's ranges are tried on the schema."""
    tried = 0
    for name, section in SECTIONS.items():
        for key in section.model_fields:
            line = re.search(rf"(?m)^### `{name}\.{key}`\n\n((?:.+\n)+)", CONFIG)[1]
            line = " ".join(line.split())
            for words, sign in (("at least", -1), ("at most", 1), ("above", 0), ("below", 0)):
                match = re.search(rf" · {words} ([\d.,e-]+)", line)
                if not match or key == "betas":
                    continue
                number = float(match[1].rstrip(",").replace(",", ""))
                number = int(number) if "whole" in line else number
                edge = number + sign * (1 if "whole" in line else abs(number) * 1e-6 + 1e-30)
                made, validator = section.model_construct(), section.__pydantic_validator__
                with pytest.raises(ValueError, match=key):
                    validator.validate_assignment(made, key, edge)
                tried += 1
    assert tried > 50


def test_the_page_has_every_command():
    """And the table of exit codes has every code."""
    page = (ROOT / "docs" / "commands.md").read_text("utf-8")
    assert [name for name in COMMANDS if f"`{name}`" not in page] == []
    codes = re.findall(r"\b(\d+) ", EXIT_CODES)
    assert len(codes) == 7 and [code for code in codes if f"| {code} |" not in page] == []


def test_every_option_has_help():
    for name in COMMANDS:
        for actions in write_reference._groups(write_reference._parser(name)).values():
            assert all(action.help for action in actions), name


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.__module__}.{rule.__name__}")
def test_a_rule_names_its_keys(rule):
    """What a rule yields the problems of, as far as its code has them as text."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(rule)))
    texts = {str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    keys = {text for text in texts if re.fullmatch(rf"({'|'.join(SECTIONS)})\.\w+", text)}
    assert keys and all(key in rule.__doc__ for key in keys)

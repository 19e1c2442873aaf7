"""docs/config.md, docs/commands.md and the comments of configs/demo.yaml are up to date."""

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
from transformer_mt.commands.model_choice import MODEL_GROUP, SETTINGS_GROUP
from transformer_mt.config import file as config_file
from transformer_mt.config.rules import RULES, training_rules
from transformer_mt.config.schema import SECTIONS
from transformer_mt.config.section import PositiveFloat, PositiveInt, Section, at_least, at_most
from transformer_mt.training.schedule import SCHEDULES

CONFIG = (ROOT / "docs" / "config.md").read_text("utf-8")
COMMANDS_PAGE = (ROOT / "docs" / "commands.md").read_text("utf-8")


@pytest.mark.parametrize(("path", "content"), write_reference.files().items(), ids=str)
def test_it_is_current(path, content):
    assert (ROOT / path).read_text("utf-8") == content, (
        f"{path} is out of date: run .venv/bin/python scripts/write_reference.py"
    )


def anchors(page):
    headings = re.findall(r"(?m)^#+ (.*)$", re.sub(r"(?ms)^```.*?^```", "", page))
    names = [re.sub(r"[^\w -]", "", text).lower().replace(" ", "-") for text in headings]
    assert len(names) == len(set(names))
    return set(names)


@pytest.mark.parametrize("page", [CONFIG, COMMANDS_PAGE], ids=["config", "commands"])
def test_links_within_a_page_lead_to_headings(page):
    links = re.findall(r"\]\(#([^)]+)\)", page)
    assert len(links) > 10 and set(links) <= anchors(page)


# ---- Configs ----


def test_every_key_has_one_heading():
    keys = [f"{name}.{key}" for name, section in SECTIONS.items() for key in section.model_fields]
    assert re.findall(r"(?m)^##+ `(.*)`$", CONFIG) == ["model_dir", *keys]


def test_the_example_is_a_config(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(re.search(r"(?s)```yaml\n(.*?)```", CONFIG)[1], "utf-8")
    assert config_file.load(path).data.root == "corpus"


def test_demo_yaml_keeps_its_values_and_its_header():
    text = (ROOT / "configs" / "demo.yaml").read_text("utf-8")
    old = re.sub(r"(?m)^  # .*\n", "", text).replace("beam_size: 5", "beam_size:   7 # old")
    new = write_reference.demo_yaml(old)
    expected = yaml.safe_load(text)
    expected["decoding"]["beam_size"] = 7
    assert yaml.safe_load(new) == expected
    assert new.split("\n\n")[0] == text.split("\n\n")[0]
    assert max(map(len, text.split("\n"))) <= 96
    assert text.count("\n\n") == 1 + len(SECTIONS)  # blank lines only between sections


class Example(Section):
    size: PositiveInt = 3
    """A key."""
    rate: PositiveFloat | None = None
    """A key."""
    pair: Annotated[list[PositiveFloat], Field(min_length=2)] = Field([0.5, 2.0])
    """A key."""
    share: Annotated[float, Field(gt=0, lt=9), at_least(0.5, "why"), at_most(2, "so")] = 1e-9
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


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("size", "whole number · at least 1 · default: `3`"),
        ("rate", "number or `null` · above 0 · default: `null`"),
        ("pair", "list of 2 numbers · above 0 · default: `[0.5, 2.0]`"),
        ("share", "number · at least 0.5 (why) · at most 2 (so) · default: `1.0e-9`"),
        ("is_on", "`true`, `false` · required"),
        ("name", "text · default: `x`"),
    ],
)
def test_the_values_of_a_key(key, line):
    assert write_reference._key("## h", Example, key)[1] == f"{line}\n"


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
                with pytest.raises(ValueError, match=key):
                    section.__pydantic_validator__.validate_assignment(
                        section.model_construct(), key, edge
                    )
                tried += 1
    assert tried > 50


# ---- Commands ----


def test_every_command_and_every_option_is_there():
    for name, summary in COMMANDS.items():
        own = re.split(r"(?m)^## ", COMMANDS_PAGE.split(f"\n## {name}\n")[1])[0]
        assert summary.split()[0] in own.split("\n")[1]
        groups = write_reference._groups(write_reference._parser(name))
        for title, actions in groups.items():
            for action in actions:
                flag = (action.option_strings or [action.metavar])[0]
                is_common = title in (MODEL_GROUP, SETTINGS_GROUP)
                assert (f"`{flag}`" if is_common else f"\n- `{flag}") in own, (name, flag)
                assert action.help, (name, flag)


def test_options_of_several_commands_are_explained_alike():
    """The page explains them once."""
    texts = {}
    for name in COMMANDS:
        groups = write_reference._groups(write_reference._parser(name))
        for title in (MODEL_GROUP, SETTINGS_GROUP):
            for action in groups.get(title, ()):
                texts.setdefault(action.dest, set()).add((action.help, action.metavar))
    assert len(texts) > 15 and all(len(variants) == 1 for variants in texts.values())


def test_every_exit_code_is_there():
    codes = re.findall(r"(?m)^\| (\d+) \| .+ \|$", COMMANDS_PAGE)
    assert codes == ["0", "1", "2", "130", "143", "129"]
    assert all(code in EXIT_CODES for code in codes)


def test_every_script_is_there():
    for path in (ROOT / "scripts").glob("*.sh"):
        usage = re.search(r"usage='(.*?)'", path.read_text("utf-8"), re.DOTALL)[1]
        assert usage in COMMANDS_PAGE, path.name


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.__module__}.{rule.__name__}")
def test_a_rule_names_its_keys(rule):
    """What a rule yields the problems of, as far as its code has them as text."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(rule)))
    texts = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    keys = {text for text in texts if re.fullmatch(rf"({'|'.join(SECTIONS)})\.\w+", text)}
    assert keys
    missing = {key for key in keys if key not in rule.__doc__}
    assert missing == set()


def test_the_rules_name_the_schedules_that_they_are_about():
    lines = {}
    for line in inspect.getdoc(training_rules).replace("\n  ", " ").splitlines():
        if needed := re.search(r"training\.schedule.* need `training\.(\w+)`", line):
            lines[needed[1]] = line
    for name, schedule in SCHEDULES.items():
        assert (f"{name}`" in lines["warmup_steps"]) == schedule.needs_warmup
        assert (f"{name}`" in lines["learning_rate"]) == (schedule.default_peak is None)
        assert (f"{name}`" in lines["decay_steps"]) == schedule.ends

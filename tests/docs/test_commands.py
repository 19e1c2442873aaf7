"""Every command, config key and block of code in the pages is one that the program understands."""

import ast
import importlib
import json
import re

import pytest

from tests.docs.command_check import (
    TEMPLATE,
    Wrong,
    check_code,
    check_command,
    write_printing_scripts,
)
from tests.docs.pages import ROOT, Page, commands, pages
from transformer_mt import cli
from transformer_mt.config import file as config_file
from transformer_mt.config.file import dump_yaml, parse_yaml
from transformer_mt.config.schema import SECTIONS
from transformer_mt.scoring.metrics import METRICS

PROGRAM = r"(bash scripts/|transformer-mt |\.venv/bin/python |python3? (-m |scripts/|data/|tests/))"
KEY = re.compile(rf"({'|'.join(SECTIONS)})\.([a-z][a-z0-9_]*)(\s*[:=].*)?", re.DOTALL)
# Files whose names look like keys, and what the model's own attributes are called.
NO_KEYS = re.compile(r"\.(py|model|txt|yaml|json|jsonl|md|safetensors|pdparams|bin)\b")


@pytest.fixture(scope="session")
def scripts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripts")
    write_printing_scripts(folder)
    return folder


def commands_of_page(page: Page) -> list[str]:
    """Those of its bash blocks, and those in backticks that begin with a program of the project."""
    found = [command for block in page.blocks_in("bash", "sh") for command in commands(block.text)]
    indented = [text for block in page.blocks_in("indented") for text in commands(block.text)]
    return found + [
        span
        for span in [*page.spans, *indented]
        if re.match(PROGRAM, span) and not re.search(r"\.\.\.|…|COMMAND|transformer_mt$", span)
    ]


def commands_of_text(text: str) -> list[str]:
    """The commands in the comments of a YAML file or in the help of a command: indented lines that
    begin with a program of the project, alone or after a pipe."""
    text = re.sub(r"(?m)^#", "", text).replace("\\\n", " ")
    pattern = rf"(?m)^ {{2,}}(?:{PROGRAM}|echo .*\| *{PROGRAM}|cp ).*"
    lines = [match[0].strip() for match in re.finditer(pattern, text)]
    return commands("\n".join(lines))


def check_all(found: list[str], scripts) -> None:
    problems = []
    for command in found:
        try:
            check_command(command, scripts)
        except Wrong as wrong:
            problems.append(f"{command}: {wrong}")
    assert not problems, "\n".join(problems)


def check_recipe(text: str) -> None:
    """A recipe is a config, and a part of a recipe is one in place of the template's values."""
    given = parse_yaml(text)
    values = parse_yaml((ROOT / TEMPLATE).read_text(encoding="utf-8"))
    if "training" in given:
        values = {}
    elif "source_vocab_size" in given.get("subword", {}):
        del values["subword"]["vocab_size"]
    for section, keys in given.items():
        values[section] = values.get(section, {}) | keys if isinstance(keys, dict) else keys
    config_file.parse(dump_yaml(values), "the page")


def wrong_keys(page: Page) -> list[str]:
    """The keys in backticks that are not in the schema."""
    matches = [KEY.fullmatch(span) for span in page.spans if not NO_KEYS.search(span.split(":")[0])]
    return [m[0] for m in matches if m and m[2] not in SECTIONS[m[1]].model_fields]


@pytest.mark.parametrize("name", pages())
def test_a_page_is_understood(name, scripts, monkeypatch):
    if name == "docs/architecture.md":  # whose example adds it
        monkeypatch.setitem(METRICS, "edits", METRICS["ter"])
    page = pages()[name]
    check_all(commands_of_page(page), scripts)
    assert wrong_keys(page) == []
    for block in page.blocks:
        assert block.language, f"line {block.line}: a block without a language"
        if block.language == "python":
            check_code(block.text)
        elif block.language == "yaml":
            check_recipe(block.text)
        elif block.language == "json":
            json.loads(block.text)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_examples_in_the_help_are_understood(name, scripts):
    text = importlib.import_module(cli.module_of(name)).__doc__
    found = commands_of_text(text.partition("\nexamples:\n")[2])
    assert found
    check_all(found, scripts)


def test_commands_in_recipes_and_benchmarks_are_understood(scripts):
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "configs").glob("*.yaml")]
    for path in (ROOT / "scripts").glob("benchmark_*.py"):
        texts.append(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))))
    found = [command for text in texts for command in commands_of_text(text)]
    assert len(found) > len(texts)
    check_all(found, scripts)

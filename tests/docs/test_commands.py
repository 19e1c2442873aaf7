"""Every command, config key and flag in the pages is one that the program understands."""

import ast
import functools
import importlib
import inspect
import json
import re
import sys
from pathlib import Path

import pytest
from visualdl.server import args as visualdl_args

from tests.docs.command_check import (
    OTHER_FLAGS,
    TEMPLATE,
    Wrong,
    check_code,
    check_command,
    parser_of,
    write_printing_scripts,
)
from tests.docs.pages import ROOT, Block, Text, commands, pages, parse, project_files
from transformer_mt import cli
from transformer_mt.config import file as config_file
from transformer_mt.config import yaml_text
from transformer_mt.config.schema import SECTIONS
from transformer_mt.evaluation.metrics import METRICS
from transformer_mt.utils.errors import UsageError

PROGRAM = re.compile(r"(bash scripts/|\.venv/bin/python |python3? (-m |scripts/|data/|tests/))")


@pytest.fixture(scope="session")
def scripts(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    write_printing_scripts(folder)
    return folder


# ---- Where commands are written ----


def written_commands(name: str) -> list[Text]:
    """The commands of a page: those of its bash blocks, and those in backticks and in indented
    blocks that begin with a program of the project."""
    page = pages()[name]
    found = [command for block in page.blocks_in("bash", "sh") for command in commands(block)]
    for block in page.blocks_in("indented"):
        found += [one for one in commands(block) if PROGRAM.match(one.text)]
    for span in page.spans:
        is_whole = not re.search(r"\.\.\.|…|COMMAND", span.text)
        if is_whole and PROGRAM.match(span.text) and not span.text.endswith("transformer_mt"):
            found.append(span)
    return found


def commands_of_text(text: str) -> list[Text]:
    """The commands in the comments of a YAML file or in the help of a command: indented lines that
    begin with a program of the project, alone or after a pipe."""
    lines = [re.sub(r"^#", "", line) for line in text.splitlines()]
    kept = []
    for line in lines:
        is_command = re.match(r" {2,}(?! )", line) and re.search(
            rf"^ *({PROGRAM.pattern}|echo .*\| *{PROGRAM.pattern}|cp )", line
        )
        is_continued = kept and kept[-1].endswith("\\")
        kept.append(line.strip() if is_command or is_continued else "")
    return commands(Block("\n".join(kept), 1, "bash"))


# ---- The pages ----


@pytest.mark.parametrize("name", pages())
def test_commands_of_a_page_are_understood(name, scripts, monkeypatch):
    if name == "docs/architecture.md":  # whose example adds it
        monkeypatch.setitem(METRICS, "edits", METRICS["ter"])
    wrong = problems(written_commands(name), scripts)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "configs").glob("*.yaml")))
def test_commands_in_a_recipe_are_understood(name, scripts):
    text = (ROOT / "configs" / name).read_text(encoding="utf-8")
    found = commands_of_text(text)
    assert found or "bash scripts" not in text
    wrong = problems(found, scripts)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_examples_in_the_help_are_understood(name, scripts):
    text = importlib.import_module(cli.module_of(name)).__doc__
    examples = text.partition("\nexamples:\n")[2]
    found = commands_of_text(examples)
    assert found and len(found) >= examples.count("python -m transformer_mt")
    wrong = problems(found, scripts)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", sorted((ROOT / "scripts").glob("benchmark_*.py")), ids=str)
def test_commands_in_the_help_of_a_benchmark_are_understood(path, scripts):
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    wrong = problems(commands_of_text(text), scripts)
    assert not wrong, "\n".join(wrong)


def problems(found: list[Text], scripts: Path) -> list[str]:
    lines = []
    for command in found:
        try:
            check_command(command.text, scripts)
        except Wrong as wrong:
            lines.append(f"line {command.line}: {command.text}: {wrong}")
    return lines


@pytest.mark.parametrize("name", pages())
def test_python_yaml_and_json_of_a_page_are_understood(name):
    page = pages()[name]
    for block in page.blocks_in("python", "py"):
        check_code(block.text)
    for block in page.blocks_in("yaml"):
        check_recipe(block.text)
    for block in page.blocks_in("json"):
        json.loads(block.text)


def check_recipe(text: str) -> None:
    """A recipe is a config, and a part of a recipe is one in place of the template's values.

    Raises:
        UsageError: it is not.
    """
    given = yaml_text.parse(text)
    values = given
    if "training" not in given:
        values = yaml_text.parse((ROOT / TEMPLATE).read_text(encoding="utf-8"))
        if given.get("subword", {}).keys() & {"source_vocab_size"}:
            del values["subword"]["vocab_size"]
        for section, own in given.items():
            values[section] = values.get(section, {}) | own
    config_file.parse(yaml_text.dump(values), "the page")


def test_blocks_have_a_language():
    languages = {"bash", "python", "text", "yaml", "json", "mermaid", "indented", "bibtex"}
    for name, page in pages().items():
        for block in page.blocks:
            assert block.language in languages, page.place(block)
            # Commands are in blocks of bash, where they are checked.
            if block.language not in ("bash", "indented") and name != "docs/commands.md":
                typed = [one for one in block.text.splitlines() if one.startswith("bash scripts/")]
                assert typed == [], page.place(block)


# ---- Keys and flags ----

KEY = re.compile(rf"({'|'.join(SECTIONS)})\.([a-z][a-z0-9_]*)(\s*[:=].*)?", re.DOTALL)
# Files whose names look like keys, and attributes of the model in the pages about the code.
FILES = re.compile(r"\.(py|model|txt|yaml|json|jsonl|md|safetensors|pdparams|bin)\b")


def problems_of_keys(page) -> list[str]:
    """The keys in backticks that are not in the schema."""
    found = []
    for span in page.spans:
        match = KEY.fullmatch(span.text)
        if not match or FILES.search(span.text.split(":")[0]):
            continue
        section, key, _ = match.groups()
        is_module = (ROOT / "transformer_mt" / section / f"{key}.py").exists()
        if key not in SECTIONS[section].model_fields and not is_module:
            found.append(f"{page.place(span)}: {span.text}")
    return found


@functools.cache
def known_flags() -> set[str]:
    found = set(OTHER_FLAGS)
    for name in cli.COMMANDS:
        for one in cli.parsers_of(name):
            found |= {flag for action in one._actions for flag in action.option_strings}
    for script in project_files():
        if re.fullmatch(r"scripts/\w+\.py|data/\w+/\w+\.py", script):
            found |= {flag for one in parser_of(script)._actions for flag in one.option_strings}
        elif re.fullmatch(r"scripts/\w+\.sh|tests/conftest\.py|tests/mutations\.py", script):
            text = (ROOT / script).read_text(encoding="utf-8")
            found |= set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))
    return found | set(re.findall(r'"(--[a-z-]+)"', inspect.getsource(visualdl_args)))


def problems_of_flags(page) -> list[str]:
    """The flags in backticks that no program has."""
    return [
        f"{page.place(span)}: {flag}"
        for span in page.spans
        for flag in re.findall(r"(?<![\w-])--[A-Za-z][\w-]*", span.text)
        if flag not in known_flags()
    ]


@pytest.mark.parametrize("name", pages())
def test_config_keys_in_backticks_exist(name):
    problems = problems_of_keys(pages()[name])
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("name", pages())
def test_flags_in_backticks_exist(name):
    problems = problems_of_flags(pages()[name])
    assert not problems, "\n".join(problems)


# ---- What the checks find ----


def test_wrong_recipes_are_found():
    check_recipe("model:\n  d_model: 64\n")
    for wrong in ("model:\n  d_modell: 64\n", "model:\n  d_model: 63\n", "modell:\n  x: 1\n"):
        with pytest.raises(UsageError, match="model"):
            check_recipe(wrong)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("bash scripts/train.sh", None),
        ("bash scripts/train.sh configs/demo.yaml training.max_steps=N --check", None),
        ("bash scripts/train.sh my.yaml training.max_steps=20 model_dir=runs/x", None),
        ("bash scripts/train.sh configs/nothing.yaml", "there is no configs/nothing.yaml"),
        ("bash scripts/train.sh my.yaml training.max_step=20", "max_step"),
        ("bash scripts/train.sh my.yaml training.max_steps=many", "max_steps"),
        ("bash scripts/train.sh my.yaml --chek", "--chek"),
        ("bash scripts/train.sh training.steps=3", "training.steps"),
        ("bash scripts/retrain.sh", "there is no scripts/retrain.sh"),
        ("bash scripts/translate.sh runs/my in.txt out.txt --beam-size 5", None),
        ("bash scripts/translate.sh runs/my in.txt out.txt more", "unrecognized arguments: more"),
        ("bash scripts/translate.sh runs/my --beam-size five", "beam_size"),
        ("bash scripts/translate.sh MODEL_DIR [INPUT [OUTPUT]] [--beam-size N]", None),
        ("bash scripts/translate.sh runs/my --n-best 3", "--n-best"),
        ("bash scripts/evaluate.sh", "Usage"),
        ("bash scripts/evaluate.sh MODEL_DIR SOURCE REFERENCE --json FILE", None),
        ("bash scripts/setup.sh --devel", "--devel"),
        ("echo a | bash scripts/translate.sh runs/demo --beam 5", "--beam"),
        (".venv/bin/python -m transformer_mt export runs/my --format onnx", "onnx"),
        ("python -m transformer_mt translat runs/my", "translat"),
        ("python -m transformer_mt info runs/demo model.d_modell=3", "d_modell"),
        ("python -m transformer_mt info runs/demo --tflops 10.6 --help", None),
        (".venv/bin/python scripts/benchmark_data.py --data FOLDER --pairs N", None),
        (".venv/bin/python scripts/benchmark_data.py --data FOLDER --pears N", "--pears"),
        (".venv/bin/python scripts/benchmark_copying.py training.max_steps=3", None),
        (".venv/bin/python scripts/benchmark_nothing.py", "there is no"),
        (".venv/bin/python scripts/benchmarks/padding.py --x", "--x"),
        ("python data/demo/generate.py --output DIR", None),
        ("python data/demo/generate.py --input DIR", "--input"),
        ("python -c 'from transformer_mt import Nothing'", "transformer_mt has no Nothing"),
        ("python -c 'import transformer_mt.nothing'", "there is no transformer_mt.nothing"),
        ("python -c 'print(1'", "never closed"),
        (".venv/bin/pip install -r requirements-ctranslate2.txt", None),
        (".venv/bin/pip install -r requirements-nothing.txt", "there is no"),
        ("cp configs/template.yaml my.yaml", None),
        ("cp configs/templates.yaml my.yaml", "there is no configs/templates.yaml"),
        ("TRANSFORMER_MT_DEVICE=cpu bash scripts/setup.sh", None),
        ("TRANSFORMER_MT_DEVISE=cpu bash scripts/setup.sh", "TRANSFORMER_MT_DEVISE"),
        ("cat a | frobnicate", "frobnicate"),
        (
            "python -m paddle.distributed.launch --nnodes 2 transformer_mt/__main__.py train a",
            "not a YAML file",
        ),
    ],
)
def test_wrong_commands_are_found(command, problem, scripts):
    if problem is None:
        check_command(command, scripts)
    else:
        with pytest.raises(Wrong, match=re.escape(problem)):
            check_command(command, scripts)


def test_nothing_is_started_for_a_parser():
    assert "benchmark_data" not in sys.modules
    assert "--pairs" in {
        flag
        for one in parser_of("scripts/benchmark_data.py")._actions
        for flag in one.option_strings
    }


def test_wrong_keys_and_flags_are_found():
    page = parse(
        "`data.root`, `data.corpus`, `subword.model`, `model.norm: post` `model.norms=pre`"
    )
    assert problems_of_keys(page) == ["page.md:1: model.norms=pre"]
    page = parse("`--n-best 3`, `translate --n-bests`")
    assert problems_of_flags(page) == ["page.md:1: --n-bests"]


def test_commands_in_comments_are_found():
    text = "# A recipe:\n#\n#     bash scripts/train.sh a.yaml   # why\n# bash it\nkey: 1\n"
    assert commands_of_text(text) == [Text("bash scripts/train.sh a.yaml", 3)]

"""Every command, config key and flag in the pages is one that the program understands.

The commands are parsed by the real shell scripts and the real parsers, but nothing is started.
"""

import argparse
import ast
import contextlib
import functools
import importlib
import inspect
import io
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from unittest import mock

import pytest
from visualdl.server import args as visualdl_args

from tests.docs.pages import (
    ROOT,
    Block,
    SimpleCommand,
    Text,
    commands,
    pages,
    parse,
    project_files,
    simple_commands,
)
from transformer_mt import cli
from transformer_mt.config import file as config_file
from transformer_mt.config.schema import SEARCH_KEYS, SECTIONS, DecodingConfig
from transformer_mt.runtime.errors import UsageError

# Programs that pages may use, besides those of the project.
PLAIN = {
    *("awk", "cat", "cd", "cp", "curl", "cut", "diff", "do", "done", "du", "echo", "export"),
    *("for", "git", "grep", "gunzip", "gzip", "head", "iconv", "ls", "mkdir", "mv", "nproc"),
    *("nvidia-smi", "openssl", "paste", "printf", "rm", "sed", "sha256sum", "shuf", "sort"),
    *("source", "tail", "tar", "tr", "true", "uniq", "unzip", "wc", "wget", "xargs", "yes", "zcat"),
    *("docker", "journalctl", "sudo"),
}
PYTHONS = re.compile(r"(\.venv/bin/|[\w./-]+/bin/)?python(3(\.\d+)?)?")
PIPS = re.compile(r"(\.venv/bin/|[\w./-]+/bin/)?pip3?")
# Programs that the environment has besides them.
INSTALLED = re.compile(r"\.venv/bin/sacrebleu")
# Modules of other projects that pages call with `python -m`.
OTHER_MODULES = {"pip", "pytest", "venv", "ruff", "mypy", "sacrebleu", "http.server"}
LAUNCHER = "paddle.distributed.launch"
# Flags of other programs that pages speak of.
OTHER_FLAGS = {
    *("--nnodes", "--nproc_per_node", "--master", "--rank"),  # Paddle's launcher
    *("--check",),  # sha256sum
    *("--no-build-isolation", "--no-deps", "--user", "--upgrade"),  # pip
    *("--tokenize",),  # sacreBLEU
    *("--now", "--time"),  # systemctl, Docker
}
# What stands for a number in a command or a key.
NUMBERS = re.compile(r"(?<![\w/.-])[NKMX](?![\w/.-])")
TEMPLATE = "configs/template.yaml"
PROGRAM = re.compile(r"(bash scripts/|\.venv/bin/python |python3? (-m |scripts/|data/|tests/))")


class Wrong(Exception):
    """A command is not understood; the message says why."""


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


# ---- The shell scripts ----

# What the scripts share, without the environment. "$python" prints its arguments.
STUB = """
root=$PWD
show_help() { printf '%s\\n' "$1"; exit; }
wrong_usage() { printf '%s\\n' "$1" >&2; exit 2; }
setup() { :; }
"""


@pytest.fixture(scope="session")
def scripts(tmp_path_factory) -> Path:
    """A folder with the project's own shell scripts, which print what they would start."""
    folder = tmp_path_factory.mktemp("scripts")
    printing = folder / "python"
    printing.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    printing.chmod(0o755)
    for script in (ROOT / "scripts").glob("*.sh"):
        text = script.read_text(encoding="utf-8")
        if script.name == "setup.sh":
            text = f"python={printing}\n{STUB}"
        (folder / script.name).write_text(text, encoding="utf-8")
    return folder


def started_by(script: str, arguments: list[str], scripts: Path) -> list[str]:
    """The arguments of Python that a shell script would start.

    Raises:
        Wrong: there is no such script, or it refuses the arguments.
    """
    if script not in project_files():
        raise Wrong(f"there is no {script}")
    name = Path(script).name
    if name == "setup.sh":
        if arguments not in ([], ["--dev"], ["--help"], ["-h"]):
            raise Wrong(f"{script}: {arguments}")
        return []
    command = ["bash", str(scripts / name), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise Wrong(done.stderr.strip())
    return done.stdout.split("\0")[:-1]


# ---- The parsers ----


class _Captured(Exception):
    pass


def captured(run: Callable[[], object]) -> argparse.ArgumentParser:
    """The parser that a program is about to parse its arguments with. The program ends there."""

    def capture(parser, *_, **__):
        raise _Captured(parser)

    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setattr(argparse.ArgumentParser, "parse_args", capture)
        patched.setattr(argparse.ArgumentParser, "parse_known_args", capture)
        try:
            run()
        except _Captured as end:
            return end.args[0]
    raise AssertionError("it parses no arguments")


@functools.cache
def parser_of(script: str) -> argparse.ArgumentParser:
    """The parser of a Python script, or one without arguments if the script reads none."""
    path = ROOT / script
    if not re.search(r"\.parse_args\(|harness\.run\(", path.read_text(encoding="utf-8")):
        return argparse.ArgumentParser(prog=script)
    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.syspath_prepend(str(path.parent))
        return captured(lambda: runpy.run_path(str(path), run_name="__main__"))


def parsed(parse_arguments, arguments: list[str]):
    """The result of a parser.

    Raises:
        Wrong: the parser refuses the arguments.
    """
    errors = []
    patch = pytest.MonkeyPatch()
    with patch.context() as patched, contextlib.suppress(SystemExit):
        patched.setattr(argparse.ArgumentParser, "_print_message", lambda _, text, __=None: None)

        def error(_, message):
            errors.append(message)
            raise SystemExit(2)

        patched.setattr(argparse.ArgumentParser, "error", error)
        return parse_arguments(arguments)
    if errors:
        raise Wrong(errors[0])
    return None  # --help or --version


# ---- What is understood ----


def check_command(command: str, scripts: Path) -> None:
    """
    Raises:
        Wrong: a program of the command, an argument, a config or a key in it does not exist.
    """
    for one in simple_commands(_without_optional(command)):
        for name in one.environment:
            if name not in known_variables():
                raise Wrong(f"{name}: nothing reads this environment variable")
        if one.words[0] in ("for", "do", "then", "time", "nohup"):
            rest = [] if one.words[0] == "for" else one.words[1:]
            one = SimpleCommand({}, rest or ["true"], one.redirected)
        _check(one, scripts)


def _check_visualdl(arguments: list[str]) -> None:
    typed = mock.patch("sys.argv", ["visualdl", *arguments])
    with typed, contextlib.redirect_stderr(io.StringIO()):
        try:
            visualdl_args.parse_args()
        except SystemExit:
            raise Wrong(f"visualdl does not take {' '.join(arguments)}") from None


def _without_optional(command: str) -> str:
    """A command as a usage shows it, without its [optional parts]."""
    shorter = re.sub(r" \[[^][]*\]", "", command)
    return shorter if shorter == command else _without_optional(shorter)


def _check(one: SimpleCommand, scripts: Path) -> None:
    program, *arguments = one.words
    if program == "bash" and arguments and arguments[0].startswith("scripts/"):
        started = started_by(arguments[0], arguments[1:], scripts)
        if started:
            _check_python(started)
    elif PYTHONS.fullmatch(program):
        _check_python(arguments)
    elif PIPS.fullmatch(program):
        _check_pip(arguments)
    elif program == ".venv/bin/visualdl":
        _check_visualdl(arguments)
    elif program == "bash" or program in PLAIN or INSTALLED.fullmatch(program):
        _check_files(arguments)
    else:
        raise Wrong(f"{program}: not a program that the pages use")


def _check_python(arguments: list[str]) -> None:
    if not arguments:
        return
    first, *rest = arguments
    if first == "-m":
        module, *rest = rest
        if module == "transformer_mt":
            _check_program(rest)
        elif module == "pip":
            _check_pip(rest)
        elif module == LAUNCHER:
            start = rest.index("transformer_mt/__main__.py")
            flags = {word for word in rest[:start] if word.startswith("--")}
            if flags - OTHER_FLAGS:
                raise Wrong(f"{LAUNCHER}: {flags - OTHER_FLAGS}")
            _check_program(rest[start + 1 :])
        elif f"{module.replace('.', '/')}.py" in project_files() or module in OTHER_MODULES:
            _check_files(rest)
        else:
            raise Wrong(f"python -m {module}: not a module that the pages use")
    elif first == "-c":
        _check_code(rest[0])
    elif first in project_files():
        options = parsed(parser_of(first).parse_args, list(map(number, rest)))
        if isinstance(getattr(options, "overrides", None), list) and "config" in options:
            _check_config(str(options.config), options.overrides)
    elif first.startswith(("scripts/", "data/", "tests/", "transformer_mt/")):
        raise Wrong(f"there is no {first}")


def _check_program(arguments: list[str]) -> None:
    options = parsed(cli.parse, list(map(number, arguments)))
    if options is None:
        return
    _check_decoding(options)
    if "overrides" not in options:
        return
    if str(options.config).endswith((".yaml", ".yml")) or str(options.config) == "CONFIG":
        _check_config(str(options.config), options.overrides)
    elif options.command == "train":
        raise Wrong(f"{options.config}: not a YAML file")
    else:  # `info MODEL_DIR`
        _check_config("my.yaml", options.overrides)


def _check_decoding(options: argparse.Namespace) -> None:
    """The flags that stand for keys of `decoding` have values that the schema accepts."""
    keys = SEARCH_KEYS
    changes = {name: value for name, value in vars(options).items() if name in keys}
    try:
        decoding = config_file.with_changes(DecodingConfig(), changes)
    except UsageError as error:
        raise Wrong(str(error)) from None
    if getattr(options, "format", None) == "plain" and decoding.n_best > 1:
        raise Wrong("--n-best needs --format tsv or jsonl")


def _check_config(path: str, overrides: list[str]) -> None:
    if path.startswith("configs/") and path not in project_files():
        raise Wrong(f"there is no {path}")
    # A file of the user stands for a copy of the template.
    whole = ROOT / (path if path in project_files() else TEMPLATE)
    try:
        config_file.load(whole, overrides)
    except UsageError as error:
        raise Wrong(str(error)) from None


def _check_pip(arguments: list[str]) -> None:
    if not arguments or arguments[0] not in ("install", "check", "list", "freeze", "download"):
        raise Wrong(f"pip {arguments}")
    for flag, name in pairwise(arguments):
        if flag in ("-r", "-c") and name not in project_files():
            raise Wrong(f"there is no {name}")


def _check_files(arguments: list[str]) -> None:
    """What lies in a folder of the project that holds nothing of the user must exist."""
    for word in arguments:
        own = re.match(r"(configs|docs|scripts|transformer_mt|data/(demo|toy|names))/", word)
        if own and word.rstrip("/") not in project_files() and not re.search(r"[*$]", word):
            raise Wrong(f"there is no {word}")


def _check_code(text: str) -> None:
    """Python parses, and what it imports from the package exists."""
    tree = _tree(text)
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [(node.module, alias.name) for alias in node.names]
        for module, name in names:
            if module.split(".")[0] == "transformer_mt" and not _is_importable(module, name):
                raise Wrong(f"{module} has no {name}" if name else f"there is no {module}")


def _tree(text: str) -> ast.AST:
    """The parsed Python. It may be the entries of a dictionary, and may have lines of `...`."""
    shorter = re.sub(r"(?m)^ *\.\.\.$", "", text)
    for attempt in (text, shorter, f"{{\n{text}}}"):
        with contextlib.suppress(SyntaxError):
            return ast.parse(attempt)
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise Wrong(str(error)) from None


def _is_importable(module: str, name: str | None) -> bool:
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError:
        return False
    return name is None or hasattr(found, name) or _is_importable(f"{module}.{name}", None)


def number(word: str) -> str:
    """The argument, with a 4 where a placeholder stands for a number."""
    return NUMBERS.sub("4", word) if re.search(r"(^|[=:,])[NKMX]$", word) else word


@functools.cache
def known_variables() -> set[str]:
    """The environment variables that the scripts, the program, pip or Python read."""
    sources = [*(ROOT / "scripts").glob("*.sh"), *(ROOT / "transformer_mt").rglob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    own = set(re.findall(r"\b(?:TRANSFORMER_MT_\w+|FLAGS_\w+|PYTHON|PIP_INDEX_URL|TMPDIR)\b", text))
    return own | {"CUDA_VISIBLE_DEVICES", "MKL_DEBUG_CPU_TYPE", "OMP_NUM_THREADS", "PYTHONPATH"}


# ---- The pages ----


@pytest.mark.parametrize("name", pages())
def test_commands_of_a_page_are_understood(name, scripts):
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
def test_python_of_a_page_parses(name):
    for block in pages()[name].blocks_in("python", "py"):
        _check_code(block.text)


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

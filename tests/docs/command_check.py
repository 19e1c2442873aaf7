"""Whether a command is one that the program understands.

The command is parsed by the real shell scripts and the real parsers, but nothing is started.
"""

import argparse
import ast
import contextlib
import functools
import importlib
import io
import re
import runpy
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from unittest import mock

import pytest
from visualdl.server import args as visualdl_args

from tests.docs.pages import ROOT, SimpleCommand, project_files, simple_commands
from transformer_mt import cli
from transformer_mt.config import file as config_file
from transformer_mt.config.decoding import SEARCH_KEYS, DecodingConfig
from transformer_mt.runtime.errors import UsageError

# Programs that pages may use, besides those of the project.
PLAIN = {
    *("awk", "cat", "cd", "cp", "curl", "cut", "diff", "do", "done", "du", "echo", "export"),
    *("for", "git", "grep", "gunzip", "gzip", "head", "iconv", "ls", "mkdir", "mv", "nproc"),
    *("nvidia-smi", "openssl", "paste", "printf", "rm", "sed", "sha256sum", "shuf", "sort"),
    *("source", "tail", "tar", "tr", "true", "uniq", "unzip", "wc", "wget", "xargs", "yes", "zcat"),
    *("docker", "install", "journalctl", "sudo", "umask"),
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


class Wrong(Exception):
    """A command is not understood; the message says why."""


# ---- The shell scripts ----

# What the scripts share, without the environment. "$python" prints its arguments.
STUB = """
root=$PWD
show_help() { printf '%s\\n' "$1"; exit; }
wrong_usage() { printf '%s\\n' "$1" >&2; exit 2; }
setup() { :; }
"""


def write_printing_scripts(folder: Path) -> None:
    """Writes the project's own shell scripts, which print what they would start."""
    printing = folder / "python"
    printing.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    printing.chmod(0o755)
    for script in (ROOT / "scripts").glob("*.sh"):
        text = script.read_text(encoding="utf-8")
        if script.name == "setup.sh":
            text = f"python={printing}\n{STUB}"
        (folder / script.name).write_text(text, encoding="utf-8")


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
        check_code(rest[0])
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


def check_code(text: str) -> None:
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

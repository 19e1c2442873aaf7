"""Whether a command is one that the program understands.

The command is parsed by the real shell scripts and the real parsers, but nothing is started.
"""

import argparse
import ast
import contextlib
import functools
import re
import runpy
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, project_files
from transformer_mt import cli
from transformer_mt.config import file as config_file
from transformer_mt.config.decoding import SEARCH_KEYS, DecodingConfig
from transformer_mt.utils.errors import UsageError

LAUNCHER = "paddle.distributed.launch"
TEMPLATE = "configs/template.yaml"
# What the scripts share, without the environment. "$python" prints its arguments.
STUB = """
root=$PWD
show_help() { printf '%s\\n' "$1"; exit; }
wrong_usage() { printf '%s\\n' "$1" >&2; exit 2; }
setup() { :; }
"""


class Wrong(Exception):
    """A command is not understood; the message says why."""


def write_printing_scripts(folder: Path) -> None:
    """Writes the project's own shell scripts, which print what they would start."""
    printing = folder / "python"
    # It reads its input to the end, because whoever writes into a pipe would fail otherwise.
    printing.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\ncat >/dev/null\n")
    printing.chmod(0o755)
    for script in (ROOT / "scripts").glob("*.sh"):
        text = script.read_text(encoding="utf-8")
        if script.name == "setup.sh":
            text = f"python={printing}\n{STUB}"
        (folder / script.name).write_text(text, encoding="utf-8")


def check_command(command: str, scripts: Path) -> None:
    """
    Args:
        scripts: the folder that `write_printing_scripts` has filled.

    Raises:
        Wrong: a file or module of the project, an argument, a config or a key does not exist.
    """
    while (shorter := re.sub(r" \[[^][]*\]", "", command)) != command:  # [optional parts]
        command = shorter
    command = re.sub(r"(<<-?\s*['\"]?\w+['\"]?[^\n]*)\n.*", r"\1", command, flags=re.DOTALL)
    lexer = shlex.shlex(command.replace("\n", ";"), posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    is_redirected = False
    for word in [*lexer, ";"]:
        if word and set(word) <= set("();<>|&"):
            is_redirected = bool(set(word) & set("<>"))
            if is_redirected:
                words = words[: -1 if words[-1:] == ["2"] else None]
            else:
                _check_words(words, scripts)
                words = []
        elif is_redirected:
            is_redirected = False
        elif words or not re.fullmatch(r"[A-Z_]+=.*|do|then|time|nohup", word):
            words.append(word)


def _check_words(words: list[str], scripts: Path) -> None:
    program, *arguments = words or ["true"]
    if program == "bash" and arguments and arguments[0].startswith("scripts/"):
        started = _started_by(arguments[0], arguments[1:], scripts)
        if started:
            _check_python(started)
    elif re.fullmatch(r"([\w./-]+/)?python(3(\.\d+)?)?", program):
        _check_python(arguments)
    elif program == "transformer-mt":
        _check_program(arguments)
    else:
        _check_files(arguments)


def _started_by(script: str, arguments: list[str], scripts: Path) -> list[str]:
    """The arguments of Python that a shell script would start."""
    if script not in project_files():
        raise Wrong(f"there is no {script}")
    if script == "scripts/setup.sh":
        if arguments not in ([], ["--dev"], ["--help"], ["-h"]):
            raise Wrong(f"{script}: {arguments}")
        return []
    command = ["bash", str(scripts / Path(script).name), *arguments]
    nothing = subprocess.DEVNULL
    done = subprocess.run(command, cwd=ROOT, stdin=nothing, capture_output=True, text=True)
    if done.returncode:
        raise Wrong(done.stderr.strip())
    return done.stdout.split("\0")[:-1]


def _check_python(arguments: list[str]) -> None:
    match arguments:
        case ["-m", "transformer_mt", *rest]:
            _check_program(rest)
        case ["-m", module, *rest] if module == LAUNCHER:
            _check_program(rest[rest.index("transformer_mt/__main__.py") + 1 :])
        case ["-c", code, *_]:
            check_code(code)
        case [script, *rest] if script in project_files():
            options = _parsed(parser_of(script).parse_args, rest)
            if isinstance(getattr(options, "overrides", None), list) and "config" in options:
                _check_config(str(options.config), options.overrides)
        case _:
            _check_files(arguments)


def _check_program(arguments: list[str]) -> None:
    # A letter stands for a number.
    arguments = [re.sub(r"(^|=|,)[NKMX]$", r"\g<1>4", word) for word in arguments]
    options = _parsed(cli.parse, arguments)
    if options is None:
        return
    changes = {name: value for name, value in vars(options).items() if name in SEARCH_KEYS}
    try:
        config_file.with_changes(DecodingConfig(), changes)
    except UsageError as error:
        raise Wrong(str(error)) from None
    if "overrides" in options:
        is_config = str(options.config).endswith((".yaml", ".yml")) or options.command == "train"
        _check_config(str(options.config) if is_config else "my.yaml", options.overrides)


def _check_config(path: str, overrides: list[str]) -> None:
    _check_files([path])
    # A file of the user stands for a copy of the template.
    try:
        config_file.load(ROOT / (path if path in project_files() else TEMPLATE), overrides)
    except UsageError as error:
        raise Wrong(str(error)) from None


def _check_files(arguments: list[str]) -> None:
    """What lies in a folder of the project that holds nothing of the user must exist."""
    for word in arguments:
        own = re.match(
            r"(configs|docs|scripts|tests|transformer_mt|data/(demo|toy|names))/|requirements", word
        )
        if own and word.rstrip("/") not in project_files() and not re.search(r"[*$]", word):
            raise Wrong(f"there is no {word}")


@functools.cache
def parser_of(script: str) -> argparse.ArgumentParser:
    """The parser of a Python script, which ends where it would parse its arguments; or one without
    arguments if the script reads none."""
    path = ROOT / script
    if not re.search(r"\.parse_args\(|harness\.run\(", path.read_text(encoding="utf-8")):
        return argparse.ArgumentParser(prog=script)
    found = []

    def capture(parser, *_, **__):
        found.append(parser)
        raise SystemExit

    with pytest.MonkeyPatch().context() as patched, contextlib.suppress(SystemExit):
        patched.setattr(argparse.ArgumentParser, "parse_args", capture)
        patched.setattr(argparse.ArgumentParser, "parse_known_args", capture)
        patched.syspath_prepend(str(path.parent))
        runpy.run_path(str(path), run_name="__main__")
    return found[0]


def _parsed(parse, arguments: list[str]):
    """The options, or None for --help and --version."""
    with pytest.MonkeyPatch().context() as patched, contextlib.suppress(SystemExit):

        def error(_, message):
            raise Wrong(message)

        patched.setattr(argparse.ArgumentParser, "_print_message", lambda *_: None)
        patched.setattr(argparse.ArgumentParser, "error", error)
        return parse(arguments)
    return None


def check_code(text: str) -> None:
    """Python parses, and what it imports from the package exists. It may be the entries of a
    dictionary."""
    try:
        try:
            tree = ast.parse(text)
        except SyntaxError:
            tree = ast.parse(f"{{\n{text}}}")
    except SyntaxError as error:
        raise Wrong(str(error)) from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and "transformer_mt" in ast.unparse(node):
            try:
                exec(ast.unparse(node), {})
            except ImportError as error:
                raise Wrong(str(error)) from None

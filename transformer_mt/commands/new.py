"""The command `new`.

examples:
  python -m transformer_mt new my.yaml
  python -m transformer_mt new my.yaml --train corpus/train --source-lang de --target-lang en
  python -m transformer_mt new my.yaml --train pairs.tsv --source-lang de --target-lang en \\
      --minutes 30

At a terminal, it asks for the text and the languages that are not given. For --train corpus/train,
the text is in corpus/train.de and corpus/train.en, or in files compressed with gzip, bzip2 or xz.
"""

import argparse
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from transformer_mt.commands.arguments import add_device, positive_number
from transformer_mt.data.datasets import DATASETS
from transformer_mt.data.datasets.files import TSV
from transformer_mt.model_directory import require_safe_outputs
from transformer_mt.utils.console import quoted, say, show
from transformer_mt.utils.errors import UsageError
from transformer_mt.utils.files import ENDINGS, write_atomically

# A name such as train.de or train.zh-CN.gz: the part before the language, and the language.
_FILE = re.compile(r"(.+?)\.([a-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*)(?:\.(?:gz|bz2|xz))?")
# Endings of files that hold no text of a language.
_NO_LANGUAGES = {"csv", "tsv", "txt", "log", "cfg", "ini", "xml", "css", "js", "py", "md", "sh"}
DEFAULT_MINUTES = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", type=Path, help="the file to write: my.yaml")
    parser.add_argument(
        "--train",
        metavar="PREFIX",
        help="the training text: the path of its two files without the language, as in "
        "corpus/train, or a file NAME.tsv whose lines are source<TAB>target",
    )
    for side in ("source", "target"):
        parser.add_argument(
            f"--{side}-lang",
            metavar="LANG",
            help=f"the {side} language, as the name of its file ends: de, zh",
        )
    for name in ("dev", "test"):
        parser.add_argument(
            f"--{name}",
            metavar="PREFIX",
            help=f"the {name} set, given like --train (default: pairs of the training text are "
            "held out)",
        )
    parser.add_argument(
        "--minutes",
        metavar="N",
        type=positive_number,
        help=f"how long the training may take on this computer (default: {DEFAULT_MINUTES:g})",
    )
    parser.add_argument(
        "--model-dir",
        metavar="FOLDER",
        help="the folder for everything that the training will write (default: runs/ and the name "
        "of the recipe)",
    )
    parser.add_argument(
        "--force", action="store_true", help="replace the recipe if there is one of this name"
    )
    add_device(parser)


def run(options: argparse.Namespace) -> None:
    path = options.recipe
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"{path}: the name of a recipe ends in .yaml")
    if "\ufffd" in os.fsencode(path).decode("utf-8", "replace"):
        raise UsageError(f"{path}: the name is not UTF-8, as a recipe must be. Give another one")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}")
    if path.exists() and not options.force:
        _confirm_replacing(path)
    required = ("train", "source_lang", "target_lang")
    if any(getattr(options, name) is None for name in required):
        if not _at_terminal():
            raise UsageError(_what_is_missing(options, required))
        _ask_for_text(options)
    place = _place(options)
    # Paddle takes seconds to import; wrong arguments are reported before that.
    from transformer_mt.training.recipe import make_recipe

    recipe = make_recipe(path, place, options.minutes or DEFAULT_MINUTES, options.device)
    write_atomically(path, recipe.text)
    show(f"\n{path} is written. This is what it says:")
    for line in recipe.reasons:
        show(f"  {line}")
    show("\nNext:")
    show(f"  bash scripts/train.sh {quoted(path)} --check   # look at the text and the plan")
    show(f"  bash scripts/train.sh {quoted(path)}   # train")


def _place(options: argparse.Namespace) -> dict[str, str | None]:
    """Returns the values of the recipe that say where things are.

    Raises:
        UsageError: a file is missing, or is the recipe itself.
    """
    languages = options.source_lang, options.target_lang
    if languages[0] == languages[1] and not options.train.endswith(TSV):
        raise UsageError(f"--target-lang: {languages[1]}: it is also the source language")
    root, train = os.path.split(_prefix(options.train, languages))
    names = {"train": train, "dev": None, "test": None}
    for name in ("dev", "test"):
        if (given := getattr(options, name)) is not None:
            # Another folder is given as seen from that of the training text.
            names[name] = os.path.relpath(_prefix(given, languages), root or ".")
    for name, value in names.items():
        if value is not None:
            try:
                found = DATASETS["files"].find(root or ".", name, value, languages)
            except UsageError as error:
                raise UsageError(f"{error}{_hint(_anywhere_near())}") from None
            for path in found.paths:
                require_safe_outputs({"RECIPE": options.recipe}, {f"--{name}": path})
    return {
        "model_dir": options.model_dir or f"runs/{options.recipe.stem}",
        "root": root or ".",
        **names,
        "source_lang": languages[0],
        "target_lang": languages[1],
    }


def _prefix(path: str, languages: Iterable[str]) -> str:
    """Returns the path of two files without the language, even if one of the files is given."""
    for language in languages:
        for ending in (f".{language}{compressed}" for compressed in ENDINGS):
            if path.endswith(ending) and Path(path).is_file():
                return path.removesuffix(ending)
    return path


# ---------------------------------------------------------------------------------- what is found


def parallel_files(folder: Path) -> dict[str, list[str]]:
    """Finds parallel text by the names of its files.

    Returns: the endings of the files with each path PREFIX, of which there are at least two, such
        as {"corpus/train": ["de", "en"]}; no endings for a .tsv file.
    """
    found = defaultdict(set)
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    except OSError:
        return {}
    for name in names:
        match = _FILE.fullmatch(name)
        if name.endswith(TSV):
            found[str(folder / name)] = set()
        elif match and match[2] not in _NO_LANGUAGES:
            found[str(folder / match[1])].add(match[2])
    return {prefix: sorted(own) for prefix, own in found.items() if len(own) != 1}


def _anywhere_near() -> dict[str, list[str]]:
    """The parallel text in this folder and in the folders in it."""
    try:
        folders = sorted(entry.name for entry in os.scandir() if entry.is_dir())
    except OSError:
        folders = []
    found = {}
    for folder in (".", *(name for name in folders if not name.startswith("."))):
        found |= parallel_files(Path(folder))
    return found


def _named(found: dict[str, list[str]], *words: str) -> str | None:
    """Returns the first prefix whose name has one of these words in it."""
    return next(
        (prefix for word in words for prefix in found if word in Path(prefix).name.lower()), None
    )


def _listed(found: dict[str, list[str]]) -> str:
    """Lists the files as a part of a message."""
    shown = [f"{prefix} ({', '.join(own)})" if own else prefix for prefix, own in found.items()]
    return ", ".join(shown[:10]) + (f" and {len(shown) - 10:,} more" if len(shown) > 10 else "")


def _hint(found: dict[str, list[str]]) -> str:
    return f". There is text in {_listed(found)}" if found else ""


def _what_is_missing(options: argparse.Namespace, names: Iterable[str]) -> str:
    flags = [f"--{name.replace('_', '-')}" for name in names if getattr(options, name) is None]
    found = _anywhere_near()
    if options.train is not None:
        prefix = options.train
        own = parallel_files(Path(prefix).parent).get(str(Path(prefix)))
        found = {prefix: own} if own else {}
    return f"{', '.join(flags)}: give {'it' if len(flags) == 1 else 'them'}{_hint(found)}"


# -------------------------------------------------------------------------------------- questions


def _at_terminal() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


def _confirm_replacing(path: Path) -> None:
    """
    Raises:
        UsageError: the file shall not be replaced.
    """
    if not _at_terminal():
        raise UsageError(f"{path} is there already. Give another name, or --force to replace it")
    if not _ask(f"{path} is there already. Replace it?", "no").lower().startswith("y"):
        raise UsageError(f"{path} was not changed. Give another name")


def _ask(
    question: str, default: str | None = None, check: Callable[[str], object] | None = None
) -> str:
    """Asks until there is an answer.

    Args:
        check: raises a UsageError or ArgumentTypeError for a wrong answer, which is asked again.

    Raises:
        UsageError: the input has ended.
    """
    while True:
        try:
            answer = input(f"{question}{f' [{default}]' if default else ''} ").strip()
        except EOFError:
            print()
            raise UsageError("nothing was written, because a question has no answer") from None
        answer = answer or default or ""
        try:
            if answer and check:
                check(answer)
        except (UsageError, argparse.ArgumentTypeError) as error:
            say(f"  {error}")
        else:
            if answer:
                return answer


def _ask_for_text(options: argparse.Namespace) -> None:
    """Asks for everything that is not given, and sets it in `options`."""
    files = DATASETS["files"]
    if options.train is None:
        found = _anywhere_near()
        if found:
            say(f"There is text in {_listed(found)}.")
        options.train = _ask(
            "Which is the training text (the path of its files without the language, or a .tsv "
            "file)?",
            _named(found, "train") or next(iter(found), None),
            _require_text,
        )
    folder = Path(options.train).parent
    near = parallel_files(folder)
    own = near.get(str(Path(options.train)), [])
    if options.source_lang is None:
        left = [language for language in own if language != options.target_lang]
        options.source_lang = _ask("Translate from which language?", left[0] if left else None)
    if options.target_lang is None:
        left = [language for language in own if language != options.source_lang]
        options.target_lang = _ask("Into which language?", left[0] if left else None)
    languages = options.source_lang, options.target_lang
    near = {prefix: own for prefix, own in near.items() if not own or set(languages) <= set(own)}

    def require_pair(answer: str) -> None:
        if answer != "none":
            root, value = os.path.split(_prefix(answer, languages))
            files.find(root or ".", "train", value, languages)

    require_pair(options.train)
    for name, words in (("dev", ("dev", "val")), ("test", ("test",))):
        if getattr(options, name) is None:
            answer = _ask(
                f"Which is the {name} set (none: pairs of the training text are held out)?",
                _named(near, *words) or "none",
                require_pair,
            )
            setattr(options, name, None if answer == "none" else answer)
    if options.minutes is None:
        answer = _ask(
            "How many minutes may the training take?", f"{DEFAULT_MINUTES:g}", positive_number
        )
        options.minutes = positive_number(answer)


def _require_text(prefix: str) -> None:
    """
    Raises:
        UsageError: no file has this prefix.
    """
    path = Path(prefix)
    near = parallel_files(path.parent)
    if not path.is_file() and str(path) not in near:
        there = f"; there is {_listed(near)}" if near else ""
        raise UsageError(f"{prefix}: there are no files {prefix}.LANGUAGE of two languages{there}")

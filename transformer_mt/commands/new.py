"""The command `new`.

examples:
  python -m transformer_mt new my.yaml
  python -m transformer_mt new my.yaml --train corpus/train --source-lang de --target-lang en
  python -m transformer_mt new my.yaml --train pairs.tsv --source-lang de --target-lang en \\
      --minutes 30
  python -m transformer_mt new my.yaml --train memory.tmx
  python -m transformer_mt new my.yaml --from runs/general --train memory.tmx --mix corpus/general

At a terminal, it asks for the text and the languages that are not given. For --train corpus/train,
the text is in corpus/train.de and corpus/train.en, or in files compressed with gzip, bzip2 or xz.
The languages of a translation memory, and of other files that name them, need not be given.

--from writes a recipe that fine-tunes a model. Its languages, its subwords and its sizes are those
of the model.
"""

import argparse
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformer_mt.commands import arguments
from transformer_mt.data import pair_files
from transformer_mt.data.datasets import DATASETS, TSV
from transformer_mt.data.subword import read_symbols
from transformer_mt.formats import registry
from transformer_mt.formats.document import are_of, directions
from transformer_mt.model_directory import ModelDirectory, require_safe_outputs
from transformer_mt.utils.console import quoted, say, show
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.files import ENDINGS, write_atomically

# A name such as train.de or train.zh-CN.gz: the part before the language, and the language.
_FILE = re.compile(r"(.+?)\.([a-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*)(?:\.(?:gz|bz2|xz))?")
# Endings of files that hold no text of a language.
_NO_LANGUAGES = {"txt", "log", "cfg", "ini", "css", "js", "py", "md", "sh"}
_NO_LANGUAGES |= {ending.removeprefix(".") for ending in registry.FORMATS} - {"ts"}
DEFAULT_MINUTES = 60.0
# The questions that are asked at a terminal; the others have a default.
REQUIRED = ("train", "source_lang", "target_lang")
# The options that need --from, of which those name texts.
GENERAL = ("mix", "general_dev", "general_test")
FINE_TUNING = (*GENERAL, "add_symbols")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", type=Path, help="the file to write: my.yaml")
    arguments.add_values(
        parser,
        "PREFIX",
        train="the training text: the path of its two files without the language, as in "
        "corpus/train; a file NAME.tsv whose lines are source<TAB>target; another file of pairs "
        "(TMX, XLIFF, PO, Qt's .ts, CSV, JSON Lines, Parquet); or a folder of such files",
    )
    held_out = "set, given like --train (default: pairs of the training text are held out)"
    ending = "as the name of its file ends: de, zh"
    arguments.add_values(
        parser,
        "LANG",
        source_lang=f"the source language, {ending}",
        target_lang=f"the target language, {ending}",
    )
    arguments.add_values(parser, "PREFIX", dev=f"the dev {held_out}", test=f"the test {held_out}")
    arguments.add_values(
        parser,
        "N",
        arguments.positive_number,
        minutes=f"how long the training may take on this computer (default: {DEFAULT_MINUTES:g})",
    )
    arguments.add_values(
        parser,
        "FOLDER",
        model_dir="the folder for everything that the training will write (default: runs/ and the "
        "name of the recipe)",
    )
    arguments.add_switches(parser, force="replace the recipe if there is one of this name")
    group = parser.add_argument_group("options for fine-tuning")
    of_general = "set of general text, to see what is forgotten, given like --train (default: with"
    help = "the model that is fine-tuned"
    group.add_argument("--from", metavar="MODEL_DIR", dest="base", help=help)
    arguments.add_values(
        group,
        "PREFIX",
        mix="general text, of the kind that the model was made for, given like --train; it is half "
        "of each pass over the text, so that the model forgets little",
        general_dev=f"a dev {of_general} --mix, pairs of it are held out)",
        general_test=f"a test {of_general} --mix, pairs of it are held out)",
    )
    arguments.add_files(group, add_symbols="new subwords, one on each line of this file")
    arguments.add_device(parser)


def run(options: argparse.Namespace) -> None:
    path = options.recipe
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"{path}: the name of a recipe ends in .yaml")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}")
    if path.exists() and not options.force:
        raise UsageError(f"{path} is there already. Give another name, or --force to replace it")
    if options.base is not None:
        _set_languages_of(options, options.base)
    elif given := [name for name in FINE_TUNING if getattr(options, name) is not None]:
        raise UsageError(f"{', '.join(map(arguments.flag, given))}: for --from MODEL_DIR")
    if options.train is not None:
        set_languages(options)
    if missing := [name for name in REQUIRED if getattr(options, name) is None]:
        if not at_terminal():
            raise UsageError(f"{', '.join(map(arguments.flag, missing))}: not given{_hint()}")
        _ask_for_text(options)
    place = _place(options)
    symbols = read_symbols(options.add_symbols) if options.add_symbols else []
    # Paddle takes seconds to import; wrong arguments are reported before that.
    from transformer_mt.training.recipes import fine_tuning, new_model

    time = options.minutes or DEFAULT_MINUTES, options.device
    if options.base is None:
        text, reasons = new_model.make_recipe(path, place, *time)
    else:
        text, reasons = fine_tuning.make_recipe(path, options.base, place, symbols, *time)
    write_atomically(path, text)
    show(f"\n{path} is written. This is what it says:")
    for line in reasons:
        show(f"  {line}")
    show("\nNext:")
    show(f"  bash scripts/train.sh {quoted(path)} --check   # look at the text and the plan")
    show(f"  bash scripts/train.sh {quoted(path)}   # train")


def _set_languages_of(options: argparse.Namespace, base: str) -> None:
    """Sets the languages that are not given to those of a model.

    Raises:
        UserError: it is missing or damaged.
    """
    try:
        data = ModelDirectory(base).load_config().data
    except UserError as error:
        raise type(error)(f"--from: {error}") from None
    options.source_lang = options.source_lang or data.source_lang
    options.target_lang = options.target_lang or data.target_lang


def _place(options: argparse.Namespace) -> dict[str, str | None]:
    """Returns the values of the recipe that say where things are.

    Raises:
        UsageError: a file is missing, or is the recipe itself.
    """
    languages = options.source_lang, options.target_lang
    if languages[0] == languages[1] and not options.train.endswith(TSV):
        raise UsageError(f"--target-lang: {languages[1]}: it is also the source language")
    root, train = os.path.split(_prefix(options.train, languages).rstrip("/"))
    root = root or "."
    names: dict[str, str | None] = {"train": train}
    for name in ("dev", "test", *GENERAL):
        names[name] = None
        if (given := getattr(options, name)) is not None:
            # Another folder is given as seen from that of the training text.
            names[name] = os.path.relpath(_prefix(given, languages), root)
    for name, value in names.items():
        if value is not None:
            try:
                place = root, "train" if name == "mix" else name, value, languages
                own = pair_files.find(*place)
                files = [own] if own else DATASETS["files"].find(*place).paths
            except UsageError as error:
                raise UsageError(f"{error}{_hint()}") from None
            for path in files:
                require_safe_outputs({"RECIPE": options.recipe}, {arguments.flag(name): path})
    sides = {"source_lang": languages[0], "target_lang": languages[1]}
    model_dir = options.model_dir or f"runs/{options.recipe.stem}"
    return {"model_dir": model_dir, "root": root, **names, **sides}


def set_languages(options: argparse.Namespace) -> None:
    """Sets the languages that are not given, if the training text is a file that names them.

    Raises:
        UsageError: it has several languages.
        UserError: it can't be read.
    """
    given = options.source_lang, options.target_lang
    path = Path(options.train)
    is_file = path.is_file() and registry.has_pairs(path)
    is_folder = path.is_dir() and not parallel_files(path.parent).get(str(path))
    if None not in given or not (is_file or is_folder):
        return
    found = pair_files.languages_of(path)
    if any(given):  # A translation memory can be read in both directions.
        found |= {(target, source) for source, target in found if source and target}
    found = {pair for pair in found if are_of(given, pair)}
    pairs = [pair for pair in found if None not in pair] or [*found]
    # With text in de-DE and in de, the language is de.
    pairs = [
        pair
        for pair in pairs
        if not any(are_of(it, pair) and len(str(it)) < len(str(pair)) for it in pairs)
    ]
    if len(pairs) == 1:
        options.source_lang, options.target_lang = (
            own or its for own, its in zip(given, pairs[0], strict=True)
        )
    elif pairs:
        raise UsageError(
            f"{path}: has text {directions(pairs)}. Say which with --source-lang and --target-lang"
        )


def _prefix(path: str, languages: tuple[str, str]) -> str:
    """Returns the path of two files without the language, even if one of the files is given."""
    for ending in (f".{language}{packed}" for language in languages for packed in ENDINGS):
        if path.endswith(ending) and Path(path).is_file():
            return path.removesuffix(ending)
    return path


def parallel_files(folder: Path) -> dict[str, list[str]]:
    """Finds parallel text by the names of its files.

    Returns: the endings of the files with each path PREFIX, of which there are at least two, such
        as {"corpus/train": ["de", "en"]}; no endings for a file of pairs.
    """
    texts: dict[str, set[str]] = defaultdict(set)
    for path in folder.iterdir() if os.access(folder, os.R_OK) and folder.is_dir() else ():
        match = _FILE.fullmatch(path.name)
        # Most files of this other name are programs.
        if registry.has_pairs(path) and path.suffix != ".ts":
            texts[str(path)] = set()
        elif match and match[2] not in _NO_LANGUAGES and path.is_file():
            texts[str(folder / match[1])].add(match[2])
    return {prefix: sorted(texts[prefix]) for prefix in sorted(texts) if len(texts[prefix]) != 1}


def _texts_near() -> dict[str, list[str]]:
    """The parallel text in this folder and in the folders in it."""
    folders = [Path(), *sorted(Path().glob("[!.]*/"))]
    return {prefix: own for folder in folders for prefix, own in parallel_files(folder).items()}


def _hint() -> str:
    """The end of a message: which text is near."""
    texts = [
        f"{prefix} ({', '.join(own)})" if own else prefix for prefix, own in _texts_near().items()
    ]
    more = f" and {len(texts) - 10:,} more" if len(texts) > 10 else ""
    return f". There is text in {', '.join(texts[:10])}{more}" if texts else ""


def at_terminal() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


def _ask_for_text(options: argparse.Namespace) -> None:
    """Asks for everything that is not given, and sets it in `options`.

    Raises:
        UsageError: the input has ended.
    """

    def ask(name: str, question: str, default: str, convert: Callable[[str], Any] = str) -> None:
        """Asks until there is an answer that `convert` takes, which raises an error of others."""
        while getattr(options, name) is None:
            try:
                answer = input(f"{question}{default and f' [{default}]'} ").strip() or default
            except EOFError:
                print()
                raise UsageError("nothing was written, because a question has no answer") from None
            try:
                if answer:
                    setattr(options, name, convert(answer))
                    return
            except (UsageError, argparse.ArgumentTypeError) as error:
                say(f"  {error}")

    def existing(prefix: str) -> str:
        path = Path(prefix)
        if not path.exists() and str(path) not in parallel_files(path.parent):
            raise UsageError(f"{prefix}: there are no files {prefix}.LANGUAGE of two languages")
        return prefix

    if options.train is None:
        say(_hint().removeprefix(". "))
    texts = _texts_near()
    question = "Which is the training text (the path without the language, or a file of pairs)?"
    ask("train", question, _named(texts, "train") or next(iter(texts), ""), existing)
    set_languages(options)
    texts = parallel_files(Path(options.train).parent)
    languages = texts.get(str(Path(options.train)), [])
    for name, question in (("source_lang", "From which language?"), ("target_lang", "Into which?")):
        given = options.source_lang, options.target_lang
        ask(name, question, next((own for own in languages if own not in given), ""))
    pair = {options.source_lang, options.target_lang}
    texts = {prefix: own for prefix, own in texts.items() if not own or pair <= set(own)}
    for name, words in (("dev", ("dev", "val")), ("test", ("test",))):
        ask(
            name,
            f"Which is the {name} set (none: pairs of the training text are held out)?",
            _named(texts, *words) or "none",
            lambda prefix: None if prefix == "none" else existing(prefix),
        )
    question = "How many minutes may the training take?"
    ask("minutes", question, f"{DEFAULT_MINUTES:g}", arguments.positive_number)


def _named(texts: dict[str, list[str]], *words: str) -> str:
    """Returns the first prefix whose name has one of these words in it."""
    prefixes = (prefix for word in words for prefix in texts if word in Path(prefix).name.lower())
    return next(prefixes, "")

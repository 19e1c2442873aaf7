"""Training text that is not in plain text files: translation memories, messages, tables of pairs.

The pairs of such a file, or of a folder of such files, are copied once into two plain text files in
the cache. Everything else reads those, so it knows nothing of the formats.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from transformer_mt.data.cache import entry, entry_name
from transformer_mt.data.datasets import (
    TSV,
    Languages,
    first_existing,
    read_tsv,
    require_plain_tsv,
)
from transformer_mt.formats import registry
from transformer_mt.formats.document import Codes, OtherLanguagesError, direction
from transformer_mt.utils.console import progress, say
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.files import ENDINGS, as_line
from transformer_mt.utils.folders import sha256
from transformer_mt.utils.languages import standard

# A new number makes existing entries of the cache unused.
FORMAT = 1
# The number of texts of a file that are looked at to find its languages.
_LOOKED_AT = 10_000
# The columns of the source and the target, as a user names them.
Columns = tuple[str, str]


def find(
    root: str | None, name: str, value: str, languages: Languages, columns: Columns | None = None
) -> Path | None:
    """Returns the file or the folder that a text is read from; None if it is in plain text files.

    Args:
        root, name, value: as in `Dataset.find`.

    Raises:
        UsageError: there is no such file, or none in the folder, or the text has no columns.
    """
    folder = Path(root or "")
    path = folder / value
    prefixed = [f"{value}.{language}{ending}" for language in languages for ending in ENDINGS]
    if value and not any((folder / file).is_file() for file in prefixed):
        if path.is_dir() and _files(path):
            return path
        is_plain = value.lower().endswith(TSV) and columns is None
        if registry.has_pairs(path) and not is_plain and folder.is_dir():
            return first_existing(folder, [value], f"data.{name}")
    if columns is not None:
        raise UsageError(f"data.{name}: {value}: only tables, JSON Lines and Parquet have columns")
    return None


def converted(
    path: Path, languages: Languages, columns: Columns | None, cache: Path
) -> tuple[Path, Path]:
    """Returns two plain text files with the pairs of a file, or of all files in a folder, in the
    order of their names. They are in the cache.

    Args:
        columns: see `formats.registry.pairs`.

    Raises:
        UsageError: the folder has no files of pairs, or a file can't be read or lacks the columns.
        UserError: there are no pairs of these languages, or a file breaks a rule of its format.
    """
    files = _files(path)
    contents = [(registry.ending(file), _hash(file)) for file in files]
    key = entry_name(FORMAT, languages, columns, contents)
    folder = cache / f"pairs-{key}"
    source, target = (f"text.{language}" for language in languages)

    def make(new: Path) -> None:
        _write(path, files, languages, columns, (new / source, new / target))

    entry(folder, make)
    return folder / source, folder / target


def languages_of(path: Path) -> set[Codes]:
    """Returns the languages that a file, or the files in a folder, name for their texts.

    Raises:
        UsageError, UserError: see `converted`.
    """
    found: set[Codes] = set()
    for file in _files(path):
        found.update(islice(registry.languages_of_pairs(file), _LOOKED_AT))
    return {(source and standard(source), target and standard(target)) for source, target in found}


def _files(path: Path) -> list[Path]:
    """Returns the file, or all files of pairs in the folder and in those in it, except hidden ones.

    Raises:
        UsageError: there are none in the folder.
    """
    if not path.is_dir():
        return [path]
    files = []
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = (Path(folder, name) for name in names if not name.startswith("."))
        files += [file for file in paths if registry.has_pairs(file) and file.is_file()]
    if not files:
        endings = ", ".join(key for key, its in registry.FORMATS.items() if its.has_pairs)
        raise UsageError(
            f"{path}: in this folder, there are no files of pairs ({endings}). Text files are "
            "named without their language: PREFIX for PREFIX.de and PREFIX.en"
        )
    return sorted(files)


def _hash(path: Path) -> str:
    try:
        return sha256(path)
    except OSError as error:
        raise UsageError(f"{path}: can't be read: {error.strerror or error}") from None


def _pairs(
    path: Path, languages: Languages, columns: Columns | None
) -> Iterator[tuple[str, str] | list[str]]:
    if path.name.lower().endswith(TSV) and columns is None:
        require_plain_tsv(path, languages)
        return read_tsv(path)
    return registry.pairs(path, languages, columns)


def _write(
    path: Path,
    files: list[Path],
    languages: Languages,
    columns: Columns | None,
    written: tuple[Path, Path],
) -> None:
    """Writes the pairs of some files. Those that have only other languages are left out."""
    count, others = 0, []
    with ExitStack() as stack:
        # What is no character, as a format's escapes may name it, becomes a question mark.
        sides = [
            stack.enter_context(open(file, "w", encoding="utf-8", errors="replace", newline="\n"))
            for file in written
        ]
        title = f"reading {path.name}"
        bar = stack.enter_context(progress(total=None, title=title, unit="pairs", unit_scale=True))
        for file in files:
            try:
                for pair in _pairs(file, languages, columns):
                    for side, text in zip(sides, pair, strict=True):
                        side.write(as_line(text))
                    count += 1
                    bar.update()
            except OtherLanguagesError as error:
                others.append(error)
    if not count:
        if len(others) == len(files) == 1:
            raise others[0]
        reason = others[0] if others else "Pairs that need review, or lack a side, do not count"
        raise UserError(f"{path}: there is no finished pair {direction(languages)}. {reason}")
    say(f"{path}: {count:,} pairs")
    if others:
        say(f"  left out: {len(others):,} of {len(files):,} files. {others[0]}")

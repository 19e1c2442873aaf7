"""What the program needs to know of a dataset, and the dataset of the user's own text files."""

import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from types import ModuleType
from typing import NamedTuple

from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.files import ENDINGS, conversion, lines

# PaddleNLP's folder for downloaded datasets, as paddlenlp.utils.env has it, without its import.
PADDLENLP_HOME = Path(os.environ.get("PPNLP_HOME", os.path.expanduser("~/.paddlenlp")))
DATA_HOME = PADDLENLP_HOME / "datasets"

# The endings of a file that has both sides of a text.
TSV = tuple(f".tsv{ending}" for ending in ENDINGS)


# The names that the columns of a table of pairs usually have, and the number of its lines that are
# looked at to find out whether it is one.
_COLUMNS = {"source", "target", "src", "tgt", "trg"}
_LOOKED_AT = 1000
_WITHOUT_QUOTES = (
    'python3 -c \'import csv, sys; [print(*row, sep="\\t") for row in '
    'csv.reader(sys.stdin, "excel-tab")]\''
)


class SplitFiles(NamedTuple):
    """The files of one split.

    Attributes:
        paths: the source file and the target file, or the one file that holds both sides. Of
            several texts, these of each, one after another (see `parts`).
        reference: the text that translations are scored against; None if the target side is.
    """

    paths: tuple[Path, ...]
    reference: Path | None = None


class Dataset:
    """A parallel corpus. A subclass overrides what is different from plain text files.

    Attributes:
        languages: the languages that it has; empty if they depend on the files.
        splits: the values that data.train, data.dev and data.test can have; empty if they are names
            of files.
        needs_root: whether data.root must be given, because there is nothing to download.
        vocabulary_types: for text whose BPE was applied beforehand, the number of types in the
            vocabulary that comes with it, without padding; None for other text.
        origin, licence: where it comes from, and under which conditions, for model cards; empty if
            they depend on the files.
        is_lc_norm_tok: whether its text is lower-cased, normalised and tokenised (see
            data/normalization.py).
    """

    languages: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    needs_root = False
    vocabulary_types: int | None = None
    origin = ""
    licence = ""
    is_lc_norm_tok = False

    @property
    def is_bpe(self) -> bool:
        """Whether BPE was applied to the text beforehand. Such text needs subword.type:
        vocabulary."""
        return self.vocabulary_types is not None

    def find(
        self, root: str | None, name: str, value: str, languages: tuple[str, str]
    ) -> SplitFiles:
        """Finds the files of a split. If `root` is None, the dataset is downloaded.

        Args:
            root: data.root.
            name: train, dev or test.
            value: the value of data.train, data.dev or data.test in the config.
            languages: the source language and the target language.

        Raises:
            UsageError: there is no such file.
            UserError: a file can't be downloaded, or has the wrong content.
        """
        raise NotImplementedError

    def vocabulary(self, root: str | None) -> Path:
        """Finds the vocabulary that comes with BPE'd text, a file with one type per line.

        Raises:
            UsageError: there is no such file.
            UserError: it can't be downloaded.
        """
        raise NotImplementedError

    # A function, and not a method, because `load_dataset` takes nothing else.
    @staticmethod
    def read(data_files: list[str]) -> Iterator[dict[str, str]]:
        """Reads the pairs of a split as {"source": ..., "target": ...}. PaddleNLP's `load_dataset`
        calls it.

        Args:
            data_files: the paths of a `SplitFiles`, without the reference.

        Raises:
            UserError: a line is not UTF-8, or not a pair.
        """
        for files in parts([Path(path) for path in data_files]):
            pairs = _read_tsv(files[0]) if len(files) == 1 else zip(*map(lines, files), strict=True)
            for source, target in pairs:
                yield {"source": source, "target": target}


def parts(paths: Sequence[Path]) -> Iterator[tuple[Path, ...]]:
    """Groups the files of one or several texts: the source file and the target file of a text, or
    its one .tsv file."""
    rest = iter(paths)
    for path in rest:
        yield (path,) if path.name.endswith(TSV) else (path, next(rest))


def import_paddlenlp() -> ModuleType:
    """Imports `paddlenlp.datasets`, which takes seconds. The import changes the level of the root
    logger, which is restored. (`utils.signals` restores the signal handlers.)

    The import makes PaddleNLP's folders for downloads. If they can't be made, they are made
    elsewhere for the time of the import, because only downloads need them."""
    level, environment = logging.getLogger().level, dict(os.environ)
    with ExitStack() as stack:
        try:
            for name in ("models", "datasets", "packages"):
                (PADDLENLP_HOME / name).mkdir(parents=True, exist_ok=True)
        except OSError:
            os.environ["PPNLP_HOME"] = stack.enter_context(TemporaryDirectory())
        import paddlenlp.datasets

    if "PPNLP_HOME" in environment:
        os.environ["PPNLP_HOME"] = environment["PPNLP_HOME"]
    else:
        os.environ.pop("PPNLP_HOME", None)
    logging.getLogger().setLevel(level)
    return paddlenlp.datasets


def require_data_home(folder: Path) -> None:
    """
    Raises:
        UserError: nothing can be downloaded into the folder, which is DATA_HOME.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UserError(
            f"{folder}, where corpora are downloaded to, can't be written: {error.strerror}. Set "
            "the environment variable PPNLP_HOME to another folder, or give data.root=FOLDER"
        ) from None


def first_existing(folder: Path, names: list[str], key: str, hint: str = "") -> Path:
    """Returns the first file of `names` that exists in a folder, compressed or not.

    Raises:
        UsageError: none exists. The message begins with `key` and ends with `hint`.
    """
    for name in names:
        for ending in ENDINGS:
            if (folder / f"{name}{ending}").is_file():
                return folder / f"{name}{ending}"
    raise UsageError(
        f"{key}: there is no file {' or '.join(names)} (or .gz, .bz2, .xz) in {folder}{hint}"
    )


class Files(Dataset):
    """Either PREFIX.LANG for each language, whose lines are in the same order, or one file of
    source<TAB>target whose name ends in .tsv. All of them can be compressed (.gz, .bz2, .xz)."""

    needs_root = True

    def find(
        self, root: str | None, name: str, value: str, languages: tuple[str, str]
    ) -> SplitFiles:
        folder, key = Path(root), f"data.{name}"
        if not folder.is_dir():
            raise UsageError(f"data.root: {folder}: there is no such folder")
        if value.endswith(TSV):
            path = first_existing(folder, [value], key)
            _require_plain_tsv(path, languages)
            return SplitFiles((path,))
        tables = [f"{value}{ending}" for ending in TSV if (folder / f"{value}{ending}").is_file()]
        hint = f", but there is {tables[0]}; write {key}={tables[0]}" if tables else ""
        if value.startswith("[") and name != "train":
            hint = ". Only data.train can be a list"
        names = [f"{value}.{language}" for language in languages]
        return SplitFiles(tuple(first_existing(folder, [name], key, hint) for name in names))


def _require_plain_tsv(path: Path, languages: tuple[str, str]) -> None:
    """
    Raises:
        UserError: the first line names the columns, or the texts are quoted as in a CSV file.
    """
    rows = [line.split("\t") for line in islice(lines(path), _LOOKED_AT)]
    names = {text.strip().lower() for text in rows[0]} if rows else set()
    if len(names) == 2 and (names == {name.lower() for name in languages} or names <= _COLUMNS):
        raise UserError(
            f"{path}, line 1: a header, not a pair. Leave it out: {conversion(path, 'tail -n +2')}"
        )
    quotes = [text for row in rows for text in row if re.fullmatch(r'"([^"]|"")*"', text)]
    # A quotation in a text does not double its marks, nor is every text a quotation.
    are_all_quoted = len(rows) > 1 and len(quotes) == 2 * len(rows)
    if are_all_quoted or any('""' in text[1:-1] for text in quotes):
        raise UserError(
            f"{path}: its texts are quoted as in a CSV file. Take the quotes away: "
            f"{conversion(path, _WITHOUT_QUOTES)}"
        )


def _read_tsv(path: Path) -> Iterator[list[str]]:
    for number, line in enumerate(lines(path), 1):
        columns = line.split("\t")
        if len(columns) != 2:
            raise UserError(
                f"{path}, line {number}: {len(columns)} column(s), expected source<TAB>target"
            )
        yield columns

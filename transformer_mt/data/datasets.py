"""The corpora that `data.dataset` can name: where the files of each are, and how they are read.

To add one, write a class and a line in DATASETS, and name and describe it in config/text.py. Every
command reads this module, so it must be quick to import.
"""

import hashlib
import logging
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from transformer_mt.data.normalization import lc_norm_tok
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.files import ENDINGS, conversion, lines, write_atomically

if TYPE_CHECKING:
    from paddlenlp.datasets import DatasetBuilder

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


# The source language and the target language.
Languages = tuple[str, str]


class SplitFiles(NamedTuple):
    """The files of one split.

    Attributes:
        paths: the source file and the target file, or the one .tsv file that holds both sides.
        reference: the text that translations are scored against; None if the target side is.
    """

    paths: tuple[Path, ...]
    reference: Path | None = None


class Dataset:
    """A parallel corpus. A subclass overrides what is different from plain text files.

    Attributes:
        needs_root: whether data.root must be given, because there is nothing to download.
        vocabulary_types: for text whose BPE was applied beforehand, the number of types in the
            vocabulary that comes with it, without padding; None for other text.
        origin, licence: where it comes from, and under which conditions, for model cards; empty if
            they depend on the files.
        is_lc_norm_tok: whether its text is lower-cased, normalised and tokenised (see
            data/normalization.py).
    """

    needs_root = False
    vocabulary_types: int | None = None
    origin = ""
    licence = ""
    is_lc_norm_tok = False

    def find(self, root: str | None, name: str, value: str, languages: Languages) -> SplitFiles:
        """Finds the files of a split. If `root` is None, the dataset is downloaded.

        Args:
            root: data.root.
            name: train, dev or test.
            value: the value of data.train, data.dev or data.test in the config.

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
        paths = [Path(path) for path in data_files]
        pairs = read_tsv(paths[0]) if len(paths) == 1 else zip(*map(lines, paths), strict=True)
        for source, target in pairs:
            yield {"source": source, "target": target}


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


def _require_data_home() -> None:
    """
    Raises:
        UserError: nothing can be downloaded into DATA_HOME.
    """
    try:
        DATA_HOME.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=DATA_HOME).close()
    except OSError as error:
        raise UserError(
            f"{DATA_HOME}, where corpora are downloaded to, can't be written: {error.strerror}. "
            "Set the environment variable PPNLP_HOME to another folder, or give data.root=FOLDER"
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

    def find(self, root: str | None, name: str, value: str, languages: Languages) -> SplitFiles:
        folder, key = Path(root), f"data.{name}"
        if not folder.is_dir():
            raise UsageError(f"data.root: {folder}: there is no such folder")
        if value.endswith(TSV):
            path = first_existing(folder, [value], key)
            require_plain_tsv(path, languages)
            return SplitFiles((path,))
        tables = [f"{value}{ending}" for ending in TSV if (folder / f"{value}{ending}").is_file()]
        hint = f", but there is {tables[0]}; write {key}={tables[0]}" if tables else ""
        names = [f"{value}.{language}" for language in languages]
        return SplitFiles(tuple(first_existing(folder, [name], key, hint) for name in names))


def require_plain_tsv(path: Path, languages: Languages) -> None:
    """Checks a file of source<TAB>target.

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


def read_tsv(path: Path) -> Iterator[list[str]]:
    """Yields the pairs of a file of source<TAB>target.

    Raises:
        UserError: a line is not UTF-8, or not a pair.
    """
    for number, line in enumerate(lines(path), 1):
        columns = line.split("\t")
        if len(columns) != 2:
            raise UserError(
                f"{path}, line {number}: {len(columns)} column(s), expected source<TAB>target"
            )
        yield columns


# ---- Multi30k ----

MULTI30K_URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/"
MULTI30K_SHA256 = {
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
}
# The names of a split's files: first the repository's, then another one in use.
MULTI30K_NAMES = {"train": ("train",), "dev": ("val",), "test": ("test_2016_flickr", "test2016")}


class Multi30k(Dataset):
    """Multi30k task 1 (Elliott et al. 2016, arXiv 1605.00459): English-German image captions.

    The raw text is downloaded from the corpus's own GitHub repository and checked against its
    SHA-256, or read from a folder with the files of the repository, gzipped or not.
    """

    origin = (
        "Multi30k, task 1, raw ([Elliott et al. 2016](https://arxiv.org/abs/1605.00459), "
        "[repository](https://github.com/multi30k/dataset))"
    )
    licence = "for researchers and educators, non-commercial"

    def find(self, root: str | None, name: str, value: str, languages: Languages) -> SplitFiles:
        return SplitFiles(tuple(multi30k_file(value, language, root) for language in languages))


def multi30k_file(split: str, language: str, root: str | None) -> Path:
    """Returns the file of one side of a split, in `root` or downloaded into PaddleNLP's folder.

    Raises:
        UsageError: the file is not in `root`.
        UserError: it can't be downloaded, or has the wrong content.
    """
    names = [f"{name}.{language}" for name in MULTI30K_NAMES[split]]
    if root is not None:
        hint = ", but data.dataset is multi30k. For files of your own, give data.dataset: files"
        return first_existing(Path(root), names, "data.root", hint)
    name = f"{names[0]}.gz"
    path = DATA_HOME / "Multi30k" / name
    content = path.read_bytes() if path.is_file() else _download(MULTI30K_URL + name)
    if hashlib.sha256(content).hexdigest() != MULTI30K_SHA256[name]:
        path.unlink(missing_ok=True)
        raise UserError(
            f"{name} from {MULTI30K_URL} is not the file it should be (SHA-256). Try again"
        )
    if not path.is_file():
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, content, as_is=True)
    return path


def _download(url: str) -> bytes:
    # Every command reads this module, but only a download needs these.
    import http.client
    import urllib.request

    _require_data_home()
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            return response.read()
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise UserError(
            f"{url} could not be downloaded: {reason}\nWhere there is no network, fetch the six "
            f"files ({', '.join(MULTI30K_SHA256)}) elsewhere and give data.root=FOLDER"
        ) from None


class Multi30kLcNormTok(Multi30k):
    """Multi30k in the form in which most papers train on it and score it (see `lc_norm_tok`). The
    lines of the raw files are converted when they are read. (The corpus's own files in this form
    are `data/task1/tok/*.lc.norm.tok`; all 1,000 lines of test2016.de are equal.)"""

    origin = f"{Multi30k.origin}, lower-cased, normalised and tokenised"
    is_lc_norm_tok = True

    @staticmethod
    def read(data_files: list[str]) -> Iterator[dict[str, str]]:
        # train.en.gz is English.
        source, target = (lc_norm_tok(Path(path).name.split(".")[1]) for path in data_files)
        for pair in Multi30k.read(data_files):
            yield {"source": source(pair["source"]), "target": target(pair["target"])}


def multi30k_builder() -> "type[DatasetBuilder]":
    """Returns Multi30k for users of PaddleNLP, which is imported:
    `multi30k_builder()(lazy=...).read_datasets(splits=["train"])` gives examples {"source",
    "target"}, English to German."""
    from paddlenlp.datasets import DatasetBuilder, IterDataset, MapDataset

    class Multi30kBuilder(DatasetBuilder):
        SPLITS = MULTI30K_NAMES

        def _get_data(self, mode: str, **kwargs: object) -> list[str]:
            return [str(multi30k_file(mode, language, None)) for language in ("en", "de")]

        def read(self, filename: list[str], split: str = "train") -> MapDataset | IterDataset:
            """Returns the examples of a split. A lazy dataset can be iterated more than once."""
            if self.lazy:
                return IterDataset(lambda: Multi30k.read(filename))
            return MapDataset(list(Multi30k.read(filename)))

    return Multi30kBuilder


# ---- WMT14 ----

WMT14_STEMS = {"train": "train.tok.clean", "dev": "newstest2013.tok", "test": "newstest2014.tok"}


class WMT14EnDe(Dataset):
    """WMT14 English-German as PaddleNLP distributes it: BPE'd text in the folder
    wmt14_ende_data_bpe, and tokenised references in wmt14_ende_data."""

    vocabulary_types = 33_708
    origin = "[WMT14](https://www.statmt.org/wmt14/), as PaddleNLP distributes it, with BPE applied"
    licence = "for research; its sources have their own terms"

    def find(self, root: str | None, name: str, value: str, languages: Languages) -> SplitFiles:
        corpus, stem = _wmt14_root(root), WMT14_STEMS[value]
        source, target = (
            _first_matching(corpus, f"{stem}.bpe.*.{lang}", f"data.{name}") for lang in languages
        )
        reference = None
        if "train" not in (name, value):
            names = [f"{stem}.{languages[1]}"]
            reference = first_existing(corpus / "wmt14_ende_data", names, f"data.{name}")
        return SplitFiles((source, target), reference)

    def vocabulary(self, root: str | None) -> Path:
        return _first_matching(_wmt14_root(root), "vocab_all.bpe.*", "data.root")

    @staticmethod
    def read(data_files: list[str]) -> Iterator[dict[str, str]]:
        """Yields the same examples as PaddleNLP's own reader of this corpus, with two exceptions. A
        carriage return within a line does not end the line, because every later line would then be
        paired with the wrong translation. A pair that is empty on both sides is kept, because the
        tokenised references have a line for it.
        """
        for example in Dataset.read(data_files):
            yield {side: text.strip() for side, text in example.items()}


def _wmt14_root(root: str | None) -> Path:
    """Returns the folder of the corpus. PaddleNLP downloads it if `root` is None."""
    if root is not None:
        return Path(root)
    if not (DATA_HOME / "WMT14ende").is_dir():
        _require_data_home()
    paddlenlp_datasets = import_paddlenlp()
    from paddlenlp.datasets.wmt14ende import WMT14ende

    try:
        paddlenlp_datasets.load_dataset("wmt14ende", splits=["test"], lazy=True)
    except (RuntimeError, OSError) as error:
        raise UserError(
            f"WMT14 could not be downloaded from {WMT14ende.URL}: {error}\nWhere there is no "
            "network, fetch and unpack that archive elsewhere and give data.root=FOLDER, the "
            "folder that holds wmt14_ende_data and wmt14_ende_data_bpe"
        ) from None
    return DATA_HOME / "WMT14ende" / "WMT14.en-de"


def _first_matching(root: Path, pattern: str, key: str) -> Path:
    folder = root / "wmt14_ende_data_bpe"
    names = sorted(path.name for path in folder.glob(pattern))
    return first_existing(folder, names or [pattern], key)


DATASETS: dict[str, Dataset] = {
    "files": Files(),
    "multi30k": Multi30k(),
    "multi30k_lc_norm_tok": Multi30kLcNormTok(),
    "wmt14ende": WMT14EnDe(),
}

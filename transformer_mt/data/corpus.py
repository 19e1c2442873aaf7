"""Parallel text in: the splits of a corpus, read through PaddleNLP's `load_dataset`.

PaddleNLP is imported where text is read and nowhere else: it takes seconds, and training from the
cache or translating does without it. Its readers cut files of unequal length silently, so the
lines are counted first.
"""

from __future__ import annotations

import hashlib
import logging
import random
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from transformer_mt.config.schema import DataConfig
from transformer_mt.data.cache import entry
from transformer_mt.runtime.errors import UsageError, UserError
from transformer_mt.runtime.files import atomic, content_hash, count_lines, lines

Pair = tuple[str, str]


@dataclass(frozen=True)
class Split:
    """One split of a corpus: source and target text, pair by pair, read anew at each iteration.

    `reference` is the target side to score against where it is not the target itself (the
    tokenised text beside BPE'd text).
    """

    name: str
    paths: tuple[Path, ...]
    dataset: str
    source_lang: str
    target_lang: str
    reference: Path | None = None

    def __iter__(self) -> Iterator[Pair]:
        for example in _load(self):
            yield example["source"], example["target"]

    def content(self) -> str:
        """A hash that changes when the text does."""
        parts = [self.dataset, self.source_lang, self.target_lang]
        return "-".join(parts + [content_hash(path) for path in self.paths])

    def check(self) -> list[str]:
        """Reads every file to its end, without PaddleNLP.

        Returns those of the sides "source" and "target" on which all lines are blank.

        Raises:
            UserError: a line is not UTF-8, or not a pair.
        """
        blank = ["source", "target"]
        for example in _reader(self)([str(path) for path in self.paths]):
            blank = [side for side in blank if not example[side].strip()]
        for _ in lines(self.reference) if self.reference else ():
            pass
        return blank

    @cached_property
    def text(self) -> tuple[list[str], list[str]]:
        """Sources, and the references to score their translations against, in memory."""
        sources, targets = map(list, zip(*self, strict=True))
        return sources, list(lines(self.reference)) if self.reference else targets


@dataclass
class Corpus:
    """The splits a config names. `test` is None where there is none."""

    train: Split
    dev: Split | None
    test: Split | None

    def splits(self) -> list[Split]:
        return [split for split in (self.train, self.dev, self.test) if split]


def open_corpus(config: DataConfig) -> Corpus:
    """Finds the files of every split that the config names, downloading them where that is wanted.

    Raises:
        UsageError: a file is missing.
        UserError: the two sides differ in length, or a file can't be had.
    """
    find = {"files": _find_files, "multi30k": _find_multi30k, "wmt14ende": _find_wmt14ende}
    splits = {
        name: find[config.dataset](config, name, value)
        for name, value in (("train", config.train), ("dev", config.dev), ("test", config.test))
        if value is not None
    }
    for split in splits.values():
        _check_lengths(split)
    return Corpus(splits["train"], splits.get("dev"), splits.get("test"))


def _load(split: Split) -> Iterable[dict[str, str]]:
    """The split as a lazy PaddleNLP dataset of {"source", "target"}."""
    _import_paddlenlp()
    from paddlenlp.datasets import load_dataset

    if split.dataset == "multi30k":
        from transformer_mt.data.multi30k import Multi30k

        builder = Multi30k(lazy=True)
        return builder.read_datasets(
            data_files=[[str(path) for path in split.paths]], splits=[split.name]
        )
    files = [str(path) for path in split.paths]
    return load_dataset(_reader(split), lazy=True, data_files=files)


def _reader(split: Split) -> Callable[[list[str]], Iterator[dict[str, str]]]:
    if split.dataset == "wmt14ende":
        return read_wmt14ende
    return read_tsv if len(split.paths) == 1 else read_files


def _import_paddlenlp() -> None:
    """Imports PaddleNLP, and takes back what its import changes besides: the level of the root
    logger. (What it does to signals, `signals` undoes.)"""
    level = logging.getLogger().level
    import paddlenlp.datasets  # noqa: F401

    logging.getLogger().setLevel(level)


def read_files(data_files: list[str]) -> Iterator[dict[str, str]]:
    """A reader for `load_dataset`: a source and a target file, line for line."""
    source, target = (lines(Path(path)) for path in data_files)
    for source_line, target_line in zip(source, target, strict=True):
        yield {"source": source_line, "target": target_line}


def read_wmt14ende(data_files: list[str]) -> Iterator[dict[str, str]]:
    """A reader for `load_dataset`: the examples of PaddleNLP's own reader of this corpus, but for
    two things. A carriage return within a line does not end it (every later line would be paired
    with the translation of another), and a pair that is empty on both sides stays, in step with
    the tokenised references.
    """
    for example in read_files(data_files):
        yield {side: text.strip() for side, text in example.items()}


def read_tsv(data_files: list[str]) -> Iterator[dict[str, str]]:
    """A reader for `load_dataset`: one file of source<TAB>target."""
    for number, line in enumerate(lines(Path(data_files[0])), 1):
        columns = line.split("\t")
        if len(columns) != 2:
            raise UserError(
                f"{data_files[0]}, line {number}: {len(columns)} column(s), expected "
                "source<TAB>target"
            )
        yield {"source": columns[0], "target": columns[1]}


def _find_files(config: DataConfig, name: str, value: str) -> Split:
    root = Path(config.root)
    if not root.is_dir():
        raise UsageError(f"data.root: {root}: there is no such folder")
    if value.endswith((".tsv", ".tsv.gz")):
        paths = (_existing(root, [value], f"data.{name}"),)
    else:
        names = (f"{value}.tsv", f"{value}.tsv.gz")
        tsv = next((other for other in names if (root / other).is_file()), None)
        hint = f", but there is {tsv}; write data.{name}={tsv}" if tsv else ""
        paths = tuple(
            _existing(root, [f"{value}.{lang}", f"{value}.{lang}.gz"], f"data.{name}", hint)
            for lang in (config.source_lang, config.target_lang)
        )
    return Split(name, paths, "files", config.source_lang, config.target_lang)


def _find_multi30k(config: DataConfig, name: str, value: str) -> Split:
    _import_paddlenlp()
    from transformer_mt.data.multi30k import find

    langs = (config.source_lang, config.target_lang)
    paths = tuple(find(_known_split(name, value), lang, config.root) for lang in langs)
    return Split(name, paths, "multi30k", *langs)


def _find_wmt14ende(config: DataConfig, name: str, value: str) -> Split:
    """PaddleNLP's layout: BPE'd text beside the tokenised text of the same sentences."""
    root = wmt14ende_root(config)
    stem = {
        "train": "train.tok.clean",
        "dev": "newstest2013.tok",
        "test": "newstest2014.tok",
    }[_known_split(name, value)]
    langs = (config.source_lang, config.target_lang)
    folder = root / "wmt14_ende_data_bpe"
    paths = tuple(_matching(folder, f"{stem}.bpe.*.{lang}", f"data.{name}") for lang in langs)
    reference = None
    if name != "train" and value != "train":
        reference = _existing(root / "wmt14_ende_data", [f"{stem}.{langs[1]}"], f"data.{name}")
    return Split(name, paths, "wmt14ende", *langs, reference=reference)


def wmt14ende_root(config: DataConfig) -> Path:
    """The folder of PaddleNLP's WMT14 layout, downloaded by PaddleNLP where no root is given."""
    if config.root is not None:
        return Path(config.root)
    _import_paddlenlp()
    from paddlenlp.datasets import load_dataset
    from paddlenlp.datasets.wmt14ende import WMT14ende
    from paddlenlp.utils.env import DATA_HOME

    try:
        load_dataset("wmt14ende", splits=["test"], lazy=True)
    except (RuntimeError, OSError) as error:
        raise UserError(
            f"WMT14 could not be downloaded from {WMT14ende.URL}: {error}\nWhere there is no "
            "network, fetch and unpack that archive elsewhere and give data.root=FOLDER, the "
            "folder that holds wmt14_ende_data and wmt14_ende_data_bpe"
        ) from None
    return Path(DATA_HOME) / "WMT14ende" / "WMT14.en-de"


def wmt14ende_vocabulary(config: DataConfig) -> Path:
    folder = wmt14ende_root(config) / "wmt14_ende_data_bpe"
    return _matching(folder, "vocab_all.bpe.*", "data.root")


def _known_split(name: str, value: str) -> str:
    if value not in ("train", "dev", "test"):
        raise UsageError(f"data.{name}: {value!r}: expected train, dev or test")
    return value


def _existing(folder: Path, names: list[str], key: str, hint: str = "") -> Path:
    """The first of some files that is there; `hint` is said if there is none."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise UsageError(f"{key}: there is no file {' or '.join(names)} in {folder}{hint}")


def _matching(folder: Path, pattern: str, key: str) -> Path:
    """The first file of a pattern."""
    found = sorted(path for path in folder.glob(pattern) if path.is_file())
    if not found:
        raise UsageError(f"{key}: there is no file {pattern} in {folder}")
    return found[0]


def _check_lengths(split: Split) -> None:
    paths = list(split.paths) + ([split.reference] if split.reference else [])
    counts = [count_lines(path) for path in paths]
    if len(set(counts)) > 1:
        table = "\n".join(
            f"  {count:>10,} lines in {path}" for path, count in zip(paths, counts, strict=True)
        )
        raise UserError(f"data.{split.name}: the files must have one line for each pair:\n{table}")
    if not counts[0]:
        raise UserError(f"data.{split.name}: {paths[0]} is empty")


# ------------------------------------------------------------------ holding pairs out of training


@dataclass
class HeldOut:
    """Pairs that were taken out of the training text to serve as dev or test set."""

    splits: dict[str, Split] = field(default_factory=dict)
    texts: frozenset[str] = frozenset()


def hold_out(corpus: Corpus, config: DataConfig, seed: int, folder: Path) -> HeldOut:
    """The dev and test pairs that the config does not name, drawn into `folder` if they are not
    there yet; `folder` is for this corpus, config and seed alone.

    At most a tenth of the pairs is taken for each. Training then leaves out every pair that shares
    its source or its target with one of them, so that nothing tested was seen.
    """
    names = [name for name in ("dev", "test") if getattr(corpus, name) is None]
    if not names or not config.held_out:
        return HeldOut()
    langs = (config.source_lang, config.target_lang)

    def make(temporary: Path) -> None:
        for name, pairs in _draw(corpus.train, names, config.held_out, seed).items():
            for side, lang in enumerate(langs):
                with atomic(temporary / f"{name}.{lang}") as file:
                    file.writelines(_line(pair[side]) for pair in pairs)

    entry(folder, make)
    paths = {name: tuple(folder / f"{name}.{lang}" for lang in langs) for name in names}
    splits = {
        name: Split(name, files, "files", *langs)
        for name, files in paths.items()
        if files[0].stat().st_size  # a corpus may be too small to take any
    }
    texts = frozenset(text for split in splits.values() for pair in split for text in pair)
    return HeldOut(splits, texts)


def _draw(split: Split, names: list[str], size: int, seed: int) -> dict[str, list[Pair]]:
    """At most `size` pairs for each name, each from a place of its own."""
    candidates = array("q", (i for i, pair in enumerate(split) if _is_full(pair)))
    size = min(size, len(candidates) // 10)
    drawn = random.Random(seed).sample(candidates, size * len(names))
    wanted = {index: names[position // size] for position, index in enumerate(drawn)}
    pairs: dict[str, list[Pair]] = {name: [] for name in names}
    for index, pair in enumerate(split):
        if index in wanted:
            pairs[wanted[index]].append(pair)
    return pairs


def _line(text: str) -> str:
    # A reader takes a carriage return before the line's end for a part of the end.
    return f"{text}\r\n" if text.endswith("\r") else f"{text}\n"


# ------------------------------------------------------------------------------ training pairs


def training_pairs(
    split: Split,
    held_out: frozenset[str],
    drop_duplicates: bool,
    dropped: Counter,
    lines: array | None = None,
) -> Iterator[Pair]:
    """The pairs to train on; what is left out is counted in `dropped`, by its reason. The line of
    each pair in the text, from 0, goes into `lines` (of type "i")."""
    seen: set[bytes] = set()
    for number, pair in enumerate(split):
        if not _is_full(pair):
            dropped["empty on a side"] += 1
        elif pair[0] in held_out or pair[1] in held_out:
            dropped["held out for dev or test"] += 1
        elif drop_duplicates and (key := _fingerprint(pair)) in seen:
            dropped["repeated"] += 1
        else:
            if drop_duplicates:
                seen.add(key)
            if lines is not None:
                lines.append(number)
            yield pair


def _is_full(pair: Pair) -> bool:
    return bool(pair[0].strip() and pair[1].strip())


def _fingerprint(pair: Pair) -> bytes:
    """Sixteen bytes for a pair: millions of them fit in memory, and none collide by chance."""
    return hashlib.blake2b("\n".join(pair).encode(), digest_size=16).digest()

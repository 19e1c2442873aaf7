"""The splits of a corpus: parallel text, read through PaddleNLP's `load_dataset`; which pairs of
the training text are trained on, and which are held out as dev or test set.

Importing PaddleNLP takes seconds, so only iterating over a split imports it. Training from the
cache and translating need no iteration.
"""

import hashlib
import random
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from transformer_mt.config.text import DataConfig, TrainingText
from transformer_mt.data import pair_files
from transformer_mt.data.cache import entry, entry_name
from transformer_mt.data.datasets import DATASETS, SplitFiles, import_paddlenlp
from transformer_mt.data.normalization import is_blank
from transformer_mt.utils.console import say
from transformer_mt.utils.errors import UserError
from transformer_mt.utils.files import Content, as_line, content_of, lines, write_atomically

Pair = tuple[str, str]


@dataclass(frozen=True)
class Split:
    """One split of a corpus. Each iteration reads its pairs, (source, target), through PaddleNLP.

    Attributes:
        parts: the paths of each text, as in `SplitFiles`. Their pairs follow one another.
        dataset: a name in DATASETS.
        reference: the text that translations are scored against, if that is not the target side
            (BPE'd text comes with tokenised text for this).
        texts: the names of the texts, with their tags, and which of them are reversed.
        origins: the files that `parts` were made from, or that they are; empty: those of `parts`.
    """

    name: str
    parts: tuple[tuple[Path, ...], ...]
    dataset: str
    source_lang: str
    target_lang: str
    reference: Path | None = None
    texts: tuple[TrainingText, ...] = (TrainingText(text="-"),)
    origins: tuple[Path, ...] = ()

    def __iter__(self) -> Iterator[Pair]:
        load_dataset = import_paddlenlp().load_dataset
        for text, paths in zip(self.texts, self.parts, strict=True):
            files = list(map(str, paths))
            for example in load_dataset(DATASETS[self.dataset].read, lazy=True, data_files=files):
                yield text.as_read(example["source"], example["target"])

    def __length_hint__(self) -> int:
        return self.line_count

    def pairs_of_texts(self) -> Iterator[tuple[TrainingText, Pair]]:
        """Yields each pair as the files have it, without tags and not reversed, and the text that
        it belongs to. PaddleNLP is not used."""
        for text, paths in zip(self.texts, self.parts, strict=True):
            for example in DATASETS[self.dataset].read(list(map(str, paths))):
                yield text, (example["source"], example["target"])

    def pairs(self) -> Iterator[Pair]:
        """Yields the pairs of `pairs_of_texts` alone."""
        return (pair for _, pair in self.pairs_of_texts())

    @property
    def paths(self) -> list[Path]:
        """The files of all texts."""
        return [path for paths in self.parts for path in paths]

    @property
    def named_files(self) -> list[Path]:
        """The files of all texts, as the user knows them."""
        return list(self.origins) or self.paths

    @cached_property
    def files(self) -> dict[Path, Content]:
        """The content of each file, including the reference. Each file is read once."""
        return {path: content_of(path) for path in (*self.paths, self.reference) if path}

    @property
    def line_count(self) -> int:
        """The number of pairs."""
        return sum(self.line_counts)

    @property
    def line_counts(self) -> list[int]:
        """The number of pairs of each text."""
        return [self.files[paths[0]].line_count for paths in self.parts]

    def content(self) -> str:
        """A hash that changes when the text does."""
        names = [self.dataset, self.source_lang, self.target_lang]
        names += [self.files[path].sha256 for path in self.paths]
        if not all(text.is_plain for text in self.texts):
            names += [repr((text.tag, text.reverse)) for text in self.texts]
        return "-".join(names)

    @cached_property
    def text(self) -> tuple[list[str], list[str]]:
        """The sources, and the references to score their translations against.

        Raises:
            UserError: a line is not UTF-8, or not a pair.
        """
        sources, targets = map(list, zip(*self.pairs(), strict=True))
        return sources, list(lines(self.reference)) if self.reference else targets


class Corpus(NamedTuple):
    """The splits that a config names. Each but `train` is None if it does not name it."""

    train: Split
    dev: Split | None
    test: Split | None
    general_dev: Split | None = None
    general_test: Split | None = None


def open_corpus(config: DataConfig) -> Corpus:
    """Finds the files of every split that the config names, downloads missing ones if the dataset
    can be downloaded, and reads each file to its end. Files that are not plain text are converted.

    Raises:
        UsageError: a file is missing.
        UserError: the files of a split differ in length, or one can't be downloaded or read.
    """
    return Corpus(*(_open_split(config, name) for name in Corpus._fields))


def _open_split(config: DataConfig, name: str) -> Split | None:
    value = getattr(config, name)
    if value is None:
        return None
    languages = config.source_lang, config.target_lang
    texts = config.texts if name == "train" else (TrainingText.model_construct(text=value),)
    files: list[SplitFiles] = []
    origins: list[Path] = []
    for text in texts:
        columns = None if text.columns is None else (text.columns[0], text.columns[1])
        place = config.root, name, text.text, languages
        path = pair_files.find(*place, columns) if config.dataset == "files" else None
        if path is None:
            own = DATASETS[config.dataset].find(*place)
            origins += own.paths
        else:
            own = SplitFiles(pair_files.converted(path, languages, columns, Path(config.cache)))
            origins.append(path)
        files.append(own)
    parts = tuple(own.paths for own in files)
    reference = files[0].reference
    split = Split(name, parts, config.dataset, *languages, reference, texts, tuple(origins))
    for own in files:
        _require_pairs(split, list(filter(None, (*own.paths, own.reference))))
    return split


def _require_pairs(split: Split, paths: list[Path]) -> None:
    """
    Raises:
        UserError: the files of a text differ in length, or are empty.
    """
    counts = {path: split.files[path].line_count for path in paths}
    if len(set(counts.values())) > 1:
        table = "\n".join(f"  {count:>10,} lines in {path}" for path, count in counts.items())
        raise UserError(
            f"data.{split.name}: the files must have one line for each pair:\n{table}\n"
            "Do not cut the longer file: find the line from which the two do not fit together"
        )
    if not any(counts.values()):
        raise UserError(f"data.{split.name}: {paths[0]} is empty")


# ---------------------------------------------------------------------------------------- held out

# A new number makes existing entries of the cache unused.
FORMAT = 3
# Targets are labels if there are at most this many different ones per pair.
LABELS = 0.1


def training_filter(
    held_out: frozenset[str], drop_duplicates: bool
) -> Callable[[Pair], str | None]:
    """Returns a function that returns the reason to drop a pair, or None if the pair is used.

    Each pass over the text needs a new function, because it remembers the pairs that it has seen if
    `drop_duplicates` is set.

    Args:
        held_out: the texts of the pairs that are held out for dev and test. A pair with one of them
            on either side is dropped.
        drop_duplicates: whether exact repetitions of a pair are dropped.
    """
    seen: set[bytes] = set()

    def reason_to_drop(pair: Pair) -> str | None:
        if not is_full(pair):
            return "empty on a side"
        if not held_out.isdisjoint(pair):
            return "held out for dev or test"
        if drop_duplicates:
            # Sixteen bytes per pair: millions of them fit in memory, and none collide by chance.
            key = hashlib.blake2b("\n".join(pair).encode(), digest_size=16).digest()
            if key in seen:
                return "repeated"
            seen.add(key)
        return None

    return reason_to_drop


def is_full(pair: Pair) -> bool:
    """Returns whether neither side is blank (see `is_blank`)."""
    return not any(map(is_blank, pair))


class HeldOut(NamedTuple):
    """The splits that were made, by name, and the texts that training must not see: of both sides
    of all their pairs, or of the sources alone if the targets are labels (see `hold_out`)."""

    splits: dict[str, Split]
    texts: frozenset[str]


def hold_out(corpus: Corpus, config: DataConfig, seed: int, cache: Path) -> HeldOut:
    """Draws the dev and test pairs that the config does not name, or finds them in the cache. Pairs
    of general texts are drawn for the general sets alone, and other pairs for the others.

    At most a tenth of the pairs is taken for each split. No pair is taken from a text with a tag or
    from a reversed text, because such text is not what the model will translate. Training must
    leave out every pair that shares its source or its target with a pair that was taken, whether
    it has a tag or is reversed or not, so that it sees no text of the tests. So pairs whose text is
    in no other pair are taken first, and fewer pairs are taken if too many would leave training.
    Targets that are as few as labels can't be kept apart: pairs that share only those may stay.

    The files are written to the cache, because there may be no model directory yet; a model
    directory gets a copy.
    """
    has_general = any(text.general for text in corpus.train.texts)
    splits: dict[str, Split] = {}
    texts: set[str] = set()
    for names, general in (("dev", "test"), False), (("general_dev", "general_test"), True):
        missing = [name for name in names if getattr(corpus, name) is None]
        if missing and config.held_out and (has_general or not general):
            found = _held_out_of(corpus.train, missing, general, config, seed, cache)
            splits |= found.splits
            texts |= found.texts
    return HeldOut(splits, frozenset(texts))


def _held_out_of(
    split: Split, names: list[str], general: bool, config: DataConfig, seed: int, cache: Path
) -> HeldOut:
    """Draws the pairs of the sets `names` out of the general texts or out of the others, or finds
    them in the cache."""
    languages = config.source_lang, config.target_lang
    limits = config.held_out, config.max_length, config.drop_duplicates
    is_general = [text.general for text in split.texts]
    of = is_general if any(is_general) else []
    key = entry_name(FORMAT, split.content(), names, *limits, seed, *of)
    folder = cache / f"held_out-{key}"

    def make(temporary: Path) -> None:
        drawn, labels = _draw(split, names, general, config, seed)
        for name, pairs in drawn.items():
            for side, lang in enumerate(languages):
                text = "".join(as_line(pair[side]) for pair in pairs)
                write_atomically(temporary / f"{name}.{lang}", text)
        (temporary / "labels").write_text(f"{labels}\n")

    labels = int((entry(folder, make) / "labels").read_text())
    if labels:
        say(
            f"the training text has only {labels:,} different targets, so pairs that share just "
            "their target with a held-out pair are trained on"
        )
    splits: dict[str, Split] = {}
    texts: set[str] = set()
    what = "the general texts" if general else "the training text"
    for name in names:
        paths = tuple(folder / f"{name}.{lang}" for lang in languages)
        held = Split(name, (paths,), "files", *languages)
        if not held.line_count:
            say(
                f"data.{name} is not given, and no pair can be held out of {what}: it "
                "is too small, or its sentences are in too many of its pairs"
            )
            continue
        say(f"data.{name} is not given: {held.line_count:,} pairs are held out of {what}")
        splits[name] = held
        for pair in held.pairs():
            texts.update(pair[:1] if labels else pair)
    return HeldOut(splits, frozenset(texts))


def with_tags(texts: frozenset[str], split: Split) -> frozenset[str]:
    """Returns texts together with each of them behind each of the tags of a split."""
    tags = {text.tag for text in split.texts if text.tag is not None}
    return texts | {f"{tag} {text}" for tag in tags for text in texts}


def _draw(
    split: Split, names: list[str], general: bool, config: DataConfig, seed: int
) -> tuple[dict[str, list[Pair]], int]:
    """Draws at most `config.held_out` pairs for each name, without replacement. Pairs that share
    text with others are drawn only as long as at most a tenth of the text leaves training; texts
    with a tag and reversed texts, which are often copies, do not count.

    Args:
        general: whether they are drawn out of the general texts, and only these count; or only the
            others.

    Returns: the pairs, and the number of different targets if they are labels, or 0.
    """
    # Of each pair that could be trained on: its line, the hash of each side, whether its text
    # counts, and whether it may be drawn. So a pair takes 26 bytes.
    numbers, sources, targets = array("q"), array("q"), array("q")
    plain, drawable = array("b"), array("b")
    reason_to_drop = training_filter(frozenset(), config.drop_duplicates)
    for number, (text, (source, target)) in enumerate(split.pairs_of_texts()):
        if reason_to_drop(text.as_read(source, target)) is None:
            numbers.append(number)
            sources.append(_hash(source))
            targets.append(_hash(target))
            # Pairs with more words than this surely have too many subwords.
            is_short = max(len(source.split()), len(target.split())) <= config.max_length
            is_own = text.is_plain and text.general == general
            plain.append(is_own)
            drawable.append(is_own and is_short)
    sides = np.array(sources), np.array(targets)
    labels = len(np.unique(sides[1]))
    if labels > len(numbers) * LABELS:
        labels = 0

    # All texts in order, and the pair that each is in. A pair of equal texts has one.
    is_plain = np.array(plain, bool)
    differ = np.flatnonzero(sides[0] != sides[1])
    texts = np.concatenate([sides[0], sides[1][differ]])
    order = np.argsort(texts)
    pair_of_text = np.concatenate([np.arange(len(numbers)), differ])[order]
    texts = texts[order]
    kept_apart = np.array(sides[:1] if labels else sides)  # (sides, pairs)
    starts = np.searchsorted(texts, kept_apart, "left")
    ends = np.searchsorted(texts, kept_apart, "right")
    # The number of other pairs that share a text. One that shares both may be counted twice.
    sharing = (ends - starts - 1).sum(axis=0)

    candidates = np.flatnonzero(np.array(drawable))
    asked = min(config.held_out, len(candidates) // 10) * len(names)
    most = is_plain.sum() // 10
    alone = candidates[sharing[candidates] == 0]
    rng = random.Random(seed)
    drawn = alone[rng.sample(range(len(alone)), min(asked, len(alone)))].tolist()
    if len(drawn) < asked:
        # Those that share the least come next, in random order, as long as not too many leave.
        others = np.random.default_rng(seed).permutation(candidates[sharing[candidates] > 0])
        leaving = set(drawn)
        for pair in others[np.argsort(sharing[others], kind="stable")].tolist():
            if pair in leaving:
                continue
            places = zip(starts[:, pair], ends[:, pair], strict=True)
            shares = np.concatenate([pair_of_text[start:end] for start, end in places])
            more = leaving.union(shares[is_plain[shares]].tolist())
            if len(more) > most or len(drawn) == asked:
                break
            leaving = more
            drawn.append(pair)
        rng.shuffle(drawn)
    size = len(drawn) // len(names)
    drawn = drawn[: size * len(names)]
    name_of_line = {numbers[pair]: names[place // size] for place, pair in enumerate(drawn)}
    pairs: dict[str, list[Pair]] = {name: [] for name in names}
    for line, pair in enumerate(split):
        if line in name_of_line:
            pairs[name_of_line[line]].append(pair)
    return pairs, labels if drawn else 0


def _hash(text: str) -> int:
    """Returns 8 bytes. A collision among millions of texts would leave out one pair more."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)

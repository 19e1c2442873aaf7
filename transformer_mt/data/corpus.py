"""The splits of a corpus: parallel text, read through PaddleNLP's `load_dataset`.

Importing PaddleNLP takes seconds, so only iterating over a split imports it. Training from the
cache and translating need no iteration.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

from transformer_mt.config.text import DataConfig, TrainingText
from transformer_mt.data.datasets import DATASETS
from transformer_mt.data.datasets.files import import_paddlenlp, parts
from transformer_mt.utils.errors import UserError
from transformer_mt.utils.files import Content, content_of, lines

Pair = tuple[str, str]


@dataclass(frozen=True)
class Split:
    """One split of a corpus. Each iteration reads its pairs, (source, target), through PaddleNLP.

    Attributes:
        paths: as in `SplitFiles`. The pairs of several texts follow one another.
        dataset: a name in DATASETS.
        reference: the text that translations are scored against, if that is not the target side
            (BPE'd text comes with tokenised text for this).
        texts: the names of the texts, with their tags, and which of them are reversed.
    """

    name: str
    paths: tuple[Path, ...]
    dataset: str
    source_lang: str
    target_lang: str
    reference: Path | None = None
    texts: tuple[TrainingText, ...] = (TrainingText(text="-"),)

    def __iter__(self) -> Iterator[Pair]:
        load_dataset = import_paddlenlp().load_dataset
        files = [str(path) for path in self.paths]
        examples = load_dataset(DATASETS[self.dataset].read, lazy=True, data_files=files)
        for text, example in zip(self.text_of_lines(), examples, strict=True):
            yield text.as_read(example["source"], example["target"])

    def examples(self) -> Iterator[dict[str, str]]:
        """Reads the pairs as {"source": ..., "target": ...}, as the files have them: without tags,
        and not reversed. PaddleNLP is not used."""
        return DATASETS[self.dataset].read([str(path) for path in self.paths])

    def text_of_lines(self) -> Iterator[TrainingText]:
        """Yields the text that each line belongs to, as often as the text has lines."""
        for text, count in zip(self.texts, self.line_counts, strict=True):
            yield from repeat(text, count)

    @cached_property
    def files(self) -> dict[Path, Content]:
        """The content of each file, including the reference. Each file is read once."""
        paths = self.paths if self.reference is None else (*self.paths, self.reference)
        return {path: content_of(path) for path in paths}

    @property
    def line_count(self) -> int:
        """The number of pairs."""
        return sum(self.line_counts)

    @property
    def line_counts(self) -> list[int]:
        """The number of pairs of each text."""
        return [self.files[first].line_count for first, *_ in parts(self.paths)]

    def content(self) -> str:
        """A hash that changes when the text does."""
        hashes = (self.files[path].sha256 for path in self.paths)
        changes = [repr((text.tag, text.reverse)) for text in self.texts]
        if all(text.is_plain for text in self.texts):
            changes = []
        return "-".join([self.dataset, self.source_lang, self.target_lang, *hashes, *changes])

    def check(self) -> list[str]:
        """Reads every line, and returns the sides ("source", "target") whose lines are all blank.

        Raises:
            UserError: a line is not UTF-8, or not a pair.
        """
        blank = ["source", "target"]
        for example in self.examples():
            blank = [side for side in blank if not example[side].strip()]
        if self.reference:
            deque(lines(self.reference), maxlen=0)
        return blank

    @cached_property
    def text(self) -> tuple[list[str], list[str]]:
        """The sources, and the references to score their translations against."""
        examples = list(self.examples())
        sources = [example["source"] for example in examples]
        if self.reference:
            return sources, list(lines(self.reference))
        return sources, [example["target"] for example in examples]


class Corpus(NamedTuple):
    """The splits that a config names. `dev` and `test` are None if it does not name them."""

    train: Split
    dev: Split | None
    test: Split | None


def open_corpus(config: DataConfig) -> Corpus:
    """Finds the files of every split that the config names, downloads missing ones if the dataset
    can be downloaded, and reads each file to its end.

    Raises:
        UsageError: a file is missing.
        UserError: the files of a split differ in length, or one can't be downloaded or read.
    """
    return Corpus(*(_open_split(config, name) for name in ("train", "dev", "test")))


def _open_split(config: DataConfig, name: str) -> Split | None:
    value = getattr(config, name)
    if value is None:
        return None
    languages = config.source_lang, config.target_lang
    find = DATASETS[config.dataset].find
    texts = config.texts if name == "train" else (TrainingText.model_construct(text=value),)
    found = [find(config.root, name, text.text, languages) for text in texts]
    paths = tuple(path for files in found for path in files.paths)
    split = Split(name, paths, config.dataset, *languages, found[0].reference, texts)
    for files in found:
        own = [path for path in (*files.paths, files.reference) if path is not None]
        _require_pairs(split, own)
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

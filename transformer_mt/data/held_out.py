"""Pairs that are taken out of the training text to serve as dev or test set."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass, field
from pathlib import Path

from transformer_mt.config.schema import DataConfig
from transformer_mt.data.cache import entry
from transformer_mt.data.corpus import Corpus, Pair, Split
from transformer_mt.data.training_filter import is_full
from transformer_mt.runtime.files import atomic


@dataclass
class HeldOut:
    """The splits that were made, by name, and all texts of their pairs."""

    splits: dict[str, Split] = field(default_factory=dict)
    texts: frozenset[str] = frozenset()


def hold_out(corpus: Corpus, config: DataConfig, seed: int, folder: Path) -> HeldOut:
    """Draws the dev and test pairs that the config does not name.

    At most a tenth of the pairs is taken for each. Training must leave out every pair that shares
    its source or its target with one of them, so that no text of the tests was seen.

    Args:
        folder: of the cache, for this corpus, config and seed alone. If it holds the pairs already,
            they are read from there.
    """
    names = [name for name in ("dev", "test") if getattr(corpus, name) is None]
    if not names or not config.held_out:
        return HeldOut()
    languages = config.source_lang, config.target_lang

    def make(temporary: Path) -> None:
        for name, pairs in _draw(corpus.train, names, config.held_out, seed).items():
            for side, lang in enumerate(languages):
                with atomic(temporary / f"{name}.{lang}") as file:
                    file.writelines(_line(pair[side]) for pair in pairs)

    entry(folder, make)
    splits = {}
    for name in names:
        paths = tuple(folder / f"{name}.{lang}" for lang in languages)
        split = Split(name, paths, "files", *languages)
        if split.line_count:  # a corpus may be too small to take any
            splits[name] = split
    texts = (
        text
        for split in splits.values()
        for example in split.examples()
        for text in example.values()
    )
    return HeldOut(splits, frozenset(texts))


def _draw(split: Split, names: list[str], size: int, seed: int) -> dict[str, list[Pair]]:
    """Draws at most `size` pairs for each name, without replacement."""
    candidates = array("q", (line for line, pair in enumerate(split) if is_full(pair)))
    size = min(size, len(candidates) // 10)
    drawn = random.Random(seed).sample(candidates, size * len(names))
    name_of_line = {line: names[place // size] for place, line in enumerate(drawn)}
    pairs: dict[str, list[Pair]] = {name: [] for name in names}
    for line, pair in enumerate(split):
        if line in name_of_line:
            pairs[name_of_line[line]].append(pair)
    return pairs


def _line(text: str) -> str:
    # A reader takes a carriage return before the line's end for a part of the end.
    return f"{text}\r\n" if text.endswith("\r") else f"{text}\n"

"""Which pairs of the training text are trained on, and which are held out as dev or test set."""

import hashlib
import random
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from transformer_mt.config.schema import DataConfig
from transformer_mt.data.cache import entry, entry_name
from transformer_mt.data.corpus import Corpus, Pair, Split
from transformer_mt.runtime.console import say
from transformer_mt.runtime.files import as_line, atomic

# A new number makes existing entries of the cache unused.
FORMAT = 2


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
    """Returns whether neither side is blank."""
    return bool(pair[0].strip() and pair[1].strip())


@dataclass
class HeldOut:
    """The splits that were made, by name, and the texts of both sides of all their pairs."""

    splits: dict[str, Split] = field(default_factory=dict)
    texts: frozenset[str] = frozenset()


def hold_out(corpus: Corpus, config: DataConfig, seed: int, cache: Path) -> HeldOut:
    """Draws the dev and test pairs that the config does not name, or finds them in the cache.

    At most a tenth of the pairs is taken for each split. No pair is taken from a text with a tag or
    from a reversed text, because such text is not what the model will translate. Training must
    leave out every pair that shares its source or its target with a pair that was taken, whether
    it has a tag or is reversed or not, so that it sees no text of the tests. The
    files are written to the cache, because there may be no model directory yet; a model directory
    gets a copy.
    """
    names = [name for name in ("dev", "test") if getattr(corpus, name) is None]
    if not names or not config.held_out:
        return HeldOut()
    languages = config.source_lang, config.target_lang
    key = entry_name(FORMAT, corpus.train.content(), names, config.held_out, seed)
    folder = cache / f"held_out-{key}"

    def make(temporary: Path) -> None:
        for name, pairs in _draw(corpus.train, names, config.held_out, seed).items():
            for side, lang in enumerate(languages):
                with atomic(temporary / f"{name}.{lang}") as file:
                    file.writelines(as_line(pair[side]) for pair in pairs)

    entry(folder, make)
    splits, texts = {}, set()
    for name in names:
        paths = tuple(folder / f"{name}.{lang}" for lang in languages)
        split = Split(name, paths, "files", *languages)
        if split.line_count:  # A small corpus may have no pair to spare.
            say(
                f"data.{name} is not given: {split.line_count:,} pairs are held out of the "
                "training text"
            )
            splits[name] = split
            for example in split.examples():
                texts.update(example.values())
    return HeldOut(splits, frozenset(texts))


def with_tags(texts: frozenset[str], split: Split) -> frozenset[str]:
    """Returns texts together with each of them behind each of the tags of a split."""
    tags = {text.tag for text in split.texts if text.tag is not None}
    return texts | {f"{tag} {text}" for tag in tags for text in texts}


def _draw(split: Split, names: list[str], size: int, seed: int) -> dict[str, list[Pair]]:
    """Draws at most `size` pairs for each name, without replacement."""
    lines = enumerate(zip(split.text_of_lines(), split, strict=True))
    candidates = array("q", (n for n, (text, pair) in lines if text.is_plain and is_full(pair)))
    size = min(size, len(candidates) // 10)
    drawn = random.Random(seed).sample(candidates, size * len(names))
    name_of_line = {line: names[place // size] for place, line in enumerate(drawn)}
    pairs: dict[str, list[Pair]] = {name: [] for name in names}
    for line, pair in enumerate(split):
        if line in name_of_line:
            pairs[name_of_line[line]].append(pair)
    return pairs

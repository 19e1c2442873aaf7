"""What the text of a run is like: its counts and lengths, which pairs were left out, how often its
subwords occur, and which text of the dev and test sets is also trained on.

`train` prints some of these facts, warns of others, and writes all of them to MODEL_DIR/data.json.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np

from transformer_mt.config.decoding import MAX_LENGTH_RATIO, DecodingConfig
from transformer_mt.data.cache import CachedArrays, entry, entry_name
from transformer_mt.data.corpus import Corpus, Pair, Split
from transformer_mt.data.encoded import CHUNK, EncodedCorpus, EncodedText, Limits
from transformer_mt.data.languages import has_spaces, is_in_unspaced_script, sentences
from transformer_mt.data.normalization import examples_of
from transformer_mt.data.subword import Subwords, Vocabulary, WordVocabulary, tokens
from transformer_mt.utils.console import progress

# A new number makes existing entries of the cache unused.
FORMAT = 3
# A subword that occurs less often than this is rare.
RARE = 10
# How many examples there are of each kind, and how many characters of each text.
EXAMPLES = 3
# Examples of unknown text are found in this many sentences.
LINES_WITH_UNKNOWN = 1000
LONGEST_EXAMPLE = 200
# A histogram of lengths has at most this many bars.
BARS = 30
# Whether lines have several sentences, and their script, is looked at in about this many of them.
SENTENCE_LINES = 20_000
# The share of the pairs, the least unusual ones, whose targets an output may be as long as.
USUAL = 0.999
# This many ids are counted at once, to limit the memory.
BLOCK = 1 << 22

Facts = dict[str, Any]


class _CachedFacts(CachedArrays):
    name = "facts about the text"


def facts_of(
    corpus: Corpus,
    train: EncodedCorpus,
    subwords: Subwords,
    limits: Limits,
    reason_to_drop: Callable[[Pair], str | None],
    cache: Path,
) -> Facts:
    """Returns the facts about a corpus, whose form docs/data.md describes. They can be written as
    JSON.

    The text is read once. The facts are then in the cache. The memory that is used depends on the
    size of the dev and test sets, and not on that of the training text.

    Args:
        train: the encoded training text.
        limits, reason_to_drop: what it was encoded with.
    """
    held = {name: split for name in ("dev", "test") if (split := getattr(corpus, name))}
    contents = {name: split.content() for name, split in held.items()}

    def make(folder: Path) -> None:
        facts = _read(corpus.train, held, train, subwords, limits, reason_to_drop)
        for name, side in _sides(train, subwords).items():
            words = facts[name]["words"]
            facts["unknown_text"]["train"][name]["share"] = side.pop("unknown")
            facts[name] |= side
            facts[name]["subwords_per_word"] = side["subwords"] / words if words else None
        facts["length_ratio"] = _length_ratio(train)
        (folder / "facts.json").write_text(json.dumps(facts))

    name = entry_name(FORMAT, train.key, contents)
    facts = _CachedFacts(entry(cache / f"facts-{name}", make)).facts
    splits = {"train": corpus.train, **held}
    # The name of each text, how many of its pairs are used, and which settings are not the default.
    pairs_of_texts = zip(corpus.train.texts, train.split(corpus.train.line_counts), strict=True)
    settings = {"weight", "tag", "reverse"}
    return {
        "files": {name: list(map(str, split.paths)) for name, split in splits.items()},
        "pairs": len(train),
        "texts": [
            {"text": text.text, "pairs": pairs}
            | text.model_dump(include=settings, exclude_defaults=True)
            for text, pairs in pairs_of_texts
        ],
        "unknown": train.facts["unknown"],
        **{name: len(held[name]) if name in held else 0 for name in ("dev", "test")},
        **facts,
    }


def unknown_texts(facts: Facts) -> Iterator[tuple[str, str, Facts]]:
    """Yields the facts about unknown subwords with the names of the text and of its side."""
    for name, sides in facts["unknown_text"].items():
        for side, unknown in sides.items():
            yield name, side, unknown


# --------------------------------------------------------------------------------------- the text


def _read(
    text: Split,
    held: dict[str, Split],
    train: EncodedCorpus,
    subwords: Subwords,
    limits: Limits,
    reason_to_drop: Callable[[Pair], str | None],
) -> Facts:
    """Reads the training text, and returns the facts that its encoded form does not have."""
    # The first bit: the pair is used. The others: an unknown part of the source, of the target.
    used = np.zeros(train.text_lines, np.uint8)
    used[train.lines] = 1
    if train.facts["unknown"]:
        used[train.lines[_with_unknown(train.source, subwords.source.unk)]] |= 2
        used[train.lines[_with_unknown(train.target, subwords.target.unk)]] |= 4
    step = 1 + len(train) // SENTENCE_LINES
    source = _Side(text.source_lang, subwords.source, step)
    target = _Side(text.target_lang, subwords.target, step)
    pairs_of = {name: list(split.pairs()) for name, split in held.items()}
    dropped = _Dropped(train, subwords, limits)
    overlap, copies = _Overlap(pairs_of), _Examples()
    lines = zip(used.tobytes(), text.text_of_lines(), text.pairs(), strict=True)
    with progress(total=len(used), title="examining", unit="pairs", unit_scale=True) as bar:
        while chunk := list(islice(lines, CHUNK)):
            for is_used, its_text, original in chunk:
                pair = its_text.as_read(*original)
                reason = reason_to_drop(pair)  # of every pair, because it may remember them
                if not is_used:
                    dropped.add(pair, reason)
                    continue
                # Text of the dev set is found behind a tag too, and in a reversed text.
                overlap.add(original)
                if original[0] == original[1]:
                    copies.add(original)
                source.add(pair[0], has_unknown=is_used & 2 > 0)
                target.add(pair[1], has_unknown=is_used & 4 > 0)
            bar.update(len(chunk))
    unknown: dict[str, Facts] = {
        "train": {
            "source": {"share": 0.0, "examples": _examples(source.unknown, subwords.source)},
            "target": {"share": 0.0, "examples": _examples(target.unknown, subwords.target)},
        }
    }
    for name, pairs in pairs_of.items():
        sources, targets = zip(*pairs, strict=True)
        unknown[name] = {
            "source": _unknown_of(sources, subwords.source),
            "target": _unknown_of(targets, subwords.target),
        }
    return {
        "dropped": dropped.facts(),
        "source": source.facts(),
        "target": target.facts(),
        "unknown_text": unknown,
        "overlap": overlap.facts(),
        "copies": copies.facts(),
    }


class _Examples:
    """Counts pairs, and keeps the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self._pairs: list[Pair] = []

    def add(self, pair: Pair) -> None:
        self.count += 1
        if self.count <= EXAMPLES:
            self._pairs.append(pair)

    def facts(self) -> Facts:
        return {"count": self.count, "examples": list(map(_shortened, self._pairs))}


class _Dropped:
    """Finds examples of the pairs that were left out, for each reason. (The encoded corpus has
    their numbers, but not their text.)"""

    def __init__(self, train: EncodedCorpus, subwords: Subwords, limits: Limits) -> None:
        self._subwords = subwords
        self._limits = limits
        self._counts = train.facts["dropped"]
        self._examples = {reason: _Examples() for reason in self._counts}
        self._missing = set(self._counts)

    def add(self, pair: Pair, reason: str | None) -> None:
        """Takes note of a pair that was left out.

        Args:
            reason: None if its length is the reason. Lengths are computed only as long as examples
                are missing.
        """
        if not self._missing:
            return
        if reason is None:
            source, target = self._subwords.source, self._subwords.target
            reason = self._limits.reason_to_drop(source.encode(pair[0]), target.encode(pair[1]))
        examples = self._examples[reason]
        examples.add(pair)
        if examples.count >= min(EXAMPLES, self._counts[reason]):
            self._missing.discard(reason)

    def facts(self) -> Facts:
        return {
            reason: self._examples[reason].facts() | {"count": count}
            for reason, count in self._counts.items()
        }


class _Side:
    """Counts the characters and the words of one side of the text, and among every `step`th line
    those with several sentences and those in a script without spaces. Keeps unknown subwords."""

    def __init__(self, language: str, vocabulary: Vocabulary, step: int) -> None:
        self._language, self._has_words = language, has_spaces(language)
        self._vocabulary, self._is_bpe = vocabulary, isinstance(vocabulary, WordVocabulary)
        self._step = step
        self._words = self._characters = self._lines = self._looked_at = self._several = 0
        self._unspaced = 0
        self.unknown: list[str] = []

    def add(self, text: str, has_unknown: bool) -> None:
        if has_unknown:
            self.unknown += self._vocabulary.unknown(text)
        if self._lines % self._step == 0:
            self._looked_at += 1
            self._several += len(sentences(text, self._language)) > 1
            self._unspaced += is_in_unspaced_script(text)
        self._lines += 1
        self._characters += len(text)
        if self._has_words:
            words = tokens(text) if self._is_bpe else text.split()
            self._words += len(words)
            if self._is_bpe:  # the parts of a word, except the last, end in @@
                self._words -= sum(word.endswith("@@") for word in words)

    def facts(self) -> Facts:
        return {
            "words": self._words if self._has_words else None,
            "characters": self._characters,
            "several_sentences": self._several / max(1, self._looked_at),
            "unspaced_script": self._unspaced / max(1, self._looked_at),
        }


def _unknown_of(texts: Sequence[str], vocabulary: Vocabulary) -> Facts:
    """Returns the facts about the unknown subwords of one side of a dev or test set."""
    ids = np.array([i for text in texts for i in vocabulary.encode(text)], np.int64)
    share = _share_of_unknown(np.bincount(ids, minlength=vocabulary.size), vocabulary)
    unknown = [part for text in texts for part in vocabulary.unknown(text)]
    return {"share": share, "examples": _examples(unknown, vocabulary)}


def _examples(unknown: list[str], vocabulary: Vocabulary) -> list[str]:
    return examples_of(unknown if isinstance(vocabulary, WordVocabulary) else "".join(unknown))


class _Overlap:
    """Finds the pairs of the dev and test sets whose source or target is also in the training
    text. Blank text is in no pair that is trained on."""

    def __init__(self, pairs_of: dict[str, list[Pair]]) -> None:
        self._pairs = pairs_of
        self._seen = {
            key: False for pairs in pairs_of.values() for pair in pairs for key in self._keys(pair)
        }

    @staticmethod
    def _keys(pair: Pair) -> tuple[tuple[str | None, str | None], ...]:
        return pair, (pair[0], None), (None, pair[1])

    def add(self, pair: Pair) -> None:
        """Takes note of a pair of the training text."""
        for key in self._keys(pair):
            if key in self._seen:
                self._seen[key] = True

    def facts(self) -> Facts:
        """The number of lines that share a side with the training text, the number of those that
        are in it as a pair, and examples, of which such pairs come first; for each set."""
        return {name: self._facts(self._pairs.get(name, [])) for name in ("dev", "test")}

    def _facts(self, pairs: list[Pair]) -> Facts:
        shared = [pair for pair in pairs if any(self._seen[key] for key in self._keys(pair))]
        shared.sort(key=lambda pair: not self._seen[pair])
        whole = sum(self._seen[pair] for pair in shared)
        examples = list(map(_shortened, shared[:EXAMPLES]))
        return {"lines": len(shared), "pairs": whole, "examples": examples}


def _shortened(pair: Pair) -> list[str]:
    return [
        text if len(text) <= LONGEST_EXAMPLE else text[: LONGEST_EXAMPLE - 1] + "…" for text in pair
    ]


# ---------------------------------------------------------------------------------- encoded text


def _sides(train: EncodedCorpus, subwords: Subwords) -> dict[str, Facts]:
    """Returns the facts about the subwords of each side."""
    sides = {"source": (train.source, subwords.source), "target": (train.target, subwords.target)}
    occurrences = {name: _occurrences(text, side.size) for name, (text, side) in sides.items()}
    counts = occurrences
    if subwords.joint:  # a subword of either side is trained by both
        counts = dict.fromkeys(counts, counts["source"] + counts["target"])
    longest = max(int(text.lengths.max()) for text, _ in sides.values())
    widths = (digit * 10**power for power in count() for digit in (1, 2, 5))
    width = next(width for width in widths if width * BARS >= longest)
    return {
        name: {
            "sentences": len(text.lengths),
            "subwords": len(text.ids),
            "mean": len(text.ids) / len(text.lengths),
            "longest": int(text.lengths.max()),
            "lengths": histogram(text.lengths, width),
            "vocabulary": side.size,
            "rare": _share_of_rare(counts[name], side),
            "unknown": _share_of_unknown(occurrences[name], side),
        }
        for name, (text, side) in sides.items()
    }


def _length_ratio(train: EncodedCorpus) -> float:
    """Returns the `decoding.max_length_ratio` that the training text needs: with the default of
    max_length_extra and with room for a quarter more, nearly all of its targets could be outputs.
    It is at least the usual ratio."""
    extra = DecodingConfig.model_fields["max_length_extra"].default
    source, target = train.source.lengths, train.target.lengths
    needed = (target - extra) / np.maximum(source, 1)
    ratio = 1.25 * float(np.quantile(needed, USUAL, method="higher"))
    return min(max(MAX_LENGTH_RATIO, math.ceil(10 * ratio) / 10), 100.0)


def _occurrences(text: EncodedText, size: int) -> np.ndarray:
    """Returns how often each subword occurs: int64 (size,)."""
    counts = np.zeros(size, np.int64)
    for start in range(0, len(text.ids), BLOCK):
        counts += np.bincount(text.ids[start : start + BLOCK], minlength=size)
    return counts


def _share_of_rare(counts: np.ndarray, vocabulary: Vocabulary) -> float:
    """Returns the share of the subwords that occur less than RARE times. The special subwords are
    not counted."""
    counts = np.delete(counts, vocabulary.special)
    return float((counts < RARE).mean()) if len(counts) else 0.0


def _share_of_unknown(counts: np.ndarray, vocabulary: Vocabulary) -> float:
    """Returns the share of the unknown among the subwords. Subwords that are only a space are not
    counted, because SentencePiece puts one before each unknown word."""
    spaces = counts[vocabulary.space] if vocabulary.space >= 0 else 0
    return float(counts[vocabulary.unk] / max(1, counts.sum() - spaces))


def _with_unknown(text: EncodedText, unk: int) -> np.ndarray:
    """Returns the first sentences that have an unknown subword."""
    found = np.zeros(0, np.int64)
    for start in range(0, len(text.ids), BLOCK):
        places = start + np.flatnonzero(text.ids[start : start + BLOCK] == unk)
        found = np.union1d(found, np.searchsorted(text.offsets, places, "right") - 1)
        if len(found) >= LINES_WITH_UNKNOWN:
            break
    return found[:LINES_WITH_UNKNOWN]


def histogram(lengths: np.ndarray, width: int) -> list[list[int]]:
    """Counts lengths in intervals of a width. The first interval begins with 1, and also holds any
    length of 0.

    Returns: the first length, the last length and the count of each interval, which may be 0.
    """
    counts = np.bincount((np.maximum(lengths, 1) - 1) // width)
    return [[i * width + 1, (i + 1) * width, int(count)] for i, count in enumerate(counts)]

"""What the text of a run is like: its counts and lengths, which pairs were left out, how often its
subwords occur, and which text of the dev and test sets is also trained on.

`train` prints some of these facts, warns of others, and writes all of them to MODEL_DIR/data.json.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from transformer_mt.config.decoding import MAX_LENGTH_RATIO, DecodingConfig
from transformer_mt.data.cache import CachedArrays, entry, entry_name
from transformer_mt.data.corpus import Corpus, Pair, Split
from transformer_mt.data.encoded import (
    UNMATCHED,
    EncodedCorpus,
    EncodedText,
    Limits,
    PairChanges,
)
from transformer_mt.data.normalization import examples_of
from transformer_mt.data.subword import Subwords
from transformer_mt.data.vocabulary import Vocabulary, WordVocabulary, tokens
from transformer_mt.utils.console import progress
from transformer_mt.utils.languages import has_spaces, has_spaces_in, sentences

# A new number makes existing entries of the cache unused.
FORMAT = 6
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
# A pair, or one of its sides.
_Key = tuple[str | None, str | None]


def facts_of(
    corpus: Corpus,
    train: EncodedCorpus,
    subwords: Subwords,
    limits: Limits,
    reason_to_drop: Callable[[Pair], str | None],
    cache: Path,
    changes: PairChanges | None = None,
) -> Facts:
    """Returns the facts about a corpus, whose form docs/data.md describes. They can be written as
    JSON.

    The text is read once. The facts are then in the cache. The memory that is used depends on the
    size of the dev and test sets, and not on that of the training text.

    Args:
        train: the encoded training text.
        limits, reason_to_drop, changes: what it was encoded with.
    """
    held = {name: split for name in corpus._fields[1:] if (split := getattr(corpus, name))}
    contents = {name: split.content() for name, split in held.items()}

    def make(folder: Path) -> None:
        facts = _read(corpus.train, held, train, subwords, limits, reason_to_drop, changes)
        (folder / "facts.json").write_text(json.dumps(facts))

    name = entry_name(FORMAT, train.key, contents)
    facts = CachedArrays(entry(cache / f"facts-{name}", make)).facts
    splits = {"train": corpus.train, **held}
    # The name of each text, how many of its pairs are used, and which settings are not the default.
    pairs_of_texts = zip(corpus.train.texts, train.split(corpus.train.line_counts), strict=True)
    settings = {"weight", "tag", "reverse", "general"}
    return {
        "files": {name: list(map(str, split.named_files)) for name, split in splits.items()},
        "pairs": len(train),
        "texts": [
            {"text": text.text, "pairs": pairs}
            | text.model_dump(include=settings, exclude_defaults=True)
            for text, pairs in pairs_of_texts
        ],
        **{"dev": 0, "test": 0},
        **{name: split.line_count for name, split in held.items()},
        **facts,
    }


def unknown_texts(facts: Facts) -> Iterator[tuple[str, str, Facts]]:
    """Yields the facts about unknown subwords with the names of the text and of its side."""
    for name, sides in facts["unknown_text"].items():
        for side, unknown in sides.items():
            yield name, side, unknown


def _read(
    text: Split,
    held: dict[str, Split],
    train: EncodedCorpus,
    subwords: Subwords,
    limits: Limits,
    reason_to_drop: Callable[[Pair], str | None],
    changes: PairChanges | None,
) -> Facts:
    """Reads the training text, and returns the facts that the cache keeps."""
    is_used = np.zeros(train.text_lines, bool)
    is_used[train.lines] = True
    source = _Side(text.source_lang, subwords.source, train.source, train.lines)
    target = _Side(text.target_lang, subwords.target, train.target, train.lines)
    counts: dict[str, int] = train.facts["dropped"]
    dropped: dict[str, list[Pair]] = {reason: [] for reason in counts}
    copies, first_copies = 0, []
    unmatched, first_unmatched = 0, []
    pairs_of = {name: list(split.pairs()) for name, split in held.items()}
    # What is looked for in the training text, and what of it is there.
    wanted = {key for pairs in pairs_of.values() for pair in pairs for key in _keys(pair)}
    found: set[_Key] = set()
    lines = zip(is_used.tobytes(), text.pairs_of_texts(), strict=True)
    bar = progress(
        iterable=lines, total=len(is_used), title="examining", unit="pairs", unit_scale=True
    )
    for number, (is_trained_on, (its_text, original)) in enumerate(bar):
        pair = its_text.as_read(*original)
        reason = reason_to_drop(pair)  # of every pair, because it may remember them
        if changes is not None and reason is None:
            pair, is_matched = changes.applied(pair)
            if not is_matched:
                reason = None if changes.keeps(is_matched) else UNMATCHED
                unmatched += 1
                if unmatched <= EXAMPLES:
                    first_unmatched.append(original)
        if is_trained_on:
            source.add(number, pair[0])
            target.add(number, pair[1])
            # Text of the dev set is found behind a tag too, and in a reversed text.
            found |= wanted.intersection(_keys(original))
            if original[0] == original[1]:
                copies += 1
                if copies <= EXAMPLES:
                    first_copies.append(original)
        elif any(len(dropped[name]) < min(EXAMPLES, counts[name]) for name in counts):
            # A pair without a reason has wrong lengths, which are computed for examples alone.
            reason = reason or limits.reason_to_drop(
                subwords.source.encode(pair[0]), subwords.target.encode(pair[1])
            )
            if len(dropped[reason]) < EXAMPLES:
                dropped[reason].append(pair)
    sides = {"source": source, "target": target}
    unknown = {"train": {name: side.unknown() for name, side in sides.items()}}
    measured = changes and changes.for_measuring()
    for name, pairs in pairs_of.items():
        read = [measured.applied(pair)[0] for pair in pairs] if measured else pairs
        columns = zip(*read, strict=True)
        unknown[name] = {
            side: _unknown_of(texts, own.vocabulary)
            for (side, own), texts in zip(sides.items(), columns, strict=True)
        }
    occurrences = {name: side.occurrences for name, side in sides.items()}
    if subwords.joint:  # a subword of either side is trained by both
        occurrences = dict.fromkeys(sides, source.occurrences + target.occurrences)
    longest = train.longest
    widths = (digit * 10**power for power in count() for digit in (1, 2, 5))
    width = next(width for width in widths if width * BARS >= longest)
    return {
        "dropped": {
            reason: {"count": counts[reason], "examples": _shortened(pairs)}
            for reason, pairs in dropped.items()
        },
        **{name: side.facts(width, occurrences[name]) for name, side in sides.items()},
        "unknown": sum(int(side.occurrences[side.vocabulary.unk]) for side in sides.values()),
        "unknown_text": unknown,
        "overlap": {
            name: _overlap(pairs_of.get(name, []), found)
            for name in dict.fromkeys(["dev", "test", *held])
        },
        "copies": {"count": copies, "examples": _shortened(first_copies)},
        "unmatched": {"count": unmatched, "examples": _shortened(first_unmatched)},
        "length_ratio": _length_ratio(train),
    }


class _Side:
    """One side of the training pairs: their encoded form, and what is counted in their text. Among
    every `step`th line, these are those with several sentences and in a script without spaces."""

    def __init__(
        self, language: str, vocabulary: Vocabulary, encoded: EncodedText, lines: np.ndarray
    ) -> None:
        self.vocabulary = vocabulary
        self.occurrences = _occurrences(encoded, vocabulary.size)
        self._encoded = encoded
        self._language, self._has_words = language, has_spaces(language)
        self._step = 1 + len(lines) // SENTENCE_LINES
        self._words = self._characters = self._lines = self._several = self._unspaced = 0
        self._lines_with_unknown = set(lines[_with_unknown(encoded, vocabulary.unk)].tolist())
        self._unknown: list[str] = []

    def add(self, number: int, text: str) -> None:
        """Takes note of a line, given its number in the whole text."""
        if number in self._lines_with_unknown:
            self._unknown += self.vocabulary.unknown(text)
        if self._lines % self._step == 0:
            self._several += len(sentences(text, self._language)) > 1
            self._unspaced += not has_spaces_in([text])
        self._lines += 1
        self._characters += len(text)
        if not self._has_words:
            return
        if isinstance(self.vocabulary, WordVocabulary):
            # The parts of a word, except the last, end in @@.
            self._words += sum(not token.endswith("@@") for token in tokens(text))
        else:
            self._words += len(text.split())

    def unknown(self) -> Facts:
        """Returns the facts about unknown subwords."""
        return _unknown(self.occurrences, self._unknown, self.vocabulary)

    def facts(self, width: int, occurrences: np.ndarray) -> Facts:
        """Returns all facts but those about unknown subwords.

        Args:
            width: that of the intervals of the histogram.
            occurrences: how often each subword of the vocabulary is trained.
        """
        lengths, subwords = self._encoded.lengths, len(self._encoded.ids)
        words = self._words if self._has_words else None
        looked_at = math.ceil(self._lines / self._step)
        return {
            "words": words,
            "characters": self._characters,
            "several_sentences": self._several / looked_at,
            "unspaced_script": self._unspaced / looked_at,
            "sentences": len(lengths),
            "subwords": subwords,
            "mean": subwords / len(lengths),
            "longest": int(lengths.max()),
            "lengths": histogram(lengths, width),
            "vocabulary": self.vocabulary.size,
            "rare": _share_of_rare(occurrences, self.vocabulary),
            "subwords_per_word": subwords / words if words else None,
        }


def _unknown_of(texts: Sequence[str], vocabulary: Vocabulary) -> Facts:
    """Returns the facts about the unknown subwords of one side of a dev or test set."""
    ids = np.array([i for text in texts for i in vocabulary.encode(text)], np.int64)
    parts = [part for text in texts for part in vocabulary.unknown(text)]
    return _unknown(np.bincount(ids, minlength=vocabulary.size), parts, vocabulary)


def _unknown(counts: np.ndarray, parts: list[str], vocabulary: Vocabulary) -> Facts:
    """Returns the share of the unknown among the subwords, and examples.

    Subwords that are only a space are not counted, because SentencePiece puts one before each
    unknown word.

    Args:
        counts: how often each subword occurs.
        parts: unknown parts of the text.
    """
    spaces = counts[vocabulary.space] if vocabulary.space >= 0 else 0
    share = float(counts[vocabulary.unk] / max(1, counts.sum() - spaces))
    is_words = isinstance(vocabulary, WordVocabulary)
    return {"share": share, "examples": examples_of(parts if is_words else "".join(parts))}


def _keys(pair: Pair) -> tuple[_Key, ...]:
    """The pair, and each of its sides alone."""
    return pair, (pair[0], None), (None, pair[1])


def _overlap(pairs: list[Pair], found: set[_Key]) -> Facts:
    """Returns the number of pairs that share a side with the training text, the number of those
    that are in it as a pair, and examples, of which such pairs come first.

    Args:
        found: those of the `_keys` of the pairs that are in the training text.
    """
    shared = [pair for pair in pairs if not found.isdisjoint(_keys(pair))]
    shared.sort(key=lambda pair: pair not in found)
    whole = sum(pair in found for pair in shared)
    return {"lines": len(shared), "pairs": whole, "examples": _shortened(shared[:EXAMPLES])}


def _shortened(pairs: list[Pair]) -> list[list[str]]:
    return [
        [
            text[: LONGEST_EXAMPLE - 1] + "…" if len(text) > LONGEST_EXAMPLE else text
            for text in pair
        ]
        for pair in pairs
    ]


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

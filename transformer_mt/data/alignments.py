"""Word alignments: as text and their error rate, the words that subwords belong to, and links
between the subwords of the encoded corpus.

The text is in the format of the decoder Pharaoh. A line has links i-j from word i of the source to
word j of the target, counted from 0. The alignments of the training text are read once, before
training begins, and every error in them is reported then. The links of subwords are stored in the
cache and read memory-mapped.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from transformer_mt.data import encoded
from transformer_mt.data.cache import CachedArrays, entry, entry_name
from transformer_mt.data.encoded import EncodedCorpus, EncodedText
from transformer_mt.data.subword import Subwords
from transformer_mt.data.vocabulary import SPACE, Place, Vocabulary, WordVocabulary
from transformer_mt.utils.console import progress
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.files import content_of, lines
from transformer_mt.utils.languages import has_spaces

Link = tuple[int, int]
# The sure links of a line, and its possible links, which include the sure ones.
Gold = tuple[set[Link], set[Link]]

_LINE = re.compile(r"[ \t]*(?:[0-9]{1,9}-[0-9]{1,9}(?:[ \t]+|$))*")
_GOLD = re.compile(r"([0-9]{1,9})([-?p])([0-9]{1,9})")


def read(lines: list[str], name: str, first: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Returns the links of all lines, int64 (links, 2), and the number of links of each line, int64
    (lines,).

    Args:
        name, first: for messages, where the lines come from and the number of the first of them.

    Raises:
        UserError: a line is not in the format.
    """
    for number, line in enumerate(lines, first):
        if not _LINE.fullmatch(line):
            wrong = next(item for item in _items(line) if not _LINE.fullmatch(item))
            raise UserError(
                f"{name}, line {number}: {wrong!r} is no link; a line is as in 0-0 1-2 2-1"
            )
    # There may be millions of lines. Parsing them together takes a tenth of the time.
    text = " ".join(lines).replace("-", " ").strip()  # NumPy would read spaces alone as a 0
    numbers = np.fromstring(text, np.int64, sep=" ")
    return numbers.reshape(-1, 2), np.array([line.count("-") for line in lines], np.int64)


def write(links: Iterable[Link]) -> str:
    """Returns a line that `read` can read."""
    return " ".join(f"{source}-{target}" for source, target in links)


def _items(line: str) -> list[str]:
    # str.split would also split at U+2003 and the like, where NumPy stops reading.
    return re.findall(r"[^ \t]+", line)


# -------------------------------------------------------------------------------------- error rate


def read_gold(path: Path) -> list[Gold]:
    """Reads a file of lines that people have aligned. Sure links are i-j, and possible links are
    i?j or ipj.

    Raises:
        UserError: an item of a line is no link.
    """
    gold: list[Gold] = []
    for number, line in enumerate(lines(path), 1):
        sure, possible = set(), set()
        for item in _items(line):
            match = _GOLD.fullmatch(item)
            if not match:
                raise UserError(
                    f"{path}, line {number}: {item!r} is no link; a line is as in 0-0 1-2 2?1 "
                    "(? or p: possible)"
                )
            link = int(match[1]), int(match[3])
            possible.add(link)
            if match[2] == "-":
                sure.add(link)
        gold.append((sure, possible))
    return gold


@dataclass(frozen=True)
class AlignmentScores:
    """Scores of word alignments against a reference that people have made.

    For the links that were found, A, and the sure and possible links of the reference, S and P
    (Och and Ney 2003, "A Systematic Comparison of Various Statistical Alignment Models", section
    5): precision = |A and P| / |A|, recall = |A and S| / |S|,
    AER = 1 - (|A and S| + |A and P|) / (|A| + |S|). Links are counted over all lines together.

    Attributes:
        lines: the number of lines.
        links: the number of links that were found.
        sure, possible: the number of sure links in the reference, and of possible links, which
            include the sure ones.
        found_sure, found_possible: how many of them were found.
    """

    lines: int
    links: int
    sure: int
    possible: int
    found_sure: int
    found_possible: int

    @property
    def error_rate(self) -> float:
        """The alignment error rate (AER), from 0 to 100; 0 is the best."""
        return 100 * (1 - (self.found_sure + self.found_possible) / (self.links + self.sure))

    @property
    def precision(self) -> float:
        """From 0 to 100; nan if no link was found."""
        return 100 * self.found_possible / self.links if self.links else float("nan")

    @property
    def recall(self) -> float:
        """From 0 to 100; nan if the reference has no sure link."""
        return 100 * self.found_sure / self.sure if self.sure else float("nan")

    def __str__(self) -> str:
        return (
            f"AER {self.error_rate:.2f}   precision {self.precision:.2f}   "
            f"recall {self.recall:.2f}   ({self.lines:,} lines, {self.links:,} links; the "
            f"reference has {self.sure:,} sure and {self.possible:,} possible ones)"
        )


def scores_of(found: Iterable[set[Link]], gold: Iterable[Gold]) -> AlignmentScores:
    """Scores the links of lines against a reference that people have made.

    Raises:
        UserError: neither side has a link.
    """
    counts = [
        (1, len(own), len(sure), len(possible), len(own & sure), len(own & possible))
        for own, (sure, possible) in zip(found, gold, strict=True)
    ]
    scores = AlignmentScores(*np.array(counts, int).reshape(-1, 6).sum(axis=0).tolist())
    if not scores.links + scores.sure:
        raise UserError("there is nothing to score: neither side has a link")
    return scores


# ------------------------------------------------------------------------------------------- words

# The word number of a subword that belongs to no word.
NONE = -1


class Spans(NamedTuple):
    """The positions of the words of some sentences. The words of all sentences are concatenated.

    Attributes:
        counts: the number of words of each sentence, int64 (sentences,).
        starts: the position of each word's first subword in its sentence, int64 (words,).
        lengths: the number of subwords of each word, int64 (words,).
    """

    counts: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray


class Words:
    """Finds the words of one side's sentences. Spaces separate words. In a language that is written
    without spaces, each subword counts as a word."""

    def __init__(self, vocabulary: Vocabulary, language: str) -> None:
        pieces = vocabulary.pieces(range(vocabulary.size))
        # For each id: whether a word may begin with it, and whether a word may begin after it.
        self._opens = np.ones(len(pieces), bool)
        self._closes = np.ones(len(pieces), bool)
        self._is_blank = np.zeros(len(pieces), bool)
        if not has_spaces(language):
            return
        if isinstance(vocabulary, WordVocabulary):
            self._closes = np.array([not piece.endswith("@@") for piece in pieces])
            return
        self._opens = np.array([piece.startswith(SPACE) for piece in pieces])
        self._is_blank = np.array([not piece.strip(SPACE) for piece in pieces])
        self._closes = ~self._is_blank
        # If all subwords are whole words, an unknown one is a whole word too.
        self._opens[vocabulary.unk] = np.delete(self._opens, vocabulary.special).all()

    def numbers(self, ids: np.ndarray, lengths: np.ndarray | None = None) -> np.ndarray:
        """Returns the number of the word that each subword belongs to, from 0 in each sentence:
        int64, (subwords,). Spaces after the last word get NONE.

        Args:
            ids: the concatenated ids of all sentences, without bos and eos: integers (subwords,).
            lengths: the number of subwords of each sentence. None means that there is one sentence.
        """
        if not len(ids):
            return np.zeros(0, np.int64)
        lengths = np.array([len(ids)] if lengths is None else lengths)
        starts = np.cumsum(lengths) - lengths
        begins = np.ones(len(ids), bool)
        begins[1:] = self._opens[ids[1:]] & self._closes[ids[:-1]]
        counts = np.cumsum(begins)
        # Count from the start of each sentence. An empty sentence may start after the last id.
        numbers = counts - np.repeat(counts[np.minimum(starts, len(ids) - 1)], lengths)
        # A space is after the last word if no other subword of the sentence follows it.
        in_words = np.cumsum(~self._is_blank[ids])
        in_sentence = np.repeat(in_words[np.cumsum(lengths) - 1], lengths)
        numbers[self._is_blank[ids] & (in_words == in_sentence)] = NONE
        return numbers

    def spans(self, ids: np.ndarray, lengths: np.ndarray) -> Spans:
        """Returns the positions of the words. The arguments are those of `numbers`."""
        numbers = self.numbers(ids, lengths)
        sentences = np.repeat(np.arange(len(lengths)), lengths)
        places = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        real = numbers != NONE
        numbers, sentences, places = numbers[real], sentences[real], places[real]
        counts = np.zeros(len(lengths), np.int64)
        np.maximum.at(counts, sentences, numbers + 1)
        words = numbers + (np.cumsum(counts) - counts)[sentences]  # numbered over all sentences
        return Spans(counts, places[np.diff(words, prepend=-1) > 0], np.bincount(words))

    def places(self, ids: list[int], places: list[Place]) -> list[Place]:
        """Returns the place of each word of a sentence in its text. The places are in order and
        don't overlap. A word that has no character of its own has an empty place.

        Args:
            places: the place of each subword, as from `Vocabulary.places`.
        """
        found: list[Place] = []
        numbers = self.numbers(np.array(ids, np.int64)).tolist()
        for number, (start, end) in zip(numbers, places, strict=True):
            if number == len(found):
                found.append((start, end))
            elif number != NONE and start < end:
                first, last = found[number]
                found[number] = (first if first < last else start), end
        return found


def word_count(numbers: np.ndarray) -> int:
    """Returns the number of words of a sentence, given its `Words.numbers`."""
    return int(numbers.max(initial=NONE)) + 1


# ----------------------------------------------------------------- alignments of the training text

FORMAT = 1
# The key of the config that names the file, for messages.
SETTING = "guided_attention.alignments"


class Alignments(CachedArrays):
    """The links of each pair of an encoded corpus, as (source position, target position) of
    subwords.

    `facts` holds counts: lines of the file, links between words of the pairs that are used, and
    target subwords of these pairs that have no link.
    """

    name = "alignments"

    def _load(self, folder: Path) -> None:
        self._links = EncodedText(folder, "links", self.facts["pairs"])

    def __getitem__(self, index: int) -> np.ndarray:
        """Returns the links of a pair: integers (links, 2)."""
        return self._links[index].reshape(-1, 2)

    def matrix(self, sentences: np.ndarray, target_len: int, source_len: int) -> np.ndarray:
        """Returns what each target subword of a batch should attend to: float32 (batch, target_len,
        source_len). Each row has equal shares, with a sum of 1, for the source subwords that its
        target subword is linked to. A row without links is zero."""
        matrix = np.zeros((len(sentences), target_len, source_len), np.float32)
        for row, sentence in enumerate(sentences):
            source, target = self[sentence].T
            matrix[row, target, source] = 1
        return matrix / np.maximum(matrix.sum(axis=2, keepdims=True), 1)


def encoded_alignments(
    path: Path, corpus: EncodedCorpus, subwords: Subwords, languages: tuple[str, str], cache: Path
) -> Alignments:
    """Returns the alignments of an encoded corpus, from the cache if they are there.

    Each subword of a word is linked to each subword of the words that this word is linked to.

    Args:
        path: the file, in Pharaoh's format.
        languages: the source language and the target language.

    Raises:
        UsageError: there is no such file.
        UserError: the file and the text have different numbers of lines, a line is not in the
            format, a link names a word that the sentence does not have, there is no link at all, or
            the cache can't be written.
    """
    if not path.is_file():
        raise UsageError(f"{SETTING}: {path}: there is no such file")
    content = content_of(path)
    if content.line_count != corpus.text_lines:
        raise UserError(
            f"{SETTING}: {path} has {content.line_count:,} lines, the training text "
            f"{corpus.text_lines:,}: there must be one line per pair, which may be empty"
        )
    name = entry_name(FORMAT, content.sha256, corpus.key, tuple(map(has_spaces, languages)))
    make = partial(_write, path, corpus, subwords, languages)
    return Alignments(entry(cache / f"alignments-{name}", make))


def _write(
    path: Path, corpus: EncodedCorpus, subwords: Subwords, languages: tuple[str, str], folder: Path
) -> None:
    words = Words(subwords.source, languages[0]), Words(subwords.target, languages[1])
    count, longest = corpus.text_lines, corpus.longest
    links = linked = 0
    with (
        encoded.writing(folder, "links", encoded.smallest_dtype(longest)) as add,
        progress(total=count, title="alignments", unit="lines", unit_scale=True) as bar,
    ):
        text = lines(path)
        for first in range(0, count, encoded.CHUNK):
            # Read some lines of the file, and find the pairs of the corpus that belong to them.
            chunk = list(islice(text, encoded.CHUNK))
            start, end = np.searchsorted(corpus.lines, (first, first + len(chunk)))
            word_links, counts = read(chunk, f"{SETTING}: {path}", first + 1)
            pair_of_line = np.full(len(chunk), -1)
            pair_of_line[corpus.lines[start:end] - first] = np.arange(end - start)
            pairs = np.repeat(pair_of_line, counts)
            word_links, pairs = word_links[pairs >= 0], pairs[pairs >= 0]
            # Check the links of words, and replace them with links of subwords.
            source = words[0].spans(*corpus.source.slice(start, end))
            target = words[1].spans(*corpus.target.slice(start, end))
            sizes = np.column_stack([source.counts[pairs], target.counts[pairs]])
            for wrong in np.flatnonzero((word_links >= sizes).any(axis=1)):
                raise UserError(
                    f"{SETTING}: {path}, line {corpus.lines[start + pairs[wrong]] + 1}: "
                    f"{write([word_links[wrong]])}: there are {sizes[wrong, 0]} words in the "
                    f"source of this line, and {sizes[wrong, 1]} in its target, counted from 0. "
                    "Spaces separate words (tokens that @@ joins are one); in a language without "
                    "spaces, each subword is one"
                )
            subword_links, pairs = _links_of_subwords(word_links, pairs, source, target)
            add(subword_links.flatten(), 2 * np.bincount(pairs, minlength=end - start))
            links += len(word_links)
            linked += len(np.unique(pairs * longest + subword_links[:, 1]))
            bar.update(len(chunk))
    if not links:
        raise UserError(f"{SETTING}: {path}: there is no link in it for any training pair")
    unlinked = len(corpus.target.ids) - linked
    facts = {"lines": count, "pairs": len(corpus), "links": links, "unlinked": unlinked}
    (folder / "facts.json").write_text(json.dumps(facts))


def _links_of_subwords(
    links: np.ndarray, pairs: np.ndarray, source: Spans, target: Spans
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the links between all subwords of linked words, and the pair of each link.

    Args:
        links: links of words, (links, 2).
        pairs: the number of the pair of each link, (links,).
    """
    sources, targets = (
        (np.cumsum(side.counts) - side.counts)[pairs] + numbers
        for side, numbers in ((source, links[:, 0]), (target, links[:, 1]))
    )
    # A link of words with m and n subwords becomes m * n links, numbered from 0; the number gives
    # the two subwords.
    counts = source.lengths[sources] * target.lengths[targets]
    link = np.repeat(np.arange(len(links)), counts)
    number = np.arange(len(link)) - np.repeat(np.cumsum(counts) - counts, counts)
    first, second = np.divmod(number, target.lengths[targets][link])
    first += source.starts[sources][link]
    second += target.starts[targets][link]
    return np.column_stack([first, second]), pairs[link]

"""The words that subwords belong to: what alignments are between."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from transformer_mt.data.subword import Vocabulary, WordVocabulary

# How SentencePiece writes a space.
SPACE = "\u2581"
# The word of a subword that belongs to none.
NONE = -1
# Languages written without spaces.
WITHOUT_SPACES = {"zh", "ja", "th", "lo", "km", "my"}


def has_spaces(language: str) -> bool:
    """Whether a language, such as de or zh-CN, is written with spaces between its words."""
    return re.split("[-_]", language.lower())[0] not in WITHOUT_SPACES  # of zh-CN, zh_Hant, ...


class Spans(NamedTuple):
    """Where the words of some sentences are.

    counts: words of each sentence, int64 (sentences,). starts: for each word, one sentence's after
    another's, the place of its first subword in the sentence, int64 (words,). lengths: how many
    subwords it has from there on, int64 (words,).
    """

    counts: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray


class Words:
    """The words of one side's sentences: what stands between spaces. Of a language that is written
    without them, each subword counts as a word."""

    def __init__(self, vocabulary: Vocabulary, language: str) -> None:
        pieces = vocabulary.pieces(range(vocabulary.size))
        # Of each id: whether a word may begin with it, and whether one may begin behind it.
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
        special = [vocabulary.pad, vocabulary.unk, vocabulary.bos, vocabulary.eos]
        # Where all subwords are whole words, an unknown one is so too.
        self._opens[vocabulary.unk] = np.delete(self._opens, special).all()

    def numbers(self, ids: np.ndarray, lengths: np.ndarray | None = None) -> np.ndarray:
        """The number of the word that each subword belongs to, from 0 in each sentence: int64, the
        shape of `ids`; NONE for spaces behind the last word.

        Args:
            ids: of sentences in a row, without bos and eos: integers (subwords,).
            lengths: how many of them belong to each sentence; None: all to one.
        """
        if not len(ids):
            return np.zeros(0, np.int64)
        lengths = np.array([len(ids)] if lengths is None else lengths)
        starts = np.cumsum(lengths) - lengths
        begins = np.ones(len(ids), bool)
        begins[1:] = self._opens[ids[1:]] & self._closes[ids[:-1]]
        counts = np.cumsum(begins)
        # From where its sentence starts; one without subwords may start behind the end.
        numbers = counts - np.repeat(counts[np.minimum(starts, len(ids) - 1)], lengths)
        # Behind the last word of its sentence, there is nothing but spaces.
        in_words = np.cumsum(~self._is_blank[ids])
        in_sentence = np.repeat(in_words[np.cumsum(lengths) - 1], lengths)
        numbers[self._is_blank[ids] & (in_words == in_sentence)] = NONE
        return numbers

    def spans(self, ids: np.ndarray, lengths: np.ndarray) -> Spans:
        """Where the words are. The arguments are as in `numbers`."""
        numbers = self.numbers(ids, lengths)
        sentences = np.repeat(np.arange(len(lengths)), lengths)
        places = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        real = numbers != NONE
        numbers, sentences, places = numbers[real], sentences[real], places[real]
        counts = np.zeros(len(lengths), np.int64)
        np.maximum.at(counts, sentences, numbers + 1)
        words = numbers + (np.cumsum(counts) - counts)[sentences]  # numbered through: they rise
        return Spans(counts, places[np.diff(words, prepend=-1) > 0], np.bincount(words))


def word_count(numbers: np.ndarray) -> int:
    """How many words there are, by the numbers of one sentence's."""
    return int(numbers.max(initial=NONE)) + 1

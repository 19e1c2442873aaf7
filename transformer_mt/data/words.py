"""The words that subwords belong to. Word alignments link words."""

from typing import NamedTuple

import numpy as np

from transformer_mt.data.languages import has_spaces
from transformer_mt.data.subword import SPACE, Place, Vocabulary, WordVocabulary

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
        special = [vocabulary.pad, vocabulary.unk, vocabulary.bos, vocabulary.eos]
        # If all subwords are whole words, an unknown one is a whole word too.
        self._opens[vocabulary.unk] = np.delete(self._opens, special).all()

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

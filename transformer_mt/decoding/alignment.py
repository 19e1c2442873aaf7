"""Word alignments from the decoder's attention to the source."""

from __future__ import annotations

import numpy as np

from transformer_mt.data.subword import Vocabulary, WordVocabulary

# How SentencePiece writes a space.
SPACE = "\u2581"
# The word of a subword that belongs to none.
NONE = -1


def words(pieces: list[str], vocabulary: Vocabulary, has_spaces: bool) -> list[int]:
    """The word that each subword belongs to, numbered from 0; NONE for spaces behind the last one.

    Words are what stands between spaces. Of a language that is written without them, each subword
    counts as a word.
    """
    if not has_spaces:
        return list(range(len(pieces)))
    numbers: list[int] = []
    number, is_open = 0, False  # is_open: this word has something in it
    for piece in pieces:
        if isinstance(vocabulary, WordVocabulary):
            numbers.append(number)
            number += not piece.endswith("@@")
            continue
        if piece.startswith(SPACE) and is_open:
            number, is_open = number + 1, False
        is_open |= piece.strip(SPACE) != ""
        numbers.append(number)
    for i in reversed(range(len(pieces))):
        if pieces[i].strip(SPACE):
            break
        numbers[i] = NONE
    return numbers


def word_count(numbers: list[int]) -> int:
    return max(numbers, default=NONE) + 1


def word_alignment(
    attention: np.ndarray, source_words: list[int], target_words: list[int]
) -> list[tuple[int, int]]:
    """Pairs (source word, target word) in rising order: each target word with the source word that
    its subwords together attend to most, subwords of the source summed up too.

    Args:
        attention: (target subwords, source subwords).
        source_words, target_words: as `words` gives them, one for each subword.
    """
    if not word_count(source_words):
        return []
    totals = np.zeros((word_count(target_words), word_count(source_words)))
    for row, target in zip(attention, target_words, strict=True):
        for share, source in zip(row, source_words, strict=True):
            if NONE not in (source, target):
                totals[target, source] += share
    return sorted((int(best), target) for target, best in enumerate(totals.argmax(axis=1)))

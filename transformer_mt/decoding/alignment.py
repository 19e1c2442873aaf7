"""Word alignments from the decoder's attention to the source."""

import numpy as np

from transformer_mt.data.pharaoh import Link
from transformer_mt.data.words import NONE, word_count


def word_alignment(
    attention: np.ndarray, source_words: np.ndarray, target_words: np.ndarray
) -> list[Link]:
    """Pairs (source word, target word) in rising order. Each target word is linked to the source
    word with the greatest attention, summed over the subwords of both words.

    Args:
        attention: (target subwords, source subwords).
        source_words, target_words: the number of each subword's word, as from `Words.numbers`.
    """
    if not word_count(source_words):
        return []
    totals = np.zeros((word_count(target_words), word_count(source_words)))
    rows, columns = target_words != NONE, source_words != NONE
    places = np.ix_(target_words[rows], source_words[columns])
    np.add.at(totals, places, attention[rows][:, columns])
    return sorted((int(best), target) for target, best in enumerate(totals.argmax(axis=1)))

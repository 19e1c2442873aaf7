"""Word alignments from the decoder's attention to the source."""

from __future__ import annotations

import numpy as np


def word_alignment(
    attention: np.ndarray, source_pieces: list[str], target_pieces: list[str]
) -> list[tuple[int, int]]:
    """Pairs (source word, target word), both from 0."""
    raise NotImplementedError

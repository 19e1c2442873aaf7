"""The share of padding in batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from transformer_mt.data.encoded import EncodedCorpus


def padding_share(corpus: EncodedCorpus, batches: list[np.ndarray]) -> float:
    """Returns the share of padding in the arrays of these batches, with both sides counted."""
    real = padded = 0
    for lengths in (corpus.source.lengths + 1, corpus.target.lengths + 1):
        for sentences in batches:
            chosen = lengths[sentences]
            real += int(chosen.sum())
            padded += int(chosen.max()) * len(sentences)
    return 1 - real / padded

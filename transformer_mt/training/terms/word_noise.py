"""Word dropout and word replacement (Takase and Kiyono 2021, arXiv 2104.01853, sections 2.2 and
2.4)."""

from dataclasses import replace

import numpy as np

from transformer_mt.config.schema import Config
from transformer_mt.data.batches import Batch
from transformer_mt.data.subword import Subwords, Vocabulary
from transformer_mt.model.transformer import Transformer
from transformer_mt.training.objective import Dropped, Term


class WordNoise(Term):
    """Replaces some ids of the source and of the decoder's input by random ones, and the embeddings
    of others by zeros. The labels stay as they are.

    Each subword is drawn by itself, in those sentences that get noise. A zero vector has no
    position: positions are added afterwards.
    """

    def __init__(self, config: Config, model: Transformer, subwords: Subwords) -> None:
        self.settings = config.word_noise
        self.subwords = subwords
        self._ordinary = _ordinary_ids(subwords.source), _ordinary_ids(subwords.target)
        self._gets_noise = np.empty((0, 1), bool)  # of the batch that is being trained on

    def batch(self, batch: Batch, step: int) -> Batch:
        """As `Term.batch`."""
        rows = len(batch.source)
        self._gets_noise = np.random.random_sample((rows, 1)) < self.settings.sentences
        ids = [
            self._replaced(ids, share, ordinary)
            for ids, share, ordinary in zip(
                (batch.source, batch.target_input),
                (self.settings.source_replacement, self.settings.target_replacement),
                self._ordinary,
                strict=True,
            )
        ]
        return replace(batch, source=ids[0], target_input=ids[1])

    def dropped(self, batch: Batch) -> Dropped:
        """As `Term.dropped`."""
        source = self._drawn(batch.source, self.settings.source_dropout)
        return source, self._drawn(batch.target_input, self.settings.target_dropout)

    def _replaced(self, ids: np.ndarray, share: float, ordinary: np.ndarray) -> np.ndarray:
        drawn = self._drawn(ids, share)
        if drawn is None:
            return ids
        # bos, eos, padding and tags are not ordinary, so they stay where they are.
        drawn &= np.isin(ids, ordinary)
        return np.where(drawn, np.random.choice(ordinary, ids.shape), ids)

    def _drawn(self, ids: np.ndarray, share: float) -> np.ndarray | None:
        """Draws a share of the positions of the sentences that get noise; None if it is 0."""
        if not share:
            return None
        return (np.random.random_sample(ids.shape) < share) & self._gets_noise


def _ordinary_ids(vocabulary: Vocabulary) -> np.ndarray:
    """Returns the ids of text: all but the special ones, and those of tags."""
    special = [vocabulary.pad, vocabulary.unk, vocabulary.bos, vocabulary.eos]
    tags = list(vocabulary.user_symbols.values())
    return np.setdiff1d(np.arange(vocabulary.size), special + tags)

"""How the hypotheses of a sentence share what a decoder keeps of the positions before. NumPy alone,
for whatever decodes."""

from __future__ import annotations

import numpy as np

# Positions alive below which `AncestorMask.prune` is not worth while.
PRUNING = 32


class AncestorMask:
    """Which of the positions decoded so far are a hypothesis' own past.

    The hypotheses of a sentence lie side by side, `width` of them at each step, like positions of
    one sequence: nothing is copied when one forks or is dropped, and all that belongs to the source
    is kept once a sentence. (Miao et al. 2024, arXiv 2305.09781, section 4.2, attend to a tree so.)
    """

    def __init__(self) -> None:
        self.length = 0  # steps taken in
        # bool, True where a position is not of the hypothesis' own past:
        # (sentences, width, sum of the widths of all steps)
        self._strangers: np.ndarray | None = None
        self._only_one = True  # the width was always 1
        self._next_pruning = 2 * PRUNING

    def grow(self, parents: np.ndarray) -> np.ndarray | None:
        """Takes in a step in which hypothesis i of a sentence continues hypothesis parents[:, i] of
        the step before, int64 (sentences, width); what they are at the first step does not matter.

        Returns the mask, bool (sentences, 1, width, positions), True where forbidden; None if
        nothing is.
        """
        sentences, width = parents.shape
        own = np.broadcast_to(~np.eye(width, dtype=bool), (sentences, width, width))
        if self._strangers is None:
            self._strangers = own
        else:
            past = np.take_along_axis(self._strangers, parents[:, :, np.newaxis], axis=1)
            self._strangers = np.concatenate([past, own], axis=2)
        self.length += 1
        self._only_one &= width == 1
        return None if self._only_one else self._strangers[:, np.newaxis]

    def prune(self) -> np.ndarray | None:
        """Forgets positions that are no hypothesis' past any more, once they are most of them.

        Beams share most of their past: of 5 hypotheses of 100 ids, about 120 positions are alive.

        Returns the places of those to keep, int64 (sentences, kept); None: all are kept.
        """
        positions = 0 if self._strangers is None else self._strangers.shape[2]
        if positions < self._next_pruning:
            return None
        alive = ~self._strangers.all(axis=1)  # (sentences, positions)
        most = int(alive.sum(axis=1).max())
        self._next_pruning = 2 * max(most, PRUNING)
        if 2 * most > positions:
            return None
        # Those that are alive come first, in their order. Sentences that have fewer keep some dead
        # ones, which stay masked.
        kept = np.sort(np.argsort(~alive, axis=1, kind="stable")[:, :most], axis=1)
        self._strangers = np.take_along_axis(self._strangers, kept[:, np.newaxis], axis=2)
        return kept

    def select(self, sentences: np.ndarray) -> None:
        """Keeps the sentences with these indices, int64 (kept,), in this order."""
        if self._strangers is not None:
            self._strangers = self._strangers[sentences]

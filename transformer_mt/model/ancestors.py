"""How the hypotheses of a sentence share the keys and values of earlier positions.

It computes with NumPy only, so that every decoder can use it.
"""

import numpy as np

# Below this number of live positions, `AncestorMask.prune` costs more than it saves.
PRUNING = 32
# The number of positions that a buffer of keys and values has at first.
SMALLEST_CAPACITY = 32


def capacity(positions: int) -> int:
    """The number of positions that a buffer has which holds `positions`: 32, 64, 128, ..."""
    return max(SMALLEST_CAPACITY, 1 << (positions - 1).bit_length())


class AncestorMask:
    """A mask that tells which of the positions decoded so far belong to a hypothesis.

    The hypotheses of a sentence lie side by side, `width` of them per step, like positions of one
    sequence. Nothing is copied when a hypothesis forks or is dropped, and whatever depends only on
    the source is stored once per sentence. Miao et al. 2024, arXiv 2305.09781, section 4.2, attend
    to a tree in this way.
    """

    def __init__(self) -> None:
        self.length = 0  # the number of steps so far
        # bool (sentences, width, positions), where positions is the sum of the widths of all steps.
        # True forbids: the position does not belong to the past of the hypothesis.
        self._mask: np.ndarray | None = None
        self._is_single = True  # whether the width was 1 at every step
        self._next_pruning = 2 * PRUNING

    @property
    def positions(self) -> int:
        """The number of positions, dropped ones not counted."""
        return 0 if self._mask is None else self._mask.shape[2]

    def grow(self, parents: np.ndarray) -> np.ndarray | None:
        """Adds a step, in which hypothesis i of a sentence continues hypothesis parents[:, i] of
        the step before.

        `parents` is int64 (sentences, width). Its values at the first step are not read.

        Returns the mask, bool (sentences, 1, width, positions), where True forbids; or None if
        nothing is forbidden.
        """
        sentences, width = parents.shape
        own = np.broadcast_to(~np.eye(width, dtype=bool), (sentences, width, width))
        if self._mask is None:
            self._mask = own
        else:
            past = np.take_along_axis(self._mask, parents[:, :, np.newaxis], axis=1)
            self._mask = np.concatenate([past, own], axis=2)
        self.length += 1
        self._is_single &= width == 1
        return None if self._is_single else self._mask[:, np.newaxis]

    def prune(self) -> np.ndarray | None:
        """Drops positions that no hypothesis descends from, once they are more than half of all.

        The hypotheses of a beam share most of their past: 5 hypotheses of 100 ids have about 120
        live positions.

        Returns the indices of the positions to keep, int64 (sentences, kept); or None if all are
        kept.
        """
        positions = self.positions
        if positions < self._next_pruning:
            return None
        alive = ~self._mask.all(axis=1)  # (sentences, positions)
        most = int(alive.sum(axis=1).max())
        self._next_pruning = 2 * max(most, PRUNING)
        if 2 * most > positions:
            return None
        # The stable sort puts live positions first and keeps their order. A sentence with fewer
        # live positions than another keeps some dead ones, which stay masked.
        kept = np.sort(np.argsort(~alive, axis=1, kind="stable")[:, :most], axis=1)
        self._mask = np.take_along_axis(self._mask, kept[:, np.newaxis], axis=2)
        return kept

    def select(self, sentences: np.ndarray) -> None:
        """Keeps the sentences with these indices, int64 (kept,), in this order."""
        if self._mask is not None:
            self._mask = self._mask[sentences]

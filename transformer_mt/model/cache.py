"""What incremental decoding keeps: keys and values of earlier positions, and whose they are."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import paddle
from paddle import Tensor

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
        self.positions = 0  # dropped ones not counted
        # bool (sentences, width, positions), where positions is the sum of the widths of all steps.
        # True forbids: the position does not belong to the past of the hypothesis. None forbids
        # nothing: the width was 1 at every step.
        self._mask: np.ndarray | None = None
        self._next_pruning = 2 * PRUNING

    def grow(self, parents: np.ndarray) -> np.ndarray | None:
        """Adds a step, in which hypothesis i of a sentence continues hypothesis parents[:, i] of
        the step before.

        `parents` is int64 (sentences, width). Its values at the first step are not read.

        Returns the mask, bool (sentences, 1, width, positions), where True forbids; or None if
        nothing is forbidden.
        """
        sentences, width = parents.shape
        before, self.positions = self.positions, self.positions + width
        self.length += 1
        if self._mask is None and width == 1:
            return None
        grown = np.empty((sentences, width, self.positions), bool)
        if self._mask is not None:
            rows = np.arange(sentences)[:, np.newaxis]
            grown[:, :, :before] = self._mask[rows, parents]
        else:
            grown[:, :, :before] = False
        grown[:, :, before:] = ~np.eye(width, dtype=bool)
        self._mask = grown
        return grown[:, np.newaxis]

    def prune(self) -> np.ndarray | None:
        """Drops positions that no hypothesis descends from, once they are more than half of all.

        The hypotheses of a beam share most of their past: 5 hypotheses of 100 ids have about 120
        live positions.

        Returns the indices of the positions to keep, int64 (sentences, kept); or None if all are
        kept.
        """
        positions = self.positions
        if positions < self._next_pruning or self._mask is None:
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
        self.positions = most
        return kept

    def select(self, sentences: np.ndarray) -> None:
        """Keeps the sentences with these indices, int64 (kept,), in this order."""
        if self._mask is not None:
            self._mask = self._mask[sentences]


class KeyValueCache:
    """The projected keys and values of earlier positions.

    `key` is (batch, heads, length, d_k), `value` (batch, heads, length, d_v). Both are None while
    the cache is empty.
    """

    def __init__(self) -> None:
        self.key: Tensor | None = None
        self.value: Tensor | None = None

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Appends projected keys and values (batch, heads, new_len, d), and returns all of them."""
        if self.key is not None:
            key = paddle.concat([self.key, key], axis=2)  # (batch, heads, length + new_len, d_k)
            value = paddle.concat([self.value, value], axis=2)
        self.key, self.value = key, value
        return key, value

    def select(self, index: Tensor) -> None:
        """Keeps the rows of the batch with these indices, int64 (rows,), in this order."""
        if self.key is not None:
            self.key = paddle.index_select(self.key, index, axis=0)
            self.value = paddle.index_select(self.value, index, axis=0)

    def take(self, positions: Tensor) -> None:
        """Keeps the positions of each row with these indices, int64 (batch, kept)."""
        batch, heads, length, _ = self.key.shape
        # The numbers of the kept rows among batch * heads * length: (batch, heads, kept).
        starts = length * paddle.arange(batch * heads).reshape([batch, heads, 1])
        rows = starts + positions.unsqueeze(1)
        self.key, self.value = (_rows(x, rows) for x in (self.key, self.value))


class BufferedKeyValueCache(KeyValueCache):
    """A cache that is allocated for more positions than it holds.

    `key` and `value` have `capacity(length)` positions, so that few shapes occur, memory is rarely
    allocated, and a step writes its own positions only. What follows `length` is finite but means
    nothing: the mask must forbid it. The cache has no gradient.
    """

    def __init__(self) -> None:
        super().__init__()
        self.length = 0

    @paddle.no_grad()
    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """As `KeyValueCache.update`, but returns all `capacity(length)` positions."""
        start, self.length = self.length, self.length + key.shape[2]
        if self.key is None:
            self.key, self.value = (x[:, :, :0] for x in (key, value))
        if missing := capacity(self.length) - self.key.shape[2]:
            self.key, self.value = (_extended(x, missing) for x in (self.key, self.value))
        self.key[:, :, start : self.length] = key  # in place
        self.value[:, :, start : self.length] = value
        return self.key, self.value

    def take(self, positions: Tensor) -> None:
        """As `KeyValueCache.take`."""
        batch, self.length = positions.shape
        # What follows the kept positions is a copy of the first one.
        rest = paddle.zeros([batch, capacity(self.length) - self.length], positions.dtype)
        super().take(paddle.concat([positions, rest], axis=1))


def _extended(x: Tensor, count: int) -> Tensor:
    # Appends `count` positions of zeros to (batch, heads, length, d).
    batch, heads, _, width = x.shape
    return paddle.concat([x, paddle.zeros([batch, heads, count, width], x.dtype)], axis=2)


def _rows(x: Tensor, rows: Tensor) -> Tensor:
    # take_along_axis would make an index for each element, twice as large as `x`.
    taken = x.reshape([-1, x.shape[-1]]).gather(rows.flatten())
    return taken.reshape([*rows.shape, x.shape[-1]])


@dataclass
class LayerCache:
    """The keys and values that a decoder layer keeps between the steps of incremental decoding."""

    self_attention: KeyValueCache = field(default_factory=KeyValueCache)
    cross_attention: KeyValueCache = field(default_factory=KeyValueCache)


@dataclass
class DecoderCache:
    """The state of incremental decoding, made by `Transformer.start_cache`.

    `AncestorMask` describes how the hypotheses of a sentence are stored.
    """

    layers: list[LayerCache]
    memory_mask: Tensor  # bool, True where the source is padding: (sentences, 1, 1, source_len)
    source: Any = None  # what `Transformer.copyable` returns for the source
    ancestors: AncestorMask = field(default_factory=AncestorMask)

    def select(self, sentences: np.ndarray) -> None:
        """Keeps the sentences with these indices, int64 (kept,), in this order."""
        self.ancestors.select(sentences)
        index = paddle.to_tensor(sentences)
        self.memory_mask = paddle.index_select(self.memory_mask, index)
        for layer in self.layers:
            layer.self_attention.select(index)
            layer.cross_attention.select(index)
        if self.source is not None:
            self.source = self.source.select(index)

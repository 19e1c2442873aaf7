"""Log-probabilities of what may follow each hypothesis, where Paddle computes the logits.

On a GPU only what the search needs is copied to the host, as one small tensor per step: copying all
logits would take longer than computing a step, and each copy waits for all work before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor

from transformer_mt.kernels.scores import LogProbs, mixture
from transformer_mt.model.operations import array, is_float32_on_cpu


def next_log_probs(
    all_logits: list[np.ndarray] | list[Tensor], never: tuple[int, ...]
) -> LogProbs | DeviceLogProbs:
    """The log-probabilities for the logits (sentences, width, vocabulary) of one model, or for the
    mean of the probabilities of several, computed where the logits are. `never` is as in
    `LogProbs`."""
    if not isinstance(all_logits[0], np.ndarray):
        if not all(map(is_float32_on_cpu, all_logits)):
            return DeviceLogProbs(device_mixture(all_logits), never)
        all_logits = [array(logits) for logits in all_logits]
    return LogProbs(mixture(all_logits), never)


class DecoderState(Protocol):
    """A model's decoder that reads some sources; the arguments are as in `search.Stepper`."""

    def step(self, ids: np.ndarray, parents: np.ndarray) -> np.ndarray | Tensor:
        """The logits (sources, width, vocabulary)."""

    def select(self, sentences: np.ndarray) -> None: ...


class MixtureStepper:
    """Implements `search.Stepper` with the mean of the probabilities of the models of an ensemble,
    and of the segmentations of each source (Takase et al. 2022, arXiv 2203.13528, section 3).

    Args:
        states: one for each model. They read the sources in the order of `batch.sources`.
        sentences: their number.
        segmentations: the number of them for each sentence.
        never: as in `LogProbs`.
    """

    def __init__(
        self,
        states: Sequence[DecoderState],
        sentences: int,
        segmentations: int,
        never: tuple[int, ...],
    ) -> None:
        self._states = states
        self._sentences = sentences
        self._segmentations = segmentations
        self._never = never

    def step(self, ids: np.ndarray, parents: np.ndarray) -> LogProbs | DeviceLogProbs:
        if self._segmentations > 1:
            ids, parents = (np.tile(x, (self._segmentations, 1)) for x in (ids, parents))
        all_logits = [state.step(ids, parents) for state in self._states]
        if self._segmentations > 1:
            all_logits = [
                logits[first : first + self._sentences]
                for logits in all_logits
                for first in range(0, self._segmentations * self._sentences, self._sentences)
            ]
        return next_log_probs(all_logits, self._never)

    def select(self, sentences: np.ndarray) -> None:
        firsts = self._sentences * np.arange(self._segmentations)
        rows = (firsts[:, np.newaxis] + sentences).reshape(-1)
        self._sentences = len(sentences)
        for state in self._states:
            state.select(rows)


class DeviceLogProbs:
    """As `LogProbs`, for a tensor (sentences, width, vocabulary). Each method reads one tensor on
    the host."""

    def __init__(self, logits: Tensor, never: tuple[int, ...]) -> None:
        self._logits = logits.astype("float32")
        self._never = never
        # Sums of log-probabilities are float64, as on the host: (sentences, width).
        self._log_total = paddle.logsumexp(self._logits, axis=-1).astype("float64")

    def of(self, ids: np.ndarray) -> np.ndarray:
        """As `LogProbs.of`."""
        return self._of(_on_device(ids)).numpy()

    def best(
        self, scores: np.ndarray, count: int, asked: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """As `LogProbs.best`."""
        totals, parents, ids = self._best(_on_device(scores), count)
        of_asked = self._of(_on_device(asked))
        # The host reads (sentences, 3 * count + width) numbers. A float64 holds every id exactly.
        found = paddle.concat([totals, _float64(parents), _float64(ids), of_asked], axis=1).numpy()
        count = totals.shape[1]
        totals, parents, ids, of_asked = np.split(found, [count, 2 * count, 3 * count], axis=1)
        # Equal totals are in the order of hypotheses and ids, as in `LogProbs.best`.
        order = np.lexsort((ids, parents, -totals), axis=1)
        totals, parents, ids = (
            np.take_along_axis(x, order, axis=1) for x in (totals, parents, ids)
        )
        return totals, parents.astype(np.int64), ids.astype(np.int64), of_asked

    def most_probable(self) -> Tensor:
        """As `LogProbs.most_probable`, but a tensor on the device, so that nothing is read yet."""
        totals, _, ids = self._best(paddle.zeros_like(self._log_total), 1)
        return paddle.concat([_float64(ids), totals], axis=1)

    def draw(
        self,
        uniform: np.ndarray,
        temperature: float,
        top_k: int | None,
        top_p: float,
        banned: np.ndarray,
        banned_id: int,
        fixed: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `LogProbs.draw`."""
        size = self._logits.shape[2]
        ids = np.arange(size)
        is_never = np.isin(ids, [i for i in self._never if i != banned_id])
        # (sentences, width, vocabulary). True forbids.
        forbidden = _on_device(banned).unsqueeze(2) & paddle.to_tensor(ids == banned_id)
        forbidden |= paddle.to_tensor(is_never)
        logits = self._logits / temperature
        logits = paddle.masked_fill(logits, forbidden | paddle.isnan(logits), -np.inf)
        places = None  # None: the places along the last axis are the ids
        if top_k is not None or top_p < 1:
            logits, places = paddle.topk(logits, min(top_k or size, size), axis=-1)
        weights = paddle.exp(_float64(logits - logits.max(axis=2, keepdim=True)))
        if top_p < 1:
            before = paddle.cumsum(weights, axis=2) - weights
            kept = before < top_p * weights.sum(axis=2, keepdim=True)
            weights = paddle.where(kept, weights, paddle.zeros_like(weights))
        sums = paddle.cumsum(weights, axis=2)
        drawn = _on_device(uniform).unsqueeze(2) * sums[:, :, -1:]
        ids = paddle.searchsorted(sums, drawn, right=True).clip(0, logits.shape[2] - 1)
        if places is not None:
            ids = paddle.take_along_axis(places, ids, axis=2)
        fixed_ids = _on_device(fixed)  # (sentences, width)
        ids = paddle.where(fixed_ids >= 0, fixed_ids, ids.squeeze(2))
        found = paddle.stack([_float64(ids), self._of(ids)]).numpy()
        return found[0].astype(np.int64), found[1]

    def _of(self, ids: Tensor) -> Tensor:
        # The log-probabilities of int64 (sentences, width): float64, same shape.
        chosen = paddle.take_along_axis(self._logits, ids.unsqueeze(2), axis=2).squeeze(2)
        return _float64(chosen) - self._log_total

    def _best(self, scores: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        # As `best`, without `asked`: totals, parents and ids, best first, (sentences, count) each.
        sentences, width, size = self._logits.shape
        # Of the best ones of a hypothesis, at most len(never) may not be chosen.
        most = min(count + len(self._never), size)
        values, ids = paddle.topk(self._logits, most, axis=-1)  # (sentences, width, most)
        totals = _float64(values) + (scores - self._log_total).unsqueeze(2)
        forbidden = paddle.isnan(totals)
        for never in self._never:
            forbidden |= ids == never
        totals = paddle.masked_fill(totals, forbidden, -np.inf).reshape([sentences, width * most])
        totals, places = paddle.topk(totals, min(count, width * most), axis=-1)
        ids = paddle.take_along_axis(ids.reshape([sentences, width * most]), places, axis=1)
        return totals, places // most, ids


def device_mixture(all_logits: list[Tensor]) -> Tensor:
    """As `scores.mixture`."""
    if len(all_logits) == 1:
        return all_logits[0]
    log_probs = paddle.stack([F.log_softmax(logits.astype("float32")) for logits in all_logits])
    return paddle.logsumexp(log_probs, axis=0) - np.log(len(all_logits))


def _float64(x: Tensor) -> Tensor:
    return x.astype("float64")


def _on_device(x: np.ndarray) -> Tensor:
    return paddle.to_tensor(np.ascontiguousarray(x))

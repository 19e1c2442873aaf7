"""Log-probabilities of what may follow each hypothesis, where Paddle computes the logits.

On a GPU only the best of each hypothesis are copied to the host: copying all of them would take
longer than computing a step.
"""

from __future__ import annotations

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor

from transformer_mt.decoding.log_probs import LogProbs, mixture
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


class DeviceLogProbs:
    """As `LogProbs`, for a tensor (sentences, width, vocabulary)."""

    def __init__(self, logits: Tensor, never: tuple[int, ...]) -> None:
        self._logits = logits.astype("float32")
        self._never = never
        self._log_total = paddle.logsumexp(self._logits, axis=-1).numpy().astype(np.float64)

    def of(self, ids: np.ndarray) -> np.ndarray:
        """As `LogProbs.of`."""
        index = paddle.to_tensor(np.ascontiguousarray(ids)).unsqueeze(2)
        chosen = paddle.take_along_axis(self._logits, index, axis=2)
        return chosen.numpy()[:, :, 0] - self._log_total

    def best(self, scores: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As `LogProbs.best`."""
        sentences, width, size = self._logits.shape
        # Of the best ones of a hypothesis, at most len(never) may not be chosen.
        most = min(count + len(self._never), size)
        values, ids = (x.numpy() for x in paddle.topk(self._logits, most, axis=-1))
        totals = values + (scores - self._log_total)[:, :, np.newaxis]
        totals[np.isin(ids, self._never) | np.isnan(totals)] = -np.inf
        # (sentences, width, most) -> (sentences, width * most), of which the best are taken
        parents = np.broadcast_to(np.arange(width)[:, np.newaxis], ids.shape)
        totals, parents, ids = (x.reshape(sentences, -1) for x in (totals, parents, ids))
        order = np.lexsort((ids, parents, -totals), axis=1)[:, :count]
        return tuple(np.take_along_axis(x, order, axis=1) for x in (totals, parents, ids))

    def draw(self, *arguments) -> np.ndarray:
        """As `LogProbs.draw`."""
        return LogProbs(self._logits.numpy(), self._never).draw(*arguments)


def device_mixture(all_logits: list[Tensor]) -> Tensor:
    """As `log_probs.mixture`."""
    if len(all_logits) == 1:
        return all_logits[0]
    log_probs = paddle.stack([F.log_softmax(logits.astype("float32")) for logits in all_logits])
    return paddle.logsumexp(log_probs, axis=0) - np.log(len(all_logits))

"""Log-probabilities of what may follow each hypothesis, where the logits are on a GPU.

Only the best of each hypothesis come to the host: all of them would take longer to copy than a step
takes to compute.
"""

from __future__ import annotations

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor

from transformer_mt.decoding.log_probs import LogProbs


class DeviceLogProbs:
    """As `LogProbs`, of a tensor (sentences, width, vocabulary)."""

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
        wanted = min(count + len(self._never), size)
        values, ids = (x.numpy() for x in paddle.topk(self._logits, wanted, axis=-1))
        totals = values + (scores - self._log_total)[:, :, np.newaxis]
        totals[np.isin(ids, self._never) | np.isnan(totals)] = -np.inf
        parents = np.broadcast_to(np.arange(width)[:, np.newaxis], ids.shape)
        totals, parents, ids = (x.reshape(sentences, -1) for x in (totals, parents, ids))
        order = np.lexsort((ids, parents, -totals), axis=1)[:, :count]
        return tuple(np.take_along_axis(x, order, axis=1) for x in (totals, parents, ids))

    def draw(self, *arguments) -> np.ndarray:
        """As `LogProbs.draw`."""
        return LogProbs(self._logits.numpy(), self._never).draw(*arguments)


def device_mixture(all_logits: list[Tensor]) -> Tensor:
    """As `log_probs.mixture`."""
    log_probs = paddle.stack([F.log_softmax(logits.astype("float32")) for logits in all_logits])
    return paddle.logsumexp(log_probs, axis=0) - np.log(len(all_logits))

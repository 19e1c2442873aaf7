"""Consistency training: two passes over each batch, with different noise.

With p and q for the probabilities of a target position in the first and the second pass:

- R-Drop (Liang et al. 2021, arXiv 2106.14448, formulas 2 and 3) adds
  weight * (KL(p || q) + KL(q || p)) / 2 to the losses of both passes;
- SimCut (Gao et al. 2022, arXiv 2206.02368, formula 9) adds weight * KL(p || q) to the loss of the
  first pass. The gradient flows into both passes;
- cutoff (Shen et al. 2020, arXiv 2009.13818, formulas 5 and 6) adds
  weight * (KL(p || m) + KL(q || m)) / 2 with m = (p + q) / 2 to the losses of both passes.
"""

from typing import TypeVar

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor
from paddle.autograd import PyLayer

from transformer_mt.config.schema import Config
from transformer_mt.data.batches import Batch
from transformer_mt.data.subword import Subwords
from transformer_mt.model import operations
from transformer_mt.model.transformer import Transformer
from transformer_mt.training.objective import Dropped, LabelSmoothedCrossEntropy, Term

# The factors of the two passes' cross-entropies. The second pass of sim_cut has none, so the first
# counts twice. Thus every sum is over as many targets as there are rows of logits.
PASSES = {"r_drop": (1.0, 1.0), "sim_cut": (2.0, 0.0), "cutoff": (1.0, 1.0)}
# All arrays of a computation are tensors, or all are NumPy arrays (see `Operations.view`).
_Array = TypeVar("_Array", Tensor, np.ndarray)


class Consistency(Term):
    """Doubles the rows of a batch, so that both passes are one, and compares their predictions.

    With sim_cut and cutoff, tokens of the second half are cut: their embeddings are zero, on both
    sides (token cutoff; Shen et al. 2020, section 3.1).
    """

    def __init__(self, config: Config, model: Transformer, subwords: Subwords) -> None:
        self.settings = config.consistency
        self.criterion = ConsistencyLoss(
            config.training.label_smoothing,
            subwords.target.pad,
            self.settings.method,
            self.settings.weight,
        )

    def batch(self, batch: Batch, step: int) -> Batch:
        """As `Term.batch`."""
        return batch.repeated(2)

    def dropped(self, batch: Batch) -> Dropped:
        """As `Term.dropped`."""
        if self.settings.method == "r_drop":
            return None, None
        return self._cut(batch.source), self._cut(batch.target_input)

    def _cut(self, ids: np.ndarray) -> np.ndarray:
        drawn = np.random.random_sample(ids.shape) < self.settings.cut
        drawn[: len(ids) // 2] = False
        return drawn


class ConsistencyLoss(LabelSmoothedCrossEntropy):
    """The label-smoothed cross-entropy of the passes, plus the weighted divergence.

    Args:
        epsilon: of the label smoothing.
        method, weight: as in the config.
    """

    def __init__(self, epsilon: float, pad_id: int, method: str, weight: float) -> None:
        super().__init__(epsilon, pad_id)
        self.method = method
        self.weight = weight

    def forward(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """
        Args:
            logits: (2 * count, vocabulary), floating: those of the first pass, then those of the
                second one.
            targets: (2 * count,), int64, without padding; the second half repeats the first.

        Returns:
            The loss, whose gradient flows into `logits`, and the negative log-likelihood of the
            passes that are trained on the labels, which has no gradient. Both are sums over
            2 * count targets, in nats, as float32 scalars: twice the sum of the formulas with
            sim_cut.
        """
        with paddle.amp.auto_cast(enable=False):  # in float32, whatever the model computes in
            loss, nll = _Loss.apply(
                logits.astype("float32"), targets, self.epsilon, self.weight, self.method
            )
        return loss, nll.detach()


class _Loss(PyLayer):
    """The gradient of a scalar loss is computed with it. The backward pass only multiplies it."""

    @staticmethod
    def forward(ctx, logits: Tensor, targets: Tensor, epsilon: float, weight: float, method: str):
        view = operations.current.view
        rows, ids = view(logits), view(targets)
        half, vocabulary = rows.shape[0] // 2, rows.shape[1]
        shares = PASSES[method]
        factor = weight * shares[0]
        gradient = np.empty_like(rows) if isinstance(rows, np.ndarray) else paddle.empty_like(rows)
        loss = nll = 0.0
        # The rows are read in blocks whose temporary arrays fit in the processor's cache. For
        # 2 x 1,024 rows of 10,000, NumPy takes 132 ms. Paddle takes 314 ms with the best blocks.
        count = operations.current.block_rows or half
        for start in range(0, half, count):
            end = min(start + count, half)
            passes = (slice(start, end), slice(half + start, half + end))
            # 1. The smoothed cross-entropy, as in `Operations.smoothed_cross_entropy`.
            probabilities, log_totals = [], []
            for block, share in zip(passes, shares, strict=True):
                some = rows[block]
                logit = _at(some, ids[block])  # (rows,)
                softmax, log_total = _softmax(some)
                probabilities.append(softmax)
                log_totals.append(log_total)
                own_nll = log_total[:, 0] - logit
                excess = logit - some.mean(1)
                nll = nll + share * own_nll.sum()
                loss = loss + share * (own_nll + epsilon * excess).sum()
                slope = _plus_at(softmax - epsilon / vocabulary, ids[block], epsilon - 1)
                gradient[block] = slope if share == 1 else slope * share
            # 2. The divergence and its gradients with respect to both passes' logits. The logarithm
            #    of a probability is its logit minus the logarithm of the sum of exponentials.
            log_ratio = rows[passes[0]] - rows[passes[1]]
            log_ratio -= log_totals[0] - log_totals[1]
            p, q = probabilities
            divergence, *slopes = _DIVERGENCES[method](p, q, log_ratio)
            loss = loss + factor * divergence
            for block, slope in zip(passes, slopes, strict=True):
                slope *= factor
                gradient[block] += slope
        if isinstance(gradient, np.ndarray):
            loss, nll = (paddle.to_tensor(float(value), "float32") for value in (loss, nll))
            gradient = operations.tensor(gradient)
        ctx.save_for_backward(gradient)
        return loss, nll

    @staticmethod
    def backward(ctx, scale: Tensor, _):
        (gradient,) = ctx.saved_tensor()
        return gradient.multiply_(scale), None


def _softmax(rows: _Array) -> tuple[_Array, _Array]:
    """Returns the softmax of each row, and log(sum(exp(row))), (rows, 1)."""
    if not isinstance(rows, np.ndarray):
        log_total = paddle.logsumexp(rows, axis=1, keepdim=True)
        return paddle.exp(rows - log_total), log_total
    largest = rows.max(1, keepdims=True)
    exponentials = np.subtract(rows, largest)
    totals = np.exp(exponentials, out=exponentials).sum(1, keepdims=True)
    exponentials *= 1 / totals
    return exponentials, np.log(totals) + largest


def _at(rows: _Array, ids: _Array) -> _Array:
    """Returns the element of each row at its id: (rows,)."""
    if isinstance(rows, np.ndarray):
        return rows[np.arange(len(rows)), ids]
    return rows.take_along_axis(ids.unsqueeze(1), axis=1).squeeze(1)


def _plus_at(rows: _Array, ids: _Array, value: float) -> _Array:
    """Adds `value` to the element of each row at its id, in place."""
    if isinstance(rows, np.ndarray):
        rows[np.arange(len(rows)), ids] += value
        return rows
    changed = _at(rows, ids) + value
    return rows.put_along_axis_(ids.unsqueeze(1), changed.unsqueeze(1), axis=1)


# A divergence maps p, q and log p - log q, each float32 (count, vocabulary), to its sum over the
# rows, a scalar, and to its gradients with respect to the logits of p and of q. All are tensors, or
# all are NumPy arrays. They follow from dp_i / dlogit_j = p_i (1[i = j] - p_j): the gradient of
# sum(p * f) with f constant is p * (f - sum(p * f)).
_Divergence = tuple[_Array, _Array, _Array]


def _symmetric(p: _Array, q: _Array, log_ratio: _Array) -> _Divergence:
    """(KL(p || q) + KL(q || p)) / 2 = sum((p - q) * (log p - log q)) / 2."""
    log_ratio = log_ratio * 0.5
    p_mean, of_p = _mean_and_slope(p, log_ratio)
    q_mean, of_q = _mean_and_slope(q, log_ratio)
    half_difference = (p - q) * 0.5
    of_p += half_difference
    of_q += half_difference
    of_q *= -1.0
    return (p_mean - q_mean).sum(), of_p, of_q


def _from_first(p: _Array, q: _Array, log_ratio: _Array) -> _Divergence:
    """KL(p || q) = sum(p * (log p - log q))."""
    mean, of_p = _mean_and_slope(p, log_ratio)
    return mean.sum(), of_p, q - p


def _jensen_shannon(p: _Array, q: _Array, log_ratio: _Array) -> _Divergence:
    """(KL(p || m) + KL(q || m)) / 2, with log p - log m = log 2 - log(1 + q / p)."""
    log_two = 0.6931471805599453
    p_mean, of_p = _mean_and_slope(p, (log_two - _softplus(-log_ratio)) * 0.5)
    q_mean, of_q = _mean_and_slope(q, (log_two - _softplus(log_ratio)) * 0.5)
    return (p_mean + q_mean).sum(), of_p, of_q


def _mean_and_slope(p: _Array, f: _Array) -> tuple[_Array, _Array]:
    """Returns sum(p * f) of each row, and its gradient with respect to the logits of p."""
    weighted = p * f
    mean = weighted.sum(1).reshape([-1, 1])
    weighted -= p * mean
    return mean, weighted


def _softplus(x: _Array) -> _Array:
    return np.logaddexp(0, x) if isinstance(x, np.ndarray) else F.softplus(x)


_DIVERGENCES = {"r_drop": _symmetric, "sim_cut": _from_first, "cutoff": _jensen_shannon}

"""The loss of two passes over the same batch, and of the divergence between their predictions.

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
from paddle import Tensor, nn

from transformer_mt.model import operations
from transformer_mt.training.loss import nll_and_probabilities

# The number of targets that are read at once on a CPU.
CPU_PART = 16

# The factors of the two passes' cross-entropies. The second pass of sim_cut has none, so the first
# counts twice. Thus every sum is over as many targets as there are rows of logits.
PASSES = {"r_drop": (1.0, 1.0), "sim_cut": (2.0, 0.0), "cutoff": (1.0, 1.0)}


class ConsistencyLoss(nn.Layer):
    """The label-smoothed cross-entropy of the passes, plus the weighted divergence.

    Args:
        epsilon: of the label smoothing.
        method, weight: as in the config.
    """

    def __init__(self, epsilon: float, pad_id: int, method: str, weight: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.pad_id = pad_id
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


class _Loss(paddle.autograd.PyLayer):
    """The gradient of a scalar loss is computed with it. The backward pass only multiplies it."""

    @staticmethod
    def forward(ctx, logits: Tensor, targets: Tensor, epsilon: float, weight: float, method: str):
        compute = _on_cpu if operations.is_on_cpu(logits) else _on_device
        loss, nll, gradient = compute(logits, targets, epsilon, weight, method)
        ctx.save_for_backward(gradient)
        return loss, nll

    @staticmethod
    def backward(ctx, scale: Tensor, _):
        (gradient,) = ctx.saved_tensor()
        return gradient.multiply_(scale), None


# Both of the next functions return the loss, the negative log-likelihood, which are scalars, and
# the gradient of the loss with respect to the logits. Their arguments are those of
# `ConsistencyLoss`.


def _on_device(
    logits: Tensor, targets: Tensor, epsilon: float, weight: float, method: str
) -> tuple[Tensor, Tensor, Tensor]:
    rows, vocabulary = logits.shape
    half = rows // 2
    at_target = paddle.stack([paddle.arange(rows), targets], axis=1)
    logit = paddle.gather_nd(logits, at_target)  # (rows,)
    nll, probabilities = nll_and_probabilities(logits, targets, logit)
    first, second = PASSES[method]
    share = paddle.concat([paddle.full([half], first), paddle.full([half], second)])
    # 1. The smoothed cross-entropy, as in training/loss.py.
    loss = ((nll + epsilon * (logit - logits.mean(1))) * share).sum()
    gradient = (probabilities - epsilon / vocabulary) * share.unsqueeze(1)
    hit = paddle.gather_nd(gradient, at_target) - (1 - epsilon) * share
    gradient.put_along_axis_(at_target[:, 1:], hit.unsqueeze(1), axis=1)
    # 2. The divergence and its gradients with respect to both halves of the logits. The logarithm
    #    of a probability is its logit minus the logarithm of the sum of exponentials.
    log_total = (nll + logit).unsqueeze(1)
    p, q = paddle.split(probabilities, 2)
    log_ratio = _difference(logits) - _difference(log_total)  # log p - log q
    divergence, of_p, of_q = _DIVERGENCES[method](p, q, log_ratio)
    factor = weight * first
    gradient.add_(paddle.concat([of_p, of_q]).scale_(factor))
    return loss + factor * divergence, (nll * share).sum(), gradient


def _difference(x: Tensor) -> Tensor:
    first, second = paddle.split(x, 2)
    return first - second


def _on_cpu(
    logits: Tensor, targets: Tensor, epsilon: float, weight: float, method: str
) -> tuple[Tensor, Tensor, Tensor]:
    """As `_on_device`, in NumPy and in parts whose temporary arrays fit in the processor's cache.

    For 2 x 1,024 rows of 10,000, this takes 132 ms. Paddle's operations take 314 ms with parts of
    32 targets, which is the best size for them.
    """
    rows, ids = operations.array(logits), operations.array(targets)
    half, vocabulary = len(rows) // 2, rows.shape[1]
    gradient = np.empty_like(rows)
    shares = PASSES[method]
    factor = weight * shares[0]
    loss = nll = 0.0  # sums in float64
    for start in range(0, half, CPU_PART):
        end = min(start + CPU_PART, half)
        passes = (slice(start, end), slice(half + start, half + end))
        # 1. The smoothed cross-entropy.
        probabilities, log_totals = [], []
        for own, share in zip(passes, shares, strict=True):
            some, at_target = rows[own], (np.arange(end - start), ids[own])
            largest = some.max(1, keepdims=True)
            exponentials = np.subtract(some, largest)
            totals = np.exp(exponentials, out=exponentials).sum(1, keepdims=True)
            exponentials *= 1 / totals
            probabilities.append(exponentials)
            log_totals.append(np.log(totals) + largest)
            own_nll = log_totals[-1][:, 0] - some[at_target]
            excess = some[at_target] - some.mean(1)
            nll += share * float(own_nll.sum())
            loss += share * float((own_nll + epsilon * excess).sum())
            slope = np.subtract(exponentials, epsilon / vocabulary, out=gradient[own])
            slope[at_target] -= 1 - epsilon
            if share != 1:
                slope *= share
        # 2. The divergence and its gradients.
        log_ratio = rows[passes[0]] - rows[passes[1]]
        log_ratio -= log_totals[0] - log_totals[1]
        divergence, *slopes = _DIVERGENCES[method](*probabilities, log_ratio)
        loss += factor * float(divergence)
        for own, slope in zip(passes, slopes, strict=True):
            slope *= factor
            gradient[own] += slope
    scalars = (paddle.to_tensor(value, "float32") for value in (loss, nll))
    return *scalars, operations.tensor(gradient)


# A divergence maps p, q and log p - log q, each float32 (count, vocabulary), to its sum over the
# rows, a scalar, and to its gradients with respect to the logits of p and of q. All are tensors, or
# all are NumPy arrays. They follow from dp_i / dlogit_j = p_i (1[i = j] - p_j): the gradient of
# sum(p * f) with f constant is p * (f - sum(p * f)).
_Array = TypeVar("_Array", Tensor, np.ndarray)
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

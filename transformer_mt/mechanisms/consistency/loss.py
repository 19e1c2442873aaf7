"""The loss of two passes over the same batch, and of the divergence between their predictions.

With p and q for the probabilities of a target position in the first and the second pass:

- R-Drop (Liang et al. 2021, arXiv 2106.14448, formulas 2 and 3) adds
  weight * (KL(p || q) + KL(q || p)) / 2 to the losses of both passes;
- SimCut (Gao et al. 2022, arXiv 2206.02368, formula 9) adds weight * KL(p || q) to the loss of the
  first pass. The gradient flows into both passes;
- cutoff (Shen et al. 2020, arXiv 2009.13818, formulas 5 and 6) adds
  weight * (KL(p || m) + KL(q || m)) / 2 with m = (p + q) / 2 to the losses of both passes.
"""

import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn

from transformer_mt.model import operations
from transformer_mt.training.loss import nll_and_probabilities

# The number of targets that are read at once on a CPU.
CPU_PART = 64

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
    """The gradient of a scalar loss is computed with it. The backward pass only multiplies it.

    On a CPU, the targets are read in parts, whose temporary arrays fit in its caches. This takes
    less than half of the time, and a fraction of the memory.
    """

    @staticmethod
    def forward(ctx, logits: Tensor, targets: Tensor, epsilon: float, weight: float, method: str):
        half = logits.shape[0] // 2
        size = CPU_PART if operations.is_on_cpu(logits) else half
        gradient = paddle.empty_like(logits)
        sums = paddle.zeros([2])
        for start in range(0, half, size):
            end = min(start + size, half)
            first, second = slice(start, end), slice(half + start, half + end)
            part = paddle.concat([logits[first], logits[second]])
            labels = paddle.concat([targets[first], targets[second]])
            loss, nll, of_part = _loss_and_gradient(part, labels, epsilon, weight, method)
            gradient[first], gradient[second] = paddle.split(of_part, 2)
            sums = sums + paddle.stack([loss, nll])
        ctx.save_for_backward(gradient)
        return sums[0], sums[1]

    @staticmethod
    def backward(ctx, scale: Tensor, _):
        (gradient,) = ctx.saved_tensor()
        return gradient.multiply_(scale), None


def _loss_and_gradient(
    logits: Tensor, targets: Tensor, epsilon: float, weight: float, method: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the loss, the negative log-likelihood, both scalars, and the loss's gradient with
    respect to the logits. The arguments are those of `ConsistencyLoss`."""
    rows, vocabulary = logits.shape
    half = rows // 2
    at_target = paddle.stack([paddle.arange(rows), targets], axis=1)
    logit = paddle.gather_nd(logits, at_target)  # (rows,)
    nll, probabilities = nll_and_probabilities(logits, targets, logit)
    first, second = PASSES[method]
    share = paddle.concat([paddle.full([half], first), paddle.full([half], second)])
    # 1. The smoothed cross-entropy, as in training/loss.py.
    mean = paddle.matmul(logits, paddle.full([vocabulary], 1 / vocabulary))
    loss = ((nll + epsilon * (logit - mean)) * share).sum()
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


# A divergence maps p, q and log p - log q, each float32 (count, vocabulary), to its sum over the
# rows, a scalar, and to its gradients with respect to the logits of p and of q. They follow from
# dp_i / dlogit_j = p_i (1[i = j] - p_j): the gradient of sum(p * f) with f constant is
# p * (f - sum(p * f)).


def _symmetric(p: Tensor, q: Tensor, log_ratio: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(KL(p || q) + KL(q || p)) / 2 = sum((p - q) * (log p - log q)) / 2."""
    difference = p - q
    value = (difference * log_ratio).sum() / 2
    of_p = difference + _centred(p, log_ratio)
    of_q = difference + _centred(q, log_ratio)
    return value, of_p.scale_(0.5), of_q.scale_(-0.5)


def _from_first(p: Tensor, q: Tensor, log_ratio: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """KL(p || q) = sum(p * (log p - log q))."""
    return (p * log_ratio).sum(), _centred(p, log_ratio), q - p


def _jensen_shannon(p: Tensor, q: Tensor, log_ratio: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(KL(p || m) + KL(q || m)) / 2, with log p - log m = log 2 - log(1 + q / p)."""
    log_two = 0.6931471805599453
    of_p = log_two - F.softplus(-log_ratio)
    of_q = log_two - F.softplus(log_ratio)
    value = ((p * of_p).sum() + (q * of_q).sum()) / 2
    return value, _centred(p, of_p).scale_(0.5), _centred(q, of_q).scale_(0.5)


def _centred(p: Tensor, f: Tensor) -> Tensor:
    weighted = p * f
    return weighted - p * weighted.sum(1, keepdim=True)


_DIVERGENCES = {"r_drop": _symmetric, "sim_cut": _from_first, "cutoff": _jensen_shannon}

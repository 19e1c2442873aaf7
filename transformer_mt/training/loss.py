"""Label-smoothed cross-entropy."""

import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn

from transformer_mt.model import operations

# Paddle's softmax is clipped at exp(-64), so greater negative log-likelihoods than this may be
# wrong.
LARGEST_NLL = 60.0


class LabelSmoothedCrossEntropy(nn.Layer):
    """Cross-entropy against (1 - epsilon) * one-hot + epsilon / vocabulary.

    This is the label smoothing of the Transformer paper (section 5.4; Szegedy et al. 2016, arXiv
    1512.00567, section 7) over the whole vocabulary. Padding adds nothing to the loss.
    """

    def __init__(self, epsilon: float, pad_id: int) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.pad_id = pad_id

    def forward(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """
        Args:
            logits: (..., vocabulary), floating.
            targets: (...), int64; pad_id at padding.

        Returns:
            The smoothed loss to train on, and the plain negative log-likelihood to report, which
            has no gradient. Both are summed over the targets that are not padding, in nats, as
            float32 scalars.
        """
        flat = logits.astype("float32").reshape([-1, logits.shape[-1]])
        with paddle.amp.auto_cast(enable=False):  # in float32, whatever the model computes in
            loss, nll = _SmoothedCrossEntropy.apply(
                flat, targets.flatten(), self.epsilon, self.pad_id
            )
        return loss, nll.detach()


class _SmoothedCrossEntropy(paddle.autograd.PyLayer):
    """The loss, with a gradient that is computed in place of the probabilities.

    (1 - epsilon) * -log p[target] + epsilon * mean(-log p)
        = -log p[target] + epsilon * (logits[target] - mean(logits)),
    whose gradient with respect to the logits is
    p - epsilon / vocabulary - (1 - epsilon) * one-hot. The same loss composed of Paddle's
    operations takes four to six times as long on a CPU, and more memory.
    """

    @staticmethod
    def forward(ctx, logits: Tensor, targets: Tensor, epsilon: float, pad_id: int):
        rows, vocabulary = logits.shape
        at_target = paddle.stack([paddle.arange(rows), targets], axis=1)
        logit = paddle.gather_nd(logits, at_target)  # (rows,)
        is_real = targets != pad_id
        nll, probabilities = nll_and_probabilities(logits, targets, logit, pad_id)
        nll = nll.sum()
        ctx.save_for_backward(probabilities, at_target, is_real)
        ctx.epsilon = epsilon
        # A product with a vector is the fastest way to compute the mean.
        mean = paddle.matmul(logits, paddle.full([vocabulary], 1 / vocabulary))
        excess = (logit - mean) * is_real.astype("float32")
        return nll + epsilon * excess.sum(), nll.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor, _):
        probabilities, at_target, is_real = ctx.saved_tensor()
        vocabulary = probabilities.shape[1]
        if not operations.is_on_cpu(gradient):  # without a read on the host
            scale = gradient * is_real.astype("float32")  # (rows,), 0 at padding
            result = (probabilities - ctx.epsilon / vocabulary) * scale.unsqueeze(1)
            hit = paddle.gather_nd(result, at_target) - scale * (1 - ctx.epsilon)
            return result.put_along_axis_(at_target[:, 1:], hit.unsqueeze(1), axis=1), None
        scale = float(gradient)
        logits_gradient = probabilities.scale_(scale, bias=-scale * ctx.epsilon / vocabulary)
        hit = paddle.gather_nd(logits_gradient, at_target) - scale * (1 - ctx.epsilon)
        logits_gradient.put_along_axis_(at_target[:, 1:], hit.unsqueeze(1), axis=1)
        if not bool(is_real.all()):
            logits_gradient.multiply_(is_real.astype("float32").unsqueeze(1))
        return logits_gradient, None


def nll_and_probabilities(
    logits: Tensor, targets: Tensor, logit: Tensor, pad_id: int = -100
) -> tuple[Tensor, Tensor]:
    """Returns the negative log-likelihood of each target, float32 (rows,), which is 0 at padding,
    and the probabilities of all tokens, float32 (rows, vocabulary).

    Args:
        logits: float32 (rows, vocabulary).
        targets: int64 (rows,).
        logit: (rows,), the logits of the targets.
    """
    if operations.is_on_cpu(logits):
        nll, probabilities = F.softmax_with_cross_entropy(
            logits, targets.unsqueeze(1), ignore_index=pad_id, return_softmax=True
        )  # (rows, 1), (rows, vocabulary)
        nll = nll.squeeze(1)
        if float(nll.max()) > LARGEST_NLL:
            nll = paddle.where(nll > LARGEST_NLL, logits.logsumexp(1) - logit, nll)
        return nll, probabilities
    # Without a read on the host.
    log_total = operations.log_sum_exp(logits)  # (rows, 1)
    nll = paddle.where(targets != pad_id, log_total.squeeze(1) - logit, paddle.zeros([]))
    return nll, paddle.exp(logits - log_total)

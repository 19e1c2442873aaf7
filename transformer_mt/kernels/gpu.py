"""Operations for a GPU: Paddle's fused ones, and arrays that are sent ahead.

A fused operation computes in one kernel what otherwise takes several, and stores less. Each is
tested on a small tensor before its first use. If it fails or its results differ, the plain
operations are used instead for the rest of the process, and a warning says so.

Paddle's `fused_dropout_add` is not among them: in Paddle 3.3.1, it only calls dropout and adds.
"""

from collections.abc import Callable, Generator
from functools import cached_property, partial
from typing import Any

import numpy as np
import paddle
import paddle.incubate.nn.functional as incubate
import paddle.nn.functional as F
from paddle import Tensor

from transformer_mt.config.schema import takes_head_width
from transformer_mt.kernels.transfer import Copies, sent_ahead
from transformer_mt.model.attention import FORBIDDEN_SCORE, lowest_score
from transformer_mt.model.operations import Operations
from transformer_mt.utils.console import warn

# How far a value or a gradient may be from that of the plain operations in float32, as a share of
# the largest one. The rounding of one number is at most 0.004 (bfloat16) or 0.0005 (float16) of it.
TOLERANCE = {paddle.bfloat16: 0.03, paddle.float16: 0.005, paddle.float32: 1e-3}

# The rate at which the self-test drops.
RATE = 0.5


class GpuOperations(Operations):
    """The operations for a model on a GPU. Docstrings are those of `Operations`."""

    @cached_property
    def _copies(self) -> Copies:
        return Copies()

    def fused_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        num_heads: int,
        mask: Tensor | None,
        rate: float,
        training: bool,
    ) -> Tensor | None:
        if not has_attention(query, value, num_heads):
            return None
        return attention(query, key, value, num_heads, mask, rate, training)

    def fused_add_norm(
        self,
        x: Tensor,
        output: Tensor,
        weight: Tensor,
        bias: Tensor,
        rate: float,
        epsilon: float,
    ) -> Tensor | None:
        if not has_dropout_add_norm(x):
            return None
        return dropout_add_norm(x, output, weight, bias, rate, epsilon)

    def smoothed_cross_entropy(
        self, logits: Tensor, targets: Tensor, epsilon: float, pad_id: int
    ) -> tuple[Tensor, Tensor]:
        return _SmoothedCrossEntropy.apply(logits, targets, epsilon, pad_id)

    def to_tensor(self, array: np.ndarray) -> Tensor:
        """As `Operations.to_tensor`, without waiting for the GPU. It is the tensor that has been
        sent ahead, if there is one."""
        sent = getattr(array, "tensor", None)
        return self._copies.now(array) if sent is None else sent

    def sent_ahead(self, updates: Generator[Any]) -> Generator[Any]:
        return sent_ahead(updates, self._copies.ahead)

    def prepare(self, head_width: int, d_model: int, dtype: paddle.dtype) -> None:
        x = paddle.zeros([1, 1, head_width], dtype)
        has_attention(x, x, 1)
        has_dropout_add_norm(paddle.zeros([1, d_model]))


class _SmoothedCrossEntropy(paddle.autograd.PyLayer):
    """The loss, which keeps one matrix of the logits' size: the probabilities, of which the
    gradient is made. Nothing is read on the host."""

    @staticmethod
    def forward(ctx, logits: Tensor, targets: Tensor, epsilon: float, pad_id: int):
        places = targets.unsqueeze(1)
        is_real = (targets != pad_id).astype("float32")
        logit = logits.take_along_axis(places, axis=1).squeeze(1)  # (rows,)
        log_total = paddle.logsumexp(logits, axis=1)
        nll = ((log_total - logit) * is_real).sum()
        excess = ((logit - logits.mean(axis=1)) * is_real).sum()
        ctx.save_for_backward(paddle.exp(logits - log_total.unsqueeze(1)), places, is_real)
        ctx.epsilon = epsilon
        return nll + epsilon * excess, nll.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor, _):
        probabilities, places, is_real = ctx.saved_tensor()
        scale = (gradient * is_real).unsqueeze(1)  # 0 at padding
        result = (probabilities - ctx.epsilon / probabilities.shape[1]) * scale
        hit = result.take_along_axis(places, axis=1) - scale * (1 - ctx.epsilon)
        return result.put_along_axis_(places, hit, axis=1), None


class Operation:
    """Whether a fused operation may be used, which its self-test decides.

    Args:
        name: what the warning calls it.
        self_test: takes a dtype and a width, and returns what is wrong with the operation, or "".
            What it raises is wrong with the operation too.
    """

    def __init__(self, name: str, self_test: Callable[[paddle.dtype, int], str]) -> None:
        self.name = name
        self._self_test = self_test
        self._passed: set[tuple[str, paddle.dtype, int]] = set()
        self._has_failed = False

    def works(self, x: Tensor, width: int) -> bool:
        """Returns whether the operation works on the device of `x`, in its dtype, for `width`.

        The self-test runs once for each of these. After it failed once, the answer is always no.
        """
        key = (str(x.place), x.dtype, width)
        if not self._has_failed and key not in self._passed:
            if reason := self._problem(x.dtype, width):
                self._has_failed = True
                warn(
                    f"{self.name} is computed by several operations instead of a fused one. The "
                    f"result is the same, but training is slower and needs more memory. The fused "
                    f"one failed its self-test on {x.place} for width {width}: {reason}"
                )
            else:
                self._passed.add(key)
        return not self._has_failed

    def _problem(self, dtype: paddle.dtype, width: int) -> str:
        # The random state is restored, so that the self-test changes no result.
        state = paddle.get_rng_state()
        try:
            with paddle.amp.auto_cast(enable=False), paddle.enable_grad():
                return self._self_test(dtype, width)
        except Exception as error:  # Whatever it is, the warning says it.
            return f"{type(error).__name__}: {' '.join(str(error).split())[-300:]}"
        finally:
            paddle.set_rng_state(state)


def is_on_gpu(x: Tensor) -> bool:
    """Whether `x` is on a GPU, and not in a graph that is being exported."""
    return paddle.in_dynamic_mode() and x.place.is_gpu_place()


# ---- Attention ----


def can_attend(query: Tensor) -> bool:
    """Whether the fused attention is made for the dtype of `query` and its device. Paddle documents
    it for float16 and bfloat16."""
    return query.dtype in (paddle.float16, paddle.bfloat16) and is_on_gpu(query)


def has_attention(query: Tensor, value: Tensor, num_heads: int) -> bool:
    """Whether `attention` can be called. The first call for a dtype and a width runs the self-test.

    `query` is (batch, query_len, heads * d_k), `value` is (batch, key_len, heads * d_v).
    """
    if not can_attend(query) or value.dtype != query.dtype:
        return False
    width = query.shape[-1] // num_heads
    is_fit = takes_head_width(width) and value.shape[-1] == query.shape[-1]
    return is_fit and ATTENTION.works(query, width)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    num_heads: int,
    mask: Tensor | None,
    rate: float,
    training: bool,
) -> Tensor:
    """Computes softmax(Q K^T / sqrt(d_k)) V in all heads, where `rate` of the weights are dropped
    in training.

    Args:
        query: (batch, query_len, heads * d_k).
        key, value: (batch, key_len, heads * d_k).
        mask: bool, True where attention is forbidden: (batch, heads, query_len, key_len), of which
            dimensions may be 1.

    Returns: (batch, query_len, heads * d_k). A query all of whose keys are forbidden gets 0.
    """
    # Paddle's operation takes tensors (batch, len, heads, d), and adds its mask to the scores.
    # The mask has its full size (batch, 1, query_len, key_len), because not every kernel
    # broadcasts over batch and queries.
    added = None
    if mask is not None:
        zeros = paddle.zeros([query.shape[0], 1, query.shape[1], key.shape[1]], query.dtype)
        added = paddle.masked_fill(zeros, mask, lowest_score(query))
    width = query.shape[-1] // num_heads
    output = F.scaled_dot_product_attention(
        *(x.reshape([0, 0, num_heads, width]) for x in (query, key, value)),
        attn_mask=added,
        dropout_p=rate,
        training=training,
    )
    if mask is not None:
        # If all keys of a query are forbidden, the softmax weighs them equally.
        has_no_key = mask.all(axis=-1, keepdim=True).transpose([0, 2, 1, 3])
        output = paddle.masked_fill(output, has_no_key, 0.0)  # (batch, query_len, heads, d_k)
    return output.reshape([0, 0, num_heads * width])


def _test_attention(dtype: paddle.dtype, width: int) -> str:
    # Causal attention with padding at the end of one sentence, and no key at all for one query;
    # and the attention of a few queries to more keys, without a mask.
    length, heads = 16, 2
    mask = np.triu(np.ones((2, 1, length, length), bool), k=1)
    mask[1, :, :, 11:] = True
    mask[0, :, 3] = True
    for query_len, own in ((length, paddle.to_tensor(mask)), (5, None)):
        lengths = (query_len, length, length, query_len)
        *inputs, slope = _random([(2, count, heads * width) for count in lengths], dtype)
        fused = partial(attention, num_heads=heads, mask=own, rate=0.0, training=True)
        plain = partial(_plain_attention, num_heads=heads, mask=own)
        if problem := _difference(
            _value_and_gradients(fused, inputs, slope, dtype),
            _value_and_gradients(plain, inputs, slope),
            ("Q", "K", "V"),
            TOLERANCE[dtype],
        ):
            return problem
    return ""


def _plain_attention(
    query: Tensor, key: Tensor, value: Tensor, num_heads: int, mask: Tensor | None
) -> Tensor:
    query, key, value = (
        x.reshape([0, 0, num_heads, -1]).transpose([0, 2, 1, 3]) for x in (query, key, value)
    )
    scores = paddle.matmul(query, key, transpose_y=True) / query.shape[-1] ** 0.5
    if mask is not None:
        scores = paddle.masked_fill(scores, mask, FORBIDDEN_SCORE)
    weights = F.softmax(scores)
    if mask is not None:
        weights = paddle.masked_fill(weights, mask, 0.0)
    return paddle.matmul(weights, value).transpose([0, 2, 1, 3]).flatten(2)


# ---- Dropout, residual sum and norm ----


def has_dropout_add_norm(x: Tensor) -> bool:
    """Whether `dropout_add_norm` can be called for `x` (..., d_model). The first call for a width
    runs the self-test.

    The operation has no kernel for bfloat16. The residual stream is float32 in every precision.
    The answer does not depend on whether gradients are wanted: with recompute, both passes must
    drop the same elements.
    """
    if x.dtype != paddle.float32 or not is_on_gpu(x):
        return False
    return DROPOUT_ADD_NORM.works(x, x.shape[-1])


def dropout_add_norm(
    x: Tensor, output: Tensor, weight: Tensor, bias: Tensor, rate: float, epsilon: float
) -> Tensor:
    """Computes LayerNorm(x + dropout(output)) in training.

    Args:
        x: float32 (..., d_model), what is added without dropout.
        output: (..., d_model) in any floating dtype.
        weight, bias: float32 (d_model,), those of the norm.
        rate: the rate of dropout.
    """
    with paddle.amp.auto_cast(enable=False):
        return incubate.fused_bias_dropout_residual_layer_norm(
            output.astype(paddle.float32),
            x,
            ln_scale=weight,
            ln_bias=bias,
            dropout_rate=rate,
            ln_epsilon=epsilon,
            training=True,
        )


def _test_dropout_add_norm(dtype: paddle.dtype, width: int) -> str:
    shape, epsilon = (2, 64, width), 1e-5
    *inputs, slope = _random([shape, shape, (width,), (width,), shape], dtype)
    dropped = []

    def plain(x: Tensor, output: Tensor, weight: Tensor, bias: Tensor, factors: Tensor) -> Tensor:
        return F.layer_norm(x + output * factors, [width], weight, bias, epsilon)

    for rate in (0.0, RATE, RATE):
        fused = partial(dropout_add_norm, rate=rate, epsilon=epsilon)
        results = _value_and_gradients(fused, inputs, slope, dtype)
        # Where an element was dropped, no gradient goes through it.
        kept = (results[2] != 0.0).astype(np.float32)
        expected = partial(plain, factors=paddle.to_tensor(kept / (1.0 - rate)))
        if problem := _difference(
            results,
            _value_and_gradients(expected, inputs, slope),
            ("x", "the output", "the weight", "the bias"),
            TOLERANCE[dtype],
        ):
            return f"with a dropout of {rate}, {problem}"
        dropped.append(1.0 - kept)
        if abs(dropped[-1].mean() - rate) > (0.1 if rate else 0.001):
            return f"with a dropout of {rate}, it drops {dropped[-1].mean():.3f} of the elements"
    if np.array_equal(*dropped[1:]):
        return "it drops the same elements twice in succession"
    return ""


# ---- The self-tests ----


def _random(shapes: list[tuple[int, ...]], dtype: paddle.dtype) -> list[np.ndarray]:
    # Standard normal numbers, as this type rounds them, in float32.
    drawn = (np.random.default_rng(seed).standard_normal(own) for seed, own in enumerate(shapes))
    return [paddle.to_tensor(x, dtype).astype(paddle.float32).numpy() for x in drawn]


def _value_and_gradients(
    function: Callable[..., Tensor],
    arrays: list[np.ndarray],
    slope: np.ndarray,
    dtype: paddle.dtype = paddle.float32,
) -> list[np.ndarray]:
    # The value, and the gradient of sum(value * slope) for each input: computed in this type, and
    # returned in float32.
    inputs = [paddle.to_tensor(x, dtype, stop_gradient=False) for x in arrays]
    value = function(*inputs)
    gradients = paddle.grad([value], inputs, [paddle.to_tensor(slope, value.dtype)])
    return [x.astype(paddle.float32).numpy() for x in (value, *gradients)]


def _difference(
    fused: list[np.ndarray], plain: list[np.ndarray], inputs: tuple[str, ...], tolerance: float
) -> str:
    names = ("the value", *(f"the gradient of {name}" for name in inputs))
    for name, ours, theirs in zip(names, fused, plain, strict=True):
        share = np.abs(ours - theirs).max() / np.abs(theirs).max()
        if not share <= tolerance:  # so for NaN
            return f"{name} differs from the plain one by {share:.2g} of the largest number"
    return ""


ATTENTION = Operation("attention", _test_attention)
DROPOUT_ADD_NORM = Operation("the residual sum with dropout and norm", _test_dropout_add_norm)

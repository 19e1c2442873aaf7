"""The check of fused attention."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import paddle
import paddle.nn.functional as F

from transformer_mt.device_check.machine import Machine, relative_error
from transformer_mt.device_check.operations import HEAD_WIDTHS, attention_masks
from transformer_mt.device_check.report import Figure, Finding, LeftOut
from transformer_mt.model.attention import ScaledDotProductAttention

ROWS, HEADS, LENGTH = 3, 4, 24


def fused_beside_plain(machine: Machine, precision: str) -> Finding:
    """Attention without its weights, which a GPU computes by a fused operation, beside attention
    with its weights, which is plain, for every width of a head and every mask of the recipes."""
    machine.require_gpu("fused attention runs on a GPU only")
    machine.require(precision)
    if precision == "float32":
        raise LeftOut("fused attention computes in half precision only")
    layer = ScaledDotProductAttention()
    plain_instead = 0
    random = np.random.default_rng(2)
    figures = []
    for width in HEAD_WIDTHS:
        arrays = random.standard_normal((4, ROWS, HEADS, LENGTH, width)).astype("float32")
        for name, mask in attention_masks(LENGTH, ROWS).items():
            own = None if mask is None else paddle.to_tensor(mask)
            found = {}
            for is_plain in (False, True):
                # The plain one computes in float32 with the same rounded inputs.
                dtype = "float32" if is_plain else precision
                query, key, value = (
                    paddle.to_tensor(x).astype(precision).astype(dtype) for x in arrays[:3]
                )
                for tensor in (query, key, value):
                    tensor.stop_gradient = False
                with _counted_calls() as calls:
                    output = layer(query, key, value, own, need_weights=is_plain)[0]
                plain_instead += not is_plain and not calls
                (output.astype("float32") * paddle.to_tensor(arrays[3])).sum().backward()
                tensors = {"value": output, "gradient of the queries": query.grad}
                tensors |= {"gradient of the keys": key.grad, "gradient of the values": value.grad}
                found[is_plain] = {
                    part: tensor.astype("float32").numpy() for part, tensor in tensors.items()
                }
            for part, expected in found[True].items():
                error = relative_error(found[False][part], expected)
                detail = f"{part}, {name}, heads of width {width}"
                figures.append(
                    Figure(f"widths {HEAD_WIDTHS}:", error, machine.tolerance(precision), detail)
                )
    text = f"{len(figures)} comparisons"
    figures.append(Figure("plain instead of fused:", plain_instead, 0))
    return Finding.of(figures, text)


@contextlib.contextmanager
def _counted_calls() -> Iterator[list[None]]:
    """Yields a list that gets an element for each call of Paddle's fused attention in the block."""
    calls: list[None] = []
    fused = F.scaled_dot_product_attention

    def counted(*arguments: object, **options: object) -> object:
        calls.append(None)
        return fused(*arguments, **options)

    F.scaled_dot_product_attention = counted
    try:
        yield calls
    finally:
        F.scaled_dot_product_attention = fused

"""Scaling the loss for float16, in which small gradients would be 0 otherwise."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor

FIRST_SCALE = 2.0**16
# The scale doubles after this number of finite gradients in a row.
GROWS_AFTER = 2000


class LossScale:
    """A factor of the loss that is as large as possible without making the gradient overflow.

    It is halved when a gradient is not finite, and doubled when many were (Micikevicius et al.
    2018, arXiv 1710.03740, section 3.2). It stays on the device, where paddle.amp.GradScaler reads
    on the host whether a gradient was finite.

    Attributes:
        value: the factor, a float32 scalar.
    """

    def __init__(self) -> None:
        self.value = paddle.to_tensor(FIRST_SCALE, dtype="float32")
        self._finite_in_a_row = paddle.to_tensor(0, dtype="int32")

    def update(self, is_finite: Tensor) -> None:
        """Chooses the factor of the next update.

        Args:
            is_finite: bool scalar, whether the gradient of this update was finite.
        """
        count = (self._finite_in_a_row + 1) * is_finite.astype("int32")
        grows = count >= GROWS_AFTER
        grown = paddle.where(grows, self.value * 2.0, self.value)
        self.value = paddle.where(is_finite, grown, self.value * 0.5)
        self._finite_in_a_row = count * (~grows).astype("int32")

    def state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint, in the form of Paddle's scaler."""
        return {"scale": [float(self.value)], "incr_count": int(self._finite_in_a_row)}

    def load(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        if state:
            self.value = paddle.to_tensor(state["scale"][0], dtype="float32")
            self._finite_in_a_row = paddle.to_tensor(state["incr_count"], dtype="int32")

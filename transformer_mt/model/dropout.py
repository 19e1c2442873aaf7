"""Dropout that costs no time if its rate is 0 or the model is evaluated."""

from paddle import Tensor, nn

from transformer_mt.model import operations


class Dropout(nn.Dropout):
    """Inverted dropout (Vaswani et al. 2017, section 5.4): in training, the elements of a tensor
    that are kept are scaled up.

    Raises ValueError if `rate` is not in [0, 1).
    """

    def __init__(self, rate: float = 0.0) -> None:
        if not 0.0 <= rate < 1.0:
            raise ValueError(f"a dropout rate must be at least 0 and below 1, but is {rate}")
        super().__init__(p=rate)

    def forward(self, x: Tensor) -> Tensor:
        """Applies dropout to `x`, of any shape; same shape."""
        # Paddle's own layer runs a kernel and copies the tensor even if nothing is dropped.
        return operations.dropout(x, self.p) if self.training and self.p > 0.0 else x

"""Dropout, linear layer and layer norm, as all larger layers use them."""

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
        return operations.current.dropout(x, self.p) if self.training and self.p > 0.0 else x


class Linear(nn.Linear):
    """A linear layer with a Xavier uniform weight, and a bias of zeros or none."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__(
            in_features,
            out_features,
            weight_attr=nn.initializer.XavierUniform(),
            bias_attr=nn.initializer.Constant(0.0) if bias else False,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps `x` (..., in_features) to (..., out_features)."""
        return operations.current.linear(x, self.weight, self.bias)


class LayerNorm(nn.LayerNorm):
    """Layer norm (Ba et al. 2016, arXiv 1607.06450) over the last dimension."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model, epsilon=1e-5)

    def forward(self, x: Tensor) -> Tensor:
        """Normalises `x` (..., d_model); same shape."""
        return operations.current.layer_norm(x, self.weight, self.bias, self._epsilon)

"""Adapters: narrow matrices beside linear layers, which are trained in place of the model's weights
(LoRA, Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", arXiv 2106.09685).

Only training knows them. A model that translates has the sums W + scale * A B as its weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from paddle import Tensor, nn

from transformer_mt.model import operations
from transformer_mt.model.layers import Dropout, Linear
from transformer_mt.weights import adapted


class AdaptedLinear(Linear):
    """A linear layer with an adapter: x W + b + scale * dropout(x) A B, section 4.1 of the paper.

    Args:
        linear: the layer, whose weight and bias this one takes and freezes.
        rank: the number of columns of A and of rows of B.
        scale: alpha / rank.
        dropout: the rate of dropout on the input of A.

    Attributes:
        adapter_a: A, float32 (in, rank), drawn uniformly from +-in^-0.5, as the authors' own
            program does.
        adapter_b: B, float32 (rank, out), zeros at first, so that the layer is what it was.
        is_merged: whether `weight` is the sum already, see `merged`.
    """

    def __init__(self, linear: Linear, rank: int, scale: float, dropout: float = 0.0) -> None:
        nn.Layer.__init__(self)
        self.weight, self.bias = linear.weight, linear.bias
        width, out = self.weight.shape
        bound = width**-0.5
        self.adapter_a = self.create_parameter(
            [width, rank], default_initializer=nn.initializer.Uniform(-bound, bound)
        )
        self.adapter_b = self.create_parameter(
            [rank, out], default_initializer=nn.initializer.Constant(0.0)
        )
        self.scale = scale
        self.dropout = Dropout(dropout)
        self.is_merged = False

    def forward(self, x: Tensor) -> Tensor:
        """Maps `x` (..., in_features) to (..., out_features)."""
        result = super().forward(x)
        if self.is_merged:
            return result
        linear = operations.current.linear
        narrow = linear(self.dropout(x), self.adapter_a, None)  # (..., rank)
        return result + linear(narrow * self.scale, self.adapter_b, None)

    def extra_repr(self) -> str:
        """Describes the layer, for `print(model)`."""
        width, rank = self.adapter_a.shape
        return f"in={width}, out={self.adapter_b.shape[1]}, rank={rank}, scale={self.scale:g}"


def linear_layers(model: nn.Layer) -> dict[str, Linear]:
    """Returns the linear layers of a model, by the names of their weights."""
    named = model.named_sublayers()
    return {f"{name}.weight": layer for name, layer in named if isinstance(layer, Linear)}


def add_adapters(
    model: nn.Layer, weights: Iterable[str], rank: int, scale: float, dropout: float = 0.0
) -> None:
    """Freezes a model, and adds trained adapters to some of its linear layers.

    The names of the model's own parameters stay the same.

    Args:
        weights: the names of the weights of these layers, of those in `linear_layers`.
        rank, scale, dropout: as in `AdaptedLinear`.
    """
    for parameter in model.parameters():
        parameter.stop_gradient = True
    layers = linear_layers(model)
    for weight in weights:
        path = weight.removesuffix(".weight")
        parent, _, name = path.rpartition(".")
        owner = model
        for part in parent.split(".") if parent else ():
            owner = getattr(owner, part) if not part.isdecimal() else owner[int(part)]
        setattr(owner, name, AdaptedLinear(layers[weight], rank, scale, dropout))


def adapted_layers(model: nn.Layer) -> list[AdaptedLinear]:
    """Returns the layers of a model that have adapters."""
    return [layer for layer in model.sublayers() if isinstance(layer, AdaptedLinear)]


@contextmanager
def merged(model: nn.Layer) -> Iterator[None]:
    """A block in which the adapters of a model are added to its weights.

    So it translates by the same kernels as any other model. After the block, the weights have their
    values of before, bit for bit.
    """
    layers = adapted_layers(model)
    before = [layer.weight.numpy() for layer in layers]
    for layer, weight in zip(layers, before, strict=True):
        matrices = layer.adapter_a.numpy(), layer.adapter_b.numpy()
        layer.weight.set_value(adapted(weight, *matrices, layer.scale))
        layer.is_merged = True
    try:
        yield
    finally:
        for layer, weight in zip(layers, before, strict=True):
            layer.weight.set_value(weight)
            layer.is_merged = False

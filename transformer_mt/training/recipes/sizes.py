"""The sizes of models that the command `new` chooses from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """A model, and what it needs.

    Attributes:
        least_pairs: the smallest number of pairs that it is used for.
        least_epochs: the smallest number of passes over the text in which it learns more than a
            smaller model does in the same time.
    """

    least_pairs: int
    least_epochs: float
    num_layers: int
    d_model: int
    num_heads: int
    d_ff: int
    batch_tokens: int
    learning_rate: float

    def __str__(self) -> str:
        layers = f"{self.num_layers}+{self.num_layers} layers"
        return f"{layers}, d_model {self.d_model}, d_ff {self.d_ff}"


SIZES = [
    Size(0, 0, 2, 128, 4, 256, 2048, 8e-3),
    Size(10_000, 3, 4, 128, 4, 256, 4096, 8e-3),
    Size(50_000, 10, 4, 192, 6, 384, 4096, 8e-3),
    Size(100_000, 15, 4, 256, 4, 1024, 4096, 4e-3),
    Size(500_000, 10, 6, 512, 8, 2048, 25_000, 2e-3),
]

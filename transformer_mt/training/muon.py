"""Muon, the optimiser of matrices: each update is the momentum of the gradient, orthogonalised."""

from __future__ import annotations

import numpy as np
import paddle
from paddle import Tensor, nn

from transformer_mt.model import operations

# The polynomial of an iteration (Jordan et al. 2024). Five iterations bring nearly all singular
# values into [0.7, 1.2]. Exactly 1 would take more of them, and trains no better.
_A, _B, _C = 3.4445, -4.7750, 2.0315
ITERATIONS = 5
# An orthogonal matrix times this factor and the root of its longer side changes its weights about
# as much as Adam does, so one learning rate serves both (Liu et al. 2025, section 2.2).
_ADAMS_SIZE = 0.2


def layer_matrices(model: nn.Layer) -> dict[str, Tensor]:
    """Returns the weights that Muon updates, by their names: the matrices of the encoder's and the
    decoder's layers. Embeddings, the output layer and vectors are left to Adam, as its authors
    do."""
    named = model.named_parameters()
    return {name: p for name, p in named if ".layers." in name and p.ndim == 2}


def orthogonalised(matrices: Tensor) -> Tensor:
    """Brings the singular values of each matrix near 1, and keeps its singular vectors.

    This is the iteration of Newton and Schulz. Each step is a polynomial of the singular values,
    and consists of matrix products alone.

    Args:
        matrices: float32 (count, rows, columns). A matrix of zeros stays as it is.

    Returns: float32, the same shape.
    """
    is_high = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose([0, 2, 1]) if is_high else matrices  # the products are smaller then
    # A matrix of Frobenius norm 1 has no singular value above 1, and only those converge.
    norms = paddle.square(x).sum(axis=[1, 2], keepdim=True).sqrt()
    x = x / (norms + 1e-12)
    for _ in range(ITERATIONS):
        gram = paddle.bmm(x, x.transpose([0, 2, 1]))
        x = _A * x + paddle.bmm(_B * gram + _C * paddle.bmm(gram, gram), x)
    return x.transpose([0, 2, 1]) if is_high else x


class Muon:
    """Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks", with the size
    of the updates of Liu et al. 2025 (arXiv 2502.16982, equation 4) and Nesterov's momentum.

    It reads nothing on the host. Matrices of one shape are updated together.

    Args:
        matrices: parameters with two dimensions, by their names.
        momentum: the share of the former momentum that stays in each update.

    Attributes:
        state: the momentum of each matrix, float32, by the name of the matrix.
    """

    def __init__(self, matrices: dict[str, Tensor], momentum: float) -> None:
        self.matrices = matrices
        self.state = {name: paddle.zeros(matrix.shape) for name, matrix in matrices.items()}
        self._momentum = momentum
        self._same_shape: dict[tuple[int, ...], list[str]] = {}
        for name, matrix in matrices.items():
            self._same_shape.setdefault(tuple(matrix.shape), []).append(name)

    def update(self, gradients: dict[str, Tensor], rate: float, kept: Tensor | float = 1.0) -> None:
        """Changes the matrices once.

        Args:
            gradients: of each matrix, by its name, after clipping.
            rate: the learning rate.
            kept: 1, or 0 if nothing is to change because the gradient was not finite; the gradients
                are zeros then.
        """
        with paddle.no_grad():
            for shape, names in self._same_shape.items():
                gradient = paddle.stack([gradients[name] for name in names])
                momentum = paddle.stack([self.state[name] for name in names])
                momentum = momentum + kept * (gradient - (1.0 - self._momentum) * momentum)
                step = orthogonalised(gradient + self._momentum * momentum)
                step = step * (kept * (rate * _ADAMS_SIZE * max(shape) ** 0.5))
                for name, own, change in zip(names, momentum.unbind(), step.unbind(), strict=True):
                    self.state[name] = own
                    self.matrices[name].subtract_(change)

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the state for a checkpoint, such as "encoder.layers.0. … .weight/momentum"."""
        return {f"{name}/momentum": operations.array(value) for name, value in self.state.items()}

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        """The inverse of `arrays`. It removes them from `arrays`, which may hold others too.

        Raises:
            KeyError: the state is that of another model.
        """
        for name in self.state:
            self.state[name] = paddle.to_tensor(arrays.pop(f"{name}/momentum"))

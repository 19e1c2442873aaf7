"""Muon, the optimiser of matrices: each update is the momentum of the gradient, orthogonalised."""

from __future__ import annotations

import numpy as np
import paddle
from paddle import Tensor, nn

from transformer_mt.model import operations
from transformer_mt.training.parallel import ALONE, FLOAT32_BYTES, Bucket, Processes

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
        gram = paddle.matmul(x, x, transpose_y=True)
        x = _A * x + paddle.bmm(_B * gram + _C * paddle.bmm(gram, gram), x)
    return x.transpose([0, 2, 1]) if is_high else x


class Muon:
    """Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks", with the size
    of the updates and the weight decay of Liu et al. 2025 (arXiv 2502.16982, equation 4) and
    Nesterov's momentum.

    It reads nothing on the host. Matrices of one shape are updated together, in groups, and each
    process orthogonalises its share of the groups.

    Args:
        matrices: parameters with two dimensions, by their names.
        momentum: the share of the former momentum that stays in each update.
        weight_decay: each update shrinks the matrices by this number times the learning rate.
        processes: all of them call `update`, with the same gradients.

    Attributes:
        momenta: the momentum of each group of matrices, float32 (count, rows, columns).
    """

    def __init__(
        self,
        matrices: dict[str, Tensor],
        momentum: float,
        weight_decay: float = 0.0,
        processes: Processes = ALONE,
    ) -> None:
        self.matrices = matrices
        self._momentum = momentum
        self._weight_decay = weight_decay
        self._processes = processes
        self._groups = _groups_of(matrices)
        self.momenta = [
            paddle.zeros([len(names), *matrices[names[0]].shape]) for names in self._groups
        ]

    def update(self, gradients: dict[str, Tensor], rate: float, kept: Tensor | float = 1.0) -> None:
        """Changes the matrices once.

        Args:
            gradients: of each matrix, by its name, after clipping.
            rate: the learning rate.
            kept: 1, or 0 if nothing is to change because the gradient was not finite; the gradients
                are zeros then.
        """
        with paddle.no_grad():
            # 1. The momentum, and what Nesterov's momentum makes of it.
            directions = []
            for number, names in enumerate(self._groups):
                gradient = paddle.stack([gradients[name] for name in names])
                momentum = self.momenta[number]
                momentum = momentum + kept * (gradient - (1.0 - self._momentum) * momentum)
                self.momenta[number] = momentum
                directions.append(gradient + self._momentum * momentum)
            # 2. Weight decay.
            if self._weight_decay:
                for matrix in self.matrices.values():
                    matrix.scale_(1.0 - kept * rate * self._weight_decay)
            # 3. The steps are those directions, orthogonalised.
            for names, step in zip(self._groups, self._orthogonalised(directions), strict=True):
                size = rate * _ADAMS_SIZE * max(step.shape[1:]) ** 0.5
                for name, change in zip(names, (step * (kept * size)).unbind(), strict=True):
                    self.matrices[name].subtract_(change)

    def _orthogonalised(self, groups: list[Tensor]) -> list[Tensor]:
        """Orthogonalises all groups, each of which is computed by one of the processes."""
        rank, count = self._processes.rank, self._processes.world_size
        if not self._processes.connected:
            return [orthogonalised(group) for group in groups]
        own = [
            orthogonalised(group) if number % count == rank else paddle.zeros_like(group)
            for number, group in enumerate(groups)
        ]
        bucket = Bucket(groups)
        return bucket.parts(self._processes.total(bucket.flat(own)))

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the state for a checkpoint: the momentum of each matrix, such as
        "encoder.layers.0. … .weight/momentum"."""
        return {
            f"{name}/momentum": operations.array(value)
            for names, momentum in zip(self._groups, self.momenta, strict=True)
            for name, value in zip(names, momentum.unbind(), strict=True)
        }

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        """The inverse of `arrays`. It removes them from `arrays`, which may hold others too.

        Raises:
            KeyError: the state is that of another model.
        """
        self.momenta = [
            paddle.to_tensor(np.stack([arrays.pop(f"{name}/momentum") for name in names]))
            for names in self._groups
        ]


def _groups_of(matrices: dict[str, Tensor]) -> list[list[str]]:
    """Returns the names of matrices of one shape. On a CPU, a group is at most as large as its
    cache: 48 matrices of 128 x 128 take 47 ms in groups of 8, and 150 ms together."""
    same_shape: dict[tuple[int, ...], list[str]] = {}
    for name, matrix in matrices.items():
        same_shape.setdefault(tuple(matrix.shape), []).append(name)
    groups = []
    for shape, names in same_shape.items():
        most = len(names)
        if cache := operations.current.cache_bytes:
            most = max(1, cache // (FLOAT32_BYTES * shape[0] * shape[1]))
        groups += [names[start : start + most] for start in range(0, len(names), most)]
    return groups

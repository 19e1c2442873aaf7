"""The optimisers: how the sum of the gradients changes the weights.

There are two ways, with the same result up to rounding. `HostOptimizer` uses Paddle's optimisers
and reads on the host whether the gradient is finite. On a GPU, reading stops the queue of work, and
Paddle's optimisers cannot leave out an update otherwise. So `DeviceOptimizer` has the rules itself,
and decides everything where the tensors are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle import Tensor, nn

from transformer_mt.config.schema import TrainingConfig
from transformer_mt.model import operations
from transformer_mt.training.parallel import (
    ALONE,
    FLOAT32_BYTES,
    Bucket,
    DividedBucket,
    Gradients,
    Processes,
    buckets_of,
    trained_parameters,
)
from transformer_mt.training.selection import rate_factors


def make_optimizer(
    config: TrainingConfig, model: nn.Layer, processes: Processes = ALONE
) -> HostOptimizer | DeviceOptimizer:
    """Returns the optimiser of the config for the device that holds the model."""
    is_on_host = operations.is_on_cpu(next(iter(model.parameters())))
    is_divided = config.sharding and processes.world_size > 1
    if is_on_host and not is_divided:
        return HostOptimizer(config, model, processes)
    return DeviceOptimizer(config, model, processes)


def _make_muon(config: TrainingConfig, model: nn.Layer, processes: Processes) -> Muon | None:
    matrices = layer_matrices(model) if config.optimizer == "muon" else {}
    if not matrices:
        return None
    factors = rate_factors(model, config.learning_rate_factors)
    return Muon(matrices, config.momentum, config.weight_decay, processes, factors)


def _without(muon: Muon | None, parameters: list[Tensor]) -> list[Tensor]:
    """Returns the parameters that Muon does not update."""
    own = set() if muon is None else {id(matrix) for matrix in muon.matrices.values()}
    return [parameter for parameter in parameters if id(parameter) not in own]


class HostOptimizer:
    """Paddle's optimisers, for a model on a CPU. With Muon, they are those of all other weights.

    There is one for each factor of the learning rate. (Paddle can update all parameters of an
    optimiser at once only with the same rate.)
    """

    def __init__(self, config: TrainingConfig, model: nn.Layer, processes: Processes) -> None:
        self.config = config
        self.model = model
        self.muon = _make_muon(config, model, processes)
        self._trained = trained_parameters(model)
        factors = rate_factors(model, config.learning_rate_factors)
        others = {id(parameter) for parameter in _without(self.muon, [*self._trained.values()])}
        groups: dict[float, dict[str, Tensor]] = {}
        for name, parameter in self._trained.items():
            if id(parameter) in others:
                groups.setdefault(factors[name], {})[name] = parameter
        self.groups = [
            _Group(factor, self._paddles([*own.values()]), {p.name: n for n, p in own.items()})
            for factor, own in groups.items()
        ]

    def _paddles(self, parameters: list[Tensor]) -> paddle.optimizer.Optimizer:
        config = self.config
        common = {"learning_rate": 0.0, "parameters": parameters}
        if config.optimizer == "sgd":
            return paddle.optimizer.Momentum(momentum=config.momentum, **common)
        common |= {"beta1": config.betas[0], "beta2": config.betas[1], "epsilon": config.epsilon}
        if config.optimizer in ("adam", "muon"):
            # All parameters are updated at once, which takes a third of the time.
            return paddle.optimizer.Adam(use_multi_tensor=True, **common)
        return paddle.optimizer.AdamW(weight_decay=config.weight_decay, **common)

    def apply(
        self, gradients: Gradients, loss: Tensor, rate: float, scale: LossScale | None = None
    ) -> Tensor:
        """Changes the weights once, unless the loss or the gradient is not finite.

        Args:
            gradients: the gradients of this process; those of all processes add up.
            loss: a scalar.
            rate: the learning rate.
            scale: of the loss; a CPU has none, because it computes in float32.

        Returns: the norm of the whole gradient before clipping, a float64 scalar.
        """
        gradients.sum_in_place()
        found = [parameter.grad for parameter in self._trained.values()]
        squares = [paddle.square(gradient).sum() for gradient in found]
        norm = math.sqrt(float(paddle.stack(squares).sum()))
        if math.isfinite(norm) and math.isfinite(float(loss)):
            limit = self.config.clip_norm
            if limit is not None and norm > limit:  # Pascanu et al. 2013, arXiv 1211.5063
                with paddle.no_grad():  # otherwise Paddle refuses to write to some of them
                    for gradient in found:
                        gradient.scale_(limit / norm)
            for group in self.groups:
                group.optimizer.set_lr(rate * group.factor)
                group.optimizer.step()
            if self.muon is not None:
                gradients_of_matrices = {name: p.grad for name, p in self.muon.matrices.items()}
                self.muon.update(gradients_of_matrices, rate)
        gradients.clear()
        return paddle.to_tensor(norm, dtype="float64")

    def state(self) -> dict[str, np.ndarray]:
        """Returns the state of the optimiser, under the model's own names, such as
        "encoder.norm.weight/moment1".

        Paddle's own names ("linear_17.w_0_moment1_0") contain a counter of the process, so they
        depend on which other layers were built in it.
        """
        state = {} if self.muon is None else self.muon.arrays()
        for group in self.groups:
            names = group.names
            for key, value in group.optimizer.state_dict().items():
                owner = max((n for n in names if key.startswith(f"{n}_")), key=len, default=None)
                if owner is not None:
                    key = f"{names[owner]}/{key[len(owner) + 1 :].removesuffix('_0')}"
                state[key] = operations.array(value)
        return state

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        """The inverse of `state`. It empties `arrays`.

        Raises:
            KeyError: the state is that of another model.
        """
        if arrays and self.muon is not None:
            self.muon.load(arrays)
        places = {
            name: (number, theirs)
            for number, group in enumerate(self.groups)
            for theirs, name in group.names.items()
        }
        states: list[dict[str, Tensor]] = [{} for _ in self.groups]
        while arrays:  # one by one, so that only one tensor is in memory twice
            key, value = arrays.popitem()
            name, _, kind = key.rpartition("/")
            number, theirs = places[name]
            # Paddle numbers the tensors of each kind per parameter; there is only number 0.
            states[number][f"{theirs}_{kind}_0"] = paddle.to_tensor(value)
        for group, state in zip(self.groups, states, strict=True):
            group.optimizer.set_state_dict(state)


class _Group(NamedTuple):
    """Parameters of one learning rate: its factor, Paddle's optimiser of them, and their names in
    the model by those that Paddle gave them."""

    factor: float
    optimizer: paddle.optimizer.Optimizer
    names: dict[str, str]


class DeviceOptimizer:
    """The optimisers of the config without a read on the host.

    Each bucket of parameters is updated as one flat tensor, so there are few operations. With
    `training.sharding`, each process keeps the optimiser's state of its own part of every bucket
    and updates this part; then the parts are exchanged (ZeRO stage 1, Rajbhandari et al. 2020,
    arXiv 1910.02054, section 5.1).
    """

    def __init__(self, config: TrainingConfig, model: nn.Layer, processes: Processes) -> None:
        self.config = config
        self.model = model
        self.muon = _make_muon(config, model, processes)
        self._rate_factors = rate_factors(model, config.learning_rate_factors)
        self._kinds = ("velocity",) if config.optimizer == "sgd" else ("moment1", "moment2")
        self._sharing = processes if config.sharding else ALONE
        # Adam's powers of beta, float32 scalars. As in Paddle's checkpoints, these are the powers
        # that the next update needs.
        self._powers: dict[str, Tensor] = {}
        if config.optimizer != "sgd":
            for kind, beta in zip(("beta1_pow_acc", "beta2_pow_acc"), config.betas, strict=True):
                self._powers[kind] = paddle.to_tensor(beta, dtype="float32")

    @cached_property
    def buckets(self) -> list[DividedBucket]:
        """The weights with the state of their optimiser, which takes memory from its first use on.

        A process that only starts others never uses it.
        """
        groups = [bucket.parameters for bucket in buckets_of(self.model)]
        if self.muon is not None:  # one bucket of all other weights, if there are any
            groups = [_without(self.muon, [p for group in groups for p in group])]
        return [DividedBucket(group, self._sharing, self._kinds) for group in groups if group]

    @cached_property
    def _factors(self) -> list[Tensor | float]:
        """The factor of the learning rate of this process's part of each bucket: a number, or
        float32 (part,)."""
        named = trained_parameters(self.model).items()
        factors = {id(parameter): self._rate_factors[name] for name, parameter in named}
        result: list[Tensor | float] = []
        for bucket in self.buckets:
            own = [factors[id(parameter)] for parameter in bucket.parameters]
            if len({*own}) == 1:
                result.append(own[0])
                continue
            filled = zip(bucket.parameters, own, strict=True)
            flat = bucket.flat([paddle.full(p.shape, factor) for p, factor in filled])
            result.append(bucket.own_part(flat))
        return result

    def apply(
        self, gradients: Gradients, loss: Tensor, rate: float, scale: LossScale | None = None
    ) -> Tensor:
        """As `HostOptimizer.apply`, for a loss that `scale` has scaled before the backward pass.
        The scale learns whether the gradient was finite."""
        with paddle.no_grad():
            flat_gradients = gradients.sums()
            gradients.clear()
            norm = paddle.stack([paddle.square(g).sum() for g in flat_gradients]).sum().sqrt()
            factor = paddle.ones([])
            if scale is not None:
                norm, factor = norm / scale.value, 1.0 / scale.value
            is_finite = paddle.isfinite(norm) & paddle.isfinite(loss)
            if scale is not None:
                scale.update(is_finite)
            if self.config.clip_norm is not None:
                factor = factor * (self.config.clip_norm / norm).clip(max=1.0)
            # A product with 0 would not do: 0 times infinity is not a number.
            clipped = [
                paddle.where(is_finite, g * factor, paddle.zeros([])) for g in flat_gradients
            ]
            if self.muon is not None:
                clipped = self._update_matrices(gradients.buckets, clipped, is_finite, rate)
            kept = is_finite.astype("float32")
            parts = zip(self.buckets, clipped, self._factors, strict=True)
            for bucket, gradient, rate_factor in parts:
                self._update(bucket, bucket.own_part(gradient), kept, rate_factor * rate)
            for kind, beta in zip(self._powers, self.config.betas, strict=False):
                self._powers[kind] = self._powers[kind] * (kept * beta + (1.0 - kept))
        return norm.astype("float64")

    def state(self) -> dict[str, np.ndarray]:
        """As `HostOptimizer.state`, with the same names. With sharding, all processes call it."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        state = {} if self.muon is None else self.muon.arrays()
        for bucket in self.buckets:
            own_names = [names[id(parameter)] for parameter in bucket.parameters]
            for kind in self._kinds:
                parts = bucket.parts(bucket.whole(bucket.state[kind]))
                for name, part in zip(own_names, parts, strict=True):
                    state[f"{name}/{kind}"] = part.numpy()
            for kind, power in self._powers.items():
                state |= {f"{name}/{kind}": power.numpy().reshape([1]) for name in own_names}
        return state

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        """As `HostOptimizer.load`."""
        if not arrays:
            return
        if self.muon is not None:
            self.muon.load(arrays)
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        for bucket in self.buckets:
            own_names = [names[id(parameter)] for parameter in bucket.parameters]
            for kind in self._kinds:
                flat = np.concatenate([arrays.pop(f"{name}/{kind}").ravel() for name in own_names])
                bucket.state[kind] = bucket.own_part(paddle.to_tensor(flat))
            for kind in self._powers:
                values = [arrays.pop(f"{name}/{kind}") for name in own_names]
                self._powers[kind] = paddle.to_tensor(values[0].reshape([]))

    def _update_matrices(
        self, buckets: list[Bucket], flat_gradients: list[Tensor], is_finite: Tensor, rate: float
    ) -> list[Tensor]:
        """Updates by Muon.

        Returns: the gradient of the bucket of all other weights, if there are any.
        """
        gradients = {
            id(parameter): part
            for bucket, flat in zip(buckets, flat_gradients, strict=True)
            for parameter, part in zip(bucket.parameters, bucket.parts(flat), strict=True)
        }
        own = {name: gradients[id(matrix)] for name, matrix in self.muon.matrices.items()}
        self.muon.update(own, rate, is_finite.astype("float32"))
        return [
            bucket.flat([gradients[id(parameter)] for parameter in bucket.parameters])
            for bucket in self.buckets
        ]

    def _update(
        self, bucket: DividedBucket, gradient: Tensor, kept: Tensor, rate: Tensor | float
    ) -> None:
        """Updates a bucket by `gradient`, if `kept` is 1. If it is 0, because the gradient was not
        finite, nothing changes; the gradient is 0 then."""
        weights = bucket.own_part(bucket.flat(bucket.parameters))
        state = bucket.state
        if self.config.optimizer == "sgd":
            change = gradient - (1.0 - self.config.momentum) * state["velocity"]
            velocity = state["velocity"] = state["velocity"] + kept * change
            bucket.set_weights(weights - rate * kept * velocity)
            return
        # Adam (Kingma and Ba 2015, arXiv 1412.6980, algorithm 1).
        beta1, beta2 = self.config.betas
        first = state["moment1"] = paddle.lerp(state["moment1"], gradient, kept * (1.0 - beta1))
        second = state["moment2"] = paddle.lerp(
            state["moment2"], paddle.square(gradient), kept * (1.0 - beta2)
        )
        first_power, second_power = self._powers.values()
        root = (second / (1.0 - second_power)).sqrt()
        change = first / (root + self.config.epsilon)
        step = kept * rate / (1.0 - first_power)
        if self.config.optimizer == "adamw":  # Loshchilov and Hutter 2019, arXiv 1711.05101
            weights = weights * (1.0 - kept * rate * self.config.weight_decay)
        bucket.set_weights(weights - step * change)


# ------------------------------------------------------------------------------------------- Muon

# The polynomial of an iteration (Jordan et al. 2024). Five iterations bring nearly all singular
# values into [0.7, 1.2]. Exactly 1 would take more of them, and trains no better.
_A, _B, _C = 3.4445, -4.7750, 2.0315
ITERATIONS = 5
# An orthogonal matrix times this factor and the root of its longer side changes its weights about
# as much as Adam does, so one learning rate serves both (Liu et al. 2025, section 2.2).
_ADAMS_SIZE = 0.2


def layer_matrices(model: nn.Layer) -> dict[str, Tensor]:
    """Returns the weights that Muon updates, by their names: the trained matrices of the encoder's
    and the decoder's layers. Embeddings, the output layer and vectors are left to Adam, as its
    authors do."""
    named = trained_parameters(model).items()
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
    """The optimiser of matrices: each update is the momentum of the gradient, orthogonalised.

    Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks", with the size
    of the updates and the weight decay of Liu et al. 2025 (arXiv 2502.16982, equation 4) and
    Nesterov's momentum.

    It reads nothing on the host. Matrices of one shape are updated together, in groups, and each
    process orthogonalises its share of the groups.

    Args:
        matrices: parameters with two dimensions, by their names.
        momentum: the share of the former momentum that stays in each update.
        weight_decay: each update shrinks the matrices by this number times the learning rate.
        processes: all of them call `update`, with the same gradients.
        factors: those of the learning rate, by the names of the matrices; 1 by default.

    Attributes:
        momenta: the momentum of each group of matrices, float32 (count, rows, columns).
    """

    def __init__(
        self,
        matrices: dict[str, Tensor],
        momentum: float,
        weight_decay: float = 0.0,
        processes: Processes = ALONE,
        factors: Mapping[str, float] | None = None,
    ) -> None:
        self.matrices = matrices
        self._factors = dict.fromkeys(matrices, 1.0) | dict(factors or {})
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
                for name, matrix in self.matrices.items():
                    own_rate = rate * self._factors[name]
                    matrix.scale_(1.0 - kept * own_rate * self._weight_decay)
            # 3. The steps are those directions, orthogonalised.
            for names, step in zip(self._groups, self._orthogonalised(directions), strict=True):
                size = rate * _ADAMS_SIZE * max(step.shape[1:]) ** 0.5
                for name, change in zip(names, (step * (kept * size)).unbind(), strict=True):
                    factor = self._factors[name]
                    self.matrices[name].subtract_(change if factor == 1.0 else change * factor)

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
            f"{name}/momentum": value.numpy()
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


# --------------------------------------------------------------------- the scale of a float16 loss

# The scale of a loss in float16, in which small gradients would be 0 otherwise.
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

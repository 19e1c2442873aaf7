"""The optimisers: how the sum of the gradients changes the weights.

There are two ways, with the same result up to rounding. `HostOptimizer` uses Paddle's optimisers
and reads on the host whether the gradient is finite. On a GPU, reading stops the queue of work, and
Paddle's optimisers cannot leave out an update otherwise. So `DeviceOptimizer` has the rules itself,
and decides everything where the tensors are.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn

from transformer_mt.config.schema import TrainingConfig
from transformer_mt.model import operations
from transformer_mt.training.muon import Muon, layer_matrices
from transformer_mt.training.parallel import (
    ALONE,
    Bucket,
    Gradients,
    Processes,
    buckets_of,
)


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
    if config.optimizer != "muon":
        return None
    return Muon(layer_matrices(model), config.momentum, config.weight_decay, processes)


def _without(muon: Muon | None, parameters: list[Tensor]) -> list[Tensor]:
    """Returns the parameters that Muon does not update."""
    own = set() if muon is None else {id(matrix) for matrix in muon.matrices.values()}
    return [parameter for parameter in parameters if id(parameter) not in own]


class HostOptimizer:
    """Paddle's optimiser, for a model on a CPU. With Muon, it is the one of all other weights."""

    def __init__(self, config: TrainingConfig, model: nn.Layer, processes: Processes) -> None:
        self.config = config
        self.model = model
        self.muon = _make_muon(config, model, processes)
        others = _without(self.muon, model.parameters())
        common = {"learning_rate": 0.0, "parameters": others}
        if config.optimizer == "sgd":
            self.paddles = paddle.optimizer.Momentum(momentum=config.momentum, **common)
            return
        common |= {"beta1": config.betas[0], "beta2": config.betas[1], "epsilon": config.epsilon}
        if config.optimizer in ("adam", "muon"):
            # All parameters are updated at once, which takes a third of the time.
            self.paddles = paddle.optimizer.Adam(use_multi_tensor=True, **common)
        else:
            self.paddles = paddle.optimizer.AdamW(weight_decay=config.weight_decay, **common)

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
        norm = self._gradient_norm()
        if math.isfinite(norm) and math.isfinite(float(loss)):
            self._clip(norm)
            self.paddles.set_lr(rate)
            self.paddles.step()
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
        names = {parameter.name: name for name, parameter in self.model.named_parameters()}
        state = {} if self.muon is None else self.muon.arrays()
        for key, value in self.paddles.state_dict().items():
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
        names = {name: parameter.name for name, parameter in self.model.named_parameters()}
        state = {}
        while arrays:  # one by one, so that only one tensor is in memory twice
            key, value = arrays.popitem()
            name, slash, kind = key.rpartition("/")
            # Paddle numbers the tensors of each kind per parameter; there is only number 0.
            state[f"{names[name]}_{kind}_0" if slash else key] = paddle.to_tensor(value)
        self.paddles.set_state_dict(state)

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self.model.parameters() if p.grad is not None]

    def _gradient_norm(self) -> float:
        squares = [paddle.square(gradient).sum() for gradient in self._gradients()]
        return math.sqrt(float(paddle.stack(squares).sum())) if squares else 0.0

    def _clip(self, norm: float) -> None:
        """Scales the gradient down to clip_norm (Pascanu et al. 2013, arXiv 1211.5063)."""
        limit = self.config.clip_norm
        if limit is not None and norm > limit:
            with paddle.no_grad():  # otherwise Paddle refuses to write to some of them
                for gradient in self._gradients():
                    gradient.scale_(limit / norm)


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
        self.processes = processes if config.sharding else ALONE
        self.muon = _make_muon(config, model, processes)
        self.buckets: list[_FlatBucket] = []  # made by the first update, or by `load`
        self._kinds = ("velocity",) if config.optimizer == "sgd" else ("moment1", "moment2")

    def apply(
        self, gradients: Gradients, loss: Tensor, rate: float, scale: LossScale | None = None
    ) -> Tensor:
        """As `HostOptimizer.apply`, for a loss that `scale` has scaled before the backward pass.
        The scale learns whether the gradient was finite."""
        with paddle.no_grad():
            flat_gradients = gradients.sums()
            gradients.clear()
            self._make_buckets(gradients.buckets)
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
            for bucket, gradient in zip(self.buckets, clipped, strict=True):
                self._update(bucket, bucket.own_part(gradient), is_finite, rate)
        return norm.astype("float64")

    def state(self) -> dict[str, np.ndarray]:
        """As `HostOptimizer.state`, with the same names. With sharding, all processes call it."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        state = {} if self.muon is None else self.muon.arrays()
        for bucket in self.buckets:
            own_names = [names[id(parameter)] for parameter in bucket.bucket.parameters]
            for kind in self._kinds:
                parts = bucket.bucket.parts(bucket.whole(bucket.state[kind]))
                for name, part in zip(own_names, parts, strict=True):
                    state[f"{name}/{kind}"] = part.numpy()
            for kind, power in bucket.powers.items():
                state |= {f"{name}/{kind}": power.numpy().reshape([1]) for name in own_names}
        return state

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        """As `HostOptimizer.load`."""
        if not arrays:
            return
        if self.muon is not None:
            self.muon.load(arrays)
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        self._make_buckets(buckets_of(self.model))
        for bucket in self.buckets:
            parameters = bucket.bucket.parameters
            own_names = [names[id(parameter)] for parameter in parameters]
            for kind in self._kinds:
                flat = np.concatenate([arrays.pop(f"{name}/{kind}").ravel() for name in own_names])
                bucket.state[kind] = bucket.own_part(paddle.to_tensor(flat))
            for kind in bucket.powers:
                values = [arrays.pop(f"{name}/{kind}") for name in own_names]
                bucket.powers[kind] = paddle.to_tensor(values[0].reshape([]))

    def _make_buckets(self, buckets: list[Bucket]) -> None:
        if self.buckets:
            return
        powers = {}
        if self.config.optimizer != "sgd":
            # As in Paddle's checkpoints, these are the powers that the next update needs.
            powers = dict(zip(("beta1_pow_acc", "beta2_pow_acc"), self.config.betas, strict=True))
        if self.muon is not None:  # one bucket of all other weights
            parameters = [parameter for bucket in buckets for parameter in bucket.parameters]
            buckets = [Bucket(_without(self.muon, parameters))]
        self.buckets = [_FlatBucket(own, self.processes, self._kinds, powers) for own in buckets]

    def _update_matrices(
        self, buckets: list[Bucket], flat_gradients: list[Tensor], is_finite: Tensor, rate: float
    ) -> list[Tensor]:
        """Updates by Muon.

        Returns: the gradient of the one bucket of all other weights.
        """
        gradients = {
            id(parameter): part
            for bucket, flat in zip(buckets, flat_gradients, strict=True)
            for parameter, part in zip(bucket.parameters, bucket.parts(flat), strict=True)
        }
        own = {name: gradients[id(matrix)] for name, matrix in self.muon.matrices.items()}
        self.muon.update(own, rate, is_finite.astype("float32"))
        (others,) = (bucket.bucket for bucket in self.buckets)
        return [others.flat([gradients[id(parameter)] for parameter in others.parameters])]

    def _update(
        self, bucket: _FlatBucket, gradient: Tensor, is_finite: Tensor, rate: float
    ) -> None:
        """Updates a bucket by `gradient`, which is 0 if it was not finite. Then nothing changes."""
        kept = is_finite.astype("float32")
        weights = bucket.own_part(bucket.bucket.flat(bucket.bucket.parameters))
        if self.config.optimizer == "sgd":
            velocity = bucket.state["velocity"]
            change = gradient - (1.0 - self.config.momentum) * velocity
            velocity = bucket.state["velocity"] = velocity + kept * change
            bucket.set_weights(weights - rate * kept * velocity)
            return
        # Adam (Kingma and Ba 2015, arXiv 1412.6980, algorithm 1).
        beta1, beta2 = self.config.betas
        state, powers = bucket.state, bucket.powers
        first = state["moment1"] = paddle.lerp(state["moment1"], gradient, kept * (1.0 - beta1))
        second = state["moment2"] = paddle.lerp(
            state["moment2"], paddle.square(gradient), kept * (1.0 - beta2)
        )
        first_power, second_power = powers["beta1_pow_acc"], powers["beta2_pow_acc"]
        root = (second / (1.0 - second_power)).sqrt()
        change = first / (root + self.config.epsilon)
        step = kept * rate / (1.0 - first_power)
        if self.config.optimizer == "adamw":  # Loshchilov and Hutter 2019, arXiv 1711.05101
            weights = weights * (1.0 - kept * rate * self.config.weight_decay)
        bucket.set_weights(weights - step * change)
        for kind, beta in zip(powers, self.config.betas, strict=True):
            powers[kind] = powers[kind] * (kept * beta + (1.0 - kept))


class _FlatBucket:
    """A bucket with the optimiser's state of this process's part of it.

    Without sharding, the part is the whole bucket. With sharding, the flat tensors are cut into
    equal parts, one per process, after zeros have been added at the end if necessary.

    Attributes:
        state: the tensors of each kind, float32 (part,).
        powers: Adam's powers of beta, float32 scalars.
    """

    def __init__(
        self,
        bucket: Bucket,
        processes: Processes,
        kinds: tuple[str, ...],
        powers: dict[str, float],
    ) -> None:
        self.bucket = bucket
        self._processes = processes
        self._rank, self._count = processes.rank, processes.world_size
        self._part = -(-bucket.size // self._count)
        self.state = {kind: paddle.zeros([self._part]) for kind in kinds}
        self.powers = {
            kind: paddle.to_tensor(power, dtype="float32") for kind, power in powers.items()
        }

    def own_part(self, flat: Tensor) -> Tensor:
        """Returns this process's part of a flat tensor (size,): (part,)."""
        if self._count == 1:
            return flat
        padded = paddle.nn.functional.pad(flat, [0, self._part * self._count - self.bucket.size])
        return padded[self._rank * self._part : (self._rank + 1) * self._part]

    def whole(self, part: Tensor) -> Tensor:
        """Joins the parts of all processes: (size,)."""
        if self._count == 1:
            return part
        return self._processes.concat(part)[: self.bucket.size]

    def set_weights(self, part: Tensor) -> None:
        """Sets the parameters, of whose values `part` is this process's part."""
        values = self.bucket.parts(self.whole(part))
        for parameter, value in zip(self.bucket.parameters, values, strict=True):
            paddle.assign(value, output=parameter)


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

"""One update of the weights, by the sum of the gradients of its batches in all processes."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import paddle
from paddle import Tensor, nn

from transformer_mt import kernels
from transformer_mt.config.schema import Config
from transformer_mt.data.batches import Batch, Update
from transformer_mt.data.subword import Subwords
from transformer_mt.model import operations
from transformer_mt.model.adapters import merged
from transformer_mt.model.variants import build_model
from transformer_mt.training.optimizers import LossScale, make_optimizer
from transformer_mt.training.parallel import ALONE, Gradients, Processes, trained_parameters
from transformer_mt.training.schedule import learning_rate
from transformer_mt.training.selection import adapt, freeze
from transformer_mt.training.terms import make_objective
from transformer_mt.utils import signals
from transformer_mt.utils.errors import UserError, is_out_of_memory

# Several GPUs agree at every this many updates whether they stop, because the agreement is read on
# the host.
AGREE_EVERY = 10


@dataclass(frozen=True)
class Outcome:
    """The result of an update.

    Attributes:
        loss, nll: sums over its target tokens, in nats, with the weights before the update.
        gradient_norm: the norm of the whole gradient, before clipping.
        stopping: whether the update was abandoned because a process was asked to stop.
        unread: float64 (3,), the loss, nll and gradient norm while they are still on the device.
            `read` reads them.
    """

    loss: float = 0.0
    nll: float = 0.0
    gradient_norm: float = 0.0
    stopping: bool = False
    unread: Tensor | None = None

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)


def read(outcomes: list[Outcome]) -> list[Outcome]:
    """Returns the outcomes with their numbers, which are read from the device all at once."""
    tensors = [outcome.unread for outcome in outcomes if outcome.unread is not None]
    rows = iter(paddle.stack(tensors).tolist() if tensors else [])
    return [outcome if outcome.unread is None else Outcome(*next(rows)) for outcome in outcomes]


def seed_generators(*numbers: int) -> None:
    """Seeds the random generators of Paddle, NumPy and Python with `numbers`.

    Every update begins with this call, with (seed, step, rank). Dropout and everything else that is
    random in it is then the same in a resumed run, and checkpoints hold no state of generators.
    """
    words = np.random.SeedSequence(numbers).generate_state(3)
    paddle.seed(int(words[0]))
    np.random.seed(int(words[1]))
    random.seed(int(words[2]))


class Updater:
    """The model of a config with its objective and optimiser, which together update its weights.

    They are built on the device that Paddle is set to.
    """

    def __init__(self, config: Config, subwords: Subwords, processes: Processes = ALONE) -> None:
        self.config = config
        self.processes = processes
        training, sizes = config.training, config.model
        kernels.choose()
        # The same weights in every process, whatever was drawn before.
        paddle.seed(training.seed)
        self.model = build_model(sizes, subwords, training.recompute)
        if config.adapter.is_on:
            adapt(self.model, config.adapter)
        freeze(self.model, training.freeze)
        dtype = getattr(paddle, training.precision)
        operations.current.prepare(sizes.d_model // sizes.num_heads, sizes.d_model, dtype)
        self.objective = make_objective(config, self.model, subwords)
        self.gradients = Gradients(self.model, processes, training.gradient_sum_precision)
        self.optimizer = make_optimizer(training, self.model, processes)
        self.scale = LossScale() if training.precision == "float16" else None
        self.average = None if training.ema is None else MovingAverage(self.model, training.ema)
        # On a CPU, every number of an update is read at once.
        self.reads_at_once = operations.is_on_cpu(next(iter(self.model.parameters())))

    def apply(self, update: Update, step: int) -> Outcome:
        """Changes the weights once, as update number `step`, from 1.

        The loss is the mean per target token: its sum over the batches is divided by the number of
        target tokens of the whole update, without padding. If the loss or the gradient is not
        finite, the weights and the optimiser do not change. All processes reach the same result, so
        none waits for another that has ended.

        On a GPU, nothing is read on the host, so that the GPU never waits for it. The outcome is
        then still to be read (see `read`). Several GPUs agree at each AGREE_EVERY updates whether
        they stop, which is read.

        Raises:
            UserError: memory ran out.
        """
        seed_generators(self.config.training.seed, step, self.processes.rank)
        self.model.train()
        # 1. The gradients of all batches add up. A process that was asked to stop leaves out the
        #    rest of its batches, but still exchanges what the others wait for.
        may_stop = self.reads_at_once or not self.processes.connected or step % AGREE_EVERY == 0

        def is_asked_to_stop() -> bool:
            return may_stop and signals.pending() is not None

        losses = paddle.zeros([2], "float64")
        for batch in update.batches[:-1]:
            if not is_asked_to_stop():
                losses = losses + self._add_gradient(batch, update, step)
        with self.gradients.last_pass():
            for batch in update.batches[-1:]:  # a process may have no batch
                if not is_asked_to_stop():
                    losses = losses + self._add_gradient(batch, update, step)
        is_stopping = is_asked_to_stop()
        stopping = paddle.full([1], float(is_stopping), "float64")
        totals = self.processes.total(paddle.concat([losses, stopping]))
        if may_stop and self.processes.connected:
            is_stopping = float(totals[2]) > 0
        if is_stopping:
            self.gradients.clear()
            return Outcome(stopping=True)
        # 2. The gradients of all processes have been added up; they are clipped and applied.
        norm = self.optimizer.apply(self.gradients, totals[0], self.rate(step), self.scale)
        if self.average is not None:
            self.average.update(step)
        outcome = Outcome(unread=paddle.concat([totals[:2], norm.reshape([1])]))
        return read([outcome])[0] if self.reads_at_once else outcome

    def _add_gradient(self, batch: Batch, update: Update, step: int) -> Tensor:
        """Adds the gradient of a batch; returns its loss and nll, float64 (2,)."""
        try:
            # The backward pass is in the block, too, because recompute computes layers in it.
            with operations.current.in_precision(self.config.training.precision):
                loss, nll = self.losses(batch, step)
                mean = loss / update.target_tokens
                (mean if self.scale is None else mean * self.scale.value).backward()
        except Exception as error:
            if is_out_of_memory(error):
                raise UserError(self._out_of_memory(batch, step)) from None
            raise
        return paddle.stack([loss.detach(), nll.detach()]).astype("float64")

    def losses(self, batch: Batch, step: int | None = None) -> tuple[Tensor, Tensor]:
        """As `Objective.losses`, in the precision of the config."""
        with operations.current.in_precision(self.config.training.precision):
            return self.objective.losses(batch, step)

    @contextmanager
    def final_weights(self) -> Iterator[None]:
        """A block in which the model has the weights that are validated and saved. Adapters are
        added to the weights in it."""
        with (
            contextlib.nullcontext() if self.average is None else self.average.in_model(),
            merged(self.model),
        ):
            yield

    def state(self) -> dict[str, np.ndarray]:
        """Returns the state of the optimiser, and with training.ema the trained weights. With
        sharding, all processes call it."""
        return self.optimizer.state() | ({} if self.average is None else self.average.state())

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        """The inverse of `state`, for a model with the weights that were saved.

        Raises:
            KeyError: the state is that of another model.
        """
        if self.average is not None:
            self.average.load(arrays)
        self.optimizer.load(arrays)

    def rate(self, step: int) -> float:
        """Returns the learning rate of update number `step`."""
        return learning_rate(step, self.config.training, self.config.model.d_model)

    def _out_of_memory(self, batch: Batch, step: int) -> str:
        training = self.config.training
        rows, source_len = batch.source.shape
        return (
            f"out of memory at step {step}, with {rows} pairs of up to {source_len} and "
            f"{batch.target_input.shape[1]} subwords at once. Lower training.device_tokens "
            f"({training.device_tokens})"
            + ("" if training.recompute else " or set training.recompute: true")
            + ". If even a few pairs are too many, lower data.max_length "
            f"({self.config.data.max_length})"
        )


# Ends the names of the trained weights in the state, beside those of the optimiser.
TRAINED = "/trained"


class MovingAverage:
    """An average of the trained weights after each update, in which older ones count less and less.

    After update t, the average is d * average + (1 - d) * weights with
    d = min(decay, (1 + t) / (10 + t)), so that the random first weights are soon forgotten.
    """

    def __init__(self, model: nn.Layer, decay: float) -> None:
        self.decay = decay
        self._parameters = trained_parameters(model)
        self.restart()

    def restart(self) -> None:
        """Starts again from the weights that the model has now."""
        self._averages = {name: p.detach().clone() for name, p in self._parameters.items()}

    def update(self, step: int) -> None:
        """Counts the weights after update number `step`, from 1."""
        share = 1.0 - min(self.decay, (1 + step) / (10 + step))
        with paddle.no_grad():
            for name, parameter in self._parameters.items():
                average = self._averages[name]
                average.add_((parameter - average).scale_(share))

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """A block in which the model has the averages as its weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state(self) -> dict[str, np.ndarray]:
        """Returns the trained weights, by name. The averages are the weights of a checkpoint."""
        return {f"{name}{TRAINED}": p.numpy() for name, p in self._parameters.items()}

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        """Takes the averages from the model, and its trained weights from what `state` returned,
        which is removed from `arrays`.

        Raises:
            KeyError: the state is that of another model.
        """
        self.restart()
        for name, parameter in self._parameters.items():
            parameter.set_value(arrays.pop(f"{name}{TRAINED}"))

    def _swap(self) -> None:
        for name, parameter in self._parameters.items():
            trained = parameter.detach().clone()
            parameter.set_value(self._averages[name])
            self._averages[name] = trained

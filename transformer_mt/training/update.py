"""One update of the weights, by the sum of the gradients of its batches in all processes."""

import contextlib
import math
import random
import sys
from dataclasses import dataclass

import numpy as np
import paddle
from paddle import Tensor

from transformer_mt.config.schema import Config, TrainingConfig
from transformer_mt.data.batches import Batch, Update
from transformer_mt.runtime import signals
from transformer_mt.runtime.errors import UserError, is_out_of_memory
from transformer_mt.training.objective import Objective
from transformer_mt.training.processes import Processes
from transformer_mt.training.schedule import learning_rate


@dataclass(frozen=True)
class Outcome:
    """The result of an update.

    Attributes:
        loss, nll: sums over its target tokens, in nats, with the weights before the update.
        gradient_norm: the norm of the whole gradient, before clipping.
        stopping: whether the update was abandoned because a process was asked to stop.
    """

    loss: float = 0.0
    nll: float = 0.0
    gradient_norm: float = 0.0
    stopping: bool = False

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)


def make_optimizer(config: TrainingConfig, model: paddle.nn.Layer) -> paddle.optimizer.Optimizer:
    """Returns the optimiser of the config. Its learning rate is set before every update."""
    common = {"learning_rate": 0.0, "parameters": model.parameters()}
    if config.optimizer == "sgd":
        return paddle.optimizer.Momentum(momentum=config.momentum, **common)
    common |= {"beta1": config.betas[0], "beta2": config.betas[1], "epsilon": config.epsilon}
    if config.optimizer == "adam":
        return paddle.optimizer.Adam(**common)
    return paddle.optimizer.AdamW(weight_decay=config.weight_decay, **common)


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
    """A model with its objective and optimiser, which together update its weights.

    Args:
        objective: the objective of the model, with the interface of `training.objective.Objective`.
        total_steps: the number of updates of the whole run, which a schedule may depend on.
    """

    def __init__(
        self, config: Config, objective: Objective, total_steps: int, processes: Processes
    ) -> None:
        self.config = config
        self.objective = objective
        self.model = objective.model
        self.total_steps = total_steps
        self.processes = processes
        self.optimizer = make_optimizer(config.training, self.model)
        # Only float16 is so narrow that small gradients would vanish.
        self.scaler = paddle.amp.GradScaler(
            enable=config.training.precision == "float16", decr_every_n_nan_or_inf=1
        )

    def apply(self, update: Update, step: int) -> Outcome:
        """Changes the weights once, as update number `step`, from 1.

        The loss is the mean per target token: its sum over the batches is divided by the number of
        target tokens of the whole update, without padding. If the loss or the gradient is not
        finite, the weights and the optimiser do not change. All processes reach the same result, so
        none waits for another that has ended.

        Raises:
            UserError: memory ran out.
        """
        seed_generators(self.config.training.seed, step, self.processes.rank)
        self.model.train()
        # The gradients of all batches add up.
        loss_sum = nll_sum = 0.0
        for batch in update.batches:
            if signals.pending() is not None:
                break
            try:
                loss, nll = self.losses(batch, step)
                with self._precision():  # outside of it, the scaler switches itself off
                    scaled = self.scaler.scale(loss / update.target_tokens)
                scaled.backward()
            except Exception as error:
                if is_out_of_memory(error):
                    raise UserError(self._out_of_memory(batch, step)) from None
                raise
            loss_sum += float(loss)
            nll_sum += float(nll)
        loss_sum, nll_sum, stopping = self.processes.sum(
            loss_sum, nll_sum, signals.pending() is not None
        )
        if stopping:
            self.optimizer.clear_grad(set_to_zero=False)
            return Outcome(stopping=True)

        # The gradients of all processes add up, then they are clipped and applied.
        self.processes.sum_gradients(self.model)
        self.scaler.unscale_(self.optimizer)
        outcome = Outcome(loss_sum, nll_sum, self._gradient_norm())
        if outcome.is_finite:
            self._clip(outcome.gradient_norm)
        # An enabled scaler skips a step that is not finite by itself, and lowers its scale.
        if outcome.is_finite or self.scaler.is_enable():
            self.optimizer.set_lr(self.rate(step))
            self.scaler.step(self.optimizer)
        with contextlib.redirect_stdout(sys.stderr):  # Paddle may print a message
            self.scaler.update()
        self.optimizer.clear_grad(set_to_zero=False)
        return outcome

    def losses(self, batch: Batch, step: int | None = None) -> tuple[Tensor, Tensor]:
        """As `Objective.losses`, in the precision of the config."""
        with self._precision():
            return self.objective.losses(batch, step)

    def rate(self, step: int) -> float:
        """Returns the learning rate of update number `step`."""
        training = self.config.training
        return learning_rate(step, training, self.config.model.d_model, self.total_steps)

    def _precision(self) -> contextlib.AbstractContextManager:
        precision = self.config.training.precision
        if precision == "float32":
            return contextlib.nullcontext()
        return paddle.amp.auto_cast(dtype=precision, level="O1")

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self.model.parameters() if p.grad is not None]

    def _gradient_norm(self) -> float:
        squares = [paddle.square(gradient).sum() for gradient in self._gradients()]
        return math.sqrt(float(paddle.stack(squares).sum())) if squares else 0.0

    def _clip(self, norm: float) -> None:
        """Scales the gradient down to clip_norm (Pascanu et al. 2013, arXiv 1211.5063)."""
        limit = self.config.training.clip_norm
        if limit is not None and norm > limit:
            with paddle.no_grad():  # otherwise Paddle refuses to write to some of them
                for gradient in self._gradients():
                    gradient.scale_(limit / norm)

    def _out_of_memory(self, batch: Batch, step: int) -> str:
        training = self.config.training
        rows, source_len = batch.source.shape
        return (
            f"out of memory at step {step}, with {rows} pairs of up to {source_len} and "
            f"{batch.target_input.shape[1]} subwords at once. Lower training.device_tokens "
            f"({training.device_tokens}); gradients are then added up over more batches"
            + ("" if training.recompute else ", or set training.recompute: true")
            + ". If even a few pairs are too many, lower data.max_length "
            f"({self.config.data.max_length})"
        )

"""The processes of one training run: which one this is, and what they add up together."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from paddle import nn

from transformer_mt.runtime.errors import UserError, describe


@dataclass(frozen=True)
class Processes:
    """This process's place among those that train one model; alone, it is 0 of 1.

    Not connected, it does its share of the work and adds up nothing: a rehearsal, to be timed.
    """

    rank: int = 0
    world_size: int = 1
    connected: bool = False

    @classmethod
    def join(cls) -> Processes:
        """Joins the processes that Paddle's launcher started, if it started this one."""
        if int(os.environ.get("PADDLE_TRAINERS_NUM", "1")) == 1:
            return cls()
        paddle.distributed.init_parallel_env()
        return cls(paddle.distributed.get_rank(), paddle.distributed.get_world_size(), True)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum_gradients(self, model: nn.Layer) -> None:
        """Makes every process's gradients the sum over all of them, in one message."""
        if not self.connected:
            return
        parameters = list(model.parameters())
        for parameter in parameters:
            if parameter.grad is None:  # a process may have had no row of this update
                parameter.grad = paddle.zeros_like(parameter)
        flat = paddle.concat([parameter.grad.flatten() for parameter in parameters])
        paddle.distributed.all_reduce(flat)
        sizes = [int(np.prod(parameter.shape)) for parameter in parameters]
        for parameter, part in zip(parameters, paddle.split(flat, sizes), strict=True):
            parameter.grad = part.reshape(parameter.shape)

    def sum(self, *values: float) -> list[float]:
        """Sums over all processes."""
        if not self.connected:
            return list(values)
        total = paddle.to_tensor(values, dtype="float64")
        paddle.distributed.all_reduce(total)
        return total.tolist()

    def wait(self) -> None:
        """Returns when all processes have come here."""
        self.gather(None)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any of the processes."""
        return self.sum(flag)[0] > 0

    def gather_work(self, work: Callable[[], Any]) -> list[Any]:
        """What `work` returns in each process, by rank. If it fails in one, it fails in all: no
        process ends while others wait for it.

        Raises:
            UserError: it failed in another process; its message. This process's error is passed on.
        """
        value = failure = said = None
        try:
            value = work()
        except Exception as error:
            failure, said = error, describe(error)
        values = self.gather((value, said))
        if failure is not None:
            raise failure
        for _, others in values:
            if others is not None:
                raise UserError(others)
        return [value for value, _ in values]

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, by rank."""
        if not self.connected:
            return [value]
        values: list[Any] = []
        paddle.distributed.all_gather_object(values, value)
        return values

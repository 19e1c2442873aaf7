"""The processes of one training run: which of them this one is, and what they compute together."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from paddle import nn

from transformer_mt.runtime.errors import UserError, describe


def is_one_of_several() -> bool:
    """Returns whether Paddle's launcher has started this process as one of several."""
    return int(os.environ.get("PADDLE_TRAINERS_NUM", "1")) > 1


def own_device(device: str | None) -> str | None:
    """Returns the device of a process that Paddle's launcher has started; of several GPUs, each
    process has its own."""
    if device == "cpu" or not paddle.is_compiled_with_cuda():
        return device
    return f"gpu:{paddle.distributed.ParallelEnv().device_id}"


@dataclass(frozen=True)
class Processes:
    """This process's place among those that train one model. One that is alone is 0 of 1.

    If it is not connected, it does its share of the work, but nothing is added up over the
    processes. `train --check` measures the time of a step in this way.
    """

    rank: int = 0
    world_size: int = 1
    connected: bool = False

    @classmethod
    def join(cls) -> Processes:
        """Connects to the processes that Paddle's launcher has started with this one, if any."""
        if not is_one_of_several():
            return cls()
        paddle.distributed.init_parallel_env()
        return cls(paddle.distributed.get_rank(), paddle.distributed.get_world_size(), True)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum_gradients(self, model: nn.Layer) -> None:
        """Replaces the gradients of every process by their sum over all processes."""
        if not self.connected:
            return
        parameters = list(model.parameters())
        for parameter in parameters:
            if parameter.grad is None:  # a process may have had no row of this update
                parameter.grad = paddle.zeros_like(parameter)
        flat = paddle.concat([parameter.grad.flatten() for parameter in parameters])
        paddle.distributed.all_reduce(flat)  # one message for all
        sizes = [int(np.prod(parameter.shape)) for parameter in parameters]
        for parameter, part in zip(parameters, paddle.split(flat, sizes), strict=True):
            parameter.grad = part.reshape(parameter.shape)

    def sum(self, *values: float) -> list[float]:
        """Returns the sum of each value over all processes."""
        if not self.connected:
            return list(values)
        total = paddle.to_tensor(values, dtype="float64")
        paddle.distributed.all_reduce(total)
        return total.tolist()

    def any(self, flag: bool) -> bool:
        """Returns whether the flag is set in any process."""
        return self.sum(flag)[0] > 0

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all processes, by rank."""
        if not self.connected:
            return [value]
        values: list[Any] = []
        paddle.distributed.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        """Returns when all processes have called this."""
        self.gather(None)

    def gather_work(self, work: Callable[[], Any]) -> list[Any]:
        """Returns what `work` returns in each process, by rank.

        If it fails in one process, it fails in all, so that none ends while others wait for it.

        Raises:
            UserError: it failed in another process, with its message. An error of this process is
                passed on.
        """
        value = failure = None
        try:
            value = work()
        except Exception as error:
            failure = error
        gathered = self.gather((value, None if failure is None else describe(failure)))
        if failure is not None:
            raise failure
        for _, message in gathered:
            if message is not None:
                raise UserError(message)
        return [value for value, _ in gathered]

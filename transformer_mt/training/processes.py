"""The processes of a training run: the rank of this one, and communication between them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import paddle
from paddle import Tensor

from transformer_mt.utils.errors import UserError, describe


def is_one_of_several() -> bool:
    """Returns whether Paddle's launcher has started this process as one of several."""
    return int(os.environ.get("PADDLE_TRAINERS_NUM", "1")) > 1


def own_device(device: str | None) -> str | None:
    """Returns the device of a process that Paddle's launcher has started: `device`, or its own
    GPU."""
    if device == "cpu" or not paddle.is_compiled_with_cuda():
        return device
    return f"gpu:{paddle.distributed.ParallelEnv().device_id}"


@dataclass(frozen=True)
class Processes:
    """The processes that train one model, as one of them sees them. By default there is only one.

    A process that is not connected does its share of the work, but no results are exchanged.
    `train --check` measures the time per step in this way.
    """

    rank: int = 0
    world_size: int = 1
    connected: bool = False

    @classmethod
    def join(cls) -> Processes:
        """Connects to the other processes that Paddle's launcher has started, if there are any."""
        if not is_one_of_several():
            return cls()
        paddle.distributed.init_parallel_env()
        return cls(paddle.distributed.get_rank(), paddle.distributed.get_world_size(), True)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def total(self, values: Tensor) -> Tensor:
        """Returns the sum of the tensor over all processes. It stays on the device."""
        if self.connected:
            paddle.distributed.all_reduce(values)  # in place
        return values

    def sum(self, *values: float) -> list[float]:
        """Returns the sum of each value over all processes."""
        if not self.connected:
            return list(values)
        return self.total(paddle.to_tensor(values, dtype="float64")).tolist()

    def any(self, flag: bool) -> bool:
        """Returns whether `flag` is true in any process."""
        return self.sum(flag)[0] > 0

    def concat(self, values: Tensor) -> Tensor:
        """Joins the tensors of all processes along the first axis, in the order of their ranks.
        Without a connection, it repeats the tensor, so that the result has the same size."""
        parts = [values] * self.world_size
        if self.connected:
            parts = []
            paddle.distributed.all_gather(parts, values)
        return paddle.concat(parts)

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all processes, in the order of their ranks."""
        if not self.connected:
            return [value]
        values: list[Any] = []
        paddle.distributed.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        """Returns when all processes have called this."""
        self.gather(None)

    def gather_work(self, work: Callable[[], Any]) -> list[Any]:
        """Calls `work` in all processes; returns the results in the order of the ranks.

        If it fails in one process, all of them raise an error, so that none waits for one that has
        ended. An error of this process's `work` is raised again.

        Raises:
            UserError: `work` failed in another process; the message is that of the failure there.
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


# The only process of a run.
ALONE = Processes()

"""The processes of a training run: the rank of this one, and communication between them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn

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

    def any(self, flag: bool) -> bool:
        """Returns whether `flag` is true in any process."""
        return float(self.total(paddle.to_tensor([flag], dtype="float64"))) > 0

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

    def leave(self) -> None:
        """Returns when all processes have called this; in the first process, before the others.

        The first process holds the addresses of all, and Paddle 3.3.1 aborts it if it still runs
        when another one's connection breaks off.
        """
        self.wait()
        if self.connected and not self.is_first:
            time.sleep(HEAD_START)

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


# The seconds that the first process has to end before the others do. It takes some hundredths.
HEAD_START = 0.5
# The size of a bucket. A message of this size takes much longer than its start, and is still small
# enough that the first one leaves early in the backward pass.
BUCKET_BYTES = 25 * 2**20
FLOAT32_BYTES = 4


class Bucket:
    """Parameters whose values or gradients are handled together, as one flat tensor."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self.parameters = parameters
        self._sizes = [int(np.prod(parameter.shape)) for parameter in parameters]
        self.size = sum(self._sizes)

    def flat(self, tensors: list[Tensor]) -> Tensor:
        """Joins one tensor per parameter, each of its shape: floating (size,)."""
        return paddle.concat([tensor.reshape([-1]) for tensor in tensors])

    def parts(self, flat: Tensor) -> list[Tensor]:
        """The inverse of `flat`."""
        parts = paddle.split(flat, self._sizes) if len(self._sizes) > 1 else [flat]
        return [
            part.reshape(parameter.shape)
            for parameter, part in zip(self.parameters, parts, strict=True)
        ]


class DividedBucket(Bucket):
    """A bucket whose flat tensors are divided among processes, with the optimiser's state of this
    process's part.

    Zeros are added at the end of a flat tensor, so that all parts have the same size. With one
    process, its part is the whole.

    Attributes:
        state: the optimiser's tensors of each kind, float32 (part,).
    """

    def __init__(
        self, parameters: list[Tensor], processes: Processes, kinds: Sequence[str]
    ) -> None:
        super().__init__(parameters)
        self._processes = processes
        self._part = -(-self.size // processes.world_size)
        self.state = {kind: paddle.zeros([self._part]) for kind in kinds}

    def own_part(self, flat: Tensor) -> Tensor:
        """Returns this process's part of a flat tensor (size,): (part,)."""
        rank, count = self._processes.rank, self._processes.world_size
        if count == 1:
            return flat
        padded = F.pad(flat, [0, self._part * count - self.size])
        return padded[rank * self._part : (rank + 1) * self._part]

    def whole(self, part: Tensor) -> Tensor:
        """Joins the parts of all processes: (size,)."""
        if self._processes.world_size == 1:
            return part
        return self._processes.concat(part)[: self.size]

    def set_weights(self, part: Tensor) -> None:
        """Sets the parameters, of whose values `part` is this process's part."""
        for parameter, value in zip(self.parameters, self.parts(self.whole(part)), strict=True):
            paddle.assign(value, output=parameter)


def trained_parameters(model: nn.Layer) -> dict[str, Tensor]:
    """Returns the parameters of a model that are not frozen, by their names."""
    return {name: p for name, p in model.named_parameters() if not p.stop_gradient}


def buckets_of(model: nn.Layer) -> list[Bucket]:
    """Divides the trained parameters of a model into buckets of at least BUCKET_BYTES, except for
    the last.

    The last parameters come first, because the backward pass computes their gradients first.
    """
    groups: list[list[Tensor]] = [[]]
    size = 0
    for parameter in reversed(trained_parameters(model).values()):
        if size >= BUCKET_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(parameter)
        size += FLOAT32_BYTES * int(np.prod(parameter.shape))
    return [Bucket(group) for group in groups]


class Gradients:
    """The gradients of a model's trained parameters, which add up over batches and over processes.

    The sum of a bucket over the processes starts as soon as the last backward pass of an update has
    completed its gradients, so a GPU sends it while the backward pass goes on (Li et al. 2020,
    arXiv 2006.15704, section 3.2.3). All processes send the buckets in the same order. On a CPU,
    Paddle sends a bucket before the backward pass continues.

    Args:
        precision: the dtype in which gradients are sent and added up, "float32" or "bfloat16".
    """

    def __init__(self, model: nn.Layer, processes: Processes, precision: str = "float32") -> None:
        self.buckets = buckets_of(model)
        self._parameters = list(trained_parameters(model).values())
        self._processes = processes
        self._precision = precision
        self._sums: list[Tensor] = []  # of the first buckets, in their order
        self._tasks: list[Any] = []  # of the messages that are on their way
        self._is_last_pass = False
        self._error: Exception | None = None  # of a message that was sent in the backward pass
        self._missing = [0] * len(self.buckets)
        if processes.connected:
            for number, bucket in enumerate(self.buckets):
                for parameter in bucket.parameters:
                    # It is called when the gradient of the parameter is complete.
                    parameter._register_backward_hook(partial(self._completed, number))

    @contextmanager
    def last_pass(self) -> Iterator[None]:
        """A block that holds the last backward pass of an update, or nothing if this process has no
        batch. All processes enter it once per update; then `sums` or `sum_in_place` follows."""
        self._missing = [len(bucket.parameters) for bucket in self.buckets]
        self._is_last_pass = self._processes.connected
        try:
            yield
            if self._error is not None:
                raise self._error
            if self._is_last_pass:
                self._send_the_rest()  # of parameters without a gradient
        finally:
            self._is_last_pass = False

    def sums(self) -> list[Tensor]:
        """Returns the sum over all processes of the gradients of each bucket, float32 (size,)."""
        self._send_the_rest()  # one process alone sends nothing; this makes its flat tensors
        for task in self._tasks:
            task.wait()  # on a GPU, its queue waits, not this process
        sums, self._sums, self._tasks = self._sums, [], []
        return sums if self._precision == "float32" else [s.astype("float32") for s in sums]

    def sum_in_place(self) -> None:
        """Replaces the gradients of the parameters by their sums over all processes. A parameter
        without a gradient gets zeros, because Paddle's Adam fails if only some have one. Layer
        dropout can leave out a layer."""
        if not self._processes.connected:
            for parameter in self._parameters:
                if parameter.grad is None:
                    parameter.grad = paddle.zeros_like(parameter)
            return
        for bucket, flat in zip(self.buckets, self.sums(), strict=True):
            for parameter, part in zip(bucket.parameters, bucket.parts(flat), strict=True):
                parameter.grad = part

    def clear(self) -> None:
        """Deletes the gradients, and their sums if those were not used."""
        for task in self._tasks:
            task.wait()
        self._sums, self._tasks = [], []
        for parameter in self._parameters:
            parameter.clear_gradient(set_to_zero=False)

    def _completed(self, number: int) -> None:
        if not self._is_last_pass or self._error is not None:
            return
        self._missing[number] -= 1
        try:
            while len(self._sums) < len(self.buckets) and self._missing[len(self._sums)] == 0:
                self._send(self.buckets[len(self._sums)])
        except Exception as error:
            # Another process has ended. Paddle's backward pass, which calls this, would replace the
            # error by one of its own that says nothing.
            self._error = error

    def _send_the_rest(self) -> None:
        for bucket in self.buckets[len(self._sums) :]:
            self._send(bucket)

    def _send(self, bucket: Bucket) -> None:
        with paddle.no_grad():
            flat = bucket.flat(
                [
                    paddle.zeros_like(parameter) if parameter.grad is None else parameter.grad
                    for parameter in bucket.parameters
                ]
            )
            if self._processes.connected:
                if self._precision != "float32":
                    flat = flat.astype(self._precision)
                self._tasks.append(paddle.distributed.all_reduce(flat, sync_op=False))
            self._sums.append(flat)

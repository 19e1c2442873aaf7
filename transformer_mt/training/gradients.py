"""The gradients of a model, in buckets, and their sums over the processes of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn

from transformer_mt.training.processes import Processes

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


def buckets_of(model: nn.Layer) -> list[Bucket]:
    """Divides the parameters of a model into buckets of at least BUCKET_BYTES, except for the last.

    The last parameters come first, because the backward pass computes their gradients first.
    """
    groups: list[list[Tensor]] = [[]]
    size = 0
    for parameter in reversed(list(model.parameters())):
        if size >= BUCKET_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(parameter)
        size += FLOAT32_BYTES * int(np.prod(parameter.shape))
    return [Bucket(group) for group in groups]


class Gradients:
    """The gradients of a model, which add up over batches and over processes.

    The sum of a bucket over the processes starts as soon as the last backward pass of an update has
    completed its gradients, so a GPU sends it while the backward pass goes on (Li et al. 2020,
    arXiv 2006.15704, section 3.2.3). All processes send the buckets in the same order. On a CPU,
    Paddle sends a bucket before the backward pass continues.

    Args:
        precision: the dtype in which gradients are sent and added up, "float32" or "bfloat16".
    """

    def __init__(self, model: nn.Layer, processes: Processes, precision: str = "float32") -> None:
        self.buckets = buckets_of(model)
        self._parameters = list(model.parameters())
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

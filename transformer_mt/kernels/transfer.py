"""Copies batches to the GPU one update ahead.

On a GPU, `paddle.to_tensor` waits until all work that was queued before is done. (According to its
source, Paddle copies with cudaMemcpy in CUDA's default stream, which waits for the stream that
Paddle computes in. No GPU has been measured.) Therefore arrays are first copied to pinned memory,
from which a GPU copies by itself while Python goes on. The arrays of the next update are sent
before the current update is queued, in a stream of their own, so they arrive while it is computed.

paddle.io.DataLoader would copy like this, too. But in Paddle 3.3.1, if reading raises an error in
its thread, the training waits for ever instead of ending with this error.
"""

from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import paddle
from paddle import Tensor

from transformer_mt.data.batches import Batch, Update

T = TypeVar("T")
# The arrays of a batch that are read by objectives as they are.
SENT = ("source", "target_input", "alignment")


class SentArray(np.ndarray):
    """An array that has been sent to the device. It is read-only, so that both stay the same.

    Attributes:
        tensor: its copy on the device. Arrays that are computed from this one have none.
    """

    tensor: Tensor | None = None


def sent_ahead(
    updates: Generator[tuple[T, Update]],
    send: Callable[[list[np.ndarray]], tuple[list[Tensor], Callable[[], None]]],
) -> Generator[tuple[T, Update]]:
    """Yields the items of `updates`, of which one more has been sent than has been yielded.

    An error of reading or sending is raised when its item is due. Closing closes `updates`.

    Args:
        send: begins to copy arrays to the device. It returns the tensors, and a function that is
            called before they are used.
    """
    with closing(updates):
        waiting = None
        try:
            for item, update in updates:
                due, waiting = waiting, (item, *_sent(update, send))
                if due is not None:
                    yield _received(*due)
        except Exception:
            if waiting is not None:
                yield _received(*waiting)
            raise
        else:
            if waiting is not None:
                yield _received(*waiting)
        finally:
            # If the caller stops early, the memory of the tensors is used again after the copies.
            if waiting is not None:
                _received(*waiting)


def _received(item: T, update: Update, receive: Callable[[], None]) -> tuple[T, Update]:
    receive()
    return item, update


def _sent(
    update: Update,
    send: Callable[[list[np.ndarray]], tuple[list[Tensor], Callable[[], None]]],
) -> tuple[Update, Callable[[], None]]:
    """Returns the update with arrays that have been sent, and what to call before they are used."""
    arrays = [
        {name: array for name in SENT if (array := getattr(batch, name)) is not None}
        for batch in update.batches
    ]
    tensors, receive = send([array for own in arrays for array in own.values()])
    remaining = iter(tensors)
    batches: list[Batch] = []
    for batch, own in zip(update.batches, arrays, strict=True):
        sent: dict[str, Any] = {n: _with(array, next(remaining)) for n, array in own.items()}
        batches.append(replace(batch, **sent))
    return replace(update, batches=batches), receive


def _with(array: np.ndarray, tensor: Tensor) -> SentArray:
    view = array.view(SentArray)
    view.tensor = tensor
    view.flags.writeable = False
    return view


class Copies:
    """Copies from pinned memory to the current GPU.

    All methods are called by the thread that trains, because the stream that Paddle computes in is
    one setting of the whole process.

    - Pinned memory is kept until its copy is done, which an event after the copy says. Otherwise
      Paddle could give it to the next array while the GPU still reads it.
    - The stream of copies first waits for the stream of computation, as far as that has been
      queued. So the memory that Paddle gives a tensor is no longer used by an operation that was
      queued before the memory was freed.
    - The stream of computation waits for the copies before it uses the tensors. So their memory,
      when it is freed, is given to operations that come after the copies.
    """

    def __init__(self) -> None:
        self._stream = paddle.device.Stream()
        # Pinned arrays, and an event after their copies; the oldest first.
        self._pinned: deque[tuple[paddle.device.Event, list[Tensor]]] = deque()

    def now(self, array: np.ndarray) -> Tensor:
        """Copies an array within the stream of computation."""
        (tensor,) = self._copied([array], paddle.device.current_stream())
        return tensor

    def ahead(self, arrays: list[np.ndarray]) -> tuple[list[Tensor], Callable[[], None]]:
        """As `send` of `sent_ahead`: copies arrays within the stream of copies."""
        self._stream.wait_stream(paddle.device.current_stream())
        with paddle.device.stream_guard(self._stream):
            tensors = self._copied(arrays, self._stream)
        done = self._pinned[-1][0]
        return tensors, lambda: paddle.device.current_stream().wait_event(done)

    def _copied(self, arrays: list[np.ndarray], stream: paddle.device.Stream) -> list[Tensor]:
        while self._pinned and self._pinned[0][0].query():  # this waits for nothing
            self._pinned.popleft()
        place = paddle.CUDAPinnedPlace()
        pinned = [paddle.to_tensor(np.asarray(array), place=place) for array in arrays]
        tensors = [array.cuda(blocking=False) for array in pinned]
        self._pinned.append((stream.record_event(), pinned))
        return tensors

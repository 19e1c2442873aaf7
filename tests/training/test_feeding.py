"""Arrays on their way to the device. The copy to a GPU is played by one on the CPU."""

import gc
import threading
from collections import namedtuple
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import paddle
import pytest

from tests.device_path import counted_host_reads
from tests.small_trainers import assert_same_weights, trainer_of
from transformer_mt import kernels
from transformer_mt.data.batches import Batch, Update, read_ahead
from transformer_mt.kernels.cpu import CpuOperations
from transformer_mt.kernels.gpu import GpuOperations
from transformer_mt.kernels.transfer import sent_ahead
from transformer_mt.model import operations
from transformer_mt.model.operations import to_tensor
from transformer_mt.training import loop
from transformer_mt.training.folder import RunDirectory


class FedAhead(CpuOperations):
    """Sends arrays as to a GPU, and computes as on a CPU."""

    _copies = GpuOperations._copies
    to_tensor = GpuOperations.to_tensor
    sent_ahead = GpuOperations.sent_ahead


def update_of(number: int) -> Update:
    """An update of two batches that hold a number."""
    array = np.full((2, 3), number)
    batches = [Batch(array + 10 * i, array, array, 6) for i in range(2)]
    return Update([batches[0], replace(batches[1], alignment=np.ones((2, 3, 3), "float32"))], 12)


class Sender:
    """Copies on the CPU, and keeps what happened in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def __call__(self, arrays):
        number = int(arrays[1][0, 0])
        self.events.append(("sent", number))
        return [paddle.to_tensor(a) for a in arrays], lambda: self.events.append(("due", number))


def test_each_update_is_sent_before_the_one_before_it_is_trained_on():
    operations.use(FedAhead())
    send = Sender()
    for item, update in sent_ahead(read_ahead(update_of, range(4)), send):
        send.events.append(("trained", item))
        assert update.target_tokens == 12 and update.batches[1].target_tokens == 6
        for i, batch in enumerate(update.batches):
            assert (batch.source == item + 10 * i).all()
            for array in (batch.source, batch.target_input, batch.alignment):
                if array is not None:
                    assert to_tensor(array) is array.tensor
                    np.testing.assert_array_equal(array.tensor.numpy(), array)
    # One ahead, because each takes memory.
    order = ["sent 0", "sent 1", "due 0", "trained 0", "sent 2", "due 1", "trained 1"]
    order += ["sent 3", "due 2", "trained 2", "due 3", "trained 3"]
    assert [f"{what} {number}" for what, number in send.events[:12]] == order


@pytest.mark.parametrize("where", ["reading", "sending"])
def test_an_error_comes_at_its_turn(where):
    before = threading.active_count()
    send = Sender()

    def read(number: int) -> Update:
        if where == "reading" and number == 3:
            raise ZeroDivisionError
        return update_of(number)

    def sending(arrays):
        if where == "sending" and arrays[1][0, 0] == 3:
            raise ZeroDivisionError
        return send(arrays)

    seen = []
    with pytest.raises(ZeroDivisionError):
        for item, _ in sent_ahead(read_ahead(read, range(9)), sending):
            seen.append(item)
    assert seen == [0, 1, 2] and threading.active_count() == before


def test_leaving_early_leaves_no_thread_and_no_copy_unawaited():
    before = threading.active_count()
    send = Sender()
    updates = sent_ahead(read_ahead(update_of, range(100)), send)
    for item, _ in updates:
        if item == 3:
            break
    updates.close()
    gc.collect()
    assert threading.active_count() == before
    sent, due = ({n for what, n in send.events if what == kind} for kind in ("sent", "due"))
    assert sent == due == {0, 1, 2, 3, 4}


# ---- The GPU's own lines, with streams that write down what they are asked ----


class Device:
    """Plays a GPU: `log` holds what was asked of it, and `done` which events are over."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.log: list[tuple] = []
        self.done: set[int] = set()
        self.events = 0
        self.computing, self.copying = Stream(self, "computing"), Stream(self, "copying")
        self.current = self.computing

        @contextmanager
        def guard(stream):
            before, self.current = self.current, stream
            yield
            self.current = before

        def cuda(tensor, device_id=None, blocking=True):
            self.log.append(("copy", self.current.name, blocking))
            return tensor.clone()

        # With these arrays, everything else is computed as on a CPU.
        patch.setattr(kernels, "choose", lambda: operations.use(FedAhead()))
        kernels.choose()
        patch.setattr(paddle.device, "Stream", lambda: self.copying)
        patch.setattr(paddle.device, "current_stream", lambda: self.current)
        patch.setattr(paddle.device, "stream_guard", guard)
        patch.setattr(paddle, "CUDAPinnedPlace", paddle.CPUPlace)
        patch.setattr(paddle.Tensor, "cuda", cuda)


class Stream(namedtuple("Stream", "device name")):
    def record_event(self):
        self.device.events += 1
        self.device.log.append(("record", self.name))
        number = self.device.events
        return namedtuple("Event", "number query")(number, lambda: number in self.device.done)

    def wait_event(self, event):
        self.device.log.append(("wait", self.name, event.number))

    def wait_stream(self, stream):
        self.device.log.append(("wait", self.name, stream.name))


@pytest.fixture
def gpu(monkeypatch):
    return Device(monkeypatch)


def test_the_two_streams_wait_for_each_other(gpu):
    """And no tensor is read on the host."""
    with counted_host_reads() as reads:
        arrays = [np.arange(3), np.ones((2, 2), "float32")]
        tensors, receive = operations.current._copies.ahead(arrays)
    copy = ("copy", "copying", False)
    expected = [("wait", "copying", "computing"), copy, copy, ("record", "copying")]
    assert gpu.log == expected and gpu.current is gpu.computing and not sum(reads.values())
    receive()
    assert gpu.log[len(expected) :] == [("wait", "computing", 1)]
    assert [tensor.dtype for tensor in tensors] == [paddle.int64, paddle.float32]
    assert tensors[0].tolist() == [0, 1, 2]
    # What is drawn in the step is copied in the stream of computation.
    gpu.log.clear()
    assert to_tensor(np.arange(4) == 2).tolist() == [False, False, True, False]
    assert gpu.log == [("copy", "computing", False), ("record", "computing")]


def test_pinned_memory_is_kept_until_its_copy_is_done(gpu):
    copies = operations.current._copies
    for number in range(4):
        copies.now(np.array([number]))
    kept = [[int(array) for array in arrays] for _, arrays in copies._pinned]
    assert kept == [[0], [1], [2], [3]]
    gpu.done |= {1, 3}  # 2 is not done, so what was copied after it is kept, too
    copies.now(np.array([4]))
    assert [event.number for event, _ in copies._pinned] == [2, 3, 4, 5]
    gpu.done |= {2}
    copies.now(np.array([5]))
    assert [event.number for event, _ in copies._pinned] == [4, 5, 6]


@pytest.mark.parametrize(
    "sections",
    [
        {"guided_attention": {"by": "diagonal"}},
        {"scheduled_sampling": {"decay": "linear", "k": 0.5}},
        {"model": {"non_autoregressive": "length", "dropout": 0.1}},
    ],
    ids=str,
)
def test_a_run_that_is_fed_ahead_is_the_same(tmp_path, monkeypatch, sections):
    """The whole loop of training, with the same weights at its end to the last bit."""
    trained = []
    for fed in (False, True):
        with monkeypatch.context() as patch:
            # Both compute with the same operations.
            patch.setattr(kernels, "choose", lambda: operations.use(CpuOperations()))
            device = Device(patch) if fed else None
            folder = tmp_path / str(fed)
            training = {"max_steps": 5, "save_every": 5}
            trainer = trainer_of(folder, training=training, **sections)
            patch.setattr(loop.Trainer, "_validate_and_save", lambda self: None)
            directory = RunDirectory(folder / "model")
            directory.claim()
            trainer.start()
            trainer.run(directory)
            directory.release()
            trained.append(trainer)
    assert ("copy", "copying", False) in device.log and ("copy", "computing", False) in device.log
    assert_same_weights(*trained)

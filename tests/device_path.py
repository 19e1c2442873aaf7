"""Running the code for a GPU on a CPU, and counting how often it reads tensors on the host."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import paddle
import pytest

from transformer_mt import kernels
from transformer_mt.model import operations

# Everything that copies the values of a tensor to the host. On a GPU, each of them waits until all
# work that was queued before is done.
READS = [
    *("__array__", "__bool__", "__complex__", "__dlpack__", "__float__", "__format__", "__index__"),
    *(
        "__int__",
        "__long__",
        "__nonzero__",
        "__repr__",
        "__str__",
        "cpu",
        "item",
        "numpy",
        "tolist",
    ),
]


def use_device_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the program treat every tensor as if it were on a GPU. Paddle still computes on the
    CPU."""
    monkeypatch.setattr(operations, "is_on_cpu", lambda x: False)
    monkeypatch.setattr(kernels, "choose", lambda: None)
    operations.use(operations.PLAIN)


@contextmanager
def counted_host_reads() -> Iterator[Counter[str]]:
    """Counts the reads of tensors on the host within the block, by the name of the method."""
    counts: Counter[str] = Counter()
    depth = 0

    def counting(name, method):
        def read(self, *args, **options):
            nonlocal depth
            counts[name] += not depth  # item() calls numpy(), which is one read
            depth += 1
            try:
                return method(self, *args, **options)
            finally:
                depth -= 1

        return read

    with pytest.MonkeyPatch.context() as patch:
        for name in READS:
            patch.setattr(paddle.Tensor, name, counting(name, getattr(paddle.Tensor, name)))
        yield counts

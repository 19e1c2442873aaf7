"""Faster ways to compute what the model, the losses and the search compute, with the same results.

`choose` decides once which of them a process uses.
"""

import paddle

from transformer_mt.kernels import onednn
from transformer_mt.model import operations
from transformer_mt.utils import device as devices
from transformer_mt.utils.errors import UsageError


def choose() -> None:
    """Chooses the operations of all models for the device that Paddle is set to."""
    if paddle.get_device() == "cpu":
        from transformer_mt.kernels.cpu import CpuOperations
        from transformer_mt.kernels.cpu_onednn import OneDnnOperations

        library = onednn.library()
        operations.use(CpuOperations() if library is None else OneDnnOperations(library))
    else:
        from transformer_mt.kernels.gpu import GpuOperations

        operations.use(GpuOperations())


def cpu_products() -> str:
    """Says what computes the matrix products on a CPU, and whether bfloat16 is one of its
    precisions."""
    library = onednn.library()
    if library is None:
        return f"Paddle's own ({onednn.problem()})"
    without = "" if library.has_bfloat16 else "out"
    return f"oneDNN {library.version}, with{without} bfloat16"


def require_precision(precision: str, device: str) -> None:
    """Checks that a device can train in a precision: float32, bfloat16 or float16.

    Raises:
        UsageError: it cannot.
    """
    if device != "cpu":
        devices.require_precision(precision, device)
    elif precision == "float16":
        raise UsageError("training.precision: float16 needs a GPU")
    elif precision == "bfloat16":
        library = onednn.library()
        if library is None:
            raise UsageError(
                f"training.precision: bfloat16 on a CPU needs oneDNN ({onednn.problem()})"
            )
        if not library.has_bfloat16:
            raise UsageError(
                "training.precision: bfloat16 needs a GPU or a processor with AVX512_BF16 or AMX"
            )

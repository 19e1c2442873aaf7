"""Which device Paddle computes on."""

from __future__ import annotations

import ctypes
import os
import re

from transformer_mt.runtime.errors import UsageError

# Of glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def use(name: str | None) -> str:
    """Makes `name` (cpu, gpu, gpu:1; None: a GPU where there is one) Paddle's device.

    Returns the name of the device in use.

    Raises:
        UsageError: there is no such device.
    """
    import paddle

    gpus = paddle.device.cuda.device_count() if paddle.is_compiled_with_cuda() else 0
    if name is None:
        name = "gpu" if gpus else "cpu"
    match = re.fullmatch(r"(cpu)|gpu(?::(\d+))?", name)
    if not match:
        raise UsageError(f"--device: {name!r}: expected cpu, gpu or gpu:N")
    if not match[1] and int(match[2] or 0) >= gpus:
        raise UsageError(
            f"--device: {name}: this Paddle sees {gpus} GPUs"
            + ("" if gpus else "; it may be the CPU package (see the README on GPUs)")
        )
    paddle.set_device(name)
    if name == "cpu":
        _keep_freed_memory()
    return name


def processes(wanted: int | None, device: str) -> int:
    """How many processes train: as many as wanted, else one for each GPU, or for each CPU core.

    Raises:
        UsageError: more are wanted than there are GPUs.
    """
    if device == "cpu":
        return wanted or len(os.sched_getaffinity(0))
    import paddle

    gpus = paddle.device.cuda.device_count()
    if (wanted or 1) > gpus:
        raise UsageError(f"training.devices: {wanted}: this machine has {gpus} GPUs")
    # A GPU named by its number is the one to use.
    return wanted or (1 if ":" in device else gpus)


def require_precision(precision: str, device: str) -> None:
    """
    Raises:
        UsageError: the device does not compute in this precision.
    """
    import paddle

    if precision == "float32":
        return
    if device == "cpu":
        raise UsageError(f"training.precision: {precision} needs a GPU; a CPU trains in float32")
    supported = {
        "bfloat16": paddle.amp.is_bfloat16_supported,
        "float16": paddle.amp.is_float16_supported,
    }
    if not supported[precision](device.partition(":")[0]):
        raise UsageError(f"training.precision: this GPU has no {precision}")


def _keep_freed_memory() -> None:
    """Tells glibc to reuse large blocks instead of giving them back to the system each time.

    A step allocates and frees tensors of many megabytes, and getting their pages anew from the
    kernel takes a good part of it. Elsewhere than on glibc this does nothing.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt") and hasattr(libc, "gnu_get_libc_version"):
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)

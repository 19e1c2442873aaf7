"""The device that Paddle computes on.

The package imports this module before Paddle is configured, so it imports Paddle only in functions.
"""

import ctypes
import os
import platform
import re
from itertools import takewhile

from transformer_mt.utils.errors import UsageError

# Constants of glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
CPUINFO = "/proc/cpuinfo"


def use(name: str | None) -> str:
    """Selects the device that Paddle computes on.

    Args:
        name: cpu, gpu, or gpu:N; None: a GPU if there is one, else the CPU.

    Returns: the name of the selected device.

    Raises:
        UsageError: there is no such device.
    """
    import paddle

    gpus = _gpu_count()
    if name is None:
        name = "gpu" if gpus else "cpu"
    match = re.fullmatch(r"(cpu)|gpu(?::(\d+))?", name)
    if not match:
        raise UsageError(f"--device: {name!r}: expected cpu, gpu or gpu:N")
    if not match[1] and int(match[2] or 0) >= gpus:
        raise UsageError(
            f"--device: {name}: this Paddle sees {gpus} GPUs"
            + ("" if gpus else "; it may be the CPU package (see docs/gpus.md)")
        )
    paddle.set_device(name)
    if name == "cpu":
        _keep_freed_memory()
    return name


def processes(requested: int | None, device: str) -> int:
    """Returns the number of processes to train with: the requested one; by default one per GPU, or
    one per CPU core.

    Raises:
        UsageError: there are fewer GPUs than requested.
    """
    if device == "cpu":
        return requested or len(os.sched_getaffinity(0))
    gpus = _gpu_count()
    if (requested or 1) > gpus:
        raise UsageError(f"training.devices: {requested}: this machine has {gpus} GPUs")
    # A device named gpu:N means this single GPU.
    return requested or (1 if ":" in device else gpus)


def description() -> dict[str, str | int | float]:
    """Returns what the selected device is: its name, and the number of CPU cores and the memory of
    this machine."""
    import paddle

    device = paddle.get_device()
    name = processor_name()
    if device.startswith("gpu"):
        name = paddle.device.cuda.get_device_name()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "device": device,
        "device_name": name,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory / 1e9, 1),
    }


def free_memory() -> int:
    """Returns the bytes of the selected GPU's memory that this process can use: what is free there,
    and what Paddle keeps of freed tensors to use it again."""
    import paddle

    free, _ = paddle.cuda.mem_get_info()
    own = paddle.device.cuda
    return free + own.memory_reserved() - own.memory_allocated()


def require_precision(precision: str, device: str) -> None:
    """Checks that a GPU can train in a precision: float32, bfloat16 or float16.

    Raises:
        UsageError: it cannot.
    """
    import paddle

    if precision == "float32":
        return
    is_supported = getattr(paddle.amp, f"is_{precision}_supported")
    if not is_supported(device.partition(":")[0]):
        raise UsageError(f"training.precision: this GPU has no {precision}")


def _gpu_count() -> int:
    import paddle

    return paddle.device.cuda.device_count() if paddle.is_compiled_with_cuda() else 0


def _keep_freed_memory() -> None:
    """Makes glibc keep large freed blocks for reuse instead of returning them to the system.

    Each step allocates and frees tensors of many megabytes, and getting their pages from the kernel
    again takes a considerable part of its time. With another C library this does nothing.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt") and hasattr(libc, "gnu_get_libc_version"):
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def processor_name() -> str:
    """Returns the name of the processor; its architecture if Linux does not tell."""
    return _facts().get("model name") or platform.machine()


def is_amd_with_avx2() -> bool:
    """Returns whether it is a processor of AMD that has AVX2; False if Linux does not tell."""
    return _facts().get("vendor_id") == "AuthenticAMD" and "avx2" in processor_flags()


def processor_flags() -> set[str]:
    """Returns the names of what the processor can do, such as "avx2"; none if Linux does not
    tell."""
    return set(_facts().get("flags", "").split())


def _facts() -> dict[str, str]:
    """Returns what /proc/cpuinfo says of the first processor."""
    try:
        with open(CPUINFO, encoding="utf-8") as file:
            lines = list(takewhile(str.strip, file))  # an empty line ends each processor
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {key.strip(): value.strip() for key, _, value in pairs}

"""The device that is checked, its versions, and the precision that it can reach."""

from __future__ import annotations

import contextlib
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
import paddle

from transformer_mt import __version__
from transformer_mt.device_check.report import LeftOut, message_of
from transformer_mt.utils import device as devices

# The largest error of each precision, as a share of the largest expected number. TF32 is float32
# whose products are rounded to 10 bits, which Paddle lets GPUs use from Ampere on.
TOLERANCES = {"float32": 1e-5, "TF32": 3e-3, "float16": 5e-3, "bfloat16": 3e-2}
# Products in float32 have errors below this, products in TF32 above it.
TF32_ERROR = 3e-5


class Machine:
    """The device that is checked.

    Args:
        name: the device, as `utils.device.use` returns it. It must be selected already.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_gpu = name != "cpu"
        self.device = paddle.get_device()  # such as gpu:0

    def require_gpu(self, reason: str = "it needs a GPU") -> None:
        """Leaves out a check unless the device is a GPU."""
        if not self.is_gpu:
            raise LeftOut(reason)

    @property
    def precisions(self) -> list[str]:
        """The values of training.precision that the device supports."""
        names = ["float32"]
        for precision in ("bfloat16", "float16"):
            with contextlib.suppress(devices.UsageError):
                devices.require_precision(precision, self.name)
                names.append(precision)
        return names

    def require(self, precision: str) -> None:
        """Leaves out a check unless the device supports a value of training.precision."""
        try:
            devices.require_precision(precision, self.name)
        except devices.UsageError as error:
            raise LeftOut(str(error).partition(": ")[2]) from None

    @cached_property
    def product_error(self) -> float:
        """The error of a product of matrices in float32, with sums of 2,048 terms."""
        random = np.random.default_rng(1)
        a, b = (random.standard_normal(s).astype("float32") for s in ((256, 2048), (2048, 256)))
        found = paddle.matmul(paddle.to_tensor(a), paddle.to_tensor(b)).numpy()
        return relative_error(found, a.astype(np.float64) @ b.astype(np.float64))

    @property
    def float32(self) -> str:
        """How the device computes products of float32 matrices: float32 or TF32."""
        return "TF32" if self.product_error > TF32_ERROR else "float32"

    def tolerance(self, precision: str = "float32") -> float:
        """The largest error of an operation in a precision of the config."""
        return TOLERANCES[self.float32 if precision == "float32" else precision]

    def synchronize(self) -> None:
        """Waits until the device has done all work that was queued. Errors of that work are raised
        here."""
        if self.is_gpu:
            paddle.device.synchronize()

    def seconds(self, work: Callable[[], object]) -> float:
        """Measures how long `work` takes, after a call that is not counted. Short work is repeated
        for about a second."""
        work()
        seconds = self._seconds(work, 1)
        repeats = min(100, int(1.0 / seconds))
        return self._seconds(work, repeats) if repeats > 1 else seconds

    def _seconds(self, work: Callable[[], object], repeats: int) -> float:
        self.synchronize()
        started = time.perf_counter()
        for _ in range(repeats):
            work()
        self.synchronize()
        return (time.perf_counter() - started) / repeats

    @contextlib.contextmanager
    def on_cpu(self) -> Iterator[None]:
        """Computes on the CPU within a block. Models and tensors that are made there stay there."""
        paddle.set_device("cpu")
        try:
            yield
        finally:
            paddle.set_device(self.device)

    @property
    def memory_bytes(self) -> int:
        """The memory of a GPU."""
        return int(paddle.device.cuda.get_device_properties(self.device).total_memory)

    @property
    def gpu_name(self) -> str:
        """The name of a GPU, such as NVIDIA A100-SXM4-80GB."""
        return str(paddle.device.cuda.get_device_name(self.device))

    def describe(self) -> dict[str, str]:
        """Returns the device and the versions, by their titles. What cannot be found out is said to
        be unknown, because the checks are to run all the same."""
        lines = {
            "Program": lambda: f"transformer_mt {__version__}",
            "Python": platform.python_version,
            "Paddle": lambda: f"{paddle.__version__}, {_build()}",
            "System": _system,
            "Device": lambda: f"{self.device}, {devices.description()['device_name']}",
        }
        if self.is_gpu:
            lines["GPU"] = self._properties
            lines["Memory"] = lambda: f"{self.memory_bytes / 1e9:.1f} GB"
            lines["Driver"] = _driver
            lines["GPUs"] = lambda: str(paddle.device.cuda.device_count())
        return {title: _or_unknown(find) for title, find in lines.items()}

    def _properties(self) -> str:
        found = paddle.device.cuda.get_device_properties(self.device)
        return f"{self.gpu_name}, compute capability {found.major}.{found.minor}"


def _or_unknown(find: Callable[[], str]) -> str:
    try:
        return find()
    except Exception as error:
        return f"not known ({message_of(error)})"


def _system() -> str:
    own = devices.description()
    system = f"{platform.system()} {platform.machine()}, {' '.join(platform.libc_ver())}"
    return f"{system}; {own['cores']} cores, {own['memory_gb']} GB"


def _build() -> str:
    if not paddle.is_compiled_with_cuda():
        return "for CPUs only"
    return f"for CUDA {paddle.version.cuda()}, cuDNN {paddle.version.cudnn()}"


def _driver() -> str:
    """Returns the version of NVIDIA's driver, as nvidia-smi or the kernel gives it."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, timeout=20, check=True)
        return done.stdout.decode("utf-8", "replace").split("\n")[0].strip()
    return Path("/proc/driver/nvidia/version").read_text("utf-8").split("\n")[0].strip()


def relative_error(found: object, expected: object) -> float:
    """The largest difference of two arrays, as a share of the largest expected number. It is nan if
    a number found is not finite.

    Raises:
        ValueError: the arrays have different shapes.
    """
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if found.shape != expected.shape:
        raise ValueError(f"the shape is {found.shape}, not {expected.shape}")
    if not np.isfinite(found).all():
        return np.nan
    largest = float(np.abs(expected).max(initial=0.0))
    return float(np.abs(found - expected).max(initial=0.0)) / (largest or 1.0)

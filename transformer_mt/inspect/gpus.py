"""The peak speeds of some GPUs, as NVIDIA states them."""

import re
from dataclasses import dataclass

from transformer_mt.utils.errors import UsageError


@dataclass(frozen=True)
class Gpu:
    """The peak speeds of a GPU in matrix products, in 10^12 FLOP/s.

    float32: without tensor cores, so without TF32.
    float16: with sums in float32 where it has tensor cores; the speed in bfloat16 is the same.
    has_bfloat16: whether it computes in bfloat16.
    """

    float32: float
    float16: float
    has_bfloat16: bool = True


# From NVIDIA's data sheets of these products; for the two GeForce cards, from the white papers on
# the architectures GA102 and Ada. P100, V100, A100 and H100 are the SXM modules, which are faster
# than the PCIe cards of the same name. All speeds are those of dense matrices: the data sheets of
# A10, L4, L40S, A100 and H100 also state twice the speed, for sparse ones.
GPUS = {
    "P100": Gpu(10.6, 21.2, has_bfloat16=False),
    "V100": Gpu(15.7, 125, has_bfloat16=False),
    "T4": Gpu(8.1, 65, has_bfloat16=False),
    "A10": Gpu(31.2, 125),
    "A100": Gpu(19.5, 312),
    "L4": Gpu(30.3, 121),
    "L40S": Gpu(91.6, 362),
    "H100": Gpu(67, 989),
    "RTX 3090": Gpu(35.6, 71),
    "RTX 4090": Gpu(82.6, 165),
}


def find(text: str) -> str | None:
    """The name in GPUS that a text stands for, such as "Tesla V100" or "rtx4090"; None if there is
    none."""
    by_plain_name = {_plain(name): name for name in GPUS}
    return by_plain_name.get(_plain(text))


def _plain(name: str) -> str:
    return re.sub(r"nvidia|tesla|geforce|rtx|[\s_-]", "", name.lower())


def peak(name: str, precision: str) -> float:
    """The peak speed of a GPU in a precision of `training.precision`, in 10^12 FLOP/s.

    Raises:
        UsageError: it does not compute in bfloat16.
    """
    gpu = GPUS[name]
    if precision == "bfloat16" and not gpu.has_bfloat16:
        raise UsageError(
            f"--tflops {name}: it does not compute in bfloat16. Add training.precision=float16 or "
            "training.precision=float32"
        )
    return gpu.float32 if precision == "float32" else gpu.float16

"""transformer_mt: train, use and measure Transformer translation models with PaddlePaddle."""

import os
import warnings
from importlib import import_module
from typing import TYPE_CHECKING

from transformer_mt.utils.device import is_amd_with_avx2

if TYPE_CHECKING:
    from transformer_mt.decoding.output import Aligned, Line, Output, Translation
    from transformer_mt.translator import Translator
    from transformer_mt.utils.errors import UsageError, UserError

__version__ = "0.2.0"
__all__ = [
    "Aligned",
    "Line",
    "Output",
    "Translation",
    "Translator",
    "UsageError",
    "UserError",
    "__version__",
]

# Paddle reads its flags once, when it is imported, and every import of this package's modules runs
# this file first. On a CPU its strided views cost far more than the copies they save (a transposed
# view is copied again by each operation that needs contiguous memory).
os.environ.setdefault("FLAGS_use_stride_kernel", "0")
# A process is to use one core: there are as many processes as cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# The MKL in Paddle's CPU build (of 2019) computes with SSE2 on processors of AMD, unless it is told
# to use AVX2, with which matrix products are 3 to 4 times as fast.
if is_amd_with_avx2():
    os.environ.setdefault("MKL_DEBUG_CPU_TYPE", "5")
# Warnings of Paddle's own code to its developers, such as on an export.
os.environ.setdefault("GLOG_minloglevel", "2")

# What the libraries have to say about compilers, and to their own developers, is of no use here.
for _message in (
    "No ccache found",
    "Setuptools is replacing distutils",
    "Reciving generator as data source",
    r"(?s).*softmax_with_cross_entropy",
):
    warnings.filterwarnings("ignore", message=_message)


# The modules of the names in __all__, which are imported when somebody asks for one of them.
_MODULES = {
    **dict.fromkeys(("Aligned", "Line", "Output", "Translation"), "decoding.output"),
    "Translator": "translator",
    **dict.fromkeys(("UsageError", "UserError"), "utils.errors"),
}


if not TYPE_CHECKING:  # to type checkers, a module with this function has all attributes

    def __getattr__(name):
        if name in _MODULES:
            return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

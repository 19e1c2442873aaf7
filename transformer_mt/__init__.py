"""transformer_mt: train, use and measure Transformer translation models with PaddlePaddle."""

import os
import warnings

__version__ = "0.1.0"

# Paddle reads its flags once, when it is imported, and every import of this package's modules runs
# this file first. On a CPU its strided views cost far more than the copies they save (a transposed
# view is copied again by each operation that needs contiguous memory).
os.environ.setdefault("FLAGS_use_stride_kernel", "0")
# A process is to use one core: there are as many processes as cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
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


def __getattr__(name: str):
    """`from transformer_mt import Translator` imports what that needs, and not before."""
    if name == "Translator":
        from transformer_mt.assembly.translator import Translator

        return Translator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

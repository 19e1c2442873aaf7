"""Many small products at once, and exponentials, by MKL: a library inside Paddle's package for x86.

Many small products, as attention needs them, take half as long as by oneDNN, and exponentials a
quarter as long as by NumPy (both measured with AVX2). All arrays are float32.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from ctypes import c_int, c_void_p
from pathlib import Path

import numpy as np

FILE = "libmklml_intel.so"
# From MKL's mkl_cblas.h: the layout of matrices, and whether one is transposed.
_ROW_MAJOR = 101
_TRANSPOSED = {b"N": 111, b"T": 112}
# The numbers of columns of a product, of the columns that it sums over, and of the products, among
# the numbers of `Mkl.products_call`.
COLUMNS, INNER, COUNT = 3, 4, 8
# The factors of a product and of what it replaces.
_FACTORS = np.array([1.0, 0.0], np.float32)

# A function with all of its arguments, which is called as function(*arguments). It holds addresses:
# whoever keeps a call keeps the arrays that it was made of.
Call = tuple[Callable[..., object], tuple]


class Mkl:
    """The library in a folder.

    Raises:
        OSError, AttributeError: it is not there, or is another one.
    """

    def __init__(self, folder: Path) -> None:
        library = ctypes.CDLL(str(folder / FILE))
        self._gemms, self._exp = library.cblas_sgemm_batch, library.vsExp
        self._gemms.argtypes = [c_int, *[c_void_p] * 13, c_int, c_void_p]
        self._exp.argtypes = [c_int, c_void_p, c_void_p]
        self._gemms.restype = self._exp.restype = None

    def products_call(
        self, a: np.ndarray, b: np.ndarray, out: np.ndarray
    ) -> tuple[Call, tuple[np.ndarray, np.ndarray]]:
        """Returns the call that computes out = a @ b for many matrices, and two arrays that must
        live as long as the call. The first holds its numbers, int32.

        Args: `a` (..., m, k), `b` (..., k, n) and `out` (..., m, n). The rows of `out` must be
            contiguous, and the rows or the columns of `a` and `b`.
        """
        *leading, m, n = out.shape
        first = (0,) * len(leading)
        kinds, lengths = zip(*(row_length(x[first]) for x in (a, b, out)), strict=True)
        transposed = (_TRANSPOSED[kind] for kind in kinds[:2])
        count = math.prod(leading)
        # COLUMNS, INNER and COUNT are places among these.
        numbers = np.array([*transposed, m, n, a.shape[-1], *lengths, count], np.int32)
        matrices = np.stack([_addresses(x) for x in (a, b, out)])
        is_a, is_b, rows, columns, inner, row_a, row_b, row_out, counts = _elements(numbers)
        one, zero = _elements(_FACTORS)
        of_a, of_b, of_out = _elements(matrices)
        arguments = (
            *(_ROW_MAJOR, is_a, is_b, rows, columns, inner, one, of_a, row_a, of_b, row_b),
            *(zero, of_out, row_out, 1, counts),
        )
        return (self._gemms, arguments), (numbers, matrices)

    def exp(self, x: np.ndarray, out: np.ndarray) -> None:
        """Computes the exponential of each element. Both arrays are contiguous, and of one size."""
        self._exp(x.size, pointer(x), pointer(out))


def pointer(x: np.ndarray) -> int:
    """Returns the address of the array's first element."""
    return x.__array_interface__["data"][0]


def _addresses(x: np.ndarray) -> np.ndarray:
    # The addresses of the matrices of `x` (..., rows, columns), int64 (...,).
    result = np.array(pointer(x))
    for size, stride in zip(x.shape[:-2], x.strides[:-2], strict=True):
        result = np.add.outer(result, stride * np.arange(size))
    return result


def _elements(x: np.ndarray) -> range:
    # The addresses of the elements along the first dimension of a contiguous array.
    return range(pointer(x), pointer(x) + x.nbytes, x.strides[0])


def row_length(x: np.ndarray) -> tuple[bytes, int]:
    """Returns whether (b"T") or not (b"N") the columns of `x` (rows, columns) are contiguous,
    instead of its rows; and how many elements lie between the starts of two rows (or columns).

    Raises:
        ValueError: neither are contiguous.
    """
    down, along = (stride // x.itemsize for stride in x.strides)
    if along == 1 or x.shape[1] == 1:
        return b"N", max(down, x.shape[1], 1)
    if down != 1 and x.shape[0] != 1:
        raise ValueError("neither the rows nor the columns of a matrix are contiguous")
    return b"T", max(along, x.shape[0], 1)

"""Pickles of NumPy arrays, read without running any code in them.

A pickle is a program that can call whatever it names. The reader here allows only the three names
that arrays are built from.
"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from transformer_mt.utils.errors import UserError

# A table that `paddle.save` stores beside the arrays. It repeats their names.
_PADDLE_NAMES = "StructuredToParameterName@@"
_ALLOWED = {("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Looks up a name in the pickle, which is then called."""
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is not part of an array")
        return super().find_class(module, name)


def read(path: Path) -> dict[str, np.ndarray]:
    """Returns the arrays in a file that `paddle.save` has written, by their names.

    Raises:
        UserError: the file is damaged, or holds something other than arrays of numbers.
    """
    try:
        with open(path, "rb") as file:
            values = _ArraysOnly(file).load()
        if not isinstance(values, dict):
            raise ValueError("it holds no table of names")
        values.pop(_PADDLE_NAMES, None)
        if not all(_is_named_array(*item) for item in values.items()):
            raise ValueError("some of its values are not arrays of numbers with a name")
    except Exception as error:  # damaged or malicious content can raise nearly any error
        reason = str(error).split("\n")[0] or type(error).__name__
        raise UserError(
            f"{path}: it holds something other than arrays ({reason}), and was not read any "
            "further. Delete its checkpoint, or do without this model"
        ) from None
    return values


def _is_named_array(name: Any, value: Any) -> bool:
    return isinstance(name, str) and type(value) is np.ndarray and value.dtype.kind in "fiu"

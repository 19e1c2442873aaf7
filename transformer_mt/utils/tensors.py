"""Files of tensors in the safetensors format: https://huggingface.co/docs/safetensors

They hold names, shapes and numbers, so reading one cannot run code. (`paddle.save` writes pickles,
which can run any code.)
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file


def write(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays under their names. The same arrays always result in the same bytes.

    Raises:
        OSError: the file can't be written.
    """
    path.touch()
    mode = path.stat().st_mode  # it follows the user's umask; the library would set 0600
    try:
        save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, path)
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from None
    path.chmod(mode)


def read(path: Path) -> dict[str, np.ndarray]:
    """Returns the arrays in a file by their names.

    Raises:
        OSError: the file can't be read.
        ValueError: the file is damaged, has another format, or holds NaN or infinity. With these, a
            model would translate every line to an empty one.
    """
    try:
        arrays = load_file(path)
    except SafetensorError as error:
        raise ValueError(str(error).split("\n")[0]) from None
    for name, array in arrays.items():
        if not np.isfinite(array).all():  # 25 ms for 200 MB
            raise ValueError(f"{name} holds NaN or infinity")
    return arrays

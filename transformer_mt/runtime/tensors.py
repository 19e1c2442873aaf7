"""Tensors in files of the format safetensors: names, shapes and numbers, and nothing that could run
when it is read. (What `paddle.save` writes is a pickle, which can run any code.)

https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file


def write(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays under their names; the same arrays always give the same bytes.

    Raises:
        OSError: the file can't be written.
    """
    path.touch()
    mode = path.stat().st_mode  # as the user's umask has it; the library would write 0600
    try:
        save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, path)
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from None
    path.chmod(mode)


def read(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file by their names.

    Raises:
        OSError: the file can't be read.
        ValueError: it is damaged, or no file of this format.
    """
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(str(error).split("\n")[0]) from None

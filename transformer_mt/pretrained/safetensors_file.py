"""Reads the tensors of a file in the format of safetensors, https://huggingface.co/docs/safetensors,
of any float type. (NumPy has no bfloat16, so the library for NumPy cannot read it.)"""

from __future__ import annotations

from typing import IO

import numpy as np

from transformer_mt.pretrained.limited import finite_float32, read_json
from transformer_mt.utils.zips import MB, read_exactly, shown, size_of

_LARGEST_HEADER = 10 * MB  # enough for 50,000 tensors
_MOST_DIMENSIONS = 8
_DTYPES = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "BOOL": "|u1"},
    **{"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1"},
    **{"U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1"},
}


def read_safetensors(file: IO[bytes]) -> dict[str, np.ndarray]:
    """Returns the tensors of a file by their names.

    Args:
        file: it can be read from any position.

    Returns: C-contiguous arrays: float32 for tensors of any float type, and the same type for
        integers; uint8 for booleans.

    Raises:
        ValueError: it is damaged, has another format or an unknown type, or holds NaN or infinity.
        OSError: it can't be read.
    """
    size = size_of(file)
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or not 2 <= length <= min(_LARGEST_HEADER, size - 8):
        raise ValueError("it is not in the format of safetensors, or truncated")
    header = read_json(read_exactly(file, length).tobytes())
    header.pop("__metadata__", None)
    data = size - 8 - length
    places: list[tuple[int, int, str, str, tuple[int, ...]]] = []
    for name, entry in header.items():
        try:
            dtype, shape = str(entry["dtype"]), tuple(entry["shape"])
            start, end = entry["data_offsets"]
            numbers = (start, end, *shape)
            if not all(type(number) is int and number >= 0 for number in numbers):
                raise ValueError
        except (LookupError, TypeError, ValueError):
            raise ValueError(f"it is damaged: its header has no tensor {shown(name)}") from None
        if dtype not in _DTYPES:
            raise ValueError(f"its tensor {shown(name)} has the unknown type {shown(dtype)}")
        if len(shape) > _MOST_DIMENSIONS:
            raise ValueError(f"its tensor {shown(name)} has {len(shape)} dimensions")
        places.append((start, end, name, dtype, shape))
    # Tensors follow each other without gaps, as the format demands.
    position = 0
    arrays: dict[str, np.ndarray] = {}
    for start, end, name, dtype, shape in sorted(places):
        count = 1
        for number in shape:
            count *= number
        if start != position or end - start != count * np.dtype(_DTYPES[dtype]).itemsize:
            raise ValueError(f"it is damaged: its tensor {shown(name)} has another size or place")
        if end > data:
            raise ValueError("it is truncated")
        array = read_exactly(file, end - start).view(_DTYPES[dtype])
        if dtype == "BF16":  # the upper half of a float32
            array = (array.astype(np.uint32) << 16).view(np.float32)
        if array.dtype.kind == "f":
            array = finite_float32(name, array)
        arrays[name] = array.reshape(shape)
        position = end
    if position != data:
        raise ValueError("it is damaged: it has bytes that belong to no tensor")
    return arrays

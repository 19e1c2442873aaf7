"""Files of safetensors, as its library writes and reads them; of bfloat16 as PyTorch writes it."""

import io
import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.numpy import load, save

from transformer_mt.pretrained.safetensors_file import read_safetensors

generator = np.random.default_rng(1)
ARRAYS = {
    "b": generator.normal(size=(3, 4)).astype(np.float32),
    "a": generator.normal(size=(2, 2, 2)),
    "half": generator.normal(size=7).astype(np.float16),
    "ids": np.arange(-2, 3),
    "mask": np.array([True, False]),
    "empty": np.zeros((0, 5), np.float32),
    "scalar": np.array(2.5, np.float32),
}


def read(content: bytes) -> dict[str, np.ndarray]:
    return read_safetensors(io.BytesIO(content))


def made(header: object, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def one(data: bytes = bytes(8), **changed) -> bytes:
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changed
    return made({"w": entry}, data)


def test_what_the_library_writes():
    arrays = read(save(ARRAYS, {"format": "pt"}))
    assert arrays.keys() == ARRAYS.keys()
    for name, array in arrays.items():
        kind = ARRAYS[name].dtype.kind
        wanted = ARRAYS[name].astype({"f": np.float32, "b": np.uint8}.get(kind, np.int64))
        assert array.dtype == wanted.dtype and array.flags.c_contiguous
        np.testing.assert_array_equal(array, wanted)


def test_bfloat16():
    """1, -2.5 and the smallest number above 1, by hand: sign, 8 bits of exponent, 7 of fraction."""
    data = struct.pack("<3H", 0x3F80, 0xC020, 0x3F81)
    array = read(one(data, dtype="BF16", shape=[3], data_offsets=[0, 6]))["w"]
    np.testing.assert_array_equal(array, np.float32([1, -2.5, 1 + 2**-7]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not in the format of safetensors, or truncated"),
        (b"PK\x03\x04" + bytes(100), "not in the format of safetensors"),
        (struct.pack("<Q", 1 << 60) + b"{}", "not in the format of safetensors"),
        (made([], b""), "it is not an object of JSON"),
        (made({"w": 3}, b""), "its header has no tensor w"),
        (one(shape=[-2]), "its header has no tensor w"),
        (one(shape=[2.0]), "its header has no tensor w"),
        (one(shape=[True, 2]), "its header has no tensor w"),
        (one(data_offsets=[0, 8, 8]), "its header has no tensor w"),
        (one(shape=[1] * 50), "its tensor w has 50 dimensions"),
        (one(dtype="F4"), "its tensor w has the unknown type F4"),
        (one(dtype=["F32"]), "its tensor w has the unknown type"),
        (one(shape=[1 << 40, 1 << 40]), "its tensor w has another size or place"),
        (one(data_offsets=[4, 12]), "its tensor w has another size or place"),
        (one(data_offsets=[8, 0]), "its tensor w has another size or place"),
        (one(bytes(7)), "it is truncated"),
        (one(bytes(9)), "it has bytes that belong to no tensor"),
        (one(struct.pack("<2f", 1, np.nan)), "w holds NaN or infinity"),
        (one().replace(b'"w"', b'"w": 1, "w"')[8:], "not in the format of safetensors"),
    ],
)
def test_damaged_files(content, message):
    with pytest.raises(ValueError, match=message):
        read(content)


def test_two_tensors_in_one_place():
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    with pytest.raises(ValueError, match="another size or place"):
        read(made({"v": entry, "w": entry}, bytes(8)))


@given(st.data())
def test_damage_gives_a_value_error_or_what_the_library_reads(data):
    content = bytearray(save({name: ARRAYS[name] for name in ("a", "b", "ids")}))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        arrays = read(bytes(content))
    except ValueError:
        return
    try:
        wanted = load(bytes(content))
    except SafetensorError:  # it is stricter about the header
        return
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, wanted[name].astype(array.dtype))

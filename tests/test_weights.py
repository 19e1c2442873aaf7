"""Tensors in safetensors files: what is written comes back, and other tools read it."""

import errno
import os
import resource
import stat

import numpy as np
import pytest
from safetensors import safe_open

from transformer_mt.weights import read_tensors, write_tensors

ARRAYS = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3).T,  # not contiguous
    "a": np.array(1.5, np.float32),
    "count": np.array([3], np.int64),
    "none": np.zeros((0, 4), np.float32),
}


def test_what_is_written_comes_back(tmp_path):
    write_tensors(tmp_path / "x.safetensors", ARRAYS)
    found = read_tensors(tmp_path / "x.safetensors")
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)
    with safe_open(tmp_path / "x.safetensors", "np") as file:
        assert sorted(file.keys()) == sorted(ARRAYS)


def test_others_may_read_it_as_the_umask_has_it(tmp_path):
    before = os.umask(0o027)
    try:
        write_tensors(tmp_path / "x", ARRAYS)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


@pytest.mark.parametrize("content", [b"", b"weights!\n", b"\xff" * 100, b"\x02\0\0\0\0\0\0\0{}"])
def test_what_is_no_such_file(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    if content.endswith(b"{}"):
        assert read_tensors(tmp_path / "x") == {}
        return
    with pytest.raises(ValueError):
        read_tensors(tmp_path / "x")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused_by_their_name(tmp_path, bad):
    damaged = np.ones((2, 3), np.float32)
    damaged[1, 2] = bad
    write_tensors(tmp_path / "x", {**ARRAYS, "bad one": damaged})
    with pytest.raises(ValueError, match="bad one holds NaN or infinity"):
        read_tensors(tmp_path / "x")


def test_a_full_disk_is_an_error_of_the_system(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            write_tensors(tmp_path / "x", {"a": np.zeros(10_000, np.float32)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

"""Pickles of arrays are read as `paddle.load` reads them. Others are refused, and run no code."""

import os
import pickle

import numpy as np
import paddle
import pytest

from tests.support import demo_pairs, make_config, train_subwords, wide_model
from transformer_mt.utils import pickles
from transformer_mt.utils.errors import UserError


class Payload:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "value",
    [
        Payload(os.system, ("touch marker",)),
        Payload(eval, ("open('marker', 'w')",)),
        {"weight": Payload(os.mkdir, ("marker",))},
        {"weight": np.array([Payload(os.mkdir, ("marker",))], dtype=object)},
        {"weight": np.array(["a"])},
        {"weight": np.float32(3)},
        {"weight": np.array([1], dtype=object)},
        {3: np.zeros(2)},
        [np.zeros(2)],
    ],
)
def test_a_pickle_of_anything_but_arrays_is_refused(tmp_path, monkeypatch, value):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.pdparams"
    path.write_bytes(pickle.dumps(value, protocol=4))
    with pytest.raises(UserError, match="it holds something other than arrays"):
        pickles.read(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.pdparams"]


def test_the_arrays_that_paddle_saves(tmp_path):
    config = make_config(tmp_path)
    model = wide_model(config, train_subwords(demo_pairs(120)))
    paddle.save(model.state_dict(), str(tmp_path / "model.pdparams"))
    arrays = pickles.read(tmp_path / "model.pdparams")
    expected = model.state_dict()
    assert arrays.keys() == expected.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, expected[name].numpy(), err_msg=name)

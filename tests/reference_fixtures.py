"""Fixtures for tests of layers and models: seeds and random values."""

import numpy as np
import paddle
import pytest


@pytest.fixture(autouse=True)
def seeded():
    paddle.seed(20170612)


@pytest.fixture
def rng():
    return np.random.default_rng(3762)


@pytest.fixture
def normal(rng):
    """A function that gives a float32 tensor of the shape asked for, from N(0, 1)."""
    return lambda *shape: paddle.to_tensor(rng.standard_normal(shape), dtype="float32")


@pytest.fixture
def randomise(rng):
    """A function that fills all parameters of a layer, so that biases and norms matter too."""

    def fill(layer, scale=0.5):
        for name, parameter in layer.named_parameters():
            values = scale * rng.standard_normal(tuple(parameter.shape))
            if name.endswith("norm.weight"):
                values += 1.0
            parameter.set_value(values.astype("float32"))
        return layer

    return fill

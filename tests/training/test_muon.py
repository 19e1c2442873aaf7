"""Muon, against singular value decompositions in float64."""

import numpy as np
import paddle
import pytest

from transformer_mt.model import operations
from transformer_mt.training.optimizers import Muon, layer_matrices, orthogonalised

RANDOM = np.random.default_rng(7)


def expected_of(matrix):
    """The polynomial of the paper, five times, of the singular values alone."""
    left, values, right = np.linalg.svd(matrix.astype("float64"), full_matrices=False)
    values = values / np.sqrt((values**2).sum())
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return left @ np.diag(values) @ right, values


@pytest.mark.parametrize("shape", [(8, 8), (8, 20), (20, 8), (1, 5), (5, 1)])
def test_singular_values_come_near_1_and_vectors_stay(shape):
    """The iteration is five polynomials in float32, each of which may enlarge a rounding by 3.4."""
    matrices = RANDOM.normal(size=(3, *shape)).astype("float32") * [[[1e-6]], [[1.0]], [[1e6]]]
    found = orthogonalised(paddle.to_tensor(matrices.astype("float32"))).numpy()
    for own, matrix in zip(found, matrices, strict=True):
        expected, values = expected_of(matrix)
        np.testing.assert_allclose(own, expected, atol=2e-4)
        # The smallest singular values of a square matrix are not there yet.
        assert np.median(values) > 0.65 and values.max() < 1.3


def test_a_matrix_of_zeros_stays():
    assert not orthogonalised(paddle.zeros([2, 3, 4])).numpy().any()


@pytest.mark.parametrize("cache_bytes", [1, 2**19])
def test_updates_are_those_of_the_paper(cache_bytes, monkeypatch):
    """Equation 4 of Liu et al. 2025 with Nesterov's momentum, for matrices of two shapes, each in a
    group of its own or together. An update whose gradient was not finite changes nothing."""
    monkeypatch.setattr(operations.current, "cache_bytes", cache_bytes)
    rate, momentum, decay = 0.03, 0.9, 0.5
    values = {"a": (6, 4), "b": (4, 4), "c": (6, 4)}
    weights = {name: RANDOM.normal(size=shape) for name, shape in values.items()}
    parameters = {
        name: paddle.create_parameter(
            value.shape, "float32", default_initializer=paddle.nn.initializer.Assign(value)
        )
        for name, value in weights.items()
    }
    muon = Muon(parameters, momentum, decay)
    assert len(muon.momenta) == (3 if cache_bytes == 1 else 2)
    moments = {name: np.zeros(shape) for name, shape in values.items()}
    for step in range(4):
        gradients = {name: RANDOM.normal(size=shape) for name, shape in values.items()}
        is_kept = step != 2
        given = {n: paddle.to_tensor(g.astype("float32") * is_kept) for n, g in gradients.items()}
        muon.update(given, rate, paddle.to_tensor(float(is_kept)) if step else 1.0)
        if not is_kept:
            continue
        for name, gradient in gradients.items():
            moments[name] = momentum * moments[name] + gradient
            orthogonal, _ = expected_of(gradient + momentum * moments[name])
            size = 0.2 * np.sqrt(max(values[name]))
            weights[name] -= rate * (size * orthogonal + decay * weights[name])
    state = muon.arrays()
    for name, weight in weights.items():
        np.testing.assert_allclose(state[f"{name}/momentum"], moments[name], atol=1e-5)
        np.testing.assert_allclose(parameters[name].numpy(), weight, atol=1e-4)


def test_which_weights_are_muons(make_trainer):
    trainer = make_trainer(optimizer="muon")
    model = trainer.model
    names = set(layer_matrices(model))
    others = {name for name, _ in model.named_parameters()} - names
    layers = trainer.config.model.num_layers
    assert len(names) == layers * (4 + 2) + layers * (8 + 2)
    assert all(name.endswith("_projection.weight") for name in names)
    assert "target_embedding.weight" in others
    assert all("norm" in name or "embedding" in name or ".bias" in name for name in others)

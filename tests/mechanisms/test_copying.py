"""Copying against its definition, in NumPy's float64: the mixture, its gradient, its extremes; and
the model's ways through it, which must agree.

Logits here are of the order of 1 to 10: two correct float32 computations agree to 1e-5.
"""

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from tests.reference import PAD, SMALL, assert_all_parameters_get_a_gradient, assert_close, build
from tests.support import log_softmax
from transformer_mt.model import operations
from transformer_mt.model.variants import CopyableSource, CopyingTransformer, mixture
from transformer_mt.training.objective import LabelSmoothedCrossEntropy

BOS, EOS = 1, 2
VOCABULARY = 13


def small_model(kind=CopyingTransformer):
    return build(kind, VOCABULARY, VOCABULARY, **SMALL)


@pytest.fixture
def source_ids():
    """With ids that stand more than once, next to each other and apart, and with padding."""
    return paddle.to_tensor(
        [[3, 4, 3, 3, 5, EOS], [7, 7, 8, EOS, PAD, PAD], [9, EOS, PAD, PAD, PAD, PAD]]
    )


@pytest.fixture
def target_ids():
    return paddle.to_tensor([[BOS, 3, 4, 5], [BOS, 6, 7, PAD], [BOS, 8, PAD, PAD]])


@pytest.fixture
def weights(rng, source_ids):
    """Attention of 4 heads and 5 queries, float64 (3, 4, 5, 6): sums of 1, nothing at padding."""
    drawn = rng.gamma(0.3, size=(3, 4, 5, 6)) + 1e-6
    drawn *= (source_ids.numpy() != PAD)[:, np.newaxis, np.newaxis]
    return drawn / drawn.sum(axis=-1, keepdims=True)


def log_mixture(logits, gate, weights, source_ids):
    """Formula (9) of See et al., id by id and place by place, in logarithms. float64: logits
    (batch, target_len, vocabulary), gate (batch, target_len), weights as above."""
    batch, target_len, vocabulary = logits.shape
    log_probs = log_softmax(logits)
    result = np.empty(logits.shape)
    for row in range(batch):
        for place in range(target_len):
            log_generate = -np.logaddexp(0, -gate[row, place])  # of the sigmoid
            log_copy = -np.logaddexp(0, gate[row, place])
            for v in range(vocabulary):
                heads = weights[row, :, place, source_ids[row] == v]  # (places, heads)
                with np.errstate(divide="ignore"):
                    copied = np.log(heads.sum() / weights.shape[1])
                result[row, place, v] = np.logaddexp(
                    log_generate + log_probs[row, place, v], log_copy + copied
                )
    return result


def mixed(logits, gate, weights, source_ids):
    """What the model makes of logits (batch, target_len, vocabulary), gate (batch, target_len) and
    weights (batch, heads, target_len, source_len)."""
    copied, ids = CopyableSource.of(source_ids, PAD).pointed_at(weights)
    rows = logits.reshape([-1, logits.shape[-1]]) * 1.0  # which it writes over
    parts = (x.reshape([-1, x.shape[-1]]) for x in (gate.unsqueeze(2), copied, ids))
    return mixture(rows, *parts).reshape(logits.shape)


def variable(x):
    return paddle.to_tensor(x, stop_gradient=False)


# ---- The mixture ----


@pytest.mark.parametrize("by_numpy", [True, False])
def test_the_mixture_is_its_definition(rng, source_ids, weights, monkeypatch, by_numpy):
    """Without NumPy it is computed as on a GPU."""
    if not by_numpy:
        monkeypatch.setattr(operations, "is_float32_on_cpu", lambda x: False)
    logits = 3 * rng.standard_normal((3, 5, VOCABULARY)).astype("float32")
    gate = 3 * rng.standard_normal((3, 5)).astype("float32")
    ours = mixed(variable(logits), variable(gate), variable(weights), source_ids)
    expected = log_mixture(
        logits.astype("float64"), gate.astype("float64"), weights, source_ids.numpy()
    )
    np.testing.assert_allclose(np.exp(expected).sum(axis=-1), 1.0, rtol=1e-12)
    assert_close(log_softmax(ours), expected)
    for row in range(3):  # elsewhere they are the generator's, to the last bit
        elsewhere = ~np.isin(np.arange(VOCABULARY), [*source_ids.numpy()[row]])
        np.testing.assert_array_equal(ours.numpy()[row][:, elsewhere], logits[row][:, elsewhere])


@pytest.mark.parametrize("by_numpy", [True, False])
def test_the_gradient_is_the_slope_of_the_definition(
    rng, source_ids, weights, monkeypatch, by_numpy
):
    """Of log p in a random direction, by each logit, gate and weight: by central differences in
    float64."""
    if not by_numpy:
        monkeypatch.setattr(operations, "is_float32_on_cpu", lambda x: False)
    # Fewer places and heads: each number is moved.
    weights = weights[:, :2, :3]
    given = [2 * rng.standard_normal((3, 3, VOCABULARY)), rng.standard_normal((3, 3)), weights]
    direction = rng.standard_normal((3, 3, VOCABULARY))
    inputs = [variable(x.astype("float32")) for x in given]
    log_p = F.log_softmax(mixed(*inputs, source_ids))
    (log_p * paddle.to_tensor(direction.astype("float32"))).sum().backward()

    def value(moved, row):
        part = [x[row : row + 1] for x in moved]
        log_p = log_mixture(*part, source_ids.numpy()[row : row + 1])
        return (log_softmax(log_p) * direction[row]).sum()  # a moved weight alone: no sum of 1

    step = 1e-6
    for number, x in enumerate(inputs):
        gradient = x.grad.numpy()
        for index in np.ndindex(gradient.shape):
            if number == 2 and source_ids.numpy()[index[0], index[3]] == PAD:
                continue  # attention lets no gradient through there
            sides = []
            for signed in (step, -step):
                moved = [x.copy() for x in given]
                moved[number][index] += signed
                sides.append(value(moved, index[0]))
            slope = (sides[0] - sides[1]) / (2 * step)
            assert gradient[index] == pytest.approx(slope, rel=1e-4, abs=1e-4), (number, index)


@pytest.mark.parametrize("gate", [-1000.0, 0.0, 1000.0])
@pytest.mark.parametrize("sharp", [True, False])
def test_extremes(rng, source_ids, weights, gate, sharp):
    """Whatever is said with certainty, and however wrong it is: a loss of 1,000 nats, not infinity,
    and a gradient."""
    logits = rng.choice([-100.0, 0.0, 100.0], (3, 5, VOCABULARY))
    if sharp:  # all attention to one place, exactly 0 to all others
        weights = np.broadcast_to(np.eye(6)[[0, 1, 0]][:, np.newaxis, np.newaxis], weights.shape)
    gates = np.full((3, 5), gate)
    inputs = [variable(x.astype("float32")) for x in (logits, gates, weights)]
    targets = rng.integers(PAD + 1, VOCABULARY, (3, 5))
    ours = mixed(*inputs, source_ids)
    loss, _ = LabelSmoothedCrossEntropy(0.1, PAD)(ours, paddle.to_tensor(targets))
    loss.backward()

    expected = log_mixture(logits, gates, weights, source_ids.numpy())
    # Of 1,000 float32 keeps 6e-5.
    np.testing.assert_allclose(log_softmax(ours), expected, rtol=1e-5, atol=1e-4)
    at_targets = np.take_along_axis(expected, targets[..., np.newaxis], axis=-1).sum()
    assert float(loss) == pytest.approx(
        -(0.9 * at_targets + 0.1 * expected.mean(axis=-1).sum()), rel=1e-4
    )
    for x in inputs:
        assert np.isfinite(x.grad.numpy()).all()


def test_attention_that_underflows(source_ids):
    """Weights of the least numbers there are, and 0: the gradient by the scores is finite too."""
    scores = variable(np.linspace(-300, 0, 3 * 4 * 5 * 6).reshape(3, 4, 5, 6).astype("float32"))
    logits = variable(np.zeros((3, 5, VOCABULARY), "float32"))
    gate = variable(np.full((3, 5), -50, "float32"))
    copied_weights = F.softmax(scores, axis=-1) * (scores > -200).astype("float32") * 1e-38
    out = mixed(logits, gate, copied_weights, source_ids)
    F.softmax(out, axis=-1)[:, :, 3].log().sum().backward()
    for x in (scores, logits, gate):
        assert np.isfinite(x.grad.numpy()).all()


# ---- The model ----


class TestModel:
    def test_is_the_mixture_of_what_the_plain_parts_say(self, randomise, source_ids, target_ids):
        model = randomise(small_model())
        hidden, _, cross_weights = model.decode(
            target_ids, model.encode(source_ids), source_ids, need_weights=True
        )
        hidden = hidden.numpy().astype("float64")
        gate = hidden @ model.gate.weight.numpy() + model.gate.bias.numpy()
        generated = hidden @ model.generator.weight.numpy().T
        expected = log_mixture(
            generated, gate[..., 0], cross_weights[1].numpy(), source_ids.numpy()
        )
        ours = model(source_ids, target_ids)
        assert_close(log_softmax(ours), expected)
        assert np.abs(expected - log_softmax(generated)).max() > 0.1

        memory = model.encode(source_ids)
        some = model.logits(target_ids, memory, source_ids, paddle.to_tensor([0, 3, 5, 8]))
        assert_close(some, ours.reshape([12, VOCABULARY]).numpy()[[0, 3, 5, 8]])

    def test_generates_at_first_and_copies_if_the_gate_says_so(self, source_ids, target_ids):
        model = small_model()
        model.gate.weight.set_value(paddle.zeros([8, 1]))
        hidden, *_ = model.decode(target_ids, model.encode(source_ids), source_ids)
        generated = np.exp(log_softmax(model.generator(hidden)))  # as without copying
        p = np.exp(log_softmax(model(source_ids, target_ids)))
        absent = ~np.isin(np.arange(VOCABULARY), source_ids.numpy()[0])
        np.testing.assert_allclose(p[0][:, absent], 0.9 * generated[0][:, absent], rtol=1e-5)
        model.gate.bias.set_value(paddle.full([1], -50.0))
        p = np.exp(log_softmax(model(source_ids, target_ids)))
        assert p[0][:, absent].max() < 1e-20
        np.testing.assert_allclose(p[:, :, PAD], 0.0, atol=1e-20)
        np.testing.assert_allclose(p[2][:, [9, EOS]].sum(axis=-1), 1.0, rtol=1e-6)

    def test_all_parameters_get_a_gradient(self, randomise, source_ids, target_ids):
        model = randomise(small_model())
        F.log_softmax(model(source_ids, target_ids))[:, :, 3:6].sum().backward()
        assert_all_parameters_get_a_gradient(model)

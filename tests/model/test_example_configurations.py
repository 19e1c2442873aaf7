"""The example configurations of the course notes, each built and run once in its full size.

Where a whole batch would take too long here, fewer of its rows are run, and the test says so; no
row depends on another.
"""

import math
from types import SimpleNamespace

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from tests.reference import assert_all_parameters_get_a_gradient, build
from tests.support import make_config
from transformer_mt.data.batches import Batch, Update
from transformer_mt.model.transformer import Transformer
from transformer_mt.training.update import Updater

PAD, BOS = 0, 2


@pytest.fixture
def random_ids(rng):
    """A function that gives ids of real words: int64 (rows, length)."""
    return lambda rows, length, types: rng.integers(4, types, (rows, length))


def parameter_count(model):
    return sum(parameter.size for parameter in model.parameters())


def assert_untrained(nll, types):
    """The mean negative log-likelihood, in nats, is about as bad as a blind guess: a fresh model's
    logits are near N(0, 1), of which log-sum-exp makes ln(types) + 1/2."""
    assert math.log(types) < nll < math.log(types) + 1.0


def test_8500_types_and_4_layers_of_128_512(random_ids):
    """A forward pass with dropout, of 4 of the 32 rows of 100."""
    layers = {"num_encoder_layers": 4, "num_decoder_layers": 4, "max_len": 10_000}
    sizes = {"d_model": 128, "num_heads": 8, "d_ff": 512, "dropout": 0.1}
    model = build(Transformer, 8500, 8500, **layers, **sizes)
    # Two embeddings of 8500 x 128; an attention has 4 x (128 x 128 + 128) = 66,048 parameters, a
    # feed-forward network 2 x 128 x 512 + 512 + 128 = 131,712, a norm 2 x 128.
    encoder_layer, decoder_layer = 66_048 + 131_712 + 2 * 256, 2 * 66_048 + 131_712 + 3 * 256
    assert parameter_count(model) == 2 * 1_088_000 + 4 * (encoder_layer + decoder_layer)
    assert model.positional_encoding.table.shape == [10_000, 128]

    source_ids, target_ids = (paddle.to_tensor(random_ids(4, 100, 8500)) for _ in range(2))
    with paddle.no_grad():
        logits = model(source_ids, target_ids)
        assert logits.shape == [4, 100, 8500]
        nll = F.cross_entropy(logits, target_ids.roll(-1, 1))
    assert_untrained(float(nll), 8500)


def test_an_update_of_5000_types_and_6_layers_of_512_2048(tmp_path, random_ids):
    """With Adam, by what training itself uses, of 2 of the 64 rows of 100."""
    rows, length, types = 2, 100, 5000
    config = make_config(
        tmp_path,
        model={"num_layers": 6, "d_model": 512, "num_heads": 8, "d_ff": 2048, "norm": "post"},
        training={"schedule": "constant", "warmup_steps": 0, "learning_rate": 1e-4},
    )
    side = SimpleNamespace(size=types, pad=PAD)
    updater = Updater(config, SimpleNamespace(source=side, target=side, joint=False))
    # As above, with 4 x (512 x 512 + 512), 2 x 512 x 2048 + 2048 + 512, and 2 x 512.
    encoder_layer = 1_050_624 + 2_099_712 + 2 * 1024
    decoder_layer = 2 * 1_050_624 + 2_099_712 + 3 * 1024
    expected = 2 * 2_560_000 + 6 * (encoder_layer + decoder_layer)
    assert parameter_count(updater.model) == expected

    target = random_ids(rows, length, types)
    target_input = np.hstack([np.full((rows, 1), BOS), target[:, :-1]])
    batch = Batch(random_ids(rows, length, types), target_input, target, rows * length)
    before = {name: parameter.numpy() for name, parameter in updater.model.named_parameters()}
    outcome = updater.apply(Update([batch], rows * length), step=1)
    assert outcome.is_finite
    assert_untrained(outcome.nll / (rows * length), types)
    # The first update of Adam is of the size of the rate for every weight that has a gradient. (The
    # same term added to all scores of a row is lost in the softmax.)
    for name, parameter in updater.model.named_parameters():
        if not name.endswith("key_projection.bias"):
            largest = np.abs(parameter.numpy() - before[name]).max()
            assert largest == pytest.approx(1e-4, rel=0.01), name


def test_6_heads_of_768_1024(random_ids):
    """Forward and backward. The notes give no more than the widths and the heads; the rest here is
    that of the last one, and the batch of 2 x 20."""
    model = build(Transformer, 5000, 5000, d_model=768, num_heads=6, d_ff=1024, dropout=0.1)
    assert model.encoder.layers[0].self_attention.d_k == 128
    # As above, with 4 x (768 x 768 + 768), 2 x 768 x 1024 + 1024 + 768, and 2 x 768.
    encoder_layer = 2_362_368 + 1_574_656 + 2 * 1536
    decoder_layer = 2 * 2_362_368 + 1_574_656 + 3 * 1536
    assert parameter_count(model) == 2 * 3_840_000 + 6 * (encoder_layer + decoder_layer)

    source_ids, target_ids = (paddle.to_tensor(random_ids(2, 20, 5000)) for _ in range(2))
    logits = model(source_ids, target_ids)
    assert logits.shape == [2, 20, 5000]
    nll = F.cross_entropy(logits, target_ids.roll(-1, 1))
    assert_untrained(float(nll), 5000)
    nll.backward()
    assert_all_parameters_get_a_gradient(model, least=0.0)

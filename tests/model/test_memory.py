"""Bytes against those that a real update holds, as Paddle and NumPy count them."""

import gc
import tracemalloc
from types import SimpleNamespace

import numpy as np
import paddle
import pytest

from tests.support import make_config
from transformer_mt.data.batches import Batch, Update
from transformer_mt.kernels import onednn
from transformer_mt.model.costs import (
    VocabularySizes,
    activation_bytes,
    optimizer_bytes,
    weight_bytes,
)
from transformer_mt.training.update import Updater

MODEL = {"num_layers": 2, "d_model": 32, "num_heads": 4, "d_ff": 64, "dropout": 0.0}
VOCABULARIES = VocabularySizes(300, 300, True)
LENGTHS = SOURCE_LEN, TARGET_LEN = 12, 16


needs_onednn = pytest.mark.skipif(
    onednn.library() is None, reason="memory is counted as with oneDNN's attention"
)


def make_updater(tmp_path, model=(), training=(), vocab_size=300, **sections):
    model = {**MODEL, **dict(model)}
    config = make_config(tmp_path, model=model, training=dict(training), **sections)
    target = SimpleNamespace(size=vocab_size, pad=0)
    subwords = SimpleNamespace(source=target, target=target, joint=True)
    return config, Updater(config, subwords)


def full_update(rows, vocab_size=VOCABULARIES.target):
    """One batch without padding."""
    random = np.random.default_rng(rows)
    source = random.integers(4, vocab_size, (rows, SOURCE_LEN))
    target_input, target_output = random.integers(4, vocab_size, (2, rows, TARGET_LEN))
    tokens = rows * TARGET_LEN
    return Update([Batch(source, target_input, target_output, tokens)], tokens)


def held():
    """Bytes of all of Paddle's tensors, and of NumPy's arrays (and Python's objects) since
    tracemalloc was started; dropout draws its masks with NumPy."""
    tensors = paddle.base.core.host_memory_stat_current_value("Allocated", 0)
    return tensors + tracemalloc.get_traced_memory()[0]


def tensor_bytes(tensors):
    return sum(int(tensor.size) * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize(
    ("optimizer", "bias"), [("adam", True), ("adamw", False), ("sgd", True), ("muon", False)]
)
def test_weights_gradients_and_optimiser_state_are_those_of_an_update(tmp_path, optimizer, bias):
    config, updater = make_updater(tmp_path, {"bias": bias}, {"optimizer": optimizer})
    gradients = []

    clear = updater.gradients.clear

    def note_gradients():  # before they are let go
        gradients.extend(parameter.grad for parameter in updater.model.parameters())
        clear()

    updater.gradients.clear = note_gradients
    updater.apply(full_update(4), 1)
    assert tensor_bytes(updater.model.parameters()) == weight_bytes(config, VOCABULARIES)
    assert tensor_bytes(gradients) == weight_bytes(config, VOCABULARIES)
    values = updater.optimizer.groups[0].optimizer.state_dict().values()
    state = [value for value in values if isinstance(value, paddle.Tensor)]
    state += updater.optimizer.muon.momenta if updater.optimizer.muon else []
    assert tensor_bytes(state) == optimizer_bytes(config, VOCABULARIES)


def held_at_the_loss(updater, rows, vocab_size):
    """Bytes that an update of `rows` pairs holds when its loss has been computed, beyond those
    before it."""
    updater.apply(full_update(2, vocab_size), 1)  # the optimiser makes its state
    update = full_update(rows, vocab_size)
    found = []
    objective = updater.objective
    criteria = [term.criterion for term in objective.terms if term.criterion is not None]
    (criterion,) = criteria or [objective.criterion]
    hook = criterion.register_forward_post_hook(lambda *_: found.append(held()))
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        before = held()
        updater.apply(update, 2)
    finally:
        tracemalloc.stop()
        gc.enable()
        hook.remove()
    return found[0] - before


def test_sharding_divides_the_optimisers_state(tmp_path):
    """Adam's powers of beta, two numbers of 4 bytes per tensor, are in every process."""
    whole, share = (
        optimizer_bytes(make_config(tmp_path, training=training), VOCABULARIES)
        for training in ({"devices": 4}, {"devices": 4, "sharding": True})
    )
    powers = whole - 2 * weight_bytes(make_config(tmp_path), VOCABULARIES)
    assert powers >= 0
    assert share == (whole - powers) // 4 + powers < 0.3 * whole


@needs_onednn
@pytest.mark.parametrize(
    ("model", "training", "sections"),
    [
        ({}, {}, {}),
        ({"dropout": 0.1, "attention_dropout": 0.1, "feed_forward_dropout": 0.1}, {}, {}),
        ({"embedding_dropout": 0.2, "norm": "pre", "bias": False}, {}, {}),
        ({"num_encoder_layers": 3, "num_decoder_layers": 1, "norm": "pre", "num_heads": 8}, {}, {}),
        ({"copying": True}, {}, {}),
        ({"dropout": 0.1, "norm": "pre"}, {"recompute": True}, {}),
        ({"num_decoder_layers": 3, "copying": True}, {"recompute": True}, {}),
        ({}, {}, {"guided_attention": {"by": "diagonal"}}),
        ({"norm": "pre"}, {"recompute": True}, {"guided_attention": {"by": "diagonal"}}),
        ({"dropout": 0.1, "projection_dropout": 0.1, "output_dropout": 0.1}, {}, {}),
        ({"dropout": 0.1}, {}, {"consistency": {"method": "r_drop"}}),
    ],
)
def test_activations_are_what_is_held_when_the_loss_is_known(tmp_path, model, training, sections):
    """By what a larger batch holds more: what does not depend on the batch (the states of random
    generators, Python's objects) is not an activation. 1 % is for ids and masks, which are small
    beside tensors of width d_model, and not counted."""
    # With recompute the vocabulary has to be large for that to be the most.
    vocab_size = 1000 if training else 300
    config, updater = make_updater(tmp_path, model, training, vocab_size, **sections)
    sizes = [activation_bytes(config, vocab_size, rows, *LENGTHS) for rows in (8, 32)]
    found = [held_at_the_loss(updater, rows, vocab_size) for rows in (8, 32)]
    assert found[1] - found[0] == pytest.approx(sizes[1] - sizes[0], rel=0.01)


def peak(updater, rows, vocab_size):
    """The most that Paddle's tensors hold in an update of `rows` pairs, beyond those before it."""
    updater.apply(full_update(2, vocab_size), 1)
    update, core = full_update(rows, vocab_size), paddle.base.core
    gc.collect()
    before = core.host_memory_stat_current_value("Allocated", 0)
    core.host_memory_stat_reset_peak_value("Allocated", 0)
    updater.apply(update, 2)
    return core.host_memory_stat_peak_value("Allocated", 0) - before


@needs_onednn
@pytest.mark.parametrize(
    ("norm", "training", "vocab_size", "least"),
    [
        ("pre", {}, 20, 0.98),
        ("post", {}, 1000, 0.98),
        ("post", {"recompute": True}, 1000, 0.98),
        ("pre", {"recompute": True}, 20, 0.9),
        ("post", {"recompute": True}, 20, 0.9),
    ],
)
def test_no_moment_of_an_update_needs_more(tmp_path, norm, training, vocab_size, least):
    """Neither the loss nor, with recompute and a small vocabulary, the backward pass through a
    layer. 2 % is for what is not counted: ids, masks, and gradients on their way. Where a layer is
    computed again the count may be higher: not all that it counts is there in the same moment."""
    config, updater = make_updater(tmp_path, {"norm": norm}, training, vocab_size)
    sizes = [activation_bytes(config, vocab_size, rows, *LENGTHS) for rows in (8, 32)]
    peaks = [peak(updater, rows, vocab_size) for rows in (8, 32)]
    assert least <= (peaks[1] - peaks[0]) / (sizes[1] - sizes[0]) <= 1.02
    # The gradients that are there by then have taken the place of activations.
    vocabularies = VocabularySizes(vocab_size, vocab_size, True)
    assert peaks[1] < sizes[1] + weight_bytes(config, vocabularies)

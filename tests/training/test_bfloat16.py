"""Training in bfloat16 on a CPU, with an emulated product: it learns, and it resumes exactly.

The gradients are tested in tests/model/test_onednn.py.
"""

import numpy as np
import pytest

from tests.small_trainers import SHORT, assert_same_weights, weights
from tests.support import (
    LEARNER,
    LEARNING,
    emulate_bfloat16,
    learn,
    make_config,
    take_steps,
)
from transformer_mt.data.subword import Subwords
from transformer_mt.data.vocabulary import WordVocabulary
from transformer_mt.decoding.line_translator import LineTranslator
from transformer_mt.weights import read_weights

BFLOAT16 = {**SHORT, "precision": "bfloat16"}


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    emulate_bfloat16(monkeypatch)


def test_losses_fall_as_in_float32(make_trainer):
    losses = []
    for settings in (SHORT, BFLOAT16):
        outcomes = take_steps(make_trainer(**settings, warmup_steps=5), 20)
        losses.append([outcome.loss for outcome in outcomes])
    # The losses of the same batches differ by rounding, which grows from update to update.
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.02)
    assert losses[1] != losses[0]


def test_it_learns_to_copy(tmp_path):
    """Four digits, each to itself, of sequences that training never had."""
    sequences = np.unique(np.random.default_rng(1).integers(0, 10, (2000, 4)), axis=0)
    lines = [
        " ".join(map(str, digits)) for digits in np.random.default_rng(2).permutation(sequences)
    ]
    digits = WordVocabulary([str(digit) for digit in range(10)])
    training = {**LEARNING, "max_steps": 150, "batch_tokens": 400, "device_tokens": 400}
    training["precision"] = "bfloat16"
    config = make_config(tmp_path, model=LEARNER, training=training)
    subwords = Subwords(digits, digits)
    engine = learn(config, [(line, line) for line in lines[50:]], subwords)
    found = list(LineTranslator(engine, subwords, config).translate(lines[:50]))
    assert found == lines[:50]


def test_a_run_goes_on_exactly(make_trainer, run_in, tmp_path):
    unbroken = make_trainer(**BFLOAT16)
    directory, lines = run_in(unbroken)
    saved = read_weights(directory.checkpoint("step_12"))
    assert {array.dtype for array in saved.values()} == {np.dtype("float32")}
    assert_same_weights(saved, weights(unbroken))
    (tmp_path / "run").rename(tmp_path / "whole")
    resumed = make_trainer(**BFLOAT16)
    resumed.start(tmp_path / "whole" / "checkpoints" / "step_9")
    _, later = run_in(resumed)
    assert_same_weights(saved, weights(resumed))
    losses = [[x["loss"] for x in log if x["kind"] == "train"] for log in (lines, later)]
    assert losses[1] == losses[0][-len(losses[1]) :]

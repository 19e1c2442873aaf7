"""Options that may be on together, trained together."""

import numpy as np
import pytest

from tests.small_trainers import trainer_of
from tests.support import take_steps
from transformer_mt.data.batches import collate

# Nearly half of the words are predicted from the first step on.
DECAY = {"decay": "linear", "k": 0.5}


@pytest.mark.parametrize(
    ("section", "options"),
    [
        ("scheduled_sampling", {**DECAY, "mixing": "argmax"}),
        ("scheduled_sampling", {**DECAY, "mixing": "sampled", "passes": 3}),
        ("scheduled_sampling", {**DECAY, "mixing": "top_k", "backpropagate": True}),
        ("guided_attention", {"by": "diagonal"}),
        ("guided_attention", {"by": "alignment", "alignments": "links"}),
    ],
)
def test_a_model_that_copies_is_trained_in_other_ways_too(tmp_path, section, options):
    trainer = trainer_of(tmp_path, model={"copying": True}, **{section: options})
    gate, data = trainer.model.gate.weight, trainer.data
    before = gate.numpy()
    assert all(outcome.is_finite for outcome in take_steps(trainer, 2))
    assert (gate.numpy() != before).all()
    batch = collate(data.train, np.arange(8), data.subwords, data.alignments)
    trainer.updater.objective.losses(batch, 3)[0].backward()
    assert np.isfinite(gate.grad.numpy()).all() and np.abs(gate.grad.numpy()).max() > 0.1

"""Options that may be on together, trained together."""

import numpy as np
import pytest

from tests.support import demo_pairs, make_config, prepared, take_steps, train_subwords, with_links
from transformer_mt.data.batches import collate
from transformer_mt.model.copying import CopyingTransformer
from transformer_mt.training.setup import make_trainer
from transformer_mt.training.terms.guided_attention import GuidedAttention
from transformer_mt.training.terms.scheduled_sampling import ScheduledSampling

PAIRS = demo_pairs(60)
# Nearly half of the words are predicted from the first step on.
DECAY = {"decay": "linear", "k": 0.5}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (ScheduledSampling, {**DECAY, "mixing": "argmax"}),
        (ScheduledSampling, {**DECAY, "mixing": "sampled", "passes": 3}),
        (ScheduledSampling, {**DECAY, "mixing": "top_k", "backpropagate": True}),
        (GuidedAttention, {"by": "diagonal"}),
        (GuidedAttention, {"by": "alignment", "alignments": "links"}),
    ],
)
def test_a_model_that_copies_is_trained_in_other_ways_too(tmp_path, monkeypatch, kind, options):
    monkeypatch.chdir(tmp_path)
    section = {ScheduledSampling: "scheduled_sampling", GuidedAttention: "guided_attention"}[kind]
    config = make_config(tmp_path, model={"copying": True}, **{section: options})
    subwords = train_subwords(PAIRS)
    data = prepared(config, PAIRS, subwords)
    if "alignments" in options:
        data = with_links(data, tmp_path)
    trainer = make_trainer(config, data)
    assert type(trainer.model) is CopyingTransformer
    (term,) = trainer.updater.objective.terms
    assert type(term) is kind
    before = trainer.model.gate.weight.numpy()
    assert all(outcome.is_finite for outcome in take_steps(trainer, 2))
    assert (trainer.model.gate.weight.numpy() != before).all()

    batch = collate(data.train, np.arange(8), subwords, data.alignments)
    trainer.updater.objective.losses(batch, 3)[0].backward()
    gradient = trainer.model.gate.weight.grad.numpy()
    assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0.1

"""Word dropout and word replacement."""

import numpy as np
import pytest

from tests.small_trainers import TRAIN
from tests.small_trainers import trainer_of as made
from tests.support import take_steps, train_subwords


def trainer_of(folder, model=None, subwords=None, **noise):
    return made(folder, subwords=subwords, model=model or {}, word_noise=noise)


def first_batch(trainer):
    return trainer.read(0, 0, trainer.plan.epoch_updates(0)[0]).batches[0]


@pytest.mark.parametrize("side", ["source", "target"])
def test_replacement(tmp_path, side):
    """Only words change, in about their share, and the labels stay."""
    trainer = trainer_of(tmp_path, **{f"{side}_replacement": 0.4})
    (term,) = trainer.updater.objective.terms
    batch = first_batch(trainer)
    np.random.seed(1)
    changed = term.batch(batch, 1)
    assert changed.target_output is batch.target_output
    names = {"source": "source", "target": "target_input"}
    own, other = names.pop(side), next(iter(names.values()))
    assert np.array_equal(getattr(changed, other), getattr(batch, other))
    before, after = getattr(batch, own), getattr(changed, own)
    vocabulary = getattr(trainer.data.subwords, side)
    special = np.isin(before, [vocabulary.pad, vocabulary.bos, vocabulary.eos])
    assert np.array_equal(before[special], after[special])
    assert 0.3 < (before != after)[~special].mean() < 0.5
    assert not np.isin(after[~special], [vocabulary.pad, vocabulary.bos, vocabulary.eos]).any()


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_word_that_is_dropped_is_not_read(tmp_path, side):
    """The gradient of its embedding is 0, if the embeddings are not those of the output layer."""
    model = {"tie_embeddings": False}
    trainer = trainer_of(tmp_path, model, **{f"{side}_dropout": 0.5})
    objective, batch = trainer.updater.objective, first_batch(trainer)
    (term,) = objective.terms
    np.random.seed(2)
    masks = dict(zip(("source", "target"), term.dropped(term.batch(batch, 1)), strict=True))
    term.dropped = lambda batch: tuple(masks.values())
    objective.losses(batch, 1)[0].backward()
    assert masks[{"source": "target", "target": "source"}[side]] is None
    ids = batch.source if side == "source" else batch.target_input
    read = np.unique(ids[~masks[side]])
    gradient = getattr(trainer.model, f"{side}_embedding").weight.grad.numpy()
    if trainer.data.subwords.joint:
        other = batch.target_input if side == "source" else batch.source
        read = np.union1d(read, other)
    unread = np.setdiff1d(ids, read)
    assert len(unread) and not gradient[unread].any()


def test_the_share_of_sentences(tmp_path):
    trainer = trainer_of(tmp_path, source_replacement=0.9, sentences=0.5)
    (term,) = trainer.updater.objective.terms
    batch = first_batch(trainer).repeated(20)
    np.random.seed(1)
    changed = (term.batch(batch, 1).source != batch.source).any(1)
    assert 0.4 < changed.mean() < 0.6


def test_the_noise_follows_from_the_step(tmp_path):
    """A run that is resumed draws the same."""
    noise = {"source_dropout": 0.1, "target_dropout": 0.1, "source_replacement": 0.1}
    losses = [[o.loss for o in take_steps(trainer_of(tmp_path, **noise), 3)] for _ in range(2)]
    assert losses[0] == losses[1]
    assert losses[0] != [o.loss for o in take_steps(trainer_of(tmp_path), 3)]


def test_tags_stay_whole(tmp_path):
    """Replacement neither removes a tag nor writes one into a sentence."""
    subwords = train_subwords(TRAIN, user_symbols=["<bt>"])
    trainer = trainer_of(tmp_path, subwords=subwords, source_replacement=0.9)
    (term,) = trainer.updater.objective.terms
    tag = subwords.source.user_symbols["<bt>"]
    batch = first_batch(trainer)
    batch.source[:, 0] = tag
    np.random.seed(1)
    changed = term.batch(batch.repeated(50), 1).source
    assert (changed[:, 0] == tag).all() and not (changed[:, 1:] == tag).any()

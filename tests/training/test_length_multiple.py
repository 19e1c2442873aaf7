"""Lengths rounded up to a multiple: nothing but the padding changes, and plans still fit."""

import numpy as np
import paddle
import pytest

from tests.small_trainers import assert_same_weights, own_subwords, trainer_of
from tests.support import take_steps
from transformer_mt.data.batches import collate
from transformer_mt.training import checkpoint, objective
from transformer_mt.training.checkpoint import State
from transformer_mt.training.progress import Plan

SUBWORDS = own_subwords()
PAD = SUBWORDS.target.pad
REPLACING_ALL = {"decay": "linear", "k": 1e-9}


def every_second(is_real: np.ndarray) -> np.ndarray:
    """In place of random masks, whose draw depends on the padded length."""
    return is_real & (np.arange(is_real.shape[1]) % 2 == 0)


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"model": {"copying": True}},
        {"guided_attention": {"by": "diagonal"}},
        {"guided_attention": {"by": "alignment", "alignments": "links"}},
        {"scheduled_sampling": REPLACING_ALL},
        {"scheduled_sampling": REPLACING_ALL | {"mixing": "top_k"}},
        {"model": {"non_autoregressive": "length"}},
        {"model": {"non_autoregressive": "end"}},
    ],
    ids=str,
)
def test_losses_and_gradients_are_the_same(tmp_path, monkeypatch, sections):
    """Without dropout, up to rounding in float32."""
    monkeypatch.setattr(objective, "random_masks", every_second)
    trainer = trainer_of(tmp_path, **sections)
    rows = np.argsort(trainer.data.train.target.lengths)[[0, 20, 40, -1]]
    results = []
    for multiple in (1, 8):
        batch = collate(trainer.data.train, rows, SUBWORDS, trainer.data.alignments, multiple)
        trainer.model.train()
        loss, nll = trainer.updater.objective.losses(batch, step=1)
        loss.backward()
        gradients = {
            name: parameter.grad.numpy()
            for name, parameter in trainer.model.named_parameters()
            if parameter.grad is not None
        }
        trainer.updater.gradients.clear()
        results.append((float(loss), float(nll), gradients, batch))
    (loss, nll, gradients, own), (wider_loss, wider_nll, wider_gradients, wider) = results
    arrays = wider.source, wider.target_input, wider.target_output
    assert not any(array.shape[1] % 8 for array in arrays)
    assert wider.source.size + wider.target_input.size > own.source.size + own.target_input.size
    assert (wider_loss, wider_nll) == pytest.approx((loss, nll), rel=1e-5)
    largest = max(np.abs(gradient).max() for gradient in gradients.values())
    assert largest > 0.1
    assert_same_weights(wider_gradients, gradients, 1e-4 * largest)


@pytest.mark.parametrize("sampling", [None, 0.1])
def test_rounded_batches_fit_and_their_padding_is_counted(tmp_path, sampling):
    sections = {"training": {"length_multiple": 8}, "subword": {"sampling": sampling}}
    trainer = trainer_of(tmp_path, **sections)
    seen, real = [], 0
    for number, sentences in enumerate(trainer.plan.epoch_updates(0)):
        seen += np.concatenate(sentences).tolist()
        update = trainer.read(0, number, sentences)
        for batch in update.batches:
            for array in (batch.source, batch.target_input, batch.target_output):
                assert array.shape[1] % 8 == 0
                assert array.size <= 400 or len(array) == 1
            real += (batch.source != PAD).sum() + (batch.target_output != PAD).sum()
            real += batch.padding - batch.source.size - batch.target_input.size
    assert sorted(seen) == list(range(120)) and real == 0


def test_the_default_is_that_of_the_device_and_a_run_keeps_its_own(tmp_path, monkeypatch):
    """So a run that began on a CPU is resumed on a GPU with the same batches, and back."""
    trainer = trainer_of(tmp_path)
    for device, batches in (("cpu", (1, 400)), ("gpu:0", (1, 400, 8))):
        monkeypatch.setattr(paddle, "get_device", lambda device=device: device)
        assert Plan.of(trainer.config, trainer.data).batches == batches
        for kept, multiple in (((1, 400), 1), ((1, 400, 8), 8)):
            plan = Plan.of(trainer.config, trainer.data, kept)
            assert (plan.batches, plan.length_multiple) == (kept, multiple)


def test_a_resumed_run_has_the_same_batches(tmp_path):
    """The checkpoint, not the device, decides. The weights are the same to the last bit."""
    options = {"model": {"dropout": 0.1}, "training": {"length_multiple": 8}}
    whole = trainer_of(tmp_path, **options)
    take_steps(whole, 4)
    begun = trainer_of(tmp_path, **options)
    take_steps(begun, 2)
    begun.progress.step = begun.progress.update = 2
    path = tmp_path / "step_2"
    checkpoint.save(path, begun.model, begun.updater.optimizer.state(), State(begun.progress))

    resumed = trainer_of(tmp_path, model=options["model"])  # null, whose default is 1 here
    assert resumed.plan.length_multiple == 1
    resumed.start(path)
    assert resumed.plan.batches == (1, 400, 8)
    for number, sentences in enumerate(resumed.plan.epoch_updates(0)[:4]):
        if number >= 2:
            resumed.updater.apply(resumed.read(0, number, sentences), number + 1)
    assert_same_weights(resumed, whole)

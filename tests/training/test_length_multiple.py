"""Lengths rounded up to a multiple: nothing but the padding changes, and plans still fit."""

from dataclasses import replace

import numpy as np
import paddle
import pytest

from tests.support import demo_pairs, make_config, prepared, take_steps, train_subwords, write_lines
from transformer_mt.data.alignments import encoded_alignments
from transformer_mt.data.batches import collate
from transformer_mt.training import setup
from transformer_mt.training.setup import make_plan, make_trainer
from transformer_mt.training.terms import mask_prediction as mask_predict

PAIRS = demo_pairs(60)
SUBWORDS = train_subwords(PAIRS)
REPLACING_ALL = {"scheduled_sampling": {"decay": "linear", "k": 1e-9}}


@pytest.fixture
def trainer_of(tmp_path):
    def make(**sections):
        links = str(write_lines(tmp_path / "links", ["0-0 1-1"] * len(PAIRS)))
        aligned = sections.get("guided_attention", {}).get("by") == "alignment"
        if aligned:
            sections["guided_attention"] = {"by": "alignment", "alignments": links}
        config = make_config(tmp_path, **sections)
        data = prepared(config, PAIRS, SUBWORDS)
        if aligned:
            links = encoded_alignments(
                tmp_path / "links", data.train, SUBWORDS, ("en", "de"), tmp_path
            )
            data = replace(data, alignments=links)
        return make_trainer(config, data)

    return make


def every_second(is_real: np.ndarray) -> np.ndarray:
    """In place of random masks, whose draw depends on the padded length."""
    return is_real & (np.arange(is_real.shape[1]) % 2 == 0)


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"model": {"copying": True}},
        {"guided_attention": {"by": "diagonal"}},
        {"guided_attention": {"by": "alignment"}},
        REPLACING_ALL,
        {"scheduled_sampling": REPLACING_ALL["scheduled_sampling"] | {"mixing": "top_k"}},
        {"model": {"non_autoregressive": "length"}},
        {"model": {"non_autoregressive": "end"}},
    ],
    ids=str,
)
def test_losses_and_gradients_are_the_same(trainer_of, monkeypatch, sections):
    """Without dropout, up to rounding in float32."""
    monkeypatch.setattr(mask_predict, "random_masks", every_second)
    trainer = trainer_of(**sections)
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
    shapes = [array.shape[1] for array in (wider.source, wider.target_input, wider.target_output)]
    assert all(length % 8 == 0 for length in shapes)
    assert (
        wider.source.shape > own.source.shape or wider.target_input.shape > own.target_input.shape
    )
    assert (wider_loss, wider_nll) == pytest.approx((loss, nll), rel=1e-5)
    assert gradients.keys() == wider_gradients.keys() and len(gradients) > 10
    largest = max(np.abs(gradient).max() for gradient in gradients.values())
    assert largest > 0.1
    for name, gradient in gradients.items():
        np.testing.assert_allclose(
            wider_gradients[name], gradient, rtol=1e-3, atol=1e-5 * largest, err_msg=name
        )


@pytest.mark.parametrize("kind", ["length", "end"])
def test_what_a_non_autoregressive_decoder_reads_is_rounded_too(trainer_of, kind):
    trainer = trainer_of(model={"non_autoregressive": kind})
    objective = trainer.updater.objective
    for rows in np.array_split(np.arange(60), 7):
        plain = objective.labels(collate(trainer.data.train, rows, SUBWORDS))
        labels = objective.labels(collate(trainer.data.train, rows, SUBWORDS, multiple=8))
        assert labels.shape[1] == -(-plain.shape[1] // 8) * 8
        np.testing.assert_array_equal(labels[:, : plain.shape[1]], plain)
        assert (labels[:, plain.shape[1] :] == SUBWORDS.target.pad).all()


@pytest.mark.parametrize("sampling", [None, 0.1])
def test_rounded_batches_fit_and_their_padding_is_counted(trainer_of, sampling):
    trainer = trainer_of(training={"length_multiple": 8}, subword={"sampling": sampling})
    seen, real = [], 0
    for number, sentences in enumerate(trainer.plan.epoch_updates(0)):
        seen += np.concatenate(sentences).tolist()
        update = trainer.read(0, number, sentences)
        for batch in update.batches:
            for array in (batch.source, batch.target_input, batch.target_output):
                assert array.shape[1] % 8 == 0
                assert array.size <= 400 or len(array) == 1
            real += (batch.source != SUBWORDS.source.pad).sum()
            real += (batch.target_output != SUBWORDS.target.pad).sum()
            real += batch.padding - batch.source.size - batch.target_input.size
    assert sorted(seen) == list(range(60)) and real == 0


def test_a_cpu_rounds_nothing_by_default(trainer_of):
    plain, one = trainer_of(), trainer_of(training={"length_multiple": 1})
    assert plain.plan.batches == one.plan.batches == (1, 400)
    assert plain.plan.length_multiple == 1


def test_a_gpu_rounds_to_eight_by_default(trainer_of, monkeypatch):
    trainer = trainer_of()
    monkeypatch.setattr(setup.paddle, "get_device", lambda: "gpu:0")
    plan = make_plan(trainer.config, trainer.data)
    assert plan.batches == (1, 400, 8) and plan.length_multiple == 8


def test_a_run_keeps_its_multiple_on_another_device(trainer_of, monkeypatch):
    """So a run that began on a CPU is resumed on a GPU with the same batches, and back."""
    trainer = trainer_of()
    for device, batches in (("gpu:0", (1, 400)), ("cpu", (1, 400, 8))):
        monkeypatch.setattr(setup.paddle, "get_device", lambda device=device: device)
        plan = make_plan(trainer.config, trainer.data, batches)
        assert plan.batches == batches
        assert plan.length_multiple == (batches[2] if len(batches) > 2 else 1)


def test_a_resumed_run_has_the_same_batches(trainer_of, monkeypatch, tmp_path):
    """The checkpoint, not the device, decides. The weights are the same to the last bit."""
    from transformer_mt.training import checkpoint
    from transformer_mt.training.state import State

    options = {"model": {"dropout": 0.1}, "training": {"length_multiple": 8}}
    whole = trainer_of(**options)
    take_steps(whole, 4)
    begun = trainer_of(**options)
    take_steps(begun, 2)
    begun.progress.step = begun.progress.update = 2
    path = tmp_path / "step_2"
    checkpoint.save(path, begun.model, begun.updater.optimizer.state(), State(begun.progress))

    resumed = trainer_of(**{**options, "training": {}})  # null, whose default is 1 here
    assert resumed.plan.length_multiple == 1
    resumed.start(path)
    assert resumed.plan.batches == (1, 400, 8)
    for number, sentences in enumerate(resumed.plan.epoch_updates(0)[:4]):
        if number >= 2:
            resumed.updater.apply(resumed.read(0, number, sentences), number + 1)
    for (name, weight), (_, other) in zip(
        whole.model.named_parameters(), resumed.model.named_parameters(), strict=True
    ):
        assert paddle.equal_all(weight, other), name

"""Runs of the training loop on tiny models: what they leave, when they end, what they skip."""

import json
import math
import shutil

import numpy as np
import pytest

from tests.small_trainers import (
    DEV,
    SHORT,
    TRAIN,
    assert_same_weights,
    set_losses,
    update_once,
    weights,
)
from transformer_mt.data.batches import Update
from transformer_mt.scoring.metrics import DEFAULT_METRICS, METRICS, Scores, score
from transformer_mt.training import loop as trainer_module
from transformer_mt.training.folder import RunDirectory
from transformer_mt.training.progress import perplexity
from transformer_mt.training.update import Outcome
from transformer_mt.training.validate import DevScores, validate
from transformer_mt.utils.console import visible
from transformer_mt.utils.errors import Interrupted, UserError
from transformer_mt.utils.files import lines as lines_of
from transformer_mt.utils.folders import verify
from transformer_mt.weights import read_weights

# ---- A whole run ----


def test_what_a_run_leaves(make_trainer, run_in, capsys):
    trainer = make_trainer(dev=True, **SHORT)
    directory, lines = run_in(trainer)
    logged = [line for line in lines if line["kind"] == "train"]
    assert [line["step"] for line in logged] == [2, 4, 6, 8, 10, 12]
    for line in logged:
        assert {"loss", "nll", "perplexity", "learning_rate", "tokens_per_second"} <= set(line)
        assert line["perplexity"] == pytest.approx(math.exp(line["nll"]))
    assert logged[-1]["nll"] < logged[0]["nll"]
    validated = [line for line in lines if line["kind"] == "dev"]
    assert [line["step"] for line in validated] == [4, 8, 12]
    for line in validated:
        assert set(line) - {"kind", "step", "epoch", "time", "seconds"} == {
            *("loss", "nll", "perplexity", "best", "samples"),
            *(name for key in DEFAULT_METRICS for name in (key, METRICS[key].signature_key)),
        }
        assert line["perplexity"] == pytest.approx(math.exp(line["nll"]))
        assert "BLEU|" in line["signature"] and "chrF2|" in line["chrf_signature"]
    # The last two, and the best: by chrF where BLEU is near zero, as in so short a run.
    best = max(validated, key=lambda line: (line["bleu"] * (line["bleu"] >= 1), line["chrf"]))
    best = best["step"]
    assert directory.best().name == f"step_{best}"
    names = {path.name for path in directory.saved_checkpoints()}
    assert {"step_12", f"step_{best}"} <= names and len(names) <= 3
    # The last one is the model as it is now.
    assert_same_weights(read_weights(directory.checkpoint("last")), weights(trainer))
    # Translations are in the order of the dev set, and have the score that the log says.
    kept = list(lines_of(directory.path / "dev" / "step_12.hypothesis"))
    references = [target for _, target in DEV]
    assert score(kept, [references], "13a").values["chrf"] == lines[-1]["chrf"]
    # And what a person sees: the fixed sentences.
    said = capsys.readouterr().err
    assert "smoothed loss: the training objective (label smoothing 0.1)" in said
    assert "step 2/12  epoch 1  smoothed loss " in said and "step 4  dev smoothed loss " in said
    for line in validated:
        for index, sample in zip([0, 13, 26], line["samples"], strict=True):  # of 40 lines
            reference = f"  reference    {DEV[index][1]}\n"
            assert f"{reference}  translation  {visible(sample)}" in said


# ---- What is not finite ----


def test_an_update_that_is_not_finite_is_skipped_counted_and_named(make_trainer, run_in, capsys):
    trainer = make_trainer(**SHORT, max_skipped=3)
    steps = set_losses(trainer, {3: np.nan, 4: np.inf, 7: np.nan})
    lines = run_in(trainer)[1]
    assert steps == list(range(1, 13))
    skipped = [line for line in lines if line["kind"] == "skipped"]
    assert [line["step"] for line in skipped] == [3, 4, 7]
    plan = trainer.plan.epoch_updates(0)
    for line in skipped:
        assert line["pairs"] == [int(i) for batch in plan[line["update"] - 1] for i in batch]
    said = capsys.readouterr().err
    assert "step 4: the loss is not finite" in said and "2 in a row, 2 in all" in said
    assert TRAIN[skipped[0]["pairs"][0]][0] in said
    # What is logged of the others is not touched by them.
    assert all(math.isfinite(line["nll"]) for line in lines if line["kind"] == "train")


def test_a_skipped_update_changes_nothing(make_trainer):
    """Training with a bad update in between is training without it."""

    def trained(steps):
        trainer = make_trainer()
        update = trainer.read(0, 0, trainer.plan.epoch_updates(0)[0])
        set_losses(trainer, {2: np.nan})
        assert [trainer.updater.apply(update, step).is_finite for step in steps].count(False) <= 1
        return trainer

    assert_same_weights(trained([1, 2, 3]), trained([1, 3]))


def test_a_gradient_that_is_not_finite(make_trainer):
    """The loss is a number, but the gradient of sqrt at 0 is not."""
    trainer = make_trainer()
    before = weights(trainer)
    losses = trainer.updater.losses

    def with_infinite_gradient(*arguments):
        loss, nll = losses(*arguments)
        return loss + (trainer.model.generator.weight * 0.0).sum().sqrt(), nll

    trainer.updater.losses = with_infinite_gradient
    outcome = update_once(trainer, trainer.plan.epoch_updates(0)[0])
    assert math.isfinite(outcome.loss) and not outcome.is_finite
    assert_same_weights(trainer, before)


def test_too_many_in_a_row_end_training_with_advice(make_trainer, run_in, tmp_path):
    trainer = make_trainer(**SHORT, max_skipped=3)
    set_losses(trainer, dict.fromkeys((2, 5, 6, 7, 8), np.nan))
    with pytest.raises(UserError, match=r"3 updates in a row.*learning_rate.*warmup_steps"):
        run_in(trainer)
    saved = RunDirectory(tmp_path / "run").saved_checkpoints()
    assert saved[-1].name == "step_6" and verify(saved[-1]) is None


def scores_of(bleu: float) -> Scores:
    """Scores with this BLEU; everything else is 0."""
    return Scores(dict.fromkeys(METRICS, 0.0) | {"bleu": bleu}, dict.fromkeys(METRICS, ""), 1.0, 1)


@pytest.mark.parametrize(("losses", "warmup", "says_so"), [
    ([(9, 9), (5.0, 5.0), (5.1, 5.1), (5.2, 5.2), (5.3, 5.3)], 2, True),
    ([(9, 9), (5.0, 5.0), (5.1, 5.1), (5.2, 5.2), (5.3, 5.3)], 100, False),
    # Falling, if from far above the vocabulary's size.
    ([(30, 30), (29, 29), (28, 28), (27, 27), (26, 26)], 2, False),
    # Overfitting: the dev loss rises, the training loss falls.
    ([(9, 9), (5.0, 5.0), (4.9, 5.1), (4.8, 5.2), (4.7, 5.3)], 2, False),
    # Not at every validation; by next to nothing; not the dev loss.
    ([(9, 9), (5.0, 5.0), (5.2, 5.2), (5.1, 5.3), (5.3, 5.4)], 2, False),
    ([(9, 9), (5.0, 5.0), (5.01, 5.1), (5.02, 5.2), (5.03, 5.3)], 2, False),
    ([(9, 9), (5.0, 5.0), (5.1, 4.9), (5.2, 4.8), (5.3, 4.7)], 2, False),
    # Too few after the warm-up, which ends at step 2.
    ([(5.0, 5.0), (5.1, 5.1), (5.2, 5.2), (5.3, 5.3)], 2, False),
    ([(9, 9), (np.nan, np.nan), (5.1, 5.1), (5.2, 5.2), (5.3, 5.3)], 2, False),
])  # fmt: skip
def test_a_diverging_run_says_so(make_trainer, tmp_path, capsys, losses, warmup, says_so):
    """Of validations every 2 steps, with these (training loss, dev loss)."""
    trainer = make_trainer(dev=True, max_steps=100, warmup_steps=warmup)
    directory = trainer.directory = RunDirectory(tmp_path / "run")
    directory.checkpoints.mkdir(parents=True)
    for trained, dev in losses:
        trainer.progress.step += 2
        trainer.progress.add(Outcome(loss=10 * trained), Update([], target_tokens=10))
        scores = DevScores(dev, dev, perplexity(dev), scores_of(bleu=0.0), [""] * len(DEV))
        trainer._record_validation({"dev": scores})
    assert ("training diverges" in capsys.readouterr().err) == says_so


# ---- A validation that fails ----


@pytest.mark.parametrize(("number", "is_stopped"), [(1, False), (3, True)])
def test_a_validation_that_fails_or_is_stopped_is_made_up_for(
    make_trainer, run_in, monkeypatch, number, is_stopped
):
    """The run that goes on from its checkpoint is the one that would have been."""
    whole = make_trainer(dev=True, **SHORT)
    directory, lines = run_in(whole)
    expected = state_of(directory)
    kept = directory.best().name, [path.name for path in directory.saved_checkpoints()]
    shutil.rmtree(directory.path)
    calls = []

    def broken(*arguments):
        calls.append(1)
        if len(calls) < number:
            return validate(*arguments)
        return None if is_stopped else 1 / 0

    with monkeypatch.context() as patch, pytest.raises((ZeroDivisionError, Interrupted)):
        patch.setattr(trainer_module, "validate", broken)
        run_in(make_trainer(dev=True, **SHORT))
    saved = directory.saved_checkpoints()[-1]
    assert saved.name == f"step_{4 * number}" and verify(saved) is None
    again = make_trainer(dev=True, **SHORT)
    again.start(saved)
    again.run(directory)
    assert_same_weights(again, whole)
    assert state_of(directory) == expected and expected["stopped"] is False
    assert kept == (directory.best().name, [path.name for path in directory.saved_checkpoints()])
    log = [json.loads(line) for line in (directory.path / "metrics.jsonl").open()]
    kinds, kinds_again = ([(x["kind"], x["step"]) for x in each] for each in (lines, log))
    assert kinds_again == kinds and log[-1]["bleu"] == lines[-1]["bleu"]


def state_of(directory):
    """Of the last checkpoint, without what a clock says."""
    state = json.loads((directory.checkpoint("last") / "state.json").read_text())
    del state["progress"]["meter"]["seconds"], state["progress"]["seconds"]
    return state


# ---- The best ----


@pytest.mark.parametrize("metric", ["bleu", "loss", "ter"])
def test_the_best_is_that_of_the_metric(make_trainer, run_in, metric):
    values = {**SHORT, "max_steps": 16, "keep_best": 2, "best_metric": metric}
    trainer = make_trainer(dev=True, **values)
    directory, lines = run_in(trainer)
    dev = [line for line in lines if line["kind"] == "dev"]

    def rank(line):
        if metric != "bleu":
            return line[metric]
        # A BLEU below 1 counts as 0, and chrF decides.
        return -line["bleu"] if line["bleu"] >= 1 else 0, -line["chrf"]

    best = [line["step"] for line in sorted(dev, key=rank)][:2]
    assert directory.best().name == f"step_{best[0]}"
    assert [step for _, step in trainer.progress.best] == best
    names = {path.name for path in directory.saved_checkpoints()}
    assert {f"step_{step}" for step in best} <= names


def test_patience(make_trainer, run_in, monkeypatch, capsys):
    """Scores that rise, then fall: the run ends after so many that were no new best."""
    bleu = iter([11.0, 12.0, 11.5, 13.0, 12.0, 13.0, 12.9, 99.0])
    given = lambda *_: DevScores(1.0, 1.0, 2.7, scores_of(next(bleu)), [""] * len(DEV))  # noqa: E731
    monkeypatch.setattr("transformer_mt.training.loop.validate", given)
    trainer = make_trainer(dev=True, **{**SHORT, "max_steps": 1000, "patience": 3})
    directory, lines = run_in(trainer)
    assert [line["bleu"] for line in lines if line["kind"] == "dev"][-1] == 12.9
    assert trainer.progress.step == 7 * 4
    assert directory.best().name == "step_16"
    assert "stopped early: no new best in 3 validations" in capsys.readouterr().err
    assert directory.checkpoint("last").name == "step_28"


@pytest.mark.parametrize(("metric", "worse", "better"), [
    # A BLEU near zero comes from words that are right by chance, so chrF decides.
    ("bleu", {"bleu": 0.66, "chrf": 2.0}, {"bleu": 0.0, "chrf": 11.5}),
    ("bleu", {"bleu": 0.99, "chrf": 60.0}, {"bleu": 1.0, "chrf": 5.0}),
    # Ties: chrF, and then the loss.
    ("bleu", {"bleu": 30.0, "chrf": 50.0}, {"bleu": 30.0, "chrf": 50.1}),
    ("bleu", {"bleu": 30.0, "chrf": 50.0, "loss": 2.0}, {"bleu": 30.0, "chrf": 50.0, "loss": 1.9}),
    ("bleu", {"bleu": math.nan, "chrf": 90.0}, {"bleu": 0.0, "chrf": 1.0}),
    # Of these, low values are good.
    ("ter", {"ter": 61.0, "chrf": 99.0}, {"ter": 60.0, "chrf": 1.0}),
    ("loss", {"loss": 1.1}, {"loss": 1.0}),
])  # fmt: skip
def test_ties_and_scores_near_zero(metric, worse, better):
    ranks = [
        DevScores(values.get("loss", 1.0), 1.0, 1.0, Scores(values, {}, 1.0, 1), []).ranks(metric)
        for values in (worse, better)
    ]
    assert ranks[0] < ranks[1]


def test_the_newest_translations_and_those_of_the_best_are_kept(make_trainer, tmp_path):
    directory = RunDirectory(tmp_path)
    for step in range(1, 9):
        directory.keep_hypotheses([f"line {step}", "with a carriage return\r"], step, best=[2])
    names = {path.name for path in (tmp_path / "dev").iterdir()}
    assert names == {f"step_{step}.hypothesis" for step in (2, 4, 5, 6, 7, 8)}
    kept = list(lines_of(tmp_path / "dev" / "step_8.hypothesis"))
    assert kept == ["line 8", "with a carriage return\r"]

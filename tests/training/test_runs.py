"""Runs of the training loop on tiny models: what they leave, when they end, what they skip."""

import json
import math
import shutil

import numpy as np
import pytest

from tests.small_trainers import DEV, SHORT, TRAIN, set_losses, update_once, weights
from transformer_mt.data.batches import Update
from transformer_mt.scoring.metrics import DEFAULT_METRICS, METRICS, Scores, score
from transformer_mt.training import loop as trainer_module
from transformer_mt.training.folder import RunDirectory
from transformer_mt.training.state import perplexity
from transformer_mt.training.update import Outcome
from transformer_mt.training.validate import DevScores, ranks, validate
from transformer_mt.utils.console import visible
from transformer_mt.utils.errors import Interrupted, UserError
from transformer_mt.utils.files import lines as lines_of
from transformer_mt.utils.folders import verify
from transformer_mt.weights import load_weights

# ---- A whole run ----


def test_what_a_run_leaves(make_trainer, run_in):
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
    other = make_trainer(dev=True, seed=99, **SHORT)
    load_weights(directory.checkpoint("last"), other.model)
    now = weights(trainer)
    for name, value in weights(other).items():
        np.testing.assert_array_equal(value, now[name], err_msg=name)


def test_a_run_without_a_dev_set(make_trainer, run_in):
    directory, lines = run_in(make_trainer(**SHORT))
    assert {line["kind"] for line in lines} == {"train"}
    assert directory.best() is None and directory.checkpoint().name == "step_12"


def test_a_run_of_epochs(make_trainer, run_in):
    trainer = make_trainer(
        **{**SHORT, "max_steps": None, "max_epochs": 2, "batch_tokens": 1500, "device_tokens": 1500}
    )
    an_epoch = len(trainer.plan.epoch_updates(0))
    assert an_epoch > 1
    directory, lines = run_in(trainer)
    assert directory.checkpoint("last").name == f"step_{2 * an_epoch}"
    assert lines[-1]["epoch"] == 2


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
    assert "step 7" in said and "1 in a row, 3 in all" in said
    pair = TRAIN[skipped[0]["pairs"][0]]
    assert pair[0] in said
    # What is logged of the others is not touched by them.
    assert all(math.isfinite(line["nll"]) for line in lines if line["kind"] == "train")


def test_a_skipped_update_changes_nothing(make_trainer):
    """Training with a bad update in between is training without it."""

    def trained(bad):
        trainer = make_trainer()
        update = trainer.read(0, 0, trainer.plan.epoch_updates(0)[0])
        losses = trainer.updater.losses
        for step in (1, 2, 3):
            if step == 2:
                trainer.updater.losses = lambda *a: tuple(x * np.nan for x in losses(*a))
            if step != 2 or bad:
                assert trainer.updater.apply(update, step).is_finite == (step != 2)
            trainer.updater.losses = losses
        return weights(trainer)

    expected = trained(bad=False)
    for name, value in trained(bad=True).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


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
    for name, value in weights(trainer).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


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


def validated(make_trainer, tmp_path, capsys, losses, warmup_steps=2) -> str:
    """What is said of validations every 2 steps, with these (training loss, dev loss)."""
    trainer = make_trainer(dev=True, max_steps=100, warmup_steps=warmup_steps)
    directory = trainer.directory = RunDirectory(tmp_path / "run")
    directory.checkpoints.mkdir(parents=True)
    for trained, dev in losses:
        trainer.progress.step += 2
        trainer.progress.add(Outcome(loss=10 * trained), Update([], target_tokens=10))
        hypotheses = [""] * len(DEV)
        scores = scores_of(bleu=0.0)
        trainer._record_validation(DevScores(dev, dev, perplexity(dev), scores, hypotheses))
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("losses", "says_so"),
    [
        ([(9, 9), (5.0, 5.0), (5.1, 5.1), (5.2, 5.2), (5.3, 5.3)], True),
        # Falling, if from far above the vocabulary's size.
        ([(30, 30), (29, 29), (28, 28), (27, 27), (26, 26)], False),
        # Overfitting: the dev loss rises, the training loss falls.
        ([(9, 9), (5.0, 5.0), (4.9, 5.1), (4.8, 5.2), (4.7, 5.3)], False),
        # Not at every validation; by next to nothing; not the dev loss.
        ([(9, 9), (5.0, 5.0), (5.2, 5.2), (5.1, 5.3), (5.3, 5.4)], False),
        ([(9, 9), (5.0, 5.0), (5.01, 5.1), (5.02, 5.2), (5.03, 5.3)], False),
        ([(9, 9), (5.0, 5.0), (5.1, 4.9), (5.2, 4.8), (5.3, 4.7)], False),
        # Too few after the warm-up, which ends at step 2.
        ([(5.0, 5.0), (5.1, 5.1), (5.2, 5.2), (5.3, 5.3)], False),
        ([(9, 9), (np.nan, np.nan), (5.1, 5.1), (5.2, 5.2), (5.3, 5.3)], False),
    ],
)
def test_a_diverging_run_says_so(make_trainer, tmp_path, capsys, losses, says_so):
    said = validated(make_trainer, tmp_path, capsys, losses)
    assert ("training diverges" in said) == says_so
    if says_so:
        assert "5.000 to 5.300" in said and "training.learning_rate" in said


def test_in_warm_up_no_run_diverges(make_trainer, tmp_path, capsys):
    losses = [(5 + step, 5 + step) for step in range(8)]
    assert "diverges" not in validated(make_trainer, tmp_path, capsys, losses, warmup_steps=100)


def test_a_run_that_learns_does_not_diverge(make_trainer, run_in, capsys):
    run_in(make_trainer(dev=True, **{**SHORT, "validate_every": 1}))
    assert "diverges" not in capsys.readouterr().err


# ---- A validation that fails ----


def test_a_validation_that_fails_leaves_its_checkpoint(make_trainer, run_in, tmp_path, monkeypatch):
    """And the run that goes on from it is the one that would have been."""
    whole = make_trainer(dev=True, **SHORT)
    run_in(whole)
    whole_state = json.loads((tmp_path / "run/checkpoints/step_12/state.json").read_text())
    kept = [path.name for path in RunDirectory(tmp_path / "run").saved_checkpoints()]
    shutil.rmtree(tmp_path / "run")

    def fail(*arguments):
        raise ValueError("could not broadcast")

    with monkeypatch.context() as patch, pytest.raises(ValueError, match="broadcast"):
        patch.setattr(trainer_module, "validate", fail)
        run_in(make_trainer(dev=True, **SHORT))
    directory = RunDirectory(tmp_path / "run")
    saved = directory.saved_checkpoints()[-1]
    assert saved.name == "step_4" and verify(saved) is None

    again = make_trainer(dev=True, **SHORT)
    again.start(saved)
    again.run(directory)
    assert [path.name for path in directory.saved_checkpoints()] == kept
    for name, value in weights(whole).items():
        np.testing.assert_array_equal(value, weights(again)[name], err_msg=name)
    state = json.loads((tmp_path / "run/checkpoints/step_12/state.json").read_text())
    for found in (state, whole_state):
        del found["progress"]["meter"]["seconds"], found["progress"]["seconds"]
    assert state == whole_state


# ---- The best ----


@pytest.mark.parametrize(
    "metric",
    [
        "bleu",
        "loss",
        *(pytest.param(name, marks=pytest.mark.slow) for name in [*METRICS, "perplexity"][1:]),
    ],
)
def test_the_best_is_that_of_the_metric(make_trainer, run_in, metric):
    values = {**SHORT, "max_steps": 24, "keep_best": 2, "best_metric": metric}
    trainer = make_trainer(dev=True, **values)
    directory, lines = run_in(trainer)
    scores = [(line[metric], line["step"]) for line in lines if line["kind"] == "dev"]
    sign = 1 if metric in ("loss", "perplexity", "ter") else -1
    ranked = [step for _, step in sorted((sign * score, step) for score, step in scores)]
    assert directory.best().name == f"step_{ranked[0]}"
    assert [step for _, step in trainer.progress.best] == ranked[:2]
    names = {path.name for path in directory.saved_checkpoints()}
    assert {f"step_{step}" for step in ranked[:2]} <= names


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


def test_a_run_that_was_stopped_in_its_last_validation(make_trainer, run_in, monkeypatch, tmp_path):
    """What was due is done when it goes on: the end is that of a run that was not stopped."""
    directory, lines = run_in(make_trainer(dev=True, **SHORT))
    best = directory.best().name
    shutil.rmtree(directory.path)
    calls = []

    def stopped_at_the_last(*arguments):
        calls.append(1)
        return None if len(calls) == 3 else validate(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("transformer_mt.training.loop.validate", stopped_at_the_last)
        with pytest.raises(Interrupted):
            run_in(make_trainer(dev=True, **SHORT))
    trainer = make_trainer(dev=True, **SHORT)
    trainer.start(directory.checkpoint("last"))
    assert trainer.is_finished
    trainer.run(directory)
    again = [json.loads(line) for line in (directory.path / "metrics.jsonl").open()]
    assert [(line["kind"], line["step"]) for line in again] == [
        (line["kind"], line["step"]) for line in lines
    ]
    assert again[-1]["bleu"] == lines[-1]["bleu"] and directory.best().name == best
    state = json.loads((directory.checkpoint("last") / "state.json").read_text())
    assert state["stopped"] is False and state["progress"]["validated"] == 12


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        # A BLEU near zero comes from words that are right by chance, so chrF decides.
        ({"bleu": 0.66, "chrf": 2.0}, {"bleu": 0.0, "chrf": 11.5}),
        ({"bleu": 0.99, "chrf": 60.0}, {"bleu": 1.0, "chrf": 5.0}),
        # Ties: chrF, and then the loss.
        ({"bleu": 30.0, "chrf": 50.0}, {"bleu": 30.0, "chrf": 50.1}),
        ({"bleu": 30.0, "chrf": 50.0, "loss": 2.0}, {"bleu": 30.0, "chrf": 50.0, "loss": 1.9}),
        ({"bleu": math.nan, "chrf": 90.0}, {"bleu": 0.0, "chrf": 1.0}),
    ],
)
def test_ties_and_scores_near_zero(worse, better):
    assert ranks("bleu", worse) < ranks("bleu", better)


def test_a_metric_whose_low_values_are_good():
    assert ranks("ter", {"ter": 60.0, "chrf": 1.0}) > ranks("ter", {"ter": 61.0, "chrf": 99.0})
    assert ranks("loss", {"loss": 1.0}) > ranks("loss", {"loss": 1.1})


# ---- What a person sees ----


def test_the_figures_are_explained_and_the_fixed_sentences_shown(make_trainer, run_in, capsys):
    _, lines = run_in(make_trainer(dev=True, **SHORT))
    said = capsys.readouterr().err
    assert "smoothed loss: the training objective (label smoothing 0.1)" in said
    assert "step 2/12  epoch 1  smoothed loss " in said and "step 4  dev smoothed loss " in said
    chosen = [0, 13, 26]  # of 40 lines
    for line in (line for line in lines if line["kind"] == "dev"):
        for index, sample in zip(chosen, line["samples"], strict=True):
            reference = f"  reference    {DEV[index][1]}\n"
            assert f"{reference}  translation  {visible(sample)}" in said


def test_without_smoothing_the_loss_has_its_plain_name(make_trainer, run_in, capsys):
    run_in(make_trainer(**SHORT, label_smoothing=0.0))
    assert "  loss: the training objective, nats per subword" in capsys.readouterr().err


def test_the_newest_translations_and_those_of_the_best_are_kept(make_trainer, tmp_path):
    directory = RunDirectory(tmp_path)
    for step in range(1, 9):
        directory.keep_hypotheses([f"line {step}", "with a carriage return\r"], step, best=[2])
    names = {path.name for path in (tmp_path / "dev").iterdir()}
    assert names == {f"step_{step}.hypothesis" for step in (2, 4, 5, 6, 7, 8)}
    kept = list(lines_of(tmp_path / "dev" / "step_8.hypothesis"))
    assert kept == ["line 8", "with a carriage return\r"]


def test_translations_of_a_validation_can_be_scored_again(make_trainer, run_in):
    """They are in the order of the dev set, and have the score that the log says."""
    trainer = make_trainer(dev=True, **SHORT)
    directory, lines = run_in(trainer)
    kept = list(lines_of(directory.path / "dev" / "step_12.hypothesis"))
    references = [target for _, target in DEV]
    assert score(kept, [references], "13a").values["chrf"] == lines[-1]["chrf"]

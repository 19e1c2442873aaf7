"""The training loop, on tiny models and real sentences."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import paddle
import pytest

from tests.support import (
    demo_pairs,
    log_softmax,
    make_config,
    prepared,
    take_steps,
    train_subwords,
)
from transformer_mt.assembly import training as assembly
from transformer_mt.data.subword import Subwords
from transformer_mt.evaluation.metrics import DEFAULT_METRICS, METRICS, Scores
from transformer_mt.runtime.checksums import verify
from transformer_mt.runtime.errors import Interrupted, UserError
from transformer_mt.training import trainer as trainer_module
from transformer_mt.training.run_directory import RunDirectory
from transformer_mt.training.state import Meter, perplexity
from transformer_mt.training.update import Outcome
from transformer_mt.training.validation import DevScores, dev_loss, validate
from transformer_mt.weights import load_weights

PAIRS = demo_pairs(160)
TRAIN, DEV = PAIRS[:120], PAIRS[120:]


@pytest.fixture(scope="module")
def subwords() -> Subwords:
    return train_subwords(PAIRS)


@pytest.fixture
def make_trainer(tmp_path, subwords):
    def make(dev=False, model=None, evaluation=None, **training):
        sections = {"model": model or {}, "training": training}
        config = make_config(tmp_path, **sections)
        data = prepared(config, TRAIN, subwords, DEV if dev else None)
        return assembly.make_trainer(config, data)

    return make


def weights(trainer):
    return {name: value.numpy() for name, value in trainer.model.named_parameters()}


@pytest.mark.parametrize("bias", [True, False])
def test_a_clipped_gradient_has_the_norm_that_is_asked_for(make_trainer, bias):
    """A step of plain gradient descent with a rate of 1 moves the weights by the gradient. Without
    biases, Paddle gives some gradients that cannot be written to while gradients are recorded."""
    trainer = make_trainer(
        model={"bias": bias}, optimizer="sgd", momentum=0.0, schedule="constant", warmup_steps=0,
        learning_rate=1.0, clip_norm=0.01,
    )  # fmt: skip
    before = weights(trainer)
    take_steps(trainer, 1)
    moved = [after - before[name] for name, after in weights(trainer).items()]
    norm = np.sqrt(sum(np.square(change, dtype="float64").sum() for change in moved))
    # Weights of up to 2, from whose differences it is computed, are rounded to 1e-7.
    assert norm == pytest.approx(0.01, abs=2e-5)


# ---- The same again ----


def test_the_same_seed_gives_the_same_weights_bit_by_bit(make_trainer):
    def trained(seed):
        # Each is made just before it is trained, as in a process of its own: dropout draws from
        # Paddle's one generator, which a trainer seeds when it is made.
        trainer = make_trainer(model={"dropout": 0.3}, seed=seed, max_steps=6)
        take_steps(trainer, 6)
        return weights(trainer)

    first, second, other = trained(5), trained(5), trained(6)
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)
    assert not np.array_equal(first["target_embedding.weight"], other["target_embedding.weight"])


# ---- One update ----

# Plain gradient descent with a rate of 1 subtracts the gradient itself from the weights.
PLAIN = {"optimizer": "sgd", "momentum": 0.0, "schedule": "constant", "warmup_steps": 0}


def gradient(trainer, batches):
    """The gradient that an update has used."""
    before = weights(trainer)
    update_once(trainer, batches)
    after = weights(trainer)
    return {name: before[name] - after[name] for name in before}


def update_once(trainer, batches):
    return trainer.updater.apply(trainer.read(0, 0, batches), 1)


def assert_same_gradient(found, expected):
    """Weights of at most 1 keep their differences to 6e-8; sums of some hundred terms, in another
    order, agree to 1e-6 of the largest."""
    for name, value in expected.items():
        size = max(1.0, float(np.abs(value).max()))
        np.testing.assert_allclose(found[name], value, rtol=0, atol=2e-6 * size, err_msg=name)


def test_accumulated_gradients_are_those_of_the_whole_batch(make_trainer):
    sentences = np.arange(40)
    parts = [sentences[:13], sentences[13:30], sentences[30:]]
    rate = {"learning_rate": 1.0, **PLAIN}
    whole = gradient(make_trainer(**rate), [sentences])
    assert max(np.abs(value).max() for value in whole.values()) > 0.01
    assert_same_gradient(gradient(make_trainer(**rate), parts), whole)
    # A part taken twice weighs twice: the parts are no means of means.
    twice = gradient(make_trainer(**rate), [sentences, sentences[:5]])
    assert not np.allclose(
        twice["target_embedding.weight"], whole["target_embedding.weight"], atol=1e-4
    )


def test_the_gradient_is_that_of_the_mean_over_target_tokens(make_trainer):
    """A small step of gradient descent lowers the mean loss by rate times squared gradient; that
    of a sum or of a mean over sentences would by another amount. The second order of the step, of
    size 1e-4, is some per cent of it at the most."""
    sentences = np.arange(30)

    def mean_loss(trainer):
        trainer.model.eval()
        losses = [loss_of_pair(trainer, index) for index in sentences]
        return sum(loss for loss, _ in losses) / sum(tokens for _, tokens in losses)

    rate = 1e-2
    trainer = make_trainer(learning_rate=rate, label_smoothing=0.0, **PLAIN)
    before = mean_loss(trainer)
    step = gradient(trainer, [sentences[:11], sentences[11:]])
    squared = sum(float((value.astype("float64") ** 2).sum()) for value in step.values()) / rate**2
    assert before - mean_loss(trainer) == pytest.approx(rate * squared, rel=0.1)


def loss_of_pair(trainer, index):
    """Negative log-likelihood of a pair of the training text, and its tokens."""
    corpus = trainer.data.train
    nll, _, tokens = pair_losses(trainer, corpus.source[index], corpus.target[index])
    return nll, tokens


def pair_losses(trainer, source, target):
    """Of a pair alone, without padding, in float64: its negative log-likelihood; the same if at
    each place all of the vocabulary were wanted alike; and its tokens."""
    subwords = trainer.data.subwords
    source = np.array([[*source, subwords.source.eos]])
    read = np.array([[subwords.target.bos, *target]])
    wanted = np.array([*target, subwords.target.eos])
    with paddle.no_grad():
        logits = trainer.model(paddle.to_tensor(source), paddle.to_tensor(read))
    log_probs = log_softmax(logits.numpy()[0])
    nll = -log_probs[np.arange(len(wanted)), wanted].sum()
    return nll, -log_probs.mean(axis=1).sum(), len(wanted)


def test_an_update_reports_the_loss_before_it(make_trainer):
    trainer = make_trainer(label_smoothing=0.1)
    batches = trainer.plan.epoch_updates(0)[0]
    trainer.model.eval()
    pairs = [loss_of_pair(trainer, index) for batch in batches for index in batch]
    tokens = sum(tokens for _, tokens in pairs)
    update = trainer.read(0, 0, batches)
    assert update.target_tokens == tokens
    outcome = trainer.updater.apply(update, 1)
    expected = sum(nll for nll, _ in pairs)
    assert outcome.nll == pytest.approx(expected, rel=1e-5)
    assert outcome.loss != outcome.nll
    meter = Meter(seconds=2.0)
    meter.add(outcome, tokens)
    line = meter.line()
    assert line["nll"] == pytest.approx(expected / tokens, rel=1e-5)
    assert line["perplexity"] == pytest.approx(math.exp(expected / tokens), rel=1e-4)
    assert line["tokens_per_second"] == tokens / 2.0


def test_the_rate_is_the_schedules(make_trainer, monkeypatch):
    trainer = make_trainer(schedule="noam", warmup_steps=4, learning_rate=None, max_steps=4)
    rates = []
    optimizer = trainer.updater.optimizer
    set_rate = optimizer.set_lr
    monkeypatch.setattr(optimizer, "set_lr", lambda v: rates.append(v) or set_rate(v))
    take_steps(trainer, 6)
    paper = [16**-0.5 * min(step**-0.5, step * 4**-1.5) for step in range(1, 7)]
    assert rates == pytest.approx(paper, rel=1e-12)


@pytest.mark.parametrize(
    ("batch_tokens", "device_tokens", "plan"),
    [(4096, 4096, (1, 4096)), (4096, 8192, (1, 4096)), (4096, 2048, (2, 2048)),
     (25000, 4096, (7, 3571)), (100, 99, (2, 50))],
)  # fmt: skip
def test_accumulation_follows_from_the_two_sizes(make_trainer, batch_tokens, device_tokens, plan):
    trainer = make_trainer(batch_tokens=batch_tokens, device_tokens=device_tokens)
    assert trainer.config.training.batch_plan == plan


def test_an_epoch_trains_on_every_pair_once(make_trainer):
    trainer = make_trainer(batch_tokens=600, device_tokens=200)
    plans = [trainer.plan.epoch_updates(epoch) for epoch in (0, 1, 0)]
    for plan in plans:
        sentences = np.concatenate([batch for update in plan for batch in update])
        assert sorted(sentences) == list(range(len(TRAIN)))
    order = [[list(batch) for update in plan for batch in update] for plan in plans]
    assert order[0] == order[2] != order[1]


# ---- The dev set ----


def test_the_dev_sets_losses_and_the_perplexity_of_the_unsmoothed_one(make_trainer):
    trainer = make_trainer(dev=True, label_smoothing=0.2)
    take_steps(trainer, 3)
    nll, loss = dev_loss(trainer.config, trainer.data, trainer.updater)
    trainer.model.eval()
    subwords = trainer.data.subwords
    losses = [
        pair_losses(trainer, subwords.source.encode(source), subwords.target.encode(target))
        for source, target in DEV
    ]
    plain, blind, tokens = np.sum(losses, axis=0)
    # Sums of a thousand float32 terms.
    assert nll == pytest.approx(plain / tokens, rel=1e-5)
    assert perplexity(nll) == pytest.approx(math.exp(plain / tokens), rel=1e-4)
    assert loss == pytest.approx((0.8 * plain + 0.2 * blind) / tokens, rel=1e-5)
    assert abs(loss - nll) > 1e-3  # which rounding is far below


def test_perplexity_of_a_hopeless_model_is_still_a_number():
    assert perplexity(0.0) == 1
    assert math.isfinite(perplexity(1e6))


# ---- A whole run ----

SHORT = {
    "max_steps": 12, "batch_tokens": 300, "device_tokens": 300, "log_every": 2,
    "validate_every": 4, "save_every": 3, "keep_last": 2,
}  # fmt: skip


@pytest.fixture
def run_in(tmp_path):
    def run(trainer):
        directory = RunDirectory(tmp_path / "run")
        directory.claim()
        directory.start(trainer.config, trainer.data.subwords, [])
        trainer.run(directory)
        directory.release()
        lines = (directory.path / "metrics.jsonl").read_text().splitlines()
        return directory, [json.loads(line) for line in lines]

    return run


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
        assert set(line) - {"kind", "step"} == {
            *("loss", "nll", "perplexity"),
            *(name for key in DEFAULT_METRICS for name in (key, METRICS[key].signature_key)),
        }
        assert line["perplexity"] == pytest.approx(math.exp(line["nll"]))
        assert "BLEU|" in line["signature"] and "chrF2|" in line["chrf_signature"]
    # The last two, and the best: the first of those with the highest BLEU.
    best = max(validated, key=lambda line: line["bleu"])["step"]
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
    assert lines[-1]["epoch"] == 1


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


def set_losses(trainer, values):
    """Makes the losses of some steps what they are said to be; returns the list of all steps."""
    losses, update, steps = trainer.updater.losses, trainer.updater.apply, []

    def watched(*arguments):
        loss, nll = losses(*arguments)
        factor = values.get(steps[-1], 1.0)
        return loss * factor, nll * factor

    trainer.updater.losses = watched
    trainer.updater.apply = lambda read, step: steps.append(step) or update(read, step)
    return steps


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
        trainer.progress.add(Outcome(loss=10 * trained), 10)
        trainer._record_validation(DevScores(dev, dev, perplexity(dev), scores_of(bleu=0.0)))
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
        del found["progress"]["meter"]["seconds"]
    assert state == whole_state


# ---- Clipping ----


@pytest.mark.parametrize("limit", [0.05, 1000.0])
def test_clipping_is_paddles(make_trainer, limit):
    rate = {"learning_rate": 1.0, **PLAIN}
    sentences = np.arange(40)
    plain, clipped = (
        gradient(make_trainer(clip_norm=clip, **rate), [sentences]) for clip in (None, limit)
    )
    pairs = [(paddle.to_tensor(value), paddle.to_tensor(value)) for value in plain.values()]
    expected = [clip.numpy() for _, clip in paddle.nn.ClipGradByGlobalNorm(limit)(pairs)]
    assert_same_gradient(clipped, dict(zip(plain, expected, strict=True)))
    norm = math.sqrt(sum((value.astype("float64") ** 2).sum() for value in clipped.values()))
    assert norm == pytest.approx(min(limit, norm), rel=1e-4)


# ---- float16 ----


@pytest.fixture
def scaling(monkeypatch):
    """Makes a trainer scale its loss as for float16. Paddle's scaler computes on a CPU as well, but
    will only be switched on where it sees a GPU."""

    class Gpu:
        is_gpu_place = staticmethod(lambda: True)

    class Tracer:
        _expected_place = Gpu

    def scale(trainer):
        with monkeypatch.context() as patch:
            patch.setattr("paddle.amp.grad_scaler._dygraph_tracer", lambda: Tracer)
            trainer.updater.scaler = paddle.amp.GradScaler(
                init_loss_scaling=1024.0, decr_every_n_nan_or_inf=1
            )
        return trainer

    # What auto_cast sets; without it, a scaler switches itself off.
    state = paddle.amp.auto_cast.__globals__["amp_global_state"]()
    monkeypatch.setattr(state, "amp_dtype", "float16")

    return scale


def test_a_scaled_loss_is_clipped_after_unscaling(make_trainer, scaling):
    rate = {"learning_rate": 1.0, "clip_norm": 0.05, **PLAIN}
    sentences = np.arange(40)
    expected = gradient(make_trainer(**rate), [sentences[:20], sentences[20:]])
    trainer = scaling(make_trainer(**rate))
    found = gradient(trainer, [sentences[:20], sentences[20:]])
    assert_same_gradient(found, expected)
    assert trainer.updater.scaler.is_enable()


def test_the_scale_falls_when_a_gradient_overflows_and_is_saved(make_trainer, scaling, run_in):
    trainer = scaling(make_trainer(**SHORT))
    set_losses(trainer, {2: np.inf, 3: np.inf})
    directory, lines = run_in(trainer)
    assert [line["step"] for line in lines if line["kind"] == "skipped"] == [2, 3]
    assert float(trainer.updater.scaler._scale) == 1024 / 4
    other = scaling(make_trainer(seed=9, **SHORT))
    other.start(directory.checkpoint("last"))
    assert float(other.updater.scaler._scale) == 1024 / 4
    assert other.updater.scaler.state_dict()["incr_count"] == 9  # the good updates since
    for name, value in weights(other).items():
        np.testing.assert_array_equal(value, weights(trainer)[name], err_msg=name)


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
    bleu = iter([1.0, 2.0, 1.5, 3.0, 2.0, 3.0, 2.9, 99.0])
    given = lambda *_: DevScores(1.0, 1.0, 2.7, scores_of(next(bleu)))  # noqa: E731
    monkeypatch.setattr("transformer_mt.training.trainer.validate", given)
    trainer = make_trainer(dev=True, **{**SHORT, "max_steps": 1000, "patience": 3})
    directory, lines = run_in(trainer)
    assert [line["bleu"] for line in lines if line["kind"] == "dev"][-1] == 2.9
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
        patch.setattr("transformer_mt.training.trainer.validate", stopped_at_the_last)
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


# ---- Memory ----


def test_out_of_memory_names_what_to_lower(make_trainer):
    trainer = make_trainer()

    def too_large(*arguments):
        raise RuntimeError("(External) ResourceExhaustedError: Out of memory error on GPU 0.")

    trainer.updater.losses = too_large
    with pytest.raises(UserError, match="out of memory at step 1") as raised:
        update_once(trainer, trainer.plan.epoch_updates(0)[0])
    for words in ("training.device_tokens (400)", "training.recompute", "data.max_length (256)"):
        assert words in str(raised.value)


def test_fewer_device_tokens_keep_the_updates(make_trainer):
    """A run that goes on with less memory has the same updates, in more pieces."""
    plan = make_trainer(batch_tokens=800, device_tokens=800).plan.epoch_updates(0)
    trainer = make_trainer(batch_tokens=800, device_tokens=300)
    trainer.plan = replace(trainer.plan, batches=(1, 800))
    pieces = trainer.plan.epoch_updates(0)
    lengths = trainer.data.train.target.lengths
    for update, whole in zip(pieces, plan, strict=True):
        assert list(np.concatenate(update)) == list(np.concatenate(whole))
        assert len(update) == min(3, len(np.concatenate(whole)))
        for piece in update:
            assert len(piece) * (lengths[piece].max() + 1) <= 300 + lengths[piece].max() + 1


def test_pieces_of_small_batches_stay_in_their_updates(make_trainer):
    """A batch of fewer pairs than pieces must not shift those that follow."""
    plan = make_trainer(batch_tokens=1000, device_tokens=50).plan.epoch_updates(0)
    assert min(len(batch) for update in plan for batch in update) < 3
    trainer = make_trainer(batch_tokens=1000, device_tokens=15)
    trainer.plan = replace(trainer.plan, batches=(20, 50))
    for update, whole in zip(trainer.plan.epoch_updates(0), plan, strict=True):
        assert list(np.concatenate(update)) == list(np.concatenate(whole))

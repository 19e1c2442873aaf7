"""The training loop, on tiny models and real sentences."""

import json
import math

import numpy as np
import paddle
import pytest
from support import make_config, prepared, real_pairs, train_subwords

from transformer_mt import assembly
from transformer_mt.data.batches import ordered_batches
from transformer_mt.data.subword import Subwords
from transformer_mt.errors import UserError
from transformer_mt.model_directory import ModelDirectory
from transformer_mt.training.processes import Processes
from transformer_mt.training.trainer import Meter, Trainer, batch_plan, perplexity

PAIRS = real_pairs(160)
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
        return Trainer(config, data, Processes())

    return make


def weights(trainer):
    return {name: value.numpy() for name, value in trainer.model.named_parameters()}


def train(trainer, steps):
    meter = Meter()
    for batches in trainer.epoch_updates(0)[:steps]:
        trainer.update(batches, meter)
    return meter


# ---- The same again ----


def test_the_same_seed_gives_the_same_weights_bit_by_bit(make_trainer):
    def trained(seed):
        # Each is made just before it is trained, as in a process of its own: dropout draws from
        # Paddle's one generator, which a trainer seeds when it is made.
        trainer = make_trainer(model={"dropout": 0.3}, seed=seed, max_steps=6)
        train(trainer, 6)
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
    trainer.update(batches, Meter())
    after = weights(trainer)
    return {name: before[name] - after[name] for name in before}


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
    """Negative log-likelihood of a pair alone, without padding, in float64, and its tokens."""
    corpus, subwords = trainer.data.train, trainer.data.subwords
    return pair_nll(trainer, subwords, corpus.source[index], corpus.target[index])


def pair_nll(trainer, subwords, source, target):
    source = np.array([[*source, subwords.source.eos]])
    read = np.array([[subwords.target.bos, *target]])
    wanted = np.array([*target, subwords.target.eos])
    with paddle.no_grad():
        logits = trainer.model(paddle.to_tensor(source), paddle.to_tensor(read))
    logits = logits.numpy()[0].astype("float64")
    log_total = np.log(np.exp(logits).sum(axis=1))
    return float((log_total - logits[np.arange(len(wanted)), wanted]).sum()), len(wanted)


def test_an_update_reports_the_loss_before_it(make_trainer):
    trainer = make_trainer(label_smoothing=0.1)
    batches = trainer.epoch_updates(0)[0]
    trainer.model.eval()
    pairs = [loss_of_pair(trainer, index) for batch in batches for index in batch]
    meter = Meter()
    trainer.update(batches, meter)
    assert meter.tokens == sum(tokens for _, tokens in pairs)
    line = meter.line()
    expected = sum(nll for nll, _ in pairs) / meter.tokens
    assert line["nll"] == pytest.approx(expected, rel=1e-5)
    assert line["perplexity"] == pytest.approx(math.exp(expected), rel=1e-4)
    assert line["loss"] != line["nll"]
    assert line["tokens_per_second"] == pytest.approx(meter.tokens / meter.seconds)


def test_the_rate_is_the_schedules(make_trainer, monkeypatch):
    trainer = make_trainer(schedule="noam", warmup_steps=4, learning_rate=None, max_steps=4)
    rates = []
    set_rate = trainer.optimizer.set_lr
    monkeypatch.setattr(trainer.optimizer, "set_lr", lambda v: rates.append(v) or set_rate(v))
    train(trainer, 6)
    paper = [16**-0.5 * min(step**-0.5, step * 4**-1.5) for step in range(1, 7)]
    assert rates == pytest.approx(paper, rel=1e-12)


@pytest.mark.parametrize(
    ("batch_tokens", "device_tokens", "plan"),
    [(4096, 4096, (1, 4096)), (4096, 8192, (1, 4096)), (4096, 2048, (2, 2048)),
     (25000, 4096, (7, 3571)), (100, 99, (2, 50))],
)  # fmt: skip
def test_accumulation_follows_from_the_two_sizes(make_trainer, batch_tokens, device_tokens, plan):
    trainer = make_trainer(batch_tokens=batch_tokens, device_tokens=device_tokens)
    assert batch_plan(trainer.config.training) == plan


def test_an_epoch_trains_on_every_pair_once(make_trainer):
    trainer = make_trainer(batch_tokens=600, device_tokens=200)
    plans = [trainer.epoch_updates(epoch) for epoch in (0, 1, 0)]
    for plan in plans:
        sentences = np.concatenate([batch for update in plan for batch in update])
        assert sorted(sentences) == list(range(len(TRAIN)))
    order = [[list(batch) for update in plan for batch in update] for plan in plans]
    assert order[0] == order[2] != order[1]


# ---- The dev set ----


def test_dev_loss_and_perplexity_are_those_of_the_unsmoothed_loss(make_trainer):
    trainer = make_trainer(dev=True, label_smoothing=0.2)
    train(trainer, 3)
    nll, loss = trainer.dev_loss()
    trainer.model.eval()
    subwords = trainer.data.subwords
    pairs = [
        pair_nll(trainer, subwords, subwords.source.encode(source), subwords.target.encode(target))
        for source, target in DEV
    ]
    expected = sum(nll for nll, _ in pairs) / sum(tokens for _, tokens in pairs)
    # Sums of a thousand float32 terms.
    assert nll == pytest.approx(expected, rel=1e-5)
    assert perplexity(nll) == pytest.approx(math.exp(expected), rel=1e-4)
    assert loss > nll + 0.01


def test_dev_batches_are_always_the_same(make_trainer):
    corpus = make_trainer(dev=True).data.dev
    first, second = (
        [list(b) for b in ordered_batches(corpus.source.lengths, corpus.target.lengths, 300)]
        for _ in range(2)
    )
    assert first == second


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
        directory = ModelDirectory(tmp_path / "run")
        directory.claim(restart=False)
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
        assert {"loss", "nll", "perplexity", "bleu", "chrf", "signature"} <= set(line)
        assert line["perplexity"] == pytest.approx(math.exp(line["nll"]))
        assert "BLEU|" in line["signature"]
    # The last two, and the best: the first of those with the highest BLEU.
    best = max(validated, key=lambda line: line["bleu"])["step"]
    assert directory.best().name == f"step_{best}"
    names = {path.name for path in directory.saved_checkpoints()}
    assert {"step_12", f"step_{best}"} <= names and len(names) <= 3
    # The last one is the model as it is now.
    other = make_trainer(dev=True, seed=99, **SHORT)
    assembly.load_weights(directory.checkpoint("last"), other.model)
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
    an_epoch = len(trainer.epoch_updates(0))
    assert an_epoch > 1
    directory, lines = run_in(trainer)
    assert directory.checkpoint("last").name == f"step_{2 * an_epoch}"
    assert lines[-1]["epoch"] == 1


def test_a_loss_that_is_not_a_number_ends_training_before_the_update(make_trainer):
    trainer = make_trainer()
    broken = trainer.model.generator.weight.numpy().copy()
    broken[5] = np.nan
    trainer.model.generator.weight.set_value(broken)
    before = weights(trainer)
    with pytest.raises(UserError, match="step 1 is not a number any more"):
        train(trainer, 1)
    for name, value in weights(trainer).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)

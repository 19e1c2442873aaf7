"""Scheduled sampling against the same done one token after another, and against its definitions."""

import itertools

import numpy as np
import paddle
import pytest

from tests.small_trainers import batch_of, trainer_of
from tests.support import (
    log_softmax,
    make_config,
    take_steps,
    train_subwords,
    wide_model,
)
from transformer_mt.config.schema import ScheduledSamplingConfig
from transformer_mt.data.batches import Batch, collate
from transformer_mt.training.objective import Objective
from transformer_mt.training.terms import make_objective, perturbation
from transformer_mt.training.terms.perturbation import ScheduledSampling, draw, true_share
from transformer_mt.training.validate import dev_loss

PAIRS = [("a b c d e f g h", "h g f e d c b a"), ("e d c", "c d"), ("b a d", "d a b e")] * 10


@pytest.fixture(scope="module")
def subwords():
    return train_subwords(PAIRS, vocab_size=30, type="char")


@pytest.fixture
def objective_of(tmp_path, subwords):
    """An objective whose model is always the same, and as sure of its choices as a trained one."""

    def make(**settings):
        settings = {"k": 1.0, "slope": 1.0, "decay": "linear", **settings}
        config = make_config(tmp_path, scheduled_sampling=settings)
        return make_objective(config, wide_model(config, subwords), subwords)

    return make


@pytest.fixture
def batch(subwords):
    """Rows of 1, 4 and 7 target tokens, eos counted."""
    random, size = np.random.default_rng(3), subwords.target.size
    lengths = ((5, 2, 6), (3, 0, 6))
    rows = ([random.integers(4, size, length).tolist() for length in own] for own in lengths)
    return batch_of(subwords, *rows)


def seen(objective, batch, step=1000):
    """What the decoder reads in the pass that is trained on, and the losses."""
    read = []
    logits = objective.model.logits
    objective.model.logits = lambda target, *more, **options: (
        read.append(target) or logits(target, *more, **options)
    )
    try:
        losses = objective.losses(batch, step)
    finally:
        objective.model.logits = logits
    return read[-1].numpy(), losses


# ---- The decays ----


@pytest.mark.parametrize("step", [1, 11, 5000, 10**9])
def test_the_decays_are_those_of_bengio_et_al(step):
    """In exact arithmetic but for NumPy's float64; steps so late that exp overflows too."""
    done = step - 1
    with np.errstate(over="ignore"):
        expected = {
            ("linear", 0.9): 0.9 - 1e-3 * done,
            ("exponential", 0.999): 0.999**done,
            ("inverse_sigmoid", 50.0): 50 / (50 + np.exp(np.float64(done / 50))),
        }
    for (decay, k), share in expected.items():
        config = ScheduledSamplingConfig(decay=decay, k=k, slope=1e-3)
        assert true_share(step, config) == pytest.approx(max(0.0, share), rel=1e-12, abs=1e-300)
        least = config.model_copy(update={"minimum": 0.3})
        assert true_share(step, least) == pytest.approx(max(0.3, share), rel=1e-12)


# ---- What is read ----


def test_with_true_words_alone_it_is_teacher_forcing(objective_of, batch, tmp_path, subwords):
    objective = objective_of(decay="linear", slope=1e-9)
    plain = Objective(objective.model, objective.criterion)
    expected = [float(x) for x in plain.losses(batch, 1)]
    assert [float(x) for x in objective.losses(batch, 1)] == expected
    # The dev set is measured so in any case.
    assert [float(x) for x in objective_of().losses(batch)] == expected


def test_two_passes_read_the_best_of_what_follows_true_words(objective_of, batch, subwords):
    objective = objective_of()
    read, (loss, nll) = seen(objective, batch)
    source = paddle.to_tensor(batch.source)
    logits = objective.model(source, paddle.to_tensor(batch.target_input)).numpy()
    expected = batch.target_input.copy()
    expected[:, 1:] = np.where(
        batch.target_input[:, 1:] == subwords.target.pad,
        subwords.target.pad,
        logits.argmax(-1)[:, :-1],
    )
    np.testing.assert_array_equal(read, expected)
    assert (read != batch.target_input).any()

    # The loss is still about the true words: in float64 from the logits, of some 12 x 5 nats, which
    # float32 gives to 1e-5.
    log_probs = log_softmax(objective.model(source, paddle.to_tensor(read)).numpy())
    real = batch.target_output != subwords.target.pad
    at_target = np.take_along_axis(log_probs, batch.target_output[:, :, None], axis=2)[:, :, 0]
    assert float(nll) == pytest.approx(-at_target[real].sum(), rel=1e-5)
    smoothed = 0.9 * at_target + 0.1 * log_probs.mean(-1)
    assert float(loss) == pytest.approx(-smoothed[real].sum(), rel=1e-5)


@pytest.mark.parametrize("mixing", ["argmax", "sampled"])
def test_as_many_passes_as_tokens_predict_one_after_another(objective_of, batch, mixing):
    """By brute force: each place is decided after all before it, from a whole new pass."""
    # Seven places in the longest row: six predictions, each final after one more pass.
    objective = objective_of(mixing=mixing, passes=7, k=0.5, slope=1e-9)
    model, source = objective.model, paddle.to_tensor(batch.source)
    counts = []
    for seed in range(3):
        paddle.seed(seed)
        np.random.seed(seed)
        places = objective.terms[0]._chosen_places(batch, 0.5)
        draws = dict(zip(places.tolist(), paddle.rand([len(places), 1]).numpy()[:, 0], strict=True))
        expected = batch.target_input.copy()
        for column in range(1, expected.shape[1]):
            logits = model(source, paddle.to_tensor(expected)).numpy()[:, column - 1]
            for row in range(len(expected)):
                draw_at = draws.get(row * expected.shape[1] + column)
                if draw_at is None:
                    continue
                if mixing == "argmax":
                    expected[row, column] = logits[row].argmax()
                    continue
                weights = np.exp(logits[row].astype("float64"))
                edges = weights.cumsum() / weights.sum()
                expected[row, column] = np.searchsorted(edges, draw_at)
        paddle.seed(seed)
        np.random.seed(seed)
        read, _ = seen(objective, batch)
        np.testing.assert_array_equal(read, expected)
        counts.append((read != batch.target_input).sum())
    assert len(set(counts)) > 1  # other places each time
    assert (read != seen(objective_of(mixing=mixing, passes=2), batch)[0]).any()


def test_places_are_as_many_as_the_share_says_and_never_the_beginning(objective_of, subwords):
    """Of 9,000 places at a share of 0.3, 70 % +- 5 standard deviations of 0.5 %."""
    target = np.full((1000, 11), 5)
    target[:, 0] = subwords.target.bos
    target[:, 10] = subwords.target.pad
    batch = Batch(target, target, target, 0)
    places = objective_of().terms[0]._chosen_places(batch, 0.3)
    assert len(places) / 9000 == pytest.approx(0.7, abs=0.025)
    assert set(places % 11) == set(range(1, 10))


def test_draws_follow_the_distribution():
    """100,000 draws from five ids: shares to 5 standard deviations, of at most 0.0016."""
    logits = np.log(np.array([0.5, 0.2, 0.0, 0.25, 0.05]) + 1e-30).astype("float32")
    paddle.seed(4)
    ids = draw(paddle.to_tensor(np.tile(logits, (100_000, 1))), paddle.rand([100_000, 1])).numpy()
    shares = np.bincount(ids, minlength=5) / 100_000
    np.testing.assert_allclose(shares, [0.5, 0.2, 0.0, 0.25, 0.05], atol=0.008)
    assert shares[2] == 0
    # The ends of the unit interval are no ids beyond the ends of the vocabulary.
    ends = draw(paddle.to_tensor(np.stack([logits] * 2)), paddle.to_tensor([[0.0], [1.0]])).numpy()
    assert ends.tolist() == [0, 4]


# ---- Means of embeddings ----


@pytest.mark.parametrize("passes", [2, 3])
def test_the_mean_of_top_k(objective_of, batch, subwords, passes):
    """Against NumPy in float64; embeddings are of size 1, and float32 keeps 7 digits of them. Each
    pass but the last one makes means anew, from what the means before it lead to."""
    objective = objective_of(mixing="top_k", top_k=3, passes=passes)
    read, _ = seen(objective, batch)
    model = objective.model
    source = paddle.to_tensor(batch.source)
    memory = model.encode(source)
    table = model.target_embedding.weight.numpy().astype("float64") * model.target_embedding.scale
    true = table[batch.target_input]
    mixtures = [true]
    for _ in range(passes - 1):
        before = paddle.to_tensor(mixtures[-1].astype("float32"))
        logits = model.logits(before, memory, source).numpy().astype("float64")
        mixture = true.copy()
        for row, column in np.argwhere(batch.target_input != subwords.target.pad):
            if column:
                scores = logits[row, column - 1]
                best = np.argsort(-scores)[:3]
                weights = np.exp(scores[best] - scores[best].max())
                mixture[row, column] = weights / weights.sum() @ table[best]
        mixtures.append(mixture)
    np.testing.assert_allclose(read, mixtures[-1], atol=2e-5)
    # Each pass makes a difference, so that none could be left out.
    for one, other in itertools.pairwise(mixtures):
        assert np.abs(one - other).max() > 0.1


def test_the_gradient_goes_into_predictions_only_if_wanted(objective_of, batch):
    """Against the difference of the loss along what the predictions add to the gradient. The third
    order of a step of 1e-2 is some per mille, float32's rounding of losses of 50 some per cent."""

    def made(backpropagate):
        objective = objective_of(mixing="top_k", backpropagate=backpropagate)
        for parameter in objective.model.parameters():  # less sure, so that means are mixtures
            parameter.set_value(parameter * 0.7)
        weight = objective.model.decoder.layers[0].feed_forward.inner_projection.weight
        objective.losses(batch, 1000)[0].backward()
        return objective, weight, weight.grad.numpy()

    objective, weight, whole = made(True)
    added = whole - made(False)[2]
    assert np.linalg.norm(added) > 0.05 * np.linalg.norm(whole)
    direction, start, losses = added / np.linalg.norm(added), weight.numpy(), []
    for step in (1e-2, -1e-2):
        weight.set_value(start + step * direction)
        losses.append(float(objective.losses(batch, 1000)[0]))
    difference = (losses[0] - losses[1]) / 2e-2
    assert difference == pytest.approx(
        float((whole * direction).sum()), abs=0.1 * np.linalg.norm(added)
    )


# ---- In training ----


@pytest.mark.parametrize("mixing", ["argmax", "sampled", "top_k"])
def test_it_trains_and_is_the_same_again(tmp_path, subwords, mixing):
    def trained():
        settings = {"decay": "exponential", "k": 0.5, "mixing": mixing, "passes": 3}
        sections = {"scheduled_sampling": settings, "training": {"max_steps": 8}}
        trainer = trainer_of(tmp_path, PAIRS, subwords, **sections)
        objective = trainer.updater.objective
        assert [type(term) for term in objective.terms] == [ScheduledSampling]
        # Other batches have other losses: this is of the same one before and after, by true words.
        same = collate(trainer.data.train, np.arange(len(PAIRS)), subwords)
        before = float(objective.losses(same)[0])
        losses = [outcome.loss for outcome in take_steps(trainer, 8)]
        return losses, before, float(objective.losses(same)[0])

    losses, before, after = trained()
    assert after < 0.9 * before
    assert trained() == (losses, before, after)


def test_the_share_is_that_of_the_number_of_the_update(tmp_path, subwords, monkeypatch):
    """And the dev set's loss asks for none."""
    settings = {"scheduled_sampling": {"decay": "linear"}}
    trainer = trainer_of(tmp_path, PAIRS, subwords, PAIRS[:3], **settings)
    steps = []

    def noted(step, settings):
        steps.append(step)
        return true_share(step, settings)

    monkeypatch.setattr(perturbation, "true_share", noted)
    take_steps(trainer, 4)
    dev_loss(trainer.config, trainer.data.dev, trainer.data.subwords, trainer.updater)
    # An update may have several batches.
    assert [step for step, _ in itertools.groupby(steps)] == [1, 2, 3, 4]

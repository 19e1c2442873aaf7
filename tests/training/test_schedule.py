"""The learning rate against the paper's formula 3, and the promises of the config's keys."""

import math
from types import SimpleNamespace

import pytest

from tests.docs.pages import example
from transformer_mt.config.schema import TrainingConfig
from transformer_mt.training import schedule as schedules
from transformer_mt.training.schedule import SCHEDULES, learning_rate


def schedule(name, warmup_steps, rate=None):
    return TrainingConfig(max_steps=1, schedule=name, warmup_steps=warmup_steps, learning_rate=rate)


@pytest.mark.parametrize(("d_model", "warmup"), [(512, 4000), (64, 1)])
def test_noam_is_the_papers(d_model, warmup):
    config = schedule("noam", warmup)
    # A number to hold the formula against: 512^-0.5 * 4000^-0.5.
    peak = learning_rate(4000, schedule("noam", 4000), 512)
    assert peak == pytest.approx(6.9877e-4, rel=1e-4)
    for step in [1, 2, warmup - 1, warmup, warmup + 1, 2 * warmup, 100_000]:
        if step:
            paper = d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
            # Two ways to the same power of a float: some units in the last of 16 digits.
            assert learning_rate(step, config, d_model) == pytest.approx(paper, rel=1e-12)


@pytest.mark.parametrize("name", ["noam", "inverse_sqrt", "constant"])
@pytest.mark.parametrize("warmup", [1, 300])
def test_the_rate_of_the_config_is_the_one_at_the_end_of_warmup(name, warmup):
    config = schedule(name, warmup, 5e-3)
    rates = [learning_rate(step, config, 128) for step in range(1, 4 * warmup + 2)]
    assert rates[warmup - 1] == pytest.approx(5e-3, rel=1e-12)
    assert max(rates) == pytest.approx(5e-3, rel=1e-12)
    assert rates[0] > 0
    # Up in equal steps, then down (or level).
    for step in range(1, warmup + 1):
        assert rates[step - 1] == pytest.approx(5e-3 * step / warmup, rel=1e-12)
    # The width changes nothing once the rate is given.
    assert learning_rate(warmup, config, 64) == rates[warmup - 1]
    end = 5e-3 if name == "constant" else 5e-3 / 2
    assert learning_rate(4 * warmup, config, 128) == pytest.approx(end, rel=1e-12)


def test_constant_without_warmup():
    config = schedule("constant", 0, 2e-4)
    assert {learning_rate(step, config, 64) for step in (1, 2, 10, 10_000)} == {2e-4}


@pytest.mark.parametrize("warmup", [0, 40])
@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("linear", lambda done: 1 - done),
        ("cosine", lambda done: math.cos(math.pi * done / 2) ** 2),  # (1 + cos 2x) / 2
    ],
)
def test_schedules_that_end(name, share, warmup):
    """The rate is the peak at the end of the warm-up, 0 at decay_steps, and never rises again."""
    config = TrainingConfig(
        max_steps=1, schedule=name, warmup_steps=warmup, decay_steps=200, learning_rate=3e-3
    )
    rates = [learning_rate(step, config, 128) for step in range(1, 301)]
    for step in range(max(warmup, 1), 201):
        done = (step - warmup) / (200 - warmup)
        assert rates[step - 1] == pytest.approx(3e-3 * share(done), rel=1e-9, abs=1e-18)
    assert set(rates[200:]) <= {rates[199]} and abs(rates[199]) < 1e-18
    down = rates[max(warmup, 1) - 1 :]
    assert down == sorted(down, reverse=True)


def test_a_schedule_is_one_entry(monkeypatch):
    """That of docs/architecture.md: up to the peak, a quarter of it half-way, and 0 at the end."""
    added = example("A schedule", schedules)["SCHEDULES"]["quadratic"]
    monkeypatch.setitem(SCHEDULES, "quadratic", added)
    settings = SimpleNamespace(
        schedule="quadratic", warmup_steps=10, decay_steps=110, learning_rate=4.0
    )
    rates = [learning_rate(step, settings, 64) for step in (5, 10, 60, 110, 200)]
    assert rates == pytest.approx([2, 4, 1, 0, 0])

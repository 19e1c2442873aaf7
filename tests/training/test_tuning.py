"""The search for decoding settings, over made-up scores."""

import random

import pytest

from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.training.tune import BEAM_SIZES, MOST_SETTINGS, Setting, tune

OWN = Setting("gnmt", 1.0, 5)


def tuned(score, own=OWN, n_best=1):
    tried = []

    def counted(setting):
        tried.append(setting)
        return score(setting)

    return tune(own, n_best, counted), tried


def test_it_finds_the_peak_of_a_smooth_score():
    def score(setting):
        kind = 0.5 if setting.length_penalty_kind == "average" else 0.0
        return 30 + kind - (setting.length_penalty - 1.25) ** 2 - abs(setting.beam_size - 8) / 10

    chosen, tried = tuned(score)
    assert chosen == Setting("average", 1.25, 8)
    assert tried[0] == OWN
    assert len(tried) == len(set(tried)) <= 16


@pytest.mark.parametrize("seed", range(8))
def test_no_setting_twice_and_the_best_of_all_that_were_tried(seed):
    random_own = random.Random(seed)
    own = Setting(
        random_own.choice(["gnmt", "average"]),
        random_own.choice([0.5, 0.6, 2.0, 10.0]),
        random_own.choice([1, 3, 5, 20]),
    )
    values = {}

    def score(setting):
        return values.setdefault(setting, random_own.uniform(20, 20.1))

    chosen, tried = tuned(score, own)
    assert len(tried) == len(set(tried)) <= MOST_SETTINGS
    assert tried[0] == own and all(0 <= one.length_penalty <= 10 for one in tried)
    assert all(one.length_penalty_kind == "gnmt" for one in tried if not one.length_penalty)
    best = max(round(values[one], 2) for one in tried)
    ties = [one for one in tried if round(values[one], 2) == best]
    assert chosen in ties and chosen.beam_size == min(one.beam_size for one in ties)


def test_equal_scores_go_to_the_smaller_beam_and_then_to_the_recipe():
    chosen, _ = tuned(lambda setting: 20.0)
    assert chosen == Setting("gnmt", 1.0, 1)
    chosen, _ = tuned(lambda setting: 20.0 - (setting.beam_size < 5))
    assert chosen == OWN
    # What is less than 0.01 is no difference.
    chosen, _ = tuned(lambda one: 20.0 + (one.length_penalty == 0.5) / 300 - (one.beam_size < 5))
    assert chosen == OWN


def test_a_beam_holds_as_many_hypotheses_as_outputs_are_asked_for():
    _, tried = tuned(lambda setting: 20.0, n_best=4)
    assert {one.beam_size for one in tried} == {size for size in BEAM_SIZES if size >= 4}


def test_without_penalty_the_kind_makes_no_difference():
    average = DecodingConfig(length_penalty=0.0, length_penalty_kind="average")
    assert Setting.of(average) == Setting.of(DecodingConfig(length_penalty=0.0))
    chosen, tried = tuned(lambda one: -one.length_penalty - one.beam_size)
    assert chosen == Setting("gnmt", 0.0, 1)
    assert Setting("gnmt", 0.25, 5) in tried and Setting("average", 0.25, 5) in tried

"""Training on texts with weights: the same sentences in any number of processes, and when a run is
resumed."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tests.small_trainers import assert_same_weights
from tests.support import demo_pairs, make_config, run_command, write_pairs
from transformer_mt.config import file as config_file
from transformer_mt.data.batches import read_update
from transformer_mt.data.prepare import prepare
from transformer_mt.training.progress import Plan
from transformer_mt.utils.errors import UsageError
from transformer_mt.weights import read_tensors

PAIRS = demo_pairs(160)
TEXTS = ["news", {"text": "web", "weight": 1.5, "tag": "<bt>"}, {"text": "old", "weight": 0.5}]


@pytest.fixture
def config(tmp_path):
    for name, start, end in (("news", 0, 70), ("web", 70, 110), ("old", 110, 160)):
        write_pairs(tmp_path / "text", name, PAIRS[start:end])
    return make_config(
        tmp_path,
        data={"train": TEXTS, "held_out": 5},
        subword={"vocab_size": 150, "user_symbols": ["<bt>"], "sampling": 0.1},
        model={"dropout": 0.1},
        training={"max_steps": None, "max_epochs": 2, "batch_tokens": 600, "devices": 1},
    )


@pytest.mark.parametrize(("world_size", "sampling"), [(2, None), (4, 0.1)])
def test_processes_share_the_sentences_of_one(config, world_size, sampling):
    data = prepare(config)
    plan = Plan.of(config, data)

    def rows(update, rank, size):
        """The pairs of ids, without padding, that a process reads."""
        own = read_update(data.train, update, data.subwords, rank, size, sampling, (1, 2, 3))
        pad = data.subwords.source.pad
        return Counter(
            tuple(tuple(ids[ids != pad]) for ids in pair)
            for batch in own.batches
            for pair in zip(batch.source, batch.target_output, strict=True)
        ), own.target_tokens

    for epoch in range(2):
        # Each process computes the plan for itself.
        again = Plan.of(config, prepare(config)).epoch_updates(epoch)
        for update, other in zip(plan.epoch_updates(epoch), again, strict=True):
            assert np.concatenate(update).tolist() == np.concatenate(other).tolist()
            alone, tokens = rows(update, 0, 1)
            shares = [rows(other, rank, world_size) for rank in range(world_size)]
            assert sum((share for share, _ in shares), Counter()) == alone
            assert {count for _, count in shares} == {tokens}


@pytest.fixture
def recipe(config, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(config_file.dump(config))
    return path


def test_a_resumed_run_ends_as_an_uninterrupted_one(recipe, tmp_path):
    """It is stopped in the middle of the second epoch."""
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    run_command("train", recipe, f"model_dir={whole}")
    steps = max(int(path.name[5:]) for path in (whole / "checkpoints").glob("step_*"))
    for end in (f"training.max_steps={steps // 2}", "training.max_epochs=2"):
        run_command("train", recipe, f"model_dir={resumed}", end)
    paths = [run / f"checkpoints/step_{steps}/model.safetensors" for run in (whole, resumed)]
    assert_same_weights(*map(read_tensors, paths))


def test_a_change_is_refused_on_resuming(recipe):
    run_command("train", recipe, "training.max_steps=1")
    for train, old in (
        ("[news, {text: web, weight: 2, tag: <bt>}, {text: old, weight: 0.5}]", "1.5"),
        ("[news, {text: web, weight: 1.5}, {text: old, weight: 0.5}]", "'<bt>'"),
        ("[{text: news, reverse: true}, {text: web, weight: 1.5, tag: <bt>}, old]", "'news'"),
    ):
        with pytest.raises(UsageError, match=rf"data\.train: .*{old}"):
            run_command("train", recipe, "training.max_steps=1", f"data.train={train}")


def test_the_steps_of_a_run_without_planning_all_its_epochs(config):
    """Epochs that draw sentences can differ in length, so they are planned to be counted."""
    plan = Plan.of(config, prepare(config))
    lengths = [len(plan.epoch_updates(epoch)) for epoch in range(2)]
    assert plan.total_steps == sum(lengths)
    for most, expected in ((lengths[0], lengths[0]), (1000, sum(lengths))):
        training = config.training.model_copy(update={"max_steps": most})
        assert replace(plan, training=training).total_steps == expected
    # Only as many epochs are planned as max_steps can reach.
    many = config.training.model_copy(update={"max_steps": lengths[0] + 1, "max_epochs": 10**9})
    assert replace(plan, training=many).total_steps == lengths[0] + 1

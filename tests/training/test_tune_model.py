"""The command `tune`, and the key decoding.tune, on small models."""

import json
import os
import shutil
import signal
from dataclasses import asdict

import pytest

from tests.support import (
    demo_pairs,
    make_config,
    make_model_directory,
    run_command,
    write_pairs,
)
from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.config.file import dump
from transformer_mt.model_directory import ModelDirectory
from transformer_mt.training import tune
from transformer_mt.training.tune import Setting, keep_choice
from transformer_mt.utils import signals
from transformer_mt.utils.errors import Interrupted, UsageError

PAIRS = demo_pairs(60)
KEYS = ("length_penalty_kind", "length_penalty", "beam_size")
SECTIONS = {"decoding": {"beam_size": 3, "max_length_ratio": 1.5, "max_length_extra": 4}}


@pytest.fixture(autouse=True)
def few_settings(monkeypatch):
    monkeypatch.setattr(tune, "COARSE", {"gnmt": (0.0, 1.0), "average": (1.0,)})
    monkeypatch.setattr(tune, "BEAM_SIZES", (1, 3, 4))


def make_model(folder, **sections):
    """A model directory with a dev set."""
    config = make_config(folder, **SECTIONS | sections)
    directory = make_model_directory(folder / "model", PAIRS, config)
    sources, references = zip(*PAIRS[:8], strict=True)
    directory.write_lines("dev/source", sources)
    directory.write_lines("dev/reference", references)
    return directory


@pytest.fixture
def model(tmp_path):
    return make_model(tmp_path, training={"best_metric": "chrf"})


def record_of(model):
    return json.loads((model.path / "tune.json").read_text())


def test_the_choice_is_that_of_the_command_evaluate(model, tmp_path, capsys):
    before = model.load_config()
    run_command("tune", model.path, threads=1)
    output = capsys.readouterr().out
    record = record_of(model)
    tried = record["tried"]
    assert record["metric"] == "chrf" and record["lines"] == 8
    assert record["checkpoint"] == model.checkpoint().name
    assert len({tuple(one[key] for key in KEYS) for one in tried}) == len(tried) >= 6
    scores = {tuple(one[key] for key in KEYS): round(one["chrf"], 2) for one in tried}
    for one in (tried[0], tried[-1]):
        dev, out = (model.path / "dev/source", model.path / "dev/reference"), tmp_path / "scores"
        keys = {key: one[key] for key in KEYS}
        run_command("evaluate", model.path, *dev, threads=1, json=out, **keys)
        found = json.loads(out.read_text())
        assert (found["bleu"], found["chrf"]) == (one["bleu"], one["chrf"])
        assert found["chrf_signature"] == record["signature"]
    recipe, chosen = (tuple(record[name][key] for key in KEYS) for name in ("recipe", "chosen"))
    assert recipe == ("gnmt", 1.0, 3)
    best = max(scores.values())
    ties = [setting for setting, value in scores.items() if value == best]
    assert chosen in ties and chosen[2] == min(setting[2] for setting in ties)
    # The config is the same but for the choice.
    assert chosen != recipe
    values = dict(zip(KEYS, chosen, strict=True))
    expected = before.decoding.model_copy(update=values)
    assert model.load_config() == before.model_copy(update={"decoding": expected})
    assert record["signature"] in output and "p = " in output
    # Choosing again starts from the recipe again, and finds the same.
    run_command("tune", model.path, threads=1)
    again = record_of(model)
    assert (again["recipe"], again["chosen"]) == (record["recipe"], record["chosen"])
    # A resumed run keeps the choice, unless its recipe has other values now.
    assert keep_choice(before, model) == model.load_config()
    other = before.model_copy(update={"decoding": DecodingConfig(beam_size=7)})
    assert keep_choice(other, model) == other
    (model.path / "tune.json").write_text("[" * 100_000)
    assert keep_choice(before, model) == before


def test_a_dry_run_writes_nothing(model, capsys):
    before = (model.path / "config.yaml").read_bytes()
    run_command("tune", model.path, dry_run=True, threads=1)
    assert "nothing was written" in capsys.readouterr().out
    assert (model.path / "config.yaml").read_bytes() == before
    assert not (model.path / "tune.json").exists()


def test_what_cannot_be_tuned(model, tmp_path):
    shutil.rmtree(model.path / "dev")
    with pytest.raises(UsageError, match="no dev set"):
        run_command("tune", model.path)
    for name, sections, words in (
        ("sampling", {"decoding": {"sampling": True}}, "at random"),
        ("parallel", {"model": {"non_autoregressive": "end"}}, "non-autoregressive"),
    ):
        with pytest.raises(UsageError, match=words):
            run_command("tune", make_model(tmp_path / name, **sections).path)


# ---- decoding.tune ----


@pytest.fixture
def recipe(tmp_path):
    for name, part in (("train", PAIRS[:48]), ("dev", PAIRS[48:54]), ("test", PAIRS[54:])):
        write_pairs(tmp_path / "text", name, part)
    config = make_config(
        tmp_path,
        data={"dev": "dev", "test": "test", "held_out": 0},
        training={"devices": 1},
        decoding={"tune": True, "beam_size": 3},
    )
    path = tmp_path / "recipe.yaml"
    path.write_text(dump(config), encoding="utf-8")
    return path


@pytest.mark.slow
def test_training_tunes_before_the_test_set_is_scored(recipe, tmp_path, monkeypatch):
    """Also if it was interrupted while it did."""
    model = ModelDirectory(tmp_path / "model")
    with monkeypatch.context() as patch, pytest.raises(Interrupted), signals.raised():
        search = tune.tune
        patch.setattr(tune, "tune", lambda *a: os.kill(os.getpid(), signal.SIGINT) or search(*a))
        run_command("train", recipe)
    assert not (model.path / "tune.json").exists()
    assert model.load_config().decoding.beam_size == 3
    run_command("train", recipe)
    record, decoding = record_of(model), model.load_config().decoding
    assert asdict(Setting.of(decoding)) == record["chosen"] and decoding.tune
    translated = {"input": model.path / "test.source", "output": tmp_path / "out"}
    run_command("translate", model.path, **translated)
    assert (tmp_path / "out").read_text() == (model.path / "test.hypothesis").read_text()


def test_training_refuses_to_tune_without_a_dev_set(recipe):
    with pytest.raises(UsageError, match=r"decoding\.tune.*dev set"):
        run_command("train", recipe, "data.dev=null")

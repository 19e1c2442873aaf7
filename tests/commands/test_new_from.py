"""`new --from` writes a recipe that fine-tunes a model, and that trains as it is."""

import json
from functools import partial

import pytest

from tests.support import (
    demo_pairs,
    make_config,
    make_model_directory,
    run_command,
    write_lines,
    write_pairs,
)
from transformer_mt.data.spans import SYMBOLS
from transformer_mt.model_directory import ModelDirectory
from transformer_mt.training import run, settings
from transformer_mt.training.recipes import timing
from transformer_mt.utils.errors import UsageError

PAIRS = demo_pairs(350)


@pytest.fixture(scope="module")
def general(tmp_path_factory):
    folder = tmp_path_factory.mktemp("general")
    return make_model_directory(folder / "model", PAIRS, make_config(folder)).path


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder, with text of both kinds. Speeds are measured in a moment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(timing, "MEASURED_SECONDS", 0.01)
    monkeypatch.setattr(run, "seconds_per_step", partial(run.seconds_per_step, seconds=0.01))
    write_pairs(tmp_path / "corpus", "train", PAIRS[:150])
    write_pairs(tmp_path / "general", "news", PAIRS[150:])
    return tmp_path


def make(general, *arguments, **flags):
    """Writes my.yaml, and returns its config."""
    flags = {"from": general, "train": "corpus/train", "minutes": 1, "device": "cpu"} | flags
    run_command("new", "my.yaml", *arguments, **flags)
    return settings.load("my.yaml")


def test_the_sizes_and_the_languages_are_those_of_the_model(general, capsys):
    theirs = ModelDirectory(general).load_config()
    config = make(general)
    assert config.model == theirs.model
    assert (config.data.source_lang, config.data.target_lang) == ("en", "de")
    assert (config.training.schedule, config.training.interpolate) == ("constant", True)
    assert config.data.general_dev is config.data.general_test is None
    said = capsys.readouterr().out
    assert "--mix" in said and f"{config.training.max_steps:,} steps" in said
    assert f"{config.training.learning_rate:g}, constant" in said


def test_general_text_is_half_of_an_epoch_and_its_sets_are_held_out(general, folder, capsys):
    make(general, mix="general/news", minutes=0.05)
    short = "training.max_steps=2", "training.warmup_steps=1", "training.validate_every=2"
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformer_mt.reports.run.write_report", lambda *_: None)
        run_command("train", "my.yaml", *short, "training.save_every=1", device="cpu")
    output = capsys.readouterr()
    assert "before and after fine-tuning" in output.out and "general test set" in output.out
    place = folder / "runs" / "my"
    own = set(zip(*(read(folder / f"corpus/train.{lang}") for lang in ("en", "de")), strict=True))
    held = {}
    for name in ("dev", "test", "general_dev", "general_test"):
        sides = (read(place / "held_out" / f"{name}.{lang}") for lang in ("en", "de"))
        held[name] = set(zip(*sides, strict=True))
        assert held[name] and (held[name] <= own) == (name in ("dev", "test")), name
        assert name in ("dev", "test") or not held[name] & own
    facts = json.loads((place / "data.json").read_text())
    mine, news = facts["texts"]
    assert mine["pairs"] < 150 and news["weight"] * 200 == pytest.approx(150, rel=0.01)
    assert facts["general_dev"] == len(held["general_dev"])
    assert facts["overlap"]["general_test"]["pairs"] == 0


def test_given_sets_and_new_subwords(general, folder):
    write_pairs(folder / "general", "test", PAIRS[300:310])
    write_lines(folder / "symbols.txt", ["WLAN", "", "{x,y}"])
    config = make(general, general_test="general/test", add_symbols="symbols.txt")
    assert config.data.general_test == "../general/test"
    assert config.subword.user_symbols == ["WLAN", "{x,y}"]


def test_a_model_that_has_learnt_to_protect(tmp_path):
    """The recipe protects what the model before does."""
    config = make_config(tmp_path, data={"protect": ["tags"]}, subword={"user_symbols": SYMBOLS})
    base = make_model_directory(tmp_path / "protecting", PAIRS, config).path
    assert make(base).data.protect == ["tags"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"from": "nowhere"}, "--from: nowhere is not a model directory"),
        ({"from": None, "mix": "general/news", "source_lang": "en", "target_lang": "de"}, "--mix"),
        ({"mix": "general/none"}, "none"),
    ],
)
def test_mistakes(general, flags, words):
    with pytest.raises(UsageError, match=words):
        make(general, **flags)


def read(path):
    return path.read_text("utf-8").splitlines()

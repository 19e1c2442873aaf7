"""The command `tune`, and the key decoding.tune, on small models."""

import json
import shutil
import signal
import time
from dataclasses import asdict

import pytest

from tests.support import (
    demo_pairs,
    finished,
    make_config,
    make_model_directory,
    run,
    run_command,
    start,
    write_lines,
    write_pairs,
)
from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.config.file import dump
from transformer_mt.model_directory import ModelDirectory
from transformer_mt.training.tune import Setting, keep_choice
from transformer_mt.utils.errors import UsageError

PAIRS = demo_pairs(60)
KEYS = ("length_penalty_kind", "length_penalty", "beam_size")
SECTIONS = {"decoding": {"beam_size": 3, "max_length_ratio": 1.5, "max_length_extra": 4}}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tune")
    config = make_config(folder, **SECTIONS, training={"best_metric": "chrf"})
    directory = make_model_directory(folder / "model", PAIRS, config)
    directory.write_lines("dev/source", [source for source, _ in PAIRS[:12]])
    directory.write_lines("dev/reference", [target for _, target in PAIRS[:12]])
    return directory.path


@pytest.fixture
def model(made, tmp_path):
    return ModelDirectory(shutil.copytree(made, tmp_path / "model"))


def decoding_of(directory):
    return directory.load_config().decoding.model_dump()


def test_the_choice_is_that_of_the_command_evaluate(model, tmp_path, capsys):
    before = model.load_config()
    run_command("tune", model.path, threads=1)
    output = capsys.readouterr().out
    record = json.loads((model.path / "tune.json").read_text())
    tried = record["tried"]
    assert record["metric"] == "chrf" and record["lines"] == 12
    assert record["checkpoint"] == model.checkpoint().name
    assert len({tuple(one[key] for key in KEYS) for one in tried}) == len(tried) >= 12
    scores = {}
    for one in tried:
        run_command(
            *("evaluate", model.path, model.path / "dev/source", model.path / "dev/reference"),
            threads=1, json=tmp_path / "scores.json", **{key: one[key] for key in KEYS},
        )  # fmt: skip
        found = json.loads((tmp_path / "scores.json").read_text())
        assert (found["bleu"], found["chrf"]) == (one["bleu"], one["chrf"])
        assert found["chrf_signature"] == record["signature"]
        scores[tuple(one[key] for key in KEYS)] = round(found["chrf"], 2)
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
    again = json.loads((model.path / "tune.json").read_text())
    assert (again["recipe"], again["chosen"]) == (record["recipe"], record["chosen"])
    # A resumed run keeps the choice, unless its recipe has other values now.
    assert keep_choice(before, model) == model.load_config()
    other = before.model_copy(update={"decoding": DecodingConfig(beam_size=7)})
    assert keep_choice(other, model) == other
    (model.path / "tune.json").write_text("[" * 100_000)
    assert keep_choice(before, model) == before


def test_several_segmentations_are_used_and_kept(tmp_path):
    """The scores are those of translations from as many segmentations as the config asks for."""
    sections = {
        "subword": {"sampling": 0.3},
        "decoding": {**SECTIONS["decoding"], "segmentations": 3},
    }
    model = make_model_directory(tmp_path / "model", PAIRS, make_config(tmp_path, **sections))
    sources, references = zip(*PAIRS[:8], strict=True)
    model.write_lines("dev/source", sources)
    model.write_lines("dev/reference", references)
    run_command("tune", model.path, threads=1)
    record = json.loads((model.path / "tune.json").read_text())
    decoding = model.load_config().decoding
    assert decoding.segmentations == 3
    assert asdict(Setting.of(decoding)) == record["chosen"]
    with_all, with_one = [], []
    for one in record["tried"]:
        keys = {key: one[key] for key in KEYS}
        for scores, settings in ((with_all, {}), (with_one, {"segmentations": 1})):
            run_command(
                *("evaluate", model.path, model.path / "dev/source", model.path / "dev/reference"),
                threads=1, json=tmp_path / "scores.json", **keys, **settings,
            )  # fmt: skip
            scores.append(json.loads((tmp_path / "scores.json").read_text())["chrf"])
    assert with_all == [one["chrf"] for one in record["tried"]] != with_one


def test_an_export_has_the_choice(model):
    run_command("tune", model.path, threads=1)
    run_command("export", model.path, format="paddle")
    assert decoding_of(ModelDirectory(model.path / "export/paddle_inference")) == decoding_of(model)


def test_a_dry_run_writes_nothing(model, capsys):
    before = (model.path / "config.yaml").read_bytes()
    run_command("tune", model.path, dry_run=True, threads=1)
    assert "nothing was written" in capsys.readouterr().out
    assert (model.path / "config.yaml").read_bytes() == before
    assert not (model.path / "tune.json").exists()


def test_ctrl_c_leaves_the_config(model):
    before = (model.path / "config.yaml").read_bytes()
    process = start("tune", model.path, "--threads", "1")
    lines = [process.stdout.readline() for _ in range(3)]  # it is at work
    assert lines[0].startswith("kind")
    process.send_signal(signal.SIGINT)
    done = finished(process)
    assert done.returncode == 130 and "interrupted" in done.stderr
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
        config = make_config(tmp_path, **sections)
        directory = make_model_directory(tmp_path / name, PAIRS, config)
        with pytest.raises(UsageError, match=words):
            run_command("tune", directory.path)


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


def test_training_tunes_before_the_test_set_is_scored(recipe, tmp_path):
    done = run("train", recipe)
    assert done.returncode == 0, done.stderr
    model = ModelDirectory(tmp_path / "model")
    record = json.loads((model.path / "tune.json").read_text())
    decoding = model.load_config().decoding
    assert asdict(Setting.of(decoding)) == record["chosen"] and decoding.tune
    write_lines(tmp_path / "in", (model.path / "test.source").read_text().splitlines())
    run_command("translate", model.path, input=tmp_path / "in", output=tmp_path / "out")
    assert (tmp_path / "out").read_text() == (model.path / "test.hypothesis").read_text()
    # Trained on, with the same recipe: it tunes again, from the values of the recipe.
    done = run("train", recipe, "training.max_steps=6")
    assert done.returncode == 0, done.stderr
    assert json.loads((model.path / "tune.json").read_text())["recipe"] == record["recipe"]


def test_interrupted_while_it_tunes(recipe, tmp_path):
    process = start("train", recipe)
    model = ModelDirectory(tmp_path / "model")
    while not process.stdout.readline().startswith("kind"):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert finished(process).returncode == 130
    assert not (model.path / "tune.json").exists()
    assert model.load_config().decoding.beam_size == 3
    done = run("train", recipe)
    assert done.returncode == 0, done.stderr
    assert (model.path / "tune.json").exists() and (model.path / "test.hypothesis").exists()


def test_training_refuses_to_tune_without_a_dev_set(recipe):
    done = run("train", recipe, "data.dev=null")
    assert done.returncode == 2 and "decoding.tune" in done.stderr and "dev set" in done.stderr

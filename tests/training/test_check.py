"""`train --check` reads all that training would read, before it says how long that would take."""

import json
import re
import shutil
from functools import partial

import pytest

from tests.support import ROOT, demo_pairs, make_config, make_model_directory, write_pairs
from transformer_mt.training import run
from transformer_mt.training.expectation import MEASURED, expectation
from transformer_mt.training.loop import seconds_per_step
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.weights import WEIGHTS

PAIRS = demo_pairs(120)


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A function that gives the config of a training which begins with the weights of another
    model, of these sizes."""
    monkeypatch.setattr(run, "seconds_per_step", lambda trainer: 1.0)
    write_pairs(tmp_path / "text", "train", PAIRS[:100])
    write_pairs(tmp_path / "text", "test", PAIRS[100:])
    base = make_model_directory(tmp_path / "base", PAIRS, make_config(tmp_path))
    data = {"test": "test", "held_out": 10}

    def make(**sizes):
        begin = {"init_from": str(base.path)}
        return make_config(tmp_path, data=data, training=begin, model=sizes)

    return make


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_the_weights_to_begin_with(config, tmp_path, capsys):
    run.check(config(), "cpu")
    said = capsys.readouterr()
    assert "training.init_from: " in said.err and "estimated time" in said.out
    assert not (tmp_path / "model").exists()
    with pytest.raises(UserError, match="no weight of the shape"):
        run.check(config(d_model=24, d_ff=40), "cpu")
    damage(tmp_path / "base" / "checkpoints" / "step_10" / WEIGHTS)
    with pytest.raises(UserError, match=f"{WEIGHTS}.*damaged"):
        run.check(config(), "cpu")


@pytest.mark.parametrize(("name", "line"), [("test", 20), ("train", 100)])
def test_errors_in_the_text_come_before_anything_long(config, tmp_path, capsys, name, line):
    with open(tmp_path / "text" / f"{name}.de", "wb") as file:
        file.write(b"x\n" * (line - 1) + b"\xff\n")
    with pytest.raises(UserError, match=rf"{name}\.de, line {line}: not UTF-8"):
        run.check(config(), "cpu")
    assert capsys.readouterr().out == ""


def warnings(text: str) -> list[str]:
    lines = [line for line in text.split("\n") if line.startswith("warning: ")]
    return [line.removeprefix("warning: ").split(": ")[0] for line in lines]


def test_warnings(tmp_path, monkeypatch, capsys):
    """Each of what is odd is warned of, by `train` too, which writes the facts."""
    monkeypatch.setattr(run, "seconds_per_step", lambda trainer: 1.0)
    write_pairs(tmp_path / "text", "train", [*PAIRS[:100], ("OK", "OK")])
    write_pairs(tmp_path / "text", "dev", PAIRS[98:110])
    write_pairs(tmp_path / "text", "test", PAIRS[110:])
    sections = {
        "data": {"dev": "dev", "test": "test"},
        "subword": {"vocab_size": 900},
        "training": {"max_steps": 2, "warmup_steps": 10, "average_last": 3, "devices": 1},
    }
    odd = make_config(tmp_path, **sections)
    run.check(odd, "cpu")
    checked = capsys.readouterr()
    expected = [
        *(f"training.{key}" for key in ("warmup_steps", "validate_every", "average_last")),
        *("subword.vocab_size", "data.dev", "data.train"),
    ]
    assert warnings(checked.err) == expected
    assert not (tmp_path / "model").exists()
    run.train(odd, "cpu", restart=False)
    assert warnings(capsys.readouterr().err)[:6] == expected
    facts = json.loads((tmp_path / "model" / "data.json").read_text("utf-8"))
    assert facts["pairs"] == 101 and facts["overlap"]["dev"]["pairs"] == 2
    assert facts["copies"] == {"count": 1, "examples": [["OK", "OK"]]}


@pytest.mark.parametrize(
    "training",
    [
        {"optimizer": "sgd", "sharding": True},
        {"sharding": True, "ema": 0.9, "gradient_sum_precision": "bfloat16"},
        {"optimizer": "muon", "weight_decay": 0.1, "recompute": True},
    ],
    ids=str,
)
def test_steps_of_one_of_two_processes_are_timed(tmp_path, monkeypatch, capsys, training):
    monkeypatch.setattr(run, "seconds_per_step", partial(seconds_per_step, seconds=0.01))
    write_pairs(tmp_path / "text", "train", PAIRS)
    run.check(make_config(tmp_path, training={"devices": 2, **training}), "cpu")
    assert "2 processes on cpu" in capsys.readouterr().out


def test_a_folder_that_training_would_refuse(config, tmp_path):
    base = str(tmp_path / "base")
    with pytest.raises(UsageError, match="is model_dir itself"):
        run.check(config().model_copy(update={"model_dir": base}), "cpu")
    plain = make_config(tmp_path, data={"held_out": 10}, model={"d_ff": 40}, model_dir=base)
    with pytest.raises(UsageError, match="run with other settings"):
        run.check(plain, "cpu")
    run.check(plain, "cpu", restart=True)
    # Training begins anew where nothing was saved, so the settings may change.
    shutil.rmtree(tmp_path / "base" / "checkpoints")
    (tmp_path / "base" / "best").unlink()
    run.check(plain, "cpu")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine").touch()
    with pytest.raises(UsageError, match="holds no run"):
        run.check(config(), "cpu")


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        (100, "little"), (27_000, "captions"), (27_000, "here, 2.1 times"), (200_000, "161,826"),
        (5_000_000, "nothing was measured"),
    ],
)  # fmt: skip
def test_the_expectation_names_texts_of_such_a_size(pairs, expected):
    assert expected in expectation(pairs, 2.1)


def test_the_expected_scores_are_those_of_the_pages():
    """In the third column of the row that has been measured."""
    rows = {
        "short sentences zh–en": ("results", "tatoeba_zh_en"),
        "captions en–de": ("results", "multi30k_en_de"),
        "interface texts en–de": ("localisation", "with protection"),
        "short sentences de–en": ("results", "tatoeba_de_en"),
    }
    for measured in MEASURED:
        page, row = rows[measured.text]
        text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
        (line,) = re.findall(rf"(?m)^\| `?{row}`? \|.*$", text)
        scores = [float(figure) for figure in re.findall(r"\d+\.\d+", line)]
        assert abs(scores[0] - measured.bleu) < 0.0501

"""`train --check` reads all that training would read, before it says how long that would take."""

import pytest

from tests.support import demo_pairs, make_config, make_model_directory, write_lines, write_pairs
from transformer_mt.assembly import run
from transformer_mt.runtime.errors import UserError
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


def test_the_test_set(config, tmp_path):
    write_lines(tmp_path / "text" / "test.de", ["x"] * 19)
    with open(tmp_path / "text" / "test.de", "ab") as file:
        file.write(b"\xff\n")
    with pytest.raises(UserError, match=r"test\.de, line 20: not UTF-8"):
        run.check(config(), "cpu")

"""The model card: its metadata, its scores, and hostile text in it."""

import json
import os
import re
import shutil

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import ROOT, demo_pairs, make_config, make_model_directory, run_command
from transformer_mt.config import file as config_file
from transformer_mt.model_directory import MODEL_CARD, ModelDirectory
from transformer_mt.reports.card import card_of, model_card
from transformer_mt.reports.record import DataFacts, Record
from transformer_mt.utils.folders import is_sealed

OVERRIDES = [
    *("training.max_steps=2", "training.validate_every=1", "training.save_every=1"),
    *("training.devices=1", "training.seed=7", "model.num_layers=1", "model.num_heads=2"),
    *("model.d_model=16", "model.d_ff=16", f"data.root={ROOT / 'data/demo'}"),
    *("decoding.beam_size=1", "decoding.max_length_ratio=0.1"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The model directory of a training."""
    folder = tmp_path_factory.mktemp("card") / "my model"
    run_command("train", ROOT / "configs/demo.yaml", *OVERRIDES, f"model_dir={folder}")
    return folder


def parts_of(card):
    """The metadata and the text of a card, as model hubs tell them apart."""
    empty, metadata, text = card.split("---\n", 2)
    assert empty == ""
    return yaml.safe_load(metadata), text


def logged(folder, kind):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines())
    return [line for line in lines if line["kind"] == kind]


def test_the_card_of_a_training(run):
    card = (run / MODEL_CARD).read_text("utf-8")
    assert is_sealed(card.encode())
    metadata, text = parts_of(card)
    (test,) = logged(run, "test")
    assert metadata["language"] == ["en", "de"]
    assert metadata["pipeline_tag"] == "translation"
    (entry,) = metadata["model-index"]
    (result,) = entry["results"]
    assert entry["name"] == "my model" and result["dataset"]["split"] == "test"
    values = {metric["type"]: metric["value"] for metric in result["metrics"]}
    assert values == {"bleu": round(test["bleu"], 2), "chrf": round(test["chrf"], 2)}
    low, high = test["intervals"]["chrf"]
    assert f"| test | chrF | {test['chrf']:.2f} ± {(high - low) / 2:.2f} |" in text
    assert test["signature"] in text.splitlines()
    start = logged(run, "start")[0]
    for expected in (
        f"It has {start['parameters']:,} parameters.",
        "| seed | 7 |",
        f"| PaddlePaddle | {start['paddle']} |".replace("_", r"\_"),
        "Their licence is not stated",
        "trained on 8,000 pairs",
    ):
        assert expected in text
    assert str(run.parent) not in card and str(ROOT) not in card


def test_the_recipe_of_the_card_is_that_of_the_run(run, tmp_path):
    text = (run / MODEL_CARD).read_text("utf-8")
    recipe = text.partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "my.yaml").write_text(recipe, encoding="utf-8")
    config = ModelDirectory(run).load_config()
    places = [f"model_dir={run}", f"data.root={config.data.root}"]
    assert config_file.load(tmp_path / "my.yaml", places) == config


def test_a_card_that_a_person_has_edited_is_kept(run, tmp_path, capsys):
    """By a training that goes on, and by an export."""
    folder = shutil.copytree(run, tmp_path / "edited")
    edited = (run / MODEL_CARD).read_text("utf-8").replace("## Limits", "## My limits")
    (folder / MODEL_CARD).write_text(edited, encoding="utf-8")
    recipe = ROOT / "configs/demo.yaml"
    run_command("train", recipe, *OVERRIDES, "training.max_steps=3", f"model_dir={folder}")
    assert (folder / MODEL_CARD).read_text("utf-8") == edited
    assert MODEL_CARD in capsys.readouterr().err
    assert card_of(ModelDirectory(folder), "step_1") == edited


def test_a_card_is_of_its_checkpoint(run):
    directory = ModelDirectory(run)
    for name in ("step_1", "step_2"):
        text = card_of(directory, name)
        assert is_sealed(text.encode()) and f"the checkpoint {name}." in text
        assert ("| test |" in text) == (name == directory.checkpoint().name)


def test_damaged_measurements(run, tmp_path):
    """The card of a directory in which anything may have been written."""
    config = ModelDirectory(run).load_config()
    line = {"checkpoint": "step_1", "bleu": "high", "chrf": 1e400, "intervals": 3, "note": ["x"]}
    record = Record(tmp_path, "x", {"test": [line], "start": [{"parameters": "many"}]}, config)
    record.facts = DataFacts.model_validate({"files": {"train": 3}, "pairs": None})
    metadata, text = parts_of(model_card(record, config, "step_1"))
    assert metadata["model-index"][0]["results"][0]["metrics"] == []
    assert "The text is files of the author of the model." in text


def test_names_become_no_links(run):
    config = ModelDirectory(run).load_config()
    name = "WWW.evil.org www.evil.org https://evil.org"
    _, text = parts_of(model_card(Record(run, name, {}, config), config, "step_1"))
    title = next(line for line in text.split("\n") if line.startswith("# "))
    assert title == r"# WWW\.evil.org www\.evil.org https\://evil.org"


HOSTILE = st.text(
    st.sampled_from("<>&`-*_[]()|#\"'\\:{}!,\n\r\t \u2028\x85\ud800abc")
    | st.characters(codec="utf-8")
)


@settings(max_examples=40, deadline=None)
@given(name=HOSTILE, note=HOSTILE, device=HOSTILE, tag=HOSTILE, file=HOSTILE)
def test_hostile_text(run, tmp_path_factory, name, note, device, tag, file):
    """Text of others neither ends the metadata nor becomes markup."""
    config = ModelDirectory(run).load_config()
    data = config.data.model_copy(update={"train": f"---\n{tag}", "source_lang": "en"})
    config = config.model_copy(update={"data": data})
    line = {"checkpoint": "step_1", "bleu": 10.0, "signature": note, "note": f"```\n{note}"}
    record = Record(run, name, {"test": [line], "start": [{"device_name": device}]}, config)
    record.facts = DataFacts(files={"train": [file]})
    card = model_card(record, config, "step_1")
    card.encode()  # half a surrogate pair has no place in a file
    metadata, text = parts_of(card)
    assert metadata["model-index"][0]["name"] == name
    assert set(metadata) == {
        *("language", "library_name", "pipeline_tag", "tags", "metrics", "model-index")
    }
    # Outside of code, the only HTML and links are the program's own.
    parts = re.split("^```.*$", text, flags=re.M)
    assert len(parts) % 2 == 1
    outside = "".join(parts[::2])
    assert "<" not in outside
    assert outside.replace(r"\[", "").replace(r"\]", "").count("](") == 1


def test_a_folder_whose_name_is_not_utf8(tmp_path):
    model = make_model_directory(tmp_path / "model", demo_pairs(300), make_config(tmp_path)).path
    odd = model.rename(tmp_path / os.fsdecode(b"m\xff"))
    assert r"m\udcff" in card_of(ModelDirectory(odd), "step_10")

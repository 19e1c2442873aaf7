"""What a recipe inherits from the model that it fine-tunes, and what it is told about it."""

import shutil

import pytest
import yaml

from tests.support import demo_pairs, make_config, make_model_directory, run_command, write_pairs
from transformer_mt.config.schema import ModelConfig
from transformer_mt.model_directory import ModelDirectory
from transformer_mt.training import run, settings
from transformer_mt.utils.errors import UsageError, UserError

PAIRS = demo_pairs(120)
# None of these values is a default.
GENERAL = {
    "num_layers": 1, "num_decoder_layers": 2, "d_model": 16, "num_heads": 4, "d_ff": 24,
    "norm": "pre", "dropout": 0.2, "embedding_dropout": 0.05, "attention_dropout": 0.15,
    "tie_embeddings": False, "bias": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def general(tmp_path_factory):
    folder = tmp_path_factory.mktemp("general")
    config = make_config(folder, model=GENERAL)
    return make_model_directory(folder / "general", PAIRS, config).path


@pytest.fixture
def write(tmp_path, general):
    """Writes a recipe for fine-tuning, without a section `model` unless one is given."""
    write_pairs(tmp_path / "text", "train", PAIRS[:80])
    write_pairs(tmp_path / "text", "dev", PAIRS[80:90])
    write_pairs(tmp_path / "text", "test", PAIRS[90:100])

    def write_recipe(**sections):
        values = make_config(tmp_path, data={"dev": "dev", "test": "test"}).model_dump()
        values = {key: values[key] for key in ("model_dir", "data", "training", "decoding")}
        values["training"] |= {"init_from": str(general), "devices": 1, "max_steps": 2}
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump(values | sections))
        return path

    return write_recipe


def test_without_a_section_model_the_model_is_the_other_one(write, capsys):
    config = settings.load(write())
    for key, value in GENERAL.items():
        assert getattr(config.model, key) == value
    assert capsys.readouterr() == ("", "")
    # The command line counts as the recipe does.
    config = settings.load(write(), ["model.dropout=0.4"])
    assert (config.model.dropout, config.model.d_ff) == (0.4, 24)
    config = settings.load(write(), ["training.init_from=null"])
    assert config.model == ModelConfig()


def test_the_normalisation_is_that_of_the_subwords(write, tmp_path):
    """Scoring reads it from the config."""
    config = make_config(tmp_path, model=GENERAL, subword={"normalization": "nfc"})
    other = make_model_directory(tmp_path / "nfc", PAIRS, config).path
    loaded = settings.load(write(), [f"training.init_from={other}"])
    assert loaded.subword.normalization == "nfc"


def test_all_that_the_recipe_changes_is_listed_at_once(write, general, capsys):
    path = write(
        model={"num_layers": 3, "d_ff": 48, "norm": "pre", "dropout": 0.2},
        subword={"vocab_size": 300, "joint": True, "sampling": 0.1},
    )
    config = settings.load(path)
    # With a number of layers of its own, the recipe means the encoder and the decoder.
    assert (config.model.encoder_layers, config.model.decoder_layers) == (3, 3)
    assert config.model.embedding_dropout is None
    messages = capsys.readouterr().err.splitlines()
    assert [line.strip() for line in messages if line.startswith("  ")] == [
        "model.num_layers: 3, there 1",
        "model.num_decoder_layers: null, there 2",
        "model.d_ff: 48, there 24",
        "model.embedding_dropout: null, there 0.05",
        "subword.vocab_size: 300, there 200",
    ]
    assert all(str(general) in line for line in messages if not line.startswith("  "))


def test_another_width_is_refused_with_all_that_differs(write, general, monkeypatch):
    """Before anything is read."""
    monkeypatch.setattr(run, "prepare_for", lambda *_: pytest.fail("the data was read"))
    path = write(model={"d_model": 32, "num_heads": 8, "bias": True})
    with pytest.raises(UsageError) as error:
        run_command("train", path)
    for words in ("init_from", "d_model: 32, there 16", "heads: 8, there 4", "bias: True, there"):
        assert words in str(error.value)


def test_a_model_that_is_not_there_or_damaged(write, general, tmp_path):
    for command in ("train", "info"):
        with pytest.raises(UsageError, match=r"training\.init_from: nowhere is not a model dir"):
            run_command(command, write(), "training.init_from=nowhere")
    broken = shutil.copytree(general, tmp_path / "broken")
    (broken / "config.yaml").write_text("model_dir: x\n")
    with pytest.raises(UserError, match=r"training\.init_from: .*damaged, or edited"):
        settings.load(write(), [f"training.init_from={broken}"])


def test_mistakes_are_reported_as_ever(write):
    for sections, words in (({"model": None}, "model: null"), ({"training": 3}, "training: 3")):
        with pytest.raises(UsageError, match=words):
            settings.load(write(**sections))


def test_training_records_what_is_inherited_and_goes_on_without_the_other_model(
    write, general, tmp_path, capsys
):
    moved = shutil.copytree(general, tmp_path / "moved")
    path, override = write(), f"training.init_from={moved}"
    run_command("train", path, override, device="cpu")
    directory = ModelDirectory(tmp_path / "model")
    assert directory.load_config().model.model_dump().items() >= GENERAL.items()
    messages = capsys.readouterr().err
    assert "weights are those of" in messages and "random" not in messages

    # The other model is not needed any more, and need not be what it was.
    moved.rename(tmp_path / "away")
    run_command("train", path, override, "training.max_steps=3", device="cpu")
    assert "going on from" in capsys.readouterr().err
    assert (directory.path / "checkpoints" / "step_3").is_dir()
    with pytest.raises(UsageError, match="is not a model directory"):
        run_command("train", path, override, "--restart", device="cpu")
    with pytest.raises(UsageError, match=r"model\.d_ff: 24, now 48"):
        run_command("train", path, override, "model.d_ff=48", device="cpu")

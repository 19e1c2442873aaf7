"""Trainings of adapters: what they leave, that everything reads it, and that they go on exactly."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import paddle
import pytest
import yaml

from tests.small_trainers import assert_same_weights
from tests.support import (
    demo_pairs,
    make_config,
    make_model_directory,
    run_command,
    run_here,
    write_pairs,
)
from transformer_mt.model.variants import build_model
from transformer_mt.model_directory import ModelDirectory
from transformer_mt.training import checkpoint
from transformer_mt.training.adapters import apply_adapter
from transformer_mt.training.folder import RunDirectory
from transformer_mt.translator import Translator
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.weights import Adapters, load_weights, read_tensors, read_weights

PAIRS = demo_pairs(120)
RANK, ALPHA = 2, 6.0
SOURCES = [source for source, _ in PAIRS[90:100]]
TRAINING = {
    "devices": 1, "max_steps": 6, "save_every": 2, "validate_every": 3, "keep_last": 2,
    "keep_best": 1, "average_last": 2, "learning_rate": 0.02,
}  # fmt: skip
# Without what a run does at its end.
BRIEF = "training.average_last=null", "data.test=null"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    for name, part in (("train", PAIRS[:80]), ("dev", PAIRS[80:90]), ("test", PAIRS[90:100])):
        write_pairs(folder / "text", name, part)
    return folder


@pytest.fixture(scope="module")
def general(folder):
    """A model that adapters are trained for."""
    return make_model_directory(folder / "general", PAIRS, make_config(folder)).path


@pytest.fixture(scope="module")
def recipe(folder, general):
    values = make_config(folder, data={"dev": "dev", "test": "test"}).model_dump()
    values = {key: values[key] for key in ("model_dir", "data", "training", "decoding")}
    values["training"] |= {**TRAINING, "init_from": str(general)}
    values["adapter"] = {"rank": RANK, "alpha": ALPHA, "dropout": 0.1}
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def train(recipe, model_dir, *overrides):
    result = run_here("train", recipe, f"model_dir={model_dir}", "--device=cpu", *overrides)
    assert result.returncode == 0, result.stderr
    return result.stderr


@pytest.fixture(scope="module")
def trained(recipe, folder):
    """A run, which no test changes, and what it said."""
    path = folder / "trained"
    with pytest.MonkeyPatch.context() as patch:  # its charts take most of the time
        patch.setattr("transformer_mt.reports.run.write_report", lambda *_: None)
        return ModelDirectory(path), train(recipe, path)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_a_run_leaves(trained, general):
    directory, messages = trained
    step = directory.path / "checkpoints" / "step_6"
    assert files(step) == [
        *("SHA256SUMS", "adapters.json", "adapters.safetensors", "optimizer.safetensors"),
        "state.json",
    ]
    arrays = read_tensors(step / "adapters.safetensors")
    owners = {key.rpartition("/")[0] for key in read_tensors(step / "optimizer.safetensors")}
    assert owners == arrays.keys()
    facts = json.loads((step / "adapters.json").read_text())
    assert (facts["rank"], facts["alpha"], facts["base_name"]) == (RANK, ALPHA, "general")
    # The base takes no room of its own, and is that of the model to translate with.
    base, source = directory.path / "base", general / "checkpoints" / "step_10"
    assert files(base) == ["SHA256SUMS", "model.safetensors"]
    assert os.path.samefile(base / "model.safetensors", source / "model.safetensors")
    count = sum(array.size for array in arrays.values())
    assert f"; {count:,} of adapters are trained beside them" in messages


def test_the_weights_are_the_sums(trained, general):
    """In float64; a weight is rounded to float32 twice."""
    directory, _ = trained
    before, found = read_weights(general / "checkpoints" / "step_10"), {}
    step = directory.path / "checkpoints" / "step_6"
    arrays = {
        k: v.astype(np.float64) for k, v in read_tensors(step / "adapters.safetensors").items()
    }
    expected = {name: value.astype(np.float64) for name, value in before.items()}
    for name in [name for name in arrays if name.endswith("adapter_a")]:
        layer = name.removesuffix(".adapter_a")
        expected[f"{layer}.weight"] += ALPHA / RANK * arrays[name] @ arrays[f"{layer}.adapter_b"]
    found = read_weights(step)
    assert found.keys() == before.keys()
    assert_same_weights(found, expected, 1e-6)
    assert sum(not np.array_equal(found[name], before[name]) for name in found) == len(arrays) / 2


def test_an_average_is_the_mean_of_the_sums(trained):
    directory, _ = trained
    names = "step_4", "step_6"
    each = [read_weights(directory.path / "checkpoints" / name) for name in names]
    path = directory.path / "checkpoints" / "average_last_2"
    assert "model.safetensors" not in files(path)
    expected = {name: (each[0][name].astype(np.float64) + each[1][name]) / 2 for name in each[0]}
    assert_same_weights(read_weights(path), expected, 1e-6)


def test_everything_reads_it(trained, tmp_path, folder):
    """As it reads an ordinary model directory that has the sums as its weights."""
    directory, _ = trained
    plain = RunDirectory(shutil.copytree(directory.path, tmp_path / "plain"))
    for path in plain.named_checkpoints():
        weights, state = read_weights(path), checkpoint.State.restore(path)
        with checkpoint._new_checkpoint(path) as new:
            checkpoint.write_tensors(new / "model.safetensors", weights)
            state.save(new)
    shutil.rmtree(plain.path / "base")
    plain.set_best(plain.path / "checkpoints" / "step_6")
    moved = RunDirectory(shutil.copytree(directory.path, tmp_path / "moved"))
    moved.set_best(moved.path / "checkpoints" / "step_6")
    outputs, test = [], [folder / "text" / f"test.{lang}" for lang in ("en", "de")]
    for each in (plain, moved):
        found = [Translator.load(each.path).translate(SOURCES)]
        for command in (
            ["evaluate", each.path, *test, "--ensemble", f"{each.path}:step_4"],
            ["export", each.path, "--format", "ctranslate2"],
            ["info", each.path],
        ):
            result = run_here(*command)
            assert result.returncode == 0, result.stderr
            lines = result.stdout.replace(str(each.path), "MODEL").splitlines()
            found.append([line for line in lines if "lines/s" not in line])
        found.append(Translator.load(each.path / "export" / "ctranslate2").translate(SOURCES))
        outputs.append(found)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("overrides", [[], ["training.ema=0.9", "training.optimizer=adamw"]])
def test_a_run_goes_on_exactly_without_the_other_model(recipe, general, tmp_path, overrides):
    moved = shutil.copytree(general, tmp_path / "moved")
    overrides = [*overrides, f"training.init_from={moved}", *BRIEF]
    train(recipe, tmp_path / "whole", *overrides)
    train(recipe, tmp_path / "cut", *overrides, "training.max_steps=4")
    moved.rename(tmp_path / "away")
    assert "going on from" in train(recipe, tmp_path / "cut", *overrides)
    for name in ("adapters.safetensors", "optimizer.safetensors"):
        whole, cut = (tmp_path / run / "checkpoints" / "step_6" for run in ("whole", "cut"))
        assert (whole / name).read_bytes() == (cut / name).read_bytes()


def test_validation_scores_what_is_saved(trained):
    directory, _ = trained
    lines = [line for line in directory.logged() if line["kind"] == "dev" and line["step"] == 6]
    hypotheses = (directory.path / "dev" / "step_6.hypothesis").read_text().splitlines()
    settings = {"beam_size": directory.load_config().evaluation.validation_beam_size}
    translator = Translator.load(directory.path, "step_6", **settings)
    assert translator.translate([source for source, _ in PAIRS[80:90]]) == hypotheses
    assert len(lines) == 1


def test_models_that_translate_share_what_adapters_do_not_change(trained, general):
    """All parameters without adapters are in the mapped file of the general model, whose inode is
    that of the adapted model's base, so the kernel holds these pages once for all processes."""
    directory, _ = trained
    models = []
    for is_shared in (False, True):
        model = build_model(directory.load_config().model, directory.load_subwords())
        load_weights(directory.checkpoint(), model, is_shared)
        models.append(dict(model.named_parameters()))
    assert_same_weights(*({key: x.numpy() for key, x in model.items()} for model in models))
    file = ModelDirectory(general).checkpoint() / "model.safetensors"
    content, inode = file.read_bytes(), file.stat().st_ino
    mapped = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, _, _, _, its_inode, *_ = line.split()
        if int(its_inode) == inode:
            mapped.append(range(*(int(end, 16) for end in addresses.split("-"))))
    adapted = {
        key.removesuffix(".adapter_a") for key in Adapters.read(directory.checkpoint()).arrays
    }
    for name, parameter in models[1].items():
        is_mapped = any(parameter.data_ptr() in place for place in mapped)
        assert is_mapped == (name.removesuffix(".weight") not in adapted)
    embedding = models[1]["target_embedding.weight"]
    embedding.set_value(paddle.zeros_like(embedding))
    assert file.read_bytes() == content


def test_fine_tuning_of_an_adapted_model(trained, recipe, tmp_path):
    """It starts from the sums, with adapters or without."""
    directory, _ = trained
    expected = read_weights(directory.checkpoint())
    overrides = [f"training.init_from={directory.path}", "training.max_steps=1", *BRIEF]
    train(recipe, tmp_path / "again", *overrides)
    base = tmp_path / "again" / "base"
    assert_same_weights(read_tensors(base / "model.safetensors"), expected)
    train(recipe, tmp_path / "plain", *overrides, "adapter.rank=null", "adapter.alpha=null")
    assert files(tmp_path / "plain" / "checkpoints" / "step_1")[1] == "model.safetensors"


def test_export_and_import(trained, general, tmp_path):
    directory, _ = trained
    run_command("export", directory.path, format="adapter", output=tmp_path / "small")
    assert files(tmp_path / "small") == [
        *("README.md", "SHA256SUMS", "adapters.json", "adapters.safetensors", "card.json"),
        *("checkpoint", "config.yaml", "format_version", "subword.model"),
    ]
    assert "--base" in (tmp_path / "small" / "README.md").read_text()
    made = apply_adapter(tmp_path / "small", general, tmp_path / "made")
    assert_same_weights(read_weights(made.checkpoint()), read_weights(directory.checkpoint()))
    expected = Translator.load(directory.path).translate(SOURCES)
    assert Translator.load(made.path).translate(SOURCES) == expected
    # From a directory that has the base as its own base, too; and to be exported again.
    again = apply_adapter(tmp_path / "small", made.path, tmp_path / "again")
    assert_same_weights(read_weights(again.checkpoint()), read_weights(directory.checkpoint()))
    with pytest.raises(UsageError, match=r"has adapters alone.* import .* --base"):
        Translator.load(tmp_path / "small")


def test_adapters_of_another_model_are_refused(trained, folder, tmp_path):
    directory, _ = trained
    run_command("export", directory.path, format="adapter", output=tmp_path / "small")
    other = make_model_directory(tmp_path / "other", PAIRS, make_config(folder), seed=8).path
    new = tmp_path / "new"
    with pytest.raises(UserError, match=r"none of its checkpoints has the weights .* general"):
        apply_adapter(tmp_path / "small", other, new)
    with pytest.raises(UsageError, match="holds no adapters"):
        apply_adapter(other, other, new)
    with pytest.raises(UsageError, match="has no adapters"):
        run_command("export", other, format="adapter", output=new)
    with pytest.raises(UsageError, match="holds a model already"):
        apply_adapter(tmp_path / "small", directory.path, other)
    file = tmp_path / "small" / "adapters.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match=r"adapters\.safetensors.* damaged"):
        apply_adapter(tmp_path / "small", other, new)
    assert not new.exists()


def test_damaged_files_are_one_message(trained, recipe, tmp_path):
    directory, _ = trained
    copy = ModelDirectory(shutil.copytree(directory.path, tmp_path / "copy"))
    file, step = copy.path / "base" / "model.safetensors", copy.path / "checkpoints" / "step_6"
    content = file.read_bytes()

    def message():
        with pytest.raises(UserError) as error:
            read_weights(step)
        result = run_here("train", recipe, f"model_dir={copy.path}", "training.max_steps=7")
        assert result.returncode != 0
        assert str(error.value) in result.stderr
        return str(error.value)

    needed = "All checkpoints of this run need this file"
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert "its checksum differs" in message() and needed in message()
    file.unlink()
    assert "it is missing" in message() and needed in message() and "general" in message()
    file.write_bytes(content)
    sums = file.with_name("SHA256SUMS")
    text = sums.read_text()
    sums.write_text(text.replace(text[:8], "00000000"))
    assert "the weights of another model" in message()
    sums.write_text(text)
    shutil.copytree(copy.path / "base", tmp_path / "outside")
    shutil.rmtree(copy.path / "base")
    (copy.path / "base").symlink_to(tmp_path / "outside")
    with pytest.raises(UserError, match="is a link to a place outside"):
        read_weights(step)


def test_damaged_adapters(trained, tmp_path):
    directory, _ = trained
    step = shutil.copytree(directory.path, tmp_path / "copy") / "checkpoints" / "step_6"
    whole = Adapters.read(step)
    assert whole is not None and whole.scale == ALPHA / RANK
    a = next(name for name in whole.arrays if name.endswith("adapter_a"))
    for arrays, words in (
        ({**whole.arrays, a: whole.arrays[a][:-1]}, "fits no weight"),
        ({**whole.arrays, a: whole.arrays[a].astype(np.float64)}, "not all .* float32"),
        ({**whole.arrays, a: whole.arrays[a] * np.float32(np.inf)}, "NaN or infinity"),
        ({name: array for name, array in whole.arrays.items() if name != a[:-1] + "b"}, "fits no"),
    ):
        with checkpoint._new_checkpoint(step) as new:
            Adapters(whole.scale, whole.base, whole.base_name, arrays).write(new)
        with pytest.raises(UserError, match=words):
            read_weights(step)
    for text in ("{}", "[", '{"scale": NaN, "base": "", "base_name": ""}', "[" * 100_000):
        with checkpoint._new_checkpoint(step) as new:
            whole.write(new)
            (new / "adapters.json").write_text(text)
        with pytest.raises(UserError, match="damaged"):
            read_weights(step)


@pytest.mark.parametrize(("overrides", "words"), [
    (["adapter.weights=['*qery*']"], r"adapter\.weights: '\*qery\*' fits no linear layer.*query"),
    (["model.num_layers=3"], "would stay random: encoder.layers"),
    (["training.init_from=null"], "needs training.init_from"),
    (["training.freeze=['*']"], "leave out training.freeze"),
    (["training.optimizer=muon"], "needs training.optimizer: adam or adamw or sgd"),
    (["training.sharding=true"], "needs training.sharding: false"),
    (["adapter.rank=null"], "adapter.alpha: 6.0: needs adapter.rank"),
])  # fmt: skip
def test_what_does_not_go_together(recipe, tmp_path, overrides, words):
    with pytest.raises((UsageError, UserError), match=words):
        run_command("train", recipe, f"model_dir={tmp_path / 'new'}", *overrides, device="cpu")
    assert not (tmp_path / "new").exists()


def test_check_says_how_many_weights_are_trained(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr("transformer_mt.training.run.seconds_per_step", lambda trainer: 1.0)
    result = run_here("train", recipe, "--check", f"model_dir={tmp_path / 'new'}")
    assert "of adapters are trained beside them" in result.stdout, result.stderr
    without = "adapter.rank=null", "adapter.alpha=null", "training.freeze=['*embedding*']"
    result = run_here("train", recipe, "--check", f"model_dir={tmp_path / 'new'}", *without)
    assert " are trained" in result.stdout, result.stderr

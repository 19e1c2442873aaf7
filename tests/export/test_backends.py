"""Which engine a command gets."""

import shutil
from dataclasses import replace

import pytest

from tests.support import demo_pairs, make_config, make_model_directory
from transformer_mt.decoding.engine import Sentence
from transformer_mt.export.registry import BACKENDS, exported, find, with_decoding
from transformer_mt.model_directory import ModelDirectory
from transformer_mt.utils.errors import UsageError, UserError

PAIRS = demo_pairs(150)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines")
    return make_model_directory(folder / "model", PAIRS, make_config(folder)).path


def test_a_model_directory(model):
    spec = find(model, threads=3, device="cpu")
    assert spec.backend is BACKENDS["paddle"] and spec.folder == model
    assert spec.checkpoints == (model / "checkpoints" / "step_10",)
    assert spec.models == (spec.config.model,)
    assert spec.config == ModelDirectory(model).load_config()
    assert spec.subwords.content() == ModelDirectory(model).load_subwords().content()
    assert (spec.threads, spec.processes, spec.device) == (3, 3, "cpu")
    assert find(model, "paddle", "step_5").checkpoints == (model / "checkpoints" / "step_5",)
    assert find(model, threads=3, device="gpu").processes == 1
    changed = with_decoding(spec, {"beam_size": 7})
    assert changed.config.decoding == spec.config.decoding.model_copy(update={"beam_size": 7})
    assert changed.config.model == spec.config.model and changed.folder == spec.folder
    with pytest.raises(UsageError, match="beam_size: 0"):
        with_decoding(spec, {"beam_size": 0})
    with pytest.raises(UsageError, match="--threads: 100000: this computer has"):
        find(model, threads=100_000)
    with pytest.raises(UsageError, match="engine: 'onnx': expected one of paddle, "):
        find(model, "onnx")


def test_an_ensemble(model, tmp_path):
    names = [
        path.name for path in find(model, ensemble=(f"{model}:step_5", str(model))).checkpoints
    ]
    assert names == ["step_10", "step_5", "step_10"]
    # The other model may be larger.
    larger = make_config(tmp_path, model={"d_ff": 48, "num_layers": 2, "norm": "post"})
    other = make_model_directory(tmp_path / "a:b", PAIRS, larger).path
    engine = find(model, ensemble=(str(other),), device="cpu").load()
    assert len(engine.search([Sentence([5, 6, 7])], larger.decoding)[0]) == 1
    assert find(model, ensemble=(str(other),)).checkpoints[1].parent.parent == other
    other = make_model_directory(tmp_path / "c", PAIRS[:50], make_config(tmp_path)).path
    with pytest.raises(UsageError, match="subwords are not those"):
        find(model, ensemble=(str(other),))


@pytest.mark.parametrize(
    ("file", "engine"), [("model.bin", "ctranslate2"), ("decoder.json", "paddle_inference")]
)
def test_an_export(model, tmp_path, file, engine):
    folder = tmp_path / "export"
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("checkpoints", "best"))
    assert exported(folder) is None
    (folder / file).write_bytes(b"")
    assert exported(folder) == engine
    assert find(folder).backend is find(folder, engine).backend is BACKENDS[engine]
    for wrong in ({"engine": "paddle"}, {"checkpoint": "last"}, {"ensemble": (str(model),)}):
        with pytest.raises(UsageError):
            find(folder, **wrong)
    if engine == "ctranslate2":
        assert find(folder, threads=3).processes == 1
        with pytest.raises(UsageError, match="--device: gpu"):
            find(folder, device="gpu")
    with pytest.raises(UsageError, match=f"export {model}"):
        find(model, engine)


def test_batches_follow_from_the_memory_of_a_gpu(model, monkeypatch):
    spec = find(model, device="cpu")
    settings = spec.config.decoding
    assert settings.batch_tokens is None
    assert spec.at_once(settings, 10) == 204  # 2,048 tokens
    on_gpu = replace(spec, device="gpu:0")
    counts = []
    for memory in (10**8, 10**9):
        monkeypatch.setattr("transformer_mt.utils.device.free_memory", lambda memory=memory: memory)
        counts.append(on_gpu.at_once(settings, 10))
    assert counts[1] == pytest.approx(10 * counts[0], rel=0.01)
    twice = replace(on_gpu, models=2 * spec.models)
    assert twice.at_once(settings, 10) < counts[1]
    # Paddle Inference takes its memory in its own way.
    assert replace(on_gpu, checkpoints=()).at_once(settings, 10) == 204


@pytest.mark.parametrize("name", ["ctranslate2"])
def test_a_key_that_an_engine_does_not_support_is_refused_by_name(tmp_path, name):
    """An export of it may come from elsewhere."""
    config = make_config(tmp_path, model={"copying": True})
    folder = make_model_directory(tmp_path / "model", PAIRS, config).path
    export = tmp_path / "export"
    shutil.copytree(folder, export, ignore=shutil.ignore_patterns("checkpoints", "best"))
    (export / BACKENDS[name].export_file).write_bytes(b"")
    with pytest.raises(UserError, match=r"model\.copying: True: .*can't copy"):
        find(export)

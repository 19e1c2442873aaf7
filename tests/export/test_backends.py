"""Which engine a command gets."""

import pickle
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.support import ROOT, demo_pairs, make_config, make_model_directory
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


def test_more_threads_than_any_computer_has(model):
    with pytest.raises(UsageError, match="--threads: 100000: this computer has"):
        find(model, threads=100_000)


def test_an_unknown_engine(model):
    with pytest.raises(UsageError, match="engine: 'onnx': expected one of paddle, "):
        find(model, "onnx")


def test_an_ensemble(model, tmp_path):
    names = [
        path.name for path in find(model, ensemble=(f"{model}:step_5", str(model))).checkpoints
    ]
    assert names == ["step_10", "step_5", "step_10"]
    other = make_model_directory(tmp_path / "a:b", PAIRS, make_config(tmp_path)).path
    assert find(model, ensemble=(str(other),)).checkpoints[1].parent.parent == other
    other = make_model_directory(tmp_path / "c", PAIRS[:50], make_config(tmp_path)).path
    with pytest.raises(UsageError, match="subwords are not those"):
        find(model, ensemble=(str(other),))


def test_models_of_an_ensemble_may_differ_in_size(model, tmp_path):
    larger = make_config(tmp_path, model={"d_ff": 48, "num_layers": 2, "norm": "post"})
    other = make_model_directory(tmp_path / "larger", PAIRS, larger).path
    engine = find(model, ensemble=(str(other),), device="cpu").load()
    (own,) = engine.search([Sentence([5, 6, 7])], larger.decoding)
    assert len(own) == 1


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


def test_paddle_is_not_imported_where_it_is_not_needed(model):
    """Importing it takes seconds, and with CTranslate2 it may be missing."""
    code = (
        "import sys; from transformer_mt import Translator\n"
        "from transformer_mt.cli import parse\n"
        "from transformer_mt.commands.model_choice import find_engine\n"
        "import transformer_mt.export.ctranslate2_engine\n"
        "options = parse(['translate', sys.argv[1], '--device', 'cpu'])\n"
        "print(find_engine(options, options.model_dir).backend.runs_in_processes)\n"
        "print('paddle' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(model)]
    assert subprocess.check_output(command, cwd=ROOT, text=True) == "True\nFalse\n"


def test_batches_follow_from_the_memory_of_a_gpu(model, monkeypatch):
    spec = find(model, device="cpu")
    settings, backend = spec.config.decoding, spec.backend
    assert settings.batch_tokens is None
    assert backend.sentences_at_once(spec, settings, 10) == 204  # 2,048 tokens
    on_gpu = replace(spec, device="gpu:0")
    counts = []
    for memory in (10**8, 10**9):
        monkeypatch.setattr("transformer_mt.utils.device.free_memory", lambda memory=memory: memory)
        counts.append(backend.sentences_at_once(on_gpu, settings, 10))
    assert counts[1] == pytest.approx(10 * counts[0], rel=0.01)
    twice = replace(on_gpu, models=2 * spec.models)
    assert backend.sentences_at_once(twice, settings, 10) < counts[1]
    # Paddle Inference takes its memory in its own way.
    assert BACKENDS["paddle_inference"].sentences_at_once(on_gpu, settings, 10) == 204


def test_other_decoding_settings(model):
    spec = find(model, device="cpu")
    changed = with_decoding(spec, {"beam_size": 7})
    assert changed.config.decoding == spec.config.decoding.model_copy(update={"beam_size": 7})
    assert changed.config.model == spec.config.model and changed.folder == spec.folder
    with pytest.raises(UsageError, match="beam_size: 0"):
        with_decoding(spec, {"beam_size": 0})


def test_a_spec_goes_to_another_process(model):
    """With the content of config and subwords: nothing is read again."""
    spec = find(model, ensemble=(f"{model}:step_5",), device="cpu")
    copy = pickle.loads(pickle.dumps(spec))
    assert type(copy.backend) is type(spec.backend)
    assert copy.config == spec.config and copy.models == spec.models
    assert copy.checkpoints == spec.checkpoints
    assert copy.subwords.content() == spec.subwords.content()
    assert copy.subwords.joint == spec.subwords.joint
    text = "A dog runs."
    assert copy.subwords.source.encode(text) == spec.subwords.source.encode(text)


@pytest.mark.parametrize("name", ["ctranslate2", "paddle_inference"])
def test_a_key_that_an_engine_does_not_support_is_refused_by_name(tmp_path, name):
    """An export of it may come from elsewhere."""
    config = make_config(tmp_path, model={"copying": True})
    folder = make_model_directory(tmp_path / "model", PAIRS, config).path
    export = tmp_path / "export"
    shutil.copytree(folder, export, ignore=shutil.ignore_patterns("checkpoints", "best"))
    (export / BACKENDS[name].export_file).write_bytes(b"")
    with pytest.raises(UserError, match=r"model\.copying: True: .*can't copy"):
        find(export)

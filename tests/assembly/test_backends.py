"""Which engine a command gets."""

import subprocess
import sys

import pytest

from tests.support import ROOT, demo_pairs, make_config, make_model_directory
from transformer_mt.assembly.backends import EngineSpec, exported, find
from transformer_mt.decoding.engine import Sentence
from transformer_mt.runtime.errors import UsageError

PAIRS = demo_pairs(150)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines")
    return make_model_directory(folder / "model", PAIRS, make_config(folder)).path


def test_a_model_directory(model):
    spec = find(model, threads=3, device="cpu")
    assert spec == EngineSpec("paddle", model, (model / "checkpoints" / "step_10",), 3, "cpu")
    assert find(model, "paddle", "step_5").checkpoints == (model / "checkpoints" / "step_5",)
    assert spec.runs_in_processes
    assert not find(model, device="gpu").runs_in_processes


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
    folder.mkdir()
    assert exported(folder) is None
    (folder / file).write_bytes(b"")
    assert exported(folder) == engine
    assert find(folder).name == find(folder, engine).name == engine
    for wrong in ({"engine": "paddle"}, {"checkpoint": "last"}, {"ensemble": (str(model),)}):
        with pytest.raises(UsageError):
            find(folder, **wrong)
    if engine == "ctranslate2":
        assert not find(folder).runs_in_processes
        with pytest.raises(UsageError, match="--device: gpu"):
            find(folder, device="gpu")
    with pytest.raises(UsageError, match=f"export {model}"):
        find(model, engine)


def test_paddle_is_not_imported_where_it_is_not_needed(model):
    """Importing it takes seconds, and with CTranslate2 it may be missing."""
    code = (
        "import sys; from transformer_mt import Translator\n"
        "from transformer_mt.commands.model_choice import ModelChoice\n"
        "import transformer_mt.backends.ctranslate2.engine\n"
        "print(ModelChoice(sys.argv[1], device='cpu').find()[0].runs_in_processes)\n"
        "print('paddle' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(model)]
    assert subprocess.check_output(command, cwd=ROOT, text=True) == "True\nFalse\n"

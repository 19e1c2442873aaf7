"""The export to CTranslate2: what is written, what is refused, and that nothing is lost.

That the weights are in their places is tested with the engine, in tests/decoding.
"""

import json
import shutil
import signal

import ctranslate2
import numpy as np
import pytest
from ctranslate2 import specs

from tests.scripts.fake_project import requirements
from tests.support import (
    demo_pairs,
    make_config,
    make_model_directory,
    run_command,
    run_python,
    wide_model,
    write_lines,
)
from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.data.subword import Subwords
from transformer_mt.data.vocabulary import WordVocabulary
from transformer_mt.decoding.engine import Sentence
from transformer_mt.decoding.paddle_engine import PaddleEngine
from transformer_mt.export import ctranslate2 as exporter
from transformer_mt.export import registry
from transformer_mt.export.ctranslate2_engine import Ctranslate2Engine
from transformer_mt.export.registry import find
from transformer_mt.model_directory import ModelDirectory
from transformer_mt.utils import folders
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.folders import verify, write_checksums
from transformer_mt.weights import read_tensors, write_tensors

PAIRS = demo_pairs(200)
QUANTIZATIONS = ("int8", "int8_float32", "int16", "float16", "bfloat16")
FILES = {
    *("README.md", "SHA256SUMS", "card.json", "checkpoint", "config.json", "config.yaml"),
    *("format_version", "model.bin", "shared_vocabulary.json", "subword.model"),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model directory, to be left as it is."""
    folder = tmp_path_factory.mktemp("trained")
    return make_model_directory(folder / "model", PAIRS, make_config(folder)).path


@pytest.fixture
def model_dir(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "model")


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def names(folder):
    return {path.name for path in folder.iterdir()}


def sentences(subwords):
    return [Sentence(subwords.source.encode(source)) for source, _ in PAIRS[:20]]


# ---- What is written ----


def test_an_export(model_dir, capsys):
    run_command("export", model_dir, format="ctranslate2")
    folder = model_dir / "export" / "ctranslate2"
    output, messages = capsys.readouterr()
    assert output == f"{folder}\n"
    assert messages.startswith("exported step_10; to translate: bash scripts/translate.sh")
    assert names(folder) == FILES
    assert names(folder.parent) == {"ctranslate2"}
    assert verify(folder) is None
    original, exported = ModelDirectory(model_dir), ModelDirectory(folder)
    assert exported.load_config() == original.load_config()
    assert exported.load_subwords().content() == original.load_subwords().content()
    subwords = exported.load_subwords()
    pieces = json.loads((folder / "shared_vocabulary.json").read_text())
    assert pieces == subwords.source.pieces(range(subwords.source.size))


def paddle_engine(directory, checkpoint=None):
    return find(directory.path, checkpoint=checkpoint, device="cpu").load()


def test_a_checkpoint_by_name(model_dir, tmp_path):
    """The two differ, and each is exported as it is."""
    weights = model_dir / "checkpoints" / "step_5" / "model.safetensors"
    values = {name: np.float32(1.25) * value for name, value in read_tensors(weights).items()}
    write_tensors(weights, values)
    write_checksums(weights.parent)
    directory = ModelDirectory(model_dir)
    subwords = directory.load_subwords()
    found = {}
    for name in (None, "step_5", "step_10"):
        run_command(
            "export", model_dir, format="ctranslate2", output=tmp_path / f"{name}", checkpoint=name
        )
        engine = Ctranslate2Engine(tmp_path / f"{name}", subwords, 1)
        found[name] = engine.log_probs([[9, 8]], [[7, 6, 5]])
        expected = paddle_engine(directory, name).log_probs([[9, 8]], [[7, 6, 5]])
        np.testing.assert_allclose(found[name], expected, rtol=1e-4)
    assert found[None] == found["step_10"] != found["step_5"]


@pytest.fixture(scope="module")
def exact(trained, tmp_path_factory):
    """Its export without quantization, to be left as it is."""
    folder = tmp_path_factory.mktemp("exact") / "export"
    run_command("export", trained, format="ctranslate2", output=folder)
    return folder


def test_translating_with_an_export_imports_only_the_packages_of_its_list(tmp_path):
    """By the command, from its arguments to its last line. The subwords have symbols of protected
    spans, and are read with one package more."""
    code = """
import sys
from importlib.metadata import packages_distributions

listed = set(sys.argv[3].split())
for module, names in packages_distributions().items():
    if not listed & {name.lower().replace("_", "-") for name in names}:
        sys.modules[module] = None  # to import it is an error
from transformer_mt.cli import main

sys.exit(main(["translate", sys.argv[1], "--input", sys.argv[2]]))
"""
    config = make_config(tmp_path, data={"protect": ["tags"]}, subword={"vocab_size": 150})
    model_dir = make_model_directory(tmp_path / "model", PAIRS, config).path
    run_command("export", model_dir, format="ctranslate2", output=tmp_path / "export")
    source = write_lines(tmp_path / "in", [source for source, _ in PAIRS[:3]])
    listed = [r.name.lower() for r in requirements("requirements-ctranslate2.txt")]
    listed = " ".join([*listed, "transformer-mt"])
    done = run_python("-c", code, tmp_path / "export", source, listed, is_fresh=True)
    assert (done.returncode, done.stdout.count("\n")) == (0, 3), done.stderr


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_quantizations(trained, exact, tmp_path, quantization):
    """Each is exported, smaller, and runs; what it computes is near. (The rounding of int8 depends
    on the processor: 9 % of the spread on an Intel Xeon, 11 % on an AMD EPYC.)"""
    folder = tmp_path / quantization
    run_command("export", trained, format="ctranslate2", output=folder, quantization=quantization)
    assert names(folder) == FILES
    sizes = [(path / "model.bin").stat().st_size for path in (exact, folder)]
    # Positions, norms and biases, a large part of so small a model, stay as they are in some.
    assert sizes[1] < 0.95 * sizes[0]
    subwords = ModelDirectory(folder).load_subwords()
    engines = [Ctranslate2Engine(path, subwords, 1) for path in (exact, folder)]
    rows = [subwords.source.encode(source) for source, _ in PAIRS[:20]]
    targets = [subwords.target.encode(target) for _, target in PAIRS[:20]]
    expected, found = (np.array(engine.log_probs(rows, targets)) for engine in engines)
    assert (found != expected).any()
    assert np.abs(found - expected).mean() < 0.15 * np.std(expected)
    search = engines[1].search(sentences(subwords), DecodingConfig())
    assert all(own[0].ids for own in search)


def test_bfloat16_rounds_to_even():
    """The upper half of a float32; a tie goes to the even one."""
    bits = np.array([0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0xBF818000])
    spec = specs.common_spec.LinearSpec()
    spec.weight = bits.astype(np.uint32).view(np.float32)
    spec.validate()
    exporter._round_to_bfloat16(spec)
    assert spec.weight.dtype == "bfloat16" and spec.weight.num_bytes() == 12
    rounded = np.frombuffer(spec.weight.to_bytes(), np.uint16)
    assert rounded.tolist() == [0x3F80, 0x3F80, 0x3F82, 0x3F81, 0x3F80, 0xBF82]


def test_shared_weights_are_written_once(tmp_path):
    """Positions of both sides, and tied embeddings."""
    sizes = {}
    for tied in (True, False):
        config = make_config(tmp_path, model={"tie_embeddings": tied, "d_model": 64})
        directory = make_model_directory(tmp_path / f"{tied}", PAIRS, config)
        run_command("export", directory.path, format="ctranslate2", output=tmp_path / f"out_{tied}")
        sizes[tied] = (tmp_path / f"out_{tied}" / "model.bin").stat().st_size
    subwords = ModelDirectory(tmp_path / "out_True").load_subwords()
    matrix = 4 * 64 * subwords.source.size
    assert abs(sizes[False] - sizes[True] - 2 * matrix) < 1000
    assert sizes[True] < 2 * 4 * 64 * 1024 + matrix + 200_000


def test_odd_subwords(tmp_path):
    """Every piece is a word of its own to CTranslate2, whatever characters it has."""
    odd = [
        *("a\rb", "\u2028", "\u00a0", '"', "\\", "\u0301"),
        *("👩‍👩‍👧", "</s", "<blank>", "\ufeff", "x y"),
    ]
    vocabulary = WordVocabulary([*odd, *(f"w{i}" for i in range(10))])
    subwords = Subwords(vocabulary, vocabulary)
    config = make_config(tmp_path)
    model = wide_model(config, subwords)
    exporter.write_model(tmp_path, model, config, subwords)
    translator = ctranslate2.Translator(str(tmp_path))
    ids = list(range(len(odd)))
    (result,) = translator.score_batch([vocabulary.pieces(ids)], [vocabulary.pieces(ids)])
    assert result.tokens == [*odd, *vocabulary.pieces([vocabulary.eos])]
    (expected,) = PaddleEngine([model], subwords).log_probs([ids], [ids])
    assert sum(result.log_probs) == pytest.approx(expected, rel=1e-4)


# ---- What can't be exported ----


def small(tmp_path):
    vocabulary = WordVocabulary([f"w{i}" for i in range(10)])
    subwords = Subwords(vocabulary, vocabulary)
    config = make_config(tmp_path, model={"num_layers": 2})
    return wide_model(config, subwords), config, subwords


class Repeating(WordVocabulary):
    """Two of its pieces look alike, and its eos has another name."""

    def pieces(self, ids):
        other = {1: "w0", self.eos: "END"}
        return [other.get(i) or piece for i, piece in zip(ids, super().pieces(ids), strict=True)]


def test_all_that_does_not_fit_is_listed_at_once(tmp_path, monkeypatch):
    model, config, subwords = small(tmp_path)
    subwords = Subwords(subwords.source, Repeating([f"w{i}" for i in range(10)]))
    # A mechanism that this export knows nothing of, with a weight of its own.
    model.add_parameter("copy_gate", model.create_parameter([16]))
    monkeypatch.setattr(registry, "TRANSFORMER_KEYS", registry.TRANSFORMER_KEYS - {"d_ff"})
    del model.decoder.norm._parameters["weight"]
    del model.encoder.layers[1].self_attention.key_projection._parameters["weight"]
    bias = model.decoder.layers[0].feed_forward.inner_projection.bias
    bias.set_value(np.full(bias.shape, np.nan, "float32"))
    weight = model.encoder.layers[0].feed_forward.inner_projection.weight
    weight.set_value(np.full(weight.shape, 1e5, "float32"))
    folder = tmp_path / "out"
    folder.mkdir()
    with pytest.raises(UserError) as caught:
        exporter.write_model(folder, model, config, subwords, "float16")
    listed = [line.strip().partition(": ")[0] for line in str(caught.value).split("\n")[1:]]
    assert listed == [
        *("model.d_ff", "target vocabulary", "eos is '<e>' in the source, but 'END' in the target"),
        *("copy_gate", "encoder.layers.0.feed_forward.inner_projection.weight"),
        "decoder.layers.0.feed_forward.inner_projection.bias",
        *("encoder/layer_1/self_attention/linear_0/weight", "decoder/layer_norm/gamma"),
    ]
    assert names(folder) == set()


# ---- Where it goes ----


def test_an_earlier_export_is_replaced(model_dir, tmp_path):
    out = tmp_path / "out"
    run_command("export", model_dir, format="ctranslate2", output=out)
    first = content(out)
    run_command("export", model_dir, format="ctranslate2", output=out, quantization="int8")
    assert names(out) == FILES and content(out)["model.bin"] != first["model.bin"]
    run_command("export", model_dir, format="ctranslate2", output=out)
    assert content(out) == first
    assert names(tmp_path) == {"model", "out"}


def test_new_folders_empty_ones_and_links(model_dir, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    for output in (tmp_path / "link", tmp_path / "link", tmp_path / "a" / "b" / "c"):
        run_command("export", model_dir, format="ctranslate2", output=output)
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path / "empty") == names(tmp_path / "a" / "b" / "c") == FILES
    # Others may read it, as what is made in any other way.
    assert (tmp_path / "empty").stat().st_mode == (tmp_path / "a").stat().st_mode


def test_nothing_else_is_replaced(model_dir, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").write_text("mine")
    before = content(model_dir / "checkpoints" / "step_10")
    for output in (tmp_path / "file", tmp_path / "folder", model_dir):
        with pytest.raises(UsageError, match="is not an export: it is left as it is"):
            run_command("export", model_dir, format="ctranslate2", output=output)
    assert (tmp_path / "file").read_text() == (tmp_path / "folder" / "mine").read_text() == "mine"
    assert content(model_dir / "checkpoints" / "step_10") == before
    assert names(tmp_path) == {"model", "file", "folder"}


def full(*arguments):
    raise OSError(28, "No space left on device")


def test_a_full_disk(model_dir, monkeypatch):
    with monkeypatch.context() as context:
        context.setattr(folders, "write_checksums", full)
        with pytest.raises(UserError, match="can't be written"):
            run_command("export", model_dir, format="ctranslate2")
    assert not (model_dir / "export").exists()
    run_command("export", model_dir, format="ctranslate2")
    folder = model_dir / "export" / "ctranslate2"
    before = content(folder)
    for step in ("write_checksums", "flush_to_disk", "replace"):
        with monkeypatch.context() as context:
            context.setattr(folders, step, full)
            with pytest.raises(UserError, match="ctranslate2: can't be written: No space left"):
                run_command("export", model_dir, format="ctranslate2", quantization=None)
        assert content(folder) == before
        assert names(folder.parent) == {"ctranslate2"}


@pytest.mark.parametrize("is_aside", [False, True])
def test_a_killed_process(model_dir, monkeypatch, is_aside):
    """What is under the name is whole, or is put back by the next export, even if that fails."""
    run_command("export", model_dir, format="ctranslate2")
    folder = model_dir / "export" / "ctranslate2"
    before = content(folder)
    code = f"""
import os, pathlib, signal
from tests.support import run_command
rename = pathlib.Path.rename
def rename_or_end(path, target):
    if {is_aside} <= (target.name == "ctranslate2"):
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(path, target)
pathlib.Path.rename = rename_or_end
run_command("export", {str(model_dir)!r}, format="ctranslate2")
"""
    done = run_python("-c", code)
    assert done.returncode == -signal.SIGKILL
    assert folder.exists() != is_aside
    with monkeypatch.context() as context:
        context.setattr(folders, "write_checksums", full)
        with pytest.raises(UserError, match="can't be written"):
            run_command("export", model_dir, format="ctranslate2")
    assert content(folder) == before
    run_command("export", model_dir, format="ctranslate2")
    assert content(folder) == before


# ---- What can be wrong ----


def test_what_can_not_be_exported(model_dir, exact):
    with pytest.raises(UsageError, match="--quantization int8: only --format ctranslate2 has it"):
        run_command("export", model_dir, format="paddle", quantization="int8")
    with pytest.raises(UsageError, match="has no checkpoint"):
        run_command("export", exact, format="ctranslate2")
    with open(model_dir / "checkpoints" / "step_10" / "model.safetensors", "ab") as file:
        file.write(b"?")
    with pytest.raises(UserError, match=r"damaged .*Use another checkpoint"):
        run_command("export", model_dir, format="ctranslate2")
    assert not (model_dir / "export").exists()

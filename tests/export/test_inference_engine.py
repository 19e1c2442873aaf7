"""Exported programs translate as the model does, where the model's code is not at hand."""

import functools
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.support import ROOT, demo_pairs, make_config, make_model_directory, run_command
from transformer_mt.decoding.engine import Search, Sentence
from transformer_mt.export import registry as engines
from transformer_mt.export.paddle_inference import InferenceEngine
from transformer_mt.model_directory import ModelDirectory
from transformer_mt.translator import Translator
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.folders import CHECKSUMS, write_checksums

PAIRS = demo_pairs(300)
LINES = [source for source, _ in PAIRS[:40]]
# As in test_paddle_engine.
TOLERANCE = 1e-4

VARIANTS = {
    "pre": ({"num_layers": 2}, {}),
    "post": ({"norm": "post", "num_decoder_layers": 3}, {}),
    "no-bias-untied": ({"bias": False, "tie_embeddings": False}, {}),
    "apart": ({}, {"joint": False, "vocab_size": 150}),
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A function that gives the model directory of a variant, with an export in it."""
    return functools.cache(lambda name: exported_directory(tmp_path_factory.mktemp(name), name))


# The parity test compares this engine with the model, too, for every key of the model section.
@pytest.fixture(
    scope="module",
    params=[
        "pre",
        "apart",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("post", "no-bias-untied")),
    ],
)
def directory(request, exported):
    return exported(request.param)


@pytest.fixture(scope="module")
def plain_directory(exported):
    return exported("pre")


@pytest.fixture
def moved(plain_directory, tmp_path):
    """An export in another folder."""
    return shutil.copytree(
        plain_directory.path / "export" / "paddle_inference", tmp_path / "elsewhere"
    )


def exported_directory(folder, variant):
    model, subword = VARIANTS[variant]
    config = make_config(folder)
    config = make_config(
        folder,
        model=config.model.model_dump() | model,
        subword=subword,
        decoding={"beam_size": 4, "max_length_ratio": 1.0, "max_length_extra": 5},
    )
    directory = make_model_directory(folder / "model", PAIRS, config)
    run_command("export", directory.path, format="paddle")
    return directory


def both_engines(directory):
    return engines_of(directory.path)


@functools.cache
def engines_of(path):
    """They are loaded once, for all tests: what one search leaves must not matter to the next."""
    specs = [engines.find(path, name, device="cpu") for name in ("paddle", "paddle_inference")]
    return [spec.load() for spec in specs]


def assert_equal(ours, theirs):
    """Where two scores are tied within 1e-5, either may win."""
    for own, other in zip(ours, theirs, strict=True):
        scores = [hypothesis.score for hypothesis in other]
        assert [hypothesis.score for hypothesis in own] == pytest.approx(
            scores, rel=1e-5, abs=TOLERANCE
        )
        if [hypothesis.ids for hypothesis in own] != [hypothesis.ids for hypothesis in other]:
            assert min(np.abs(np.diff(scores)), default=0) < 1e-5


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"beam_size": 1},
        {"n_best": 4, "length_penalty_kind": "average"},
        {"sampling": True, "n_best": 2, "temperature": 0.8},
        {"min_length_ratio": 0.8, "max_length_extra": 0},
    ],
    ids=["beam", "greedy", "n-best", "sampling", "lengths"],
)
def test_finds_what_the_model_finds(directory, changes):
    settings = directory.load_config().decoding.model_copy(update=changes)
    subwords = directory.load_subwords()
    prefix = subwords.target.encode("Ein Mann")
    sentences = [
        Sentence(subwords.source.encode(line), prefix if number % 5 == 0 else [], number)
        for number, line in enumerate(LINES)
    ]
    model, programs = both_engines(directory)
    for start, end in ((0, 40), (3, 4), (10, 13)):  # what one batch leaves must not matter
        batch = sentences[start:end]
        found = Search(batch, settings, need_attention=True)(programs)
        expected = Search(batch, settings, need_attention=True)(model)
        assert_equal(found, expected)
        for own, other in zip(found, expected, strict=True):
            for hypothesis, theirs in zip(own, other, strict=True):
                if hypothesis.ids == theirs.ids:
                    np.testing.assert_allclose(
                        hypothesis.attention, theirs.attention, atol=TOLERANCE
                    )


def test_long_outputs_of_a_beam(plain_directory):
    """Long enough for positions to be forgotten that no hypothesis looks back on."""
    settings = plain_directory.load_config().decoding.model_copy(
        update={"max_length_extra": 60, "min_length_extra": 50}
    )
    subwords = plain_directory.load_subwords()
    sentences = [Sentence(subwords.source.encode(line)) for line in LINES[:12]]
    model, programs = both_engines(plain_directory)
    assert_equal(programs.search(sentences, settings), model.search(sentences, settings))


def test_force_decoding(directory, monkeypatch):
    subwords = directory.load_subwords()
    sources = [subwords.source.encode(source) for source, _ in PAIRS[:15]]
    targets = [subwords.target.encode(target) for _, target in PAIRS[:14]] + [[]]
    model, programs = both_engines(directory)
    expected = model.log_probs(sources, targets)
    assert programs.log_probs(sources, targets) == pytest.approx(expected, rel=1e-5, abs=TOLERANCE)
    monkeypatch.setattr("transformer_mt.decoding.batch.LOGITS_AT_ONCE", 40_000)  # a few at once
    assert programs.log_probs(sources, targets) == pytest.approx(expected, rel=1e-5, abs=TOLERANCE)


def test_without_the_model(plain_directory, moved, tmp_path):
    """In a process that cannot build it, from a folder that was moved; stdout is clean."""
    program = """
import sys
from transformer_mt.model.transformer import Transformer
del Transformer.__init__, Transformer.encode, Transformer.decode_step
from transformer_mt.translator import Translator
for line in Translator.load("elsewhere", device="cpu").translate(sys.stdin.read().splitlines()):
    print(line)
"""
    result = subprocess.run(
        [sys.executable, "-c", program],
        input="".join(f"{line}\n" for line in LINES),
        capture_output=True,
        encoding="utf-8",
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "LC_ALL": "C.UTF-8"},
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    expected = Translator.load(plain_directory.path, device="cpu").translate(LINES)
    assert result.stdout == "".join(f"{line}\n" for line in expected)
    assert "WARNING" not in result.stderr


@pytest.mark.parametrize(
    "name", ["encoder.json", "encoder.pdiparams", "decoder.json", "decoder.pdiparams"]
)
def test_a_damaged_program(moved, name):
    content = bytearray((moved / name).read_bytes())
    content[len(content) // 2] ^= 1
    (moved / name).write_bytes(content)
    subwords = ModelDirectory(moved).load_subwords()
    with pytest.raises(UserError, match=rf"elsewhere: damaged \({name} is not as it was written"):
        InferenceEngine(moved, subwords)
    (moved / name).unlink()
    with pytest.raises(UserError, match=name):
        InferenceEngine(moved, subwords)


def test_no_checksums(moved):
    (moved / CHECKSUMS).unlink()
    with pytest.raises(UserError, match=f"damaged .{CHECKSUMS} is missing"):
        InferenceEngine(moved, ModelDirectory(moved).load_subwords())


@pytest.mark.parametrize("name", ["decoder.json", "encoder.pdiparams"])
def test_a_program_that_paddle_does_not_know(moved, name):
    (moved / name).write_text("{}")
    (moved / CHECKSUMS).unlink()
    write_checksums(moved)
    with pytest.raises(UserError, match=r"Paddle 3\.[\d.]+ can't load it \(.+\). Export the model"):
        InferenceEngine(moved, ModelDirectory(moved).load_subwords())


def test_a_folder_that_is_no_export(plain_directory):
    with pytest.raises(UsageError, match="is not an export for --engine paddle_inference"):
        InferenceEngine(plain_directory.path, plain_directory.load_subwords())


def test_a_folder_whose_name_is_not_utf8(moved):
    """Paddle's own error would be about its types."""
    odd = moved.rename(os.fsdecode(os.fsencode(moved) + b"\xff"))
    with pytest.raises(UsageError, match="needs a folder with a name in UTF-8"):
        InferenceEngine(odd, ModelDirectory(odd).load_subwords())

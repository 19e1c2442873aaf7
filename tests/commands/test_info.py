"""The command `info`, as a user meets it."""

import re

import pytest

from tests.support import (
    ROOT,
    assert_refused,
    demo_pairs,
    make_config,
    make_model_directory,
    run_python,
    write_lines,
)
from transformer_mt import kernels
from transformer_mt.config import file as config_file
from transformer_mt.model.costs import FlopCounter
from transformer_mt.model.variants import build_model
from transformer_mt.model_directory import ModelDirectory

BASE, BIG = (ROOT / "configs" / f"wmt14_en_de_{size}.yaml" for size in ("base", "big"))


@pytest.fixture
def info(call):
    """Runs the command; returns what it prints."""

    def run(*arguments):
        done = call("info", *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


@pytest.fixture
def recipe(tmp_path):
    """A config file; none of the data that it names is there."""
    path = tmp_path / "recipe.yaml"
    path.write_text(config_file.dump(make_config(tmp_path)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A model directory whose text has fewer subwords than its config allows."""
    folder = tmp_path_factory.mktemp("info")
    config = make_config(folder, subword={"vocab_size": 5000})
    return make_model_directory(folder / "model", demo_pairs(60), config).path


def tables(text):
    """The cells of each line by how it begins, of each table by the first word of its title."""
    found = {}
    for block in text.split("\n\n"):
        title, *lines = block.split("\n")
        split = (re.split(" {2,}", line.strip()) for line in lines)
        found[title.split()[0]] = {name: cells for name, *cells in split}
    return found


# ---- Parameters ----


def test_a_model_is_counted_with_the_subwords_that_it_has(info, small):
    directory = ModelDirectory(small)
    config, subwords = directory.load_config(), directory.load_subwords()
    assert subwords.target.size < config.subword.vocab_size
    built = sum(int(tensor.size) for tensor in build_model(config.model, subwords).parameters())
    text = info(small)
    assert f"Vocabulary: {subwords.target.size:,}, joint (the model's)\n" in text
    assert tables(text)["Parameters"]["total"] == [f"{built:,}"]


def test_the_parts_add_up_to_the_total(info, recipe):
    table = tables(info(recipe))["Parameters"]
    (total,) = table.pop("total")
    cells = [" ".join(row).replace(",", "").split() for row in table.values()]
    parts = [int(row[0]) * int(row[2]) for row in cells if row[1] == "x"]
    assert parts == [int(row[3]) for row in cells if row[1] == "x"]
    assert len(parts) == len(cells) - 2  # two parts are the target embedding's
    assert sum(parts) == int(total.replace(",", ""))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["subword.vocab_size=900"], "900, joint (of the config; a small text may have fewer)"),
        (["subword.joint=false"], "200 source, 200 target"),
        (["subword.joint=false", "subword.source_vocab_size=70"], "70 source, 200 target"),
        (["subword.joint=false", "subword.target_vocab_size=70"], "200 source, 70 target"),
    ],
)
def test_sizes_of_the_vocabulary_are_those_of_the_config(info, recipe, overrides, said):
    assert f"Vocabulary: {said}" in info(recipe, *overrides)


def test_a_vocabulary_that_is_there_is_counted(info, recipe, tmp_path):
    assert "Vocabulary: 33,709, joint (wmt14ende's 33,708, and padding)\n" in info(BASE)
    types = ["<s>", "<e>", "<unk>", "ab@@", "c"]  # and padding
    path = write_lines(tmp_path / "types.txt", types)
    given = info(recipe, "subword.type=vocabulary", f"subword.vocabulary={path}")
    assert f"Vocabulary: 6, joint (of {path})\n" in given
    path = write_lines(tmp_path / "wmt" / "wmt14_ende_data_bpe" / "vocab_all.bpe.5", types[:4])
    assert f"Vocabulary: 5, joint (of {path})\n" in info(BASE, f"data.root={tmp_path / 'wmt'}")


# ---- FLOPs and time ----


# ---- What is not known ----


@pytest.mark.parametrize(("kind", "positions", "candidates"), [("length", 29, 2), ("end", 32, 1)])
def test_all_positions_at_once(info, recipe, kind, positions, candidates):
    """29 words and their end, of 30 subwords; with `end` as many as there may be, 29 + 3."""
    text = info(
        recipe, f"model.non_autoregressive={kind}", "decoding.iterations=3",
        "decoding.length_candidates=2", "decoding.max_length_ratio=1",
        "decoding.max_length_extra=3",
    )  # fmt: skip
    assert f"3 iterations, {candidates} candidate" in text and "beam" not in text
    config = config_file.load(recipe)
    model = config.model.model_copy(update={"non_autoregressive": kind})
    counter = FlopCounter(model, config.subword.vocab_size, 30, positions)
    expected = (
        counter.mask_prediction(), counter.mask_predict(1, 1), counter.mask_predict(3, candidates)
    )  # fmt: skip
    for cell, flops in zip(tables(text)["FLOPs"]["total"], expected, strict=True):
        value, unit = cell.split()
        flop = float(value) * {"FLOP": 1, "kFLOP": 1e3, "MFLOP": 1e6}[unit]
        assert flop == pytest.approx(flops.total / 30, rel=0.006)  # three digits are shown
    # A batch has room for as many pairs as have positions there.
    pairs = config.training.device_tokens // max(30, positions)
    assert f"{pairs} pairs of 30 subwords" in text


def test_passes_of_scheduled_sampling_are_counted(info, recipe):
    plain = tables(info(recipe))["FLOPs"]["decoder"][0]
    text = info(recipe, "scheduled_sampling.decay=linear", "scheduled_sampling.passes=4")
    assert "3 passes more of the decoder" in text
    times = float(tables(text)["FLOPs"]["decoder"][0].split()[0]) / float(plain.split()[0])
    assert times == pytest.approx(2.0, rel=0.02)  # forward and backward is 3 times forward


# ---- Memory ----


def test_memory_of_usual_and_of_the_longest_sentences(info, recipe):
    assert "13 pairs of 30 subwords  1 pair of 257 subwords" in info(recipe)
    assert "40 pairs of 10 subwords  1 pair of 257 subwords" in info(recipe, "--length", 10)
    # Shorter than usual: no longer ones are trained on.
    assert "40 pairs of 10 subwords\n" in info(recipe, "data.max_length=9")


# ---- Wrong use ----


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("nothing.yaml", ["nothing.yaml", "no such config file"]),
        ("{tmp}", ["{tmp} is not a model directory"]),
        ("{recipe} training.max_stps=3", ["did you mean training.max_steps"]),
        ("{recipe} --length 258", ["--length: 258", "257", "data.max_length: 256"]),
        ("{recipe} training.init_from={tmp}", ["training.init_from: {tmp}"]),
        ("{recipe} subword.type=vocabulary subword.vocabulary={tmp}/none",
         ["{tmp}/none: there is no such file", "subword.vocab_size=N"]),
    ],
)  # fmt: skip
def test_wrong_use_is_refused_clearly(call, recipe, tmp_path, arguments, words):
    names = {"recipe": recipe, "tmp": tmp_path}
    done = call("info", *arguments.format(**names).split())
    assert_refused(done, 2, *(word.format(**names) for word in words))


def test_keys_of_a_model(call, info, small):
    """All but its subwords can be overridden."""
    assert "13 pairs" in info(small) and "6 pairs" in info(small, "training.device_tokens=200")
    done = call("info", small, "subword.vocab_size=900")
    assert done.returncode == 2
    assert "Vocabulary: 900, joint" in info(*done.stderr.split("info ")[1].split())


# ---- As a whole ----


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_config_has_a_plan(info, path):
    text = info(path)
    assert max(map(len, text.split("\n"))) <= 100
    sections = ["Vocabulary", "Parameters", "FLOPs", "Memory", "Training"]
    starts = [text.index(section) for section in sections]
    assert starts == sorted(starts)


def test_it_answers_before_it_imports_anything_heavy():
    """Only the last line, which says what computes products on a CPU, needs Paddle."""
    code = """
import sys, transformer_mt.cli as cli

class Watch:
    def find_spec(self, name, *_):
        if name in ("paddle", "paddlenlp", "numpy", "sentencepiece", "sacrebleu", "datasets"):
            print("imports", name)

sys.meta_path.insert(0, Watch())
cli.main(sys.argv[1:])
"""
    text = run_python("-c", code, "info", BASE, is_fresh=True).stdout
    before, after = text.split("imports", 1)
    assert "\nTraining, updates of " in before
    assert "\nCPU products  " in after


def test_what_computes_products_on_a_cpu(info):
    text = info(BASE)
    assert text.endswith(f"\nCPU products  {kernels.cpu_products()}\n")

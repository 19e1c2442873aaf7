"""The benchmarks run from end to end, each once and on the smallest input; and they count right."""

import argparse
import contextlib
import io
import os
import re
import sys
from importlib import import_module
from itertools import pairwise

import numpy as np
import paddle
import pytest

import benchmark_copying
import benchmark_training
from benchmarks import harness, torch_competitor
from benchmarks.paddlenlp_competitor import Text, example_batches
from benchmarks.widen import widen
from tests.support import (
    ROOT,
    demo_pairs,
    make_config,
    make_model_directory,
    run_benchmark,
    run_command,
    write_pairs,
)
from transformer_mt.model.variants import build_model
from transformer_mt.model_directory import ModelDirectory

PAIRS = demo_pairs(600)
TINY = [
    "training.max_steps=2",
    "training.devices=1",
    "training.average_last=null",
    "model.d_model=8",
    "model.num_layers=1",
    "model.num_heads=1",
    "decoding.max_length_ratio=0.2",
    "decoding.max_length_extra=0",
]


TINY_MODEL = {"num_layers": 1, "d_model": 8, "num_heads": 1, "d_ff": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with text as train, dev and test, and a model that was never trained."""
    folder = tmp_path_factory.mktemp("benchmarks")
    for name, pairs in (("train", PAIRS), ("dev", PAIRS[:6]), ("test", PAIRS[:6])):
        write_pairs(folder, name, pairs)
    make_model_directory(folder / "model", PAIRS, make_config(folder))
    return folder


def tables(text):
    """The Markdown tables of a text without their heads, as lists of rows of cells."""
    found = re.findall(r"(?m)(?:^\|.*\|$\n?)+", text)
    return [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
        for table in found
    ]


class Here:
    """A worker of the harness without a process of its own."""

    def __init__(self, folder, threads, kind, *arguments):
        self.worker = kind(*arguments)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def ask(self, method, *arguments):
        return getattr(self.worker, method)(*arguments)


def program(*arguments, quiet=False):
    """A command in this process, in the place of harness.program."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        run_command(*arguments)
    return output.getvalue()


# These train models of their own.
MECHANISMS = ("copying", "alignment", "non_autoregressive", "fine_tuning")
# What makes each benchmark small.
SMALL = {
    "benchmark_training": {"SIZES": {"tiny": TINY_MODEL}, "VOCAB_SIZE": 300, "LOSS_VOCAB_SIZE": 99},
    "benchmark_decoding": {"TRIALS": 1, "BATCH_ROWS": [4]},
    "benchmark_data": {"VOCAB_SIZE": 300},
    "benchmark_static": {"MODEL": TINY_MODEL, "VOCABULARY_SIZE": 20, "ROWS": 3, "LENGTH": 4},
    "benchmark_copying": {"TRIALS": 1, "SUBWORDS": {"listed words": []}},
    "benchmark_serving": {"find_spec": lambda name: None},
    "benchmarks.invented_languages": {"SIZES": {"train": 300, "dev": 9, "test": 9}},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "heads"),
    [
        ("training", "--data {0} --sizes tiny --rounds 1 --seconds 0.1",
         [["PaddleNLP", "transformer_mt", "transformer_mt, PaddleNLP's dropout"],
          ["PaddleNLP, as its example", "transformer_mt `train`"],
          ["PaddleNLP", "transformer_mt"]]),
        ("decoding", "{0}/model --source {0}/test.en --reference {0}/test.de --rounds 1 "
         "--single 2 --beams 2", [["PaddleNLP v1", "PaddleNLP v2", "transformer_mt"]] * 3),
        ("data", "--data {0} --pairs 1200", [["first start", "second start", "encoding"]]),
        ("static", "--rounds 1 --seconds 0.01",
         [["transformer_mt on a CPU", "plain operations", "to_static"]] * 2),
        ("serving", "{0}/model --source {0}/test.en --rounds 1 --seconds 1 --clients 1",
         [["1", "1"]]),
        ("localisation", "{0}/model --text {0}/train --test {0}/test --threads 1",
         [["model, not protected", "model, protected"], ["as it is", "upper case"],
          *[["model, without the list", "model, by the search", "references"]] * 2]),
        ("fine_tuning", "{0}/model --train {0}/train --dev {0}/dev --test {0}/test --minutes 0.1 "
         "--general {0}/train --general-dev {0}/dev --general-test {0}/test --rank 2",
         [["the model before", "all weights"]]),
        ("copying", " ".join(TINY), [["listed words", "listed words"]]),
        ("alignment", " ".join(["--steps 2", *TINY]),
         [["not guided", "by: diagonal", "by: alignment"]]),
        ("non_autoregressive", " ".join(["{0}/model", "{2}/configs/non_autoregressive.yaml", *TINY,
         "--data {0} --output {1} --kinds length --iterations 1 --candidates 1"]),
         [["teacher, beam 5", "teacher, beam 1", "length", "length"]]),
    ],
)  # fmt: skip
def test_a_benchmark_runs(folder, tmp_path, monkeypatch, name, arguments, heads, pytestconfig):
    if name in MECHANISMS and not pytestconfig.getoption("--attack"):
        pytest.skip("runs with --attack")
    benchmark = import_module(f"benchmark_{name}")
    monkeypatch.setattr(benchmark, "Worker", Here, raising=False)
    monkeypatch.setattr(harness, "program", program)
    monkeypatch.setattr("os.sched_setaffinity", lambda *_: None)
    for module, values in SMALL.items():
        for constant, value in values.items():
            monkeypatch.setattr(f"{module}.{constant}", value)
    parser = argparse.ArgumentParser()
    getattr(benchmark, "add_arguments", harness.add_overrides)(parser)
    options = parser.parse_args(arguments.format(folder, tmp_path, ROOT).split())
    found = tables("\n\n".join(benchmark.measure(options, tmp_path)))
    shown = [[row[0] for row in table] for table in found]
    assert [rows[: len(head)] for rows, head in zip(shown, heads, strict=True)] == heads
    assert all(re.search(r"\d", " ".join(row[1:])) for table in found for row in table)
    if name == "static":  # summed cross-entropies of 12 tokens, rounded in another order
        assert np.ptp([float(row[-1]) for row in found[0]]) <= 0.02


@pytest.mark.parametrize(
    ("name", "arguments", "code", "words"),
    [
        ("training", "--data {0}/none", 2, "none/train.en: there is no such file, or it is empty"),
        ("training", "--data {0} --peer torch --torch-python false", 2,
         "--torch-python: false must have torch and numpy, but it says: exit code 1"),
        ("data", "--data {0}/none", 2, "none/train.de: there is no such file"),
        ("decoding", "{0} --source {0}/test.en --reference {0}/test.de", 2, "/config.yaml: there"),
        ("decoding", "{0}/model --source {0}/test.en --reference {0}/train.de", 2,
         "--source has 6 lines, --reference 600"),
        ("copying", "model.zzz=1", 1, "model.zzz: unknown key"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_told_without_a_traceback(folder, name, arguments, code, words):
    script = ROOT / "scripts" / f"benchmark_{name}.py"
    done = run_benchmark(script, *arguments.format(folder).split())
    assert done.returncode == code and done.stdout == ""
    assert words in done.stderr and "Traceback" not in done.stderr


def test_pytorch_trains_in_both_precisions(tmp_path, monkeypatch):
    python = os.environ.get("TORCH_PYTHON", sys.executable)
    try:
        torch_competitor.version_of(python)
    except harness.WrongArguments:
        pytest.skip("TORCH_PYTHON is not the Python of an environment with torch")
    monkeypatch.setattr(torch_competitor, "precisions", lambda: ["float32", "bfloat16"])
    arguments = {"num_encoder_layers": 1, "num_decoder_layers": 1, "trg_vocab_size": 20}
    arguments |= {"d_model": 8, "n_head": 2, "d_inner_hid": 8, "bos_id": 1}
    batches = [(np.full((5, 3), 4), np.full((5, 6), 7)), (np.full((1, 2), 4), np.full((1, 2), 7))]
    with torch_competitor.competitors(python, tmp_path, 2, arguments, batches) as trained:
        assert len(trained) == 4
        done = [train(0.0) for train in trained.values()]
    tokens, seconds = zip(*done, strict=True)
    assert min(seconds) > 0
    # In both precisions, the same processes go on: with the second batch, of which only one of two
    # processes has a row, while the other begins again.
    assert tokens[0] == 30 and tokens[2] == 2 and tokens[1] >= 30 and tokens[3] >= 14


# ---- What they count ----


def test_batches_for_pytorch_have_no_padding():
    ids, offsets = np.arange(10, 20), np.array([0, 2, 9, 10])
    text = Text(ids, offsets)
    ((source, target), (one, _)) = torch_competitor.dense_batches(
        text, text, [np.array([0, 1, 2]), np.array([2])], eos=1
    )
    # 13 tokens of three sentences, of which 3 x 4 remain
    assert source.tolist() == [[10, 11, 1, 12], [13, 14, 15, 16], [17, 18, 1, 19]]
    assert target.tolist() == source.tolist() and one.tolist() == [[19, 1]]


def test_the_speeds_of_pytorchs_processes_are_added():
    class Trained:
        def __init__(self, *values):
            self.begin = lambda *call: calls.append(call)
            self.result = lambda: values

    calls = []
    done = torch_competitor.train_together([Trained(100, 2.0), Trained(60, 3.0)], "float32", 1.5)
    assert done == (3 * (50 + 20), 3.0) and calls == [("train", "float32", 1.5)] * 2


def test_pytorchs_best_speed_is_that_of_each_round():
    def turns(*speeds):
        return [benchmark_training.TrainingTurn(speed, 1.0, 1.0, 1.0) for speed in speeds]

    competitors = {"PaddleNLP": turns(3, 3), "transformer_mt": turns(40, 40)}
    competitors |= {"PyTorch, one": turns(10, 5), "PyTorch, two": turns(5, 20)}
    (found,) = tables(benchmark_training.speed_table(competitors, [0.1, 0.2]) + "\n")
    assert [row[-2] for row in found] == ["10.0%", "20.0%", "0.0%", "0.0%"]
    assert [row[-1] for row in found][1:3] == ["**3.00 (2.00–4.00)**", "0.62 (0.25–1.00)"]


def test_what_is_copied_right():
    references = ["Frau Ada hat 12 Euro .", "Herr Bo hat 3 Euro .", "Wo ist Cy , bei 77 ?"]
    outputs = ["Frau Ada hat 121 Euro .", "Bo hat 3 3 Euro", "Wo ist Cyr ?"]
    seen = {"Frau", "Herr", "hat", "Euro", ".", "Wo", "ist", ",", "bei", "?"}
    names, numbers = benchmark_copying.accuracies(outputs, references, seen)
    assert (names, numbers) == (pytest.approx(2 / 3), pytest.approx(1 / 3))


def test_the_batches_of_paddlenlps_example():
    random = np.random.default_rng(0)
    source = random.integers(2, 60, 3000)
    target = np.maximum(2, source + random.integers(-5, 6, len(source)))
    longer = np.maximum(source, target)
    batches = example_batches(source, target, random)
    assert sorted(np.concatenate(batches)) == list(range(3000))
    assert all(longer[batch].max() * len(batch) <= 4096 for batch in batches)
    assert sum(len(batch) % 8 != 0 for batch in batches) <= 1  # the last
    starts = [(source[batch[0]], target[batch[0]]) for batch in batches]
    assert starts != sorted(starts)  # shuffled
    # No batch has room for eight rows more.
    in_order = sorted(batches, key=lambda batch: (source[batch[0]], target[batch[0]]))
    for batch, following in pairwise(in_order):
        more = np.concatenate([batch, following[:8]])
        assert longer[more].max() * len(more) > 4096


def test_a_widened_model_computes_the_same_with_the_same_positions(folder):
    directory = ModelDirectory(folder / "model")
    form = {"norm": "post", "bias": True, "output_bias": True, "num_heads": 2, "dropout": 0.0}
    narrow = directory.load_config().model.model_copy(update={**form, "d_model": 8, "d_ff": 6})
    wide = narrow.model_copy(update={"d_model": 32, "num_heads": 4, "d_ff": 24})
    models = [build_model(config, directory.load_subwords()) for config in (narrow, wide)]
    generator = np.random.default_rng(1)
    for parameter in models[0].parameters():
        parameter.set_value(generator.normal(size=parameter.shape).astype(np.float32))
    weights = {name: x.numpy() for name, x in models[0].named_parameters()}
    widened = widen(weights, narrow.d_model, narrow.num_heads)
    for name, parameter in models[1].named_parameters():
        parameter.set_value(widened.pop(name))
    assert not widened
    # Each pair of channels of the positions has four copies.
    table = models[0].positional_encoding.table.numpy().reshape(-1, 4, 2)
    models[1].positional_encoding.table.set_value(table.repeat(4, axis=1).reshape(-1, 32))
    ids = paddle.to_tensor(generator.integers(4, 20, size=(2, 5)))
    for model in models:
        model.eval()
    expected, found = (model(ids, ids).numpy() for model in models)
    # The logits are as large as 10, and float32 rounds each of the sums.
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3)

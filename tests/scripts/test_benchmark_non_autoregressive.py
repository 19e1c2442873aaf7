"""The benchmark runs the right commands, and prints their results."""

import argparse
import json
from pathlib import Path

import benchmark_non_autoregressive as benchmark
from benchmarks import harness
from tests.support import ROOT, demo_pairs, make_config, make_model_directory, write_pairs
from transformer_mt import cli
from transformer_mt.config import file as config_file
from transformer_mt.utils.files import lines

CONFIG = ROOT / "configs" / "non_autoregressive.yaml"
PAIRS = demo_pairs(30)


class Program:
    """Stands for the program: parses its arguments as the program does, and records them.

    The BLEU of a model is the number of the call to `evaluate`, and its speed is 100 times that.
    """

    def __init__(self):
        self.commands, self.recipes, self.calls = [], [], []

    def __call__(self, *arguments):
        options = cli.parse([str(argument) for argument in arguments])
        self.commands.append(options.command)
        if options.command == "translate":
            said = [f"{source}!" for source in lines(options.input)]
            said[3] = PAIRS[3][1]
            options.output.write_text("".join(f"{line}\n" for line in said), "utf-8")
        elif options.command == "train":
            self.recipes.append(config_file.load(options.config, options.overrides))
        else:
            self.calls.append(options)
            values = [
                {
                    "bleu": len(self.calls) + number / 10,
                    "chrf": 50.0,
                    "length_ratio": 1.0,
                    "lines_per_second": 100.0 * len(self.calls),
                }
                for number in range(len(options.models))
            ]
            text = json.dumps(values if len(values) > 1 else values[0])
            options.json.write_text(text)


def test_the_comparison(tmp_path, monkeypatch):
    for name in ("train", "val", "test"):
        write_pairs(tmp_path / "text", name, PAIRS)
    make_model_directory(tmp_path / "teacher", PAIRS, make_config(tmp_path))
    program = Program()
    monkeypatch.setattr(harness, "program", program)
    parser = argparse.ArgumentParser()
    benchmark.add_arguments(parser)
    options = parser.parse_args(
        [str(tmp_path / "teacher"), str(CONFIG), "training.max_steps=7",
         "--data", str(tmp_path / "text"), "--output", str(tmp_path / "out"), "--dev", "val",
         "--iterations", "1", "4", "--candidates", "3"],
    )  # fmt: skip
    out = "\n\n".join(benchmark.measure(options, tmp_path))

    assert program.commands == ["translate"] + ["train"] * 4 + ["evaluate"] * 6
    read = {}
    for recipe in program.recipes:
        assert recipe.training.max_steps == 7 and recipe.data.test is None
        folder = Path(recipe.data.root)
        texts = [list(lines(folder / f"{name}.de")) for name in ("train", "dev", "test")]
        assert texts[1] == texts[2] == [target for _, target in PAIRS]
        name = Path(recipe.model_dir).name
        read[name] = recipe.model.non_autoregressive, texts[0] == texts[1]
    assert read == {
        "length_raw": ("length", True),
        "length_distilled": ("length", False),
        "end_raw": ("end", True),
        "end_distilled": ("end", False),
    }

    assert "In 29 of 30 lines" in out
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in out.splitlines()
        if line.startswith("|")
    ]
    shown = [[*row[:5], *row[7:]] for row in rows[2:]]
    assert shown == [
        ["teacher, beam 5", "the corpus", "", "", "1.00", "100.0", "1.00"],
        ["teacher, beam 1", "the corpus", "", "", "2.00", "200.0", "2.00"],
        ["length", "the corpus", "1", "3", "3.00", "300.0", "3.00"],
        ["length", "the teacher's", "1", "3", "3.10", "300.0", "3.00"],
        ["length", "the corpus", "4", "3", "4.00", "400.0", "4.00"],
        ["length", "the teacher's", "4", "3", "4.10", "400.0", "4.00"],
        ["end", "the corpus", "1", "", "5.00", "500.0", "5.00"],
        ["end", "the teacher's", "1", "", "5.10", "500.0", "5.00"],
        ["end", "the corpus", "4", "", "6.00", "600.0", "6.00"],
        ["end", "the teacher's", "4", "", "6.10", "600.0", "6.00"],
    ]
    settings = [(o.beam_size,) if "beam_size" in o else (o.iterations,) for o in program.calls]
    assert settings == [(5,), (1,), (1,), (4,), (1,), (4,)]
    assert [getattr(o, "length_candidates", None) for o in program.calls[2:]] == [3, 3, None, None]

"""What guided attention does on a language pair whose word alignments are known.

    .venv/bin/python scripts/benchmark_alignment.py > results.md

Trains the same small model three times: without guided attention, guided to the diagonal, and
guided by the true alignments. The text is that of benchmarks/invented_languages.py, the recipe that
of --config, the seed the same. Then `evaluate` translates the test set, and `align --reference`
aligns it with its true translations by the head that was guided by alignments, or else by all heads
of the last layer but one. Results go to stdout as Markdown. It takes some minutes.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import ROOT, positive
from benchmarks.invented_languages import SIZES, make_corpus

RECIPE = ROOT / "configs" / "guided_attention.yaml"
VOCAB_SIZE = 400  # splits most words into several subwords
HEADER = ["", "BLEU", "AER", "precision", "recall", "seconds of training"]
# The guided_attention section of each model.
MODELS = {
    "not guided": {"by": "null"},
    "by: diagonal": {"by": "diagonal"},
    "by: alignment": {"by": "alignment", "alignments": "{folder}/train.links"},
}


def measure(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    folder = options.output.resolve() if options.output else folder
    make_corpus(folder, options.seed)
    lines = []
    for name, section in MODELS.items():
        model = folder / re.sub(r"\W+", "_", name)
        started = time.perf_counter()
        train(options, folder, model, section)
        seconds = time.perf_counter() - started
        lines.append([name, *scores(folder, model), f"{seconds:.0f}"])
    yield f"`{options.config.name}`, {options.steps:,} steps, {SIZES['train']:,} pairs"
    yield harness.table(HEADER, lines)


def train(options: argparse.Namespace, folder: Path, model: Path, section: dict[str, str]) -> None:
    settings = {
        "model_dir": model,
        "data.root": folder,
        "data.source_lang": "src",
        "data.target_lang": "tgt",
        "data.cache": folder / "cache",
        "subword.vocab_size": VOCAB_SIZE,
        "training.max_steps": options.steps,
        "training.validate_every": options.steps,
        "training.save_every": options.steps,
        "training.seed": options.seed,
        "evaluation.samples": 0,
    }
    settings |= {
        f"guided_attention.{key}": value.format(folder=folder) for key, value in section.items()
    }
    overrides = [f"{key}={value}" for key, value in settings.items()]
    config = options.config.resolve()
    harness.program("train", config, "--restart", *overrides, *options.overrides)


def scores(folder: Path, model: Path) -> list[str]:
    """BLEU, and the alignment error rate, precision and recall."""
    source, target, links = (folder / f"test.{ending}" for ending in ("src", "tgt", "links"))
    (evaluation,) = harness.evaluate(folder, [model], source, target)
    files = "--source", source, "--target", target, "--reference", links
    aligned = harness.program("align", model, *files)
    found = re.search(r"AER ([\d.]+) +precision ([\d.]+) +recall ([\d.]+)", aligned)
    return [f"{score:.2f}" for score in (evaluation["bleu"], *map(float, found.groups()))]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    recipe = {"metavar": "FILE", "type": Path, "default": RECIPE}
    parser.add_argument("--config", **recipe, help="the recipe (configs/guided_attention.yaml)")
    number = {"metavar": "N", "type": positive(int)}
    parser.add_argument("--steps", **number, default=600, help="steps of training (600)")
    seed = {"metavar": "N", "type": int, "default": 1}
    parser.add_argument("--seed", **seed, help="seed of the text and of the models (1)")
    folder = {"metavar": "FOLDER", "type": Path}
    parser.add_argument("--output", **folder, help="keep text and models there (not kept)")
    harness.add_overrides(parser)


if __name__ == "__main__":
    harness.run(__doc__, add_arguments, measure)

"""What copying gains with names and numbers that training never saw, and what it costs.

    .venv/bin/python scripts/benchmark_copying.py [key=value ...] > results.md

Trains configs/copying.yaml with and without `model.copying`, each with the list of words and with
BPE, by `python -m transformer_mt train`. key=value replaces a value of the config. Then `evaluate`
translates the test set, in which every line has one name and one number that are not in the
training text. Results go to stdout as Markdown, progress to stderr. It takes some minutes.

How to read the results

The accuracy of names and of numbers is the share of lines whose output has exactly this word.
Training is the median over the lines of the log. Lines/s are those of one process with one thread,
the fastest of three.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import harness
from benchmarks.harness import ROOT, read_lines

CONFIG = ROOT / "configs" / "copying.yaml"
CORPUS = ROOT / "data" / "names"
SUBWORDS = {
    "listed words": [],
    "BPE, 1,000": ["subword.type=bpe", "subword.vocabulary=null", "subword.vocab_size=1000"],
}
TRIALS = 3
HEADER = ["subwords", "copying", "names", "numbers", "BLEU", "training, tokens/s", "lines/s"]


def measure(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    lines = []
    for subwords, settings in SUBWORDS.items():
        for copying in (True, False):
            model_dir = folder / f"model_{len(lines)}"
            settings_of_model = [*settings, f"model.copying={json.dumps(copying)}"]
            train(model_dir, [*settings_of_model, *options.overrides])
            lines.append([subwords, "yes" if copying else "no", *measured(model_dir)])
    yield harness.table(HEADER, lines)


def train(model_dir: Path, settings: list[str]) -> None:
    cache = model_dir.parent / "cache"
    harness.program("train", CONFIG, f"model_dir={model_dir}", f"data.cache={cache}", *settings)


def measured(model_dir: Path) -> list[str]:
    """The cells of the columns from "names" on."""
    source, reference = CORPUS / "test.en", CORPUS / "test.de"
    settings = "--threads", 1, "--output", model_dir / "output"
    scores = [
        harness.evaluate(model_dir, [model_dir], source, reference, *settings)[0]
        for _ in range(TRIALS)
    ]
    seen = {word for line in read_lines(CORPUS / "train.de") for word in line.split()}
    outputs = read_lines(model_dir / "output")
    names, numbers = accuracies(outputs, read_lines(reference), seen)
    records = [json.loads(line) for line in read_lines(model_dir / "metrics.jsonl")]
    rates = [record["tokens_per_second"] for record in records if record["kind"] == "train"]
    return [
        f"{names:.1%}",
        f"{numbers:.1%}",
        f"{scores[0]['bleu']:.1f}",
        f"{np.median(rates):,.0f}",
        f"{max(score['lines_per_second'] for score in scores):,.0f}",
    ]


def accuracies(outputs: list[str], references: list[str], seen: set[str]) -> tuple[float, float]:
    """The shares of the unseen names and of the unseen numbers of the references that the outputs
    of their lines contain."""
    right: dict[bool, list[bool]] = {False: [], True: []}
    for output, reference in zip(outputs, references, strict=True):
        for word in set(reference.split()) - seen:
            right[word.isdigit()].append(word in output.split())
    return float(np.mean(right[False])), float(np.mean(right[True]))


if __name__ == "__main__":
    harness.run(__doc__, harness.add_overrides, measure)

"""What copying gains with names and numbers that training never saw, and what it costs.

    .venv/bin/python scripts/benchmark_copying.py [key=value ...] > results.md

Trains configs/copying.yaml twice, with and without `model.copying`, and both once more with BPE in
place of the list of words, by `python -m transformer_mt train`; key=value is laid over the config,
as there. Then it translates the test set, whose every line has one name and one number that are not
in the training text: accuracy is the share of lines whose output has exactly this word. Results go
to stdout as Markdown, what is going on to stderr. It takes some minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarking import ROOT, exit_code, program, say, table
from transformer_mt import Translator

CONFIG = ROOT / "configs" / "copying.yaml"
CORPUS = ROOT / "data" / "names"
SUBWORDS = {
    "listed words": [],
    "BPE, 1,000": ["subword.type=bpe", "subword.vocabulary=null", "subword.vocab_size=1000"],
}
# Each model translates the test set so often; the fastest counts.
ROUNDS = 3
HEADER = ["subwords", "copying", "names", "numbers", "BLEU", "training, tokens/s", "lines/s"]


def main() -> None:
    overrides = parse().overrides
    lines = []
    with tempfile.TemporaryDirectory(prefix="benchmark_copying-") as name:
        for subwords, settings in SUBWORDS.items():
            for copying in (True, False):
                say(f"{subwords}, {'with' if copying else 'without'} copying")
                model_dir = Path(name) / f"{len(lines)}"
                train(model_dir, [*settings, f"model.copying={json.dumps(copying)}", *overrides])
                lines.append([subwords, "yes" if copying else "no", *measured(model_dir)])
    print(table(HEADER, lines))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="laid over the config")
    return parser.parse_args()


def train(model_dir: Path, settings: list[str]) -> None:
    cache = model_dir.parent / "cache"
    program("train", CONFIG, f"model_dir={model_dir}", f"data.cache={cache}", *settings)


def measured(model_dir: Path) -> list[str]:
    """Names and numbers that are right, BLEU, tokens/s in training, and lines/s in translating."""
    sources, references = (read(CORPUS / f"test.{lang}") for lang in ("en", "de"))
    seen = {word for line in read(CORPUS / "train.de") for word in line.split()}
    translator = Translator.load(model_dir)
    seconds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        outputs = translator.translate(sources)
        seconds.append(time.perf_counter() - started)
    names, numbers = accuracies(outputs, references, seen)
    records = [json.loads(line) for line in read(model_dir / "metrics.jsonl")]
    rates = [record["tokens_per_second"] for record in records if record["kind"] == "train"]
    (bleu,) = (record["bleu"] for record in records if record["kind"] == "test")
    return [
        f"{names:.1%}",
        f"{numbers:.1%}",
        f"{bleu:.1f}",
        f"{np.median(rates):,.0f}",
        f"{len(sources) / min(seconds):,.0f}",
    ]


def accuracies(outputs: list[str], references: list[str], seen: set[str]) -> tuple[float, float]:
    """The shares of names and of numbers, both the words that were not seen, that stand in the
    output of their line."""
    right: dict[bool, list[bool]] = {False: [], True: []}
    for output, reference in zip(outputs, references, strict=True):
        for word in set(reference.split()) - seen:
            right[word.isdigit()].append(word in output.split())
    return float(np.mean(right[False])), float(np.mean(right[True]))


def read(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


if __name__ == "__main__":
    sys.exit(exit_code(main))

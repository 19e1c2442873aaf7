"""How much time and memory a large corpus takes from its text to the first batches.

    .venv/bin/python scripts/benchmark_data.py --pairs 4500000 --data FOLDER > results.md

FOLDER holds a parallel corpus, train.de and train.en. It is repeated up to the number of pairs in a
temporary folder; every repetition appends another number to its lines. Measured are:

- a first start with an empty cache, and a second start: imports, `prepare` (content hash, held-out
  pairs, subword model, encoded corpus), and the updates of the first epoch;
- the encoding alone, from the text to the finished arrays, with one core and with two.

Results go to stdout as Markdown. For 4.5 million pairs the benchmark takes about ten minutes on two
cores, and a gigabyte of disk space.

How to read the results

Each measurement has a process of its own. Its CPU seconds include imports and the processes that it
starts to encode, and depend little on the load of the machine. Peak memory is ru_maxrss of the
process, and of the largest process that it starts. The latter counts at least as much as its parent
had when it started.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import Failure, Worker, WrongArguments, positive
from benchmarks.padding import padding_share

VOCAB_SIZE = 32_000
BATCH_TOKENS = 4096
LEAST_PAIRS = 1000
HEADER = "cores", "seconds", "CPU seconds", "pairs/s", "peak memory", "of an encoding process"


class Preparation:
    """This project's way from the text to the first batches."""

    def __init__(self, recipe: Path, cores: list[int]) -> None:
        os.sched_setaffinity(0, cores)
        self.recipe = recipe

    def start(self) -> tuple[float, float]:
        """Seconds from the imports to the updates of the first epoch, and their padding share."""
        started = time.perf_counter()
        from transformer_mt.config.file import load as load_config
        from transformer_mt.data.batches import epoch_batches, group_batches
        from transformer_mt.data.prepare import prepare

        corpus = prepare(load_config(self.recipe)).train
        batches = epoch_batches(corpus.source.lengths, corpus.target.lengths, BATCH_TOKENS, 1, 0)
        group_batches(batches, 1)
        seconds = time.perf_counter() - started
        return seconds, padding_share(corpus, batches)

    def encode(self) -> tuple[float, None]:
        """Encodes the corpus that `start` has prepared once more; returns seconds."""
        from transformer_mt.config.file import load as load_config
        from transformer_mt.data.corpus import open_corpus, training_filter
        from transformer_mt.data.encoded import Limits, encoded_corpus
        from transformer_mt.data.prepare import prepare

        config = load_config(self.recipe)
        subwords = prepare(config).subwords
        split = open_corpus(config.data).train
        next(iter(split))  # imports PaddleNLP
        keep = training_filter(frozenset(), config.data.drop_duplicates)
        with tempfile.TemporaryDirectory(dir=config.data.root) as cache:
            started = time.perf_counter()
            encoded_corpus(
                split,
                content="",
                subwords=subwords,
                limits=Limits(config.data.max_length, config.data.max_length_ratio),
                cache=Path(cache),
                title="encoding",
                reason_to_drop=keep,
            )
            return time.perf_counter() - started, None

    def usage(self) -> tuple[float, float, float]:
        """CPU seconds, and the peak memory in GB of this process and of its largest child."""
        who = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
        own, child = (resource.getrusage(which).ru_maxrss * 1024 / 1e9 for which in who)
        return sum(os.times()[:4]), own, child


def measure(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    harness.check_corpus(options)
    if options.pairs < LEAST_PAIRS:
        raise WrongArguments(f"--pairs: expected at least {LEAST_PAIRS:,}")
    size = repeat_corpus(options, folder) / 1e6
    options.data = folder
    recipe = harness.write_recipe(
        folder, options, subword={"vocab_size": VOCAB_SIZE}, training={"max_steps": 1}
    )
    yield f"{options.pairs:,} pairs, {size:,.0f} MB of text, BPE of {VOCAB_SIZE:,}"

    lines = []

    def take(title: str, method: str, cores: list[int], encodes: bool = True) -> float | None:
        """Adds a line to the table; returns what the method returns besides seconds."""
        harness.say(f"{title}, {len(cores)} cores")
        with Worker(folder, len(cores), Preparation, recipe, cores) as preparation:
            seconds, result = preparation.ask(method)
            cpu_seconds, own, child = preparation.ask("usage")
        numbers = [str(len(cores)), f"{seconds:.1f}", f"{cpu_seconds:.1f}"]
        numbers += [f"{options.pairs / seconds:,.0f}", f"{own:.2f} GB"]
        of_child = f"{child:.2f} GB" if encodes and len(cores) > 1 else ""
        lines.append([title, *numbers, of_child])
        harness.say(f"{title}: {seconds:.1f} s, {own:.2f} GB {of_child}".rstrip())
        return result

    cores = sorted(os.sched_getaffinity(0))
    first = take("first start", "start", cores)
    second = take("second start", "start", cores, encodes=False)
    for count in range(1, min(2, len(cores)) + 1):
        take("encoding", "encode", cores[:count])
    yield harness.table(["", *HEADER], lines)
    if first != second:
        raise Failure(f"padding is {second:.2%} at the second start, {first:.2%} at the first")
    yield f"Padding at {BATCH_TOKENS:,} tokens a batch: {first:.2%}"


def repeat_corpus(options: argparse.Namespace, folder: Path) -> int:
    """Writes the text of the large corpus; returns its size in bytes."""
    size = 0
    for lang in (options.source_lang, options.target_lang):
        lines = harness.read_lines(options.data / f"train.{lang}")
        path = folder / f"train.{lang}"
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            for first in range(0, options.pairs, len(lines)):
                ending = f" {first // len(lines)}\n" if first else "\n"
                file.writelines(line + ending for line in lines[: options.pairs - first])
        size += path.stat().st_size
    return size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    harness.add_corpus(parser, "de", "en")
    pairs = {"metavar": "N", "type": positive(int), "default": 4_500_000}
    parser.add_argument("--pairs", **pairs, help="size of the large corpus (4500000)")


if __name__ == "__main__":
    harness.run(__doc__, add_arguments, measure)

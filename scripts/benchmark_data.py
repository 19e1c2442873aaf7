"""How long a large corpus takes from text to the first batches, and how much memory.

    .venv/bin/python scripts/benchmark_data.py --pairs 4500000 --data FOLDER > results.md

FOLDER holds a parallel corpus, train.de and train.en. It is repeated up to the wanted number of
pairs, each time with another number at the ends of its lines, in a temporary folder. Measured is:

- a first start with an empty cache, and a second one: `prepare` (content hash, held out pairs,
  subword model, encoded corpus) and the updates of the first epoch, with the imports;
- the encoding alone, from the text to the finished arrays, with one core and with two.

Each measurement has a process of its own, whose CPU seconds (imports, and the processes that it
starts to encode, included) depend little on what else the machine does. Peak memory is ru_maxrss,
of the process and of the largest that it starts, which counts at least as much as its parent had
when it started. Results go to stdout as Markdown. For 4.5 million pairs it takes about ten minutes
on two cores, and a gigabyte of disk space.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarking import Failure, exit_code

VOCAB_SIZE = 32_000
BATCH_TOKENS = 4096


def main() -> None:
    options = parse()
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="benchmark_data-") as name:
        folder = Path(name)
        size = make_corpus(options, folder)
        settings = {
            "model_dir": f"{folder}/model",
            "data": {
                "root": f"{folder}",
                "source_lang": options.source_lang,
                "target_lang": options.target_lang,
                "cache": f"{folder}/cache",
            },
            "subword": {"vocab_size": VOCAB_SIZE},
            "training": {"max_steps": 1},
        }
        print(f"{options.pairs:,} pairs, {size / 1e6:,.0f} MB of text, BPE of {VOCAB_SIZE:,}\n")
        print(
            "| | cores | seconds | CPU seconds | pairs/s | peak memory | of an encoding process |"
        )
        print("|---|---|---|---|---|---|---|")
        first = row("first start", options.pairs, start, settings, cores)
        second = row("second start", options.pairs, start, settings, cores)
        for count in (1, 2):
            if count <= len(cores):
                row("encoding", options.pairs, encode, settings, cores[:count])
        if first != second:
            raise Failure(f"padding is {second:.2%} at the second start, {first:.2%} at the first")
        print(f"\nPadding at {BATCH_TOKENS:,} tokens a batch: {first:.2%}")


def row(title: str, pairs: int, work: Callable, settings: dict, cores: list[int]) -> float | None:
    """Prints what `work` takes in a process that may use `cores`; returns what it returns."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        seconds, cpu, own, child, result = process.submit(measure, work, settings, cores).result()
    encoding = f"{child:.2f} GB" if len(cores) > 1 and "second" not in title else ""
    print(
        f"| {title} | {len(cores)} | {seconds:.1f} | {cpu:.1f} | {pairs / seconds:,.0f} "
        f"| {own:.2f} GB | {encoding} |",
        flush=True,
    )
    return result


def measure(work: Callable, settings: dict, cores: list[int]) -> tuple:
    """Seconds, those of the CPU, peak memory in GB of this process and of its largest child, and
    the result."""
    os.sched_setaffinity(0, cores)
    seconds, result = work(settings)
    cpu = sum(os.times()[:4])
    peaks = [
        resource.getrusage(who).ru_maxrss * 1024 / 1e9
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    return seconds, cpu, *peaks, result


def start(settings: dict) -> tuple[float, float]:
    """From the imports to the updates of the first epoch; and the share of padding in them."""
    started = time.perf_counter()
    from transformer_mt.config.schema import Config
    from transformer_mt.data.batches import epoch_batches, padding_share, updates
    from transformer_mt.data.prepare import prepare

    corpus = prepare(Config.model_validate(settings)).train
    batches = epoch_batches(corpus.source.lengths, corpus.target.lengths, BATCH_TOKENS, 1, 0)
    updates(batches, 1)
    seconds = time.perf_counter() - started
    return seconds, padding_share(corpus, batches)


def encode(settings: dict) -> tuple[float, None]:
    """Encodes what `start` has prepared once more."""
    from transformer_mt.config.schema import Config
    from transformer_mt.data.corpus import open_corpus
    from transformer_mt.data.encoded import Limits, encoded_corpus
    from transformer_mt.data.prepare import prepare
    from transformer_mt.data.training_filter import TrainingFilter

    config = Config.model_validate(settings)
    subwords = prepare(config).subwords
    split = open_corpus(config.data).train
    next(iter(split))  # imports PaddleNLP
    with tempfile.TemporaryDirectory(dir=config.data.root) as cache:
        started = time.perf_counter()
        encoded_corpus(
            split,
            content="",
            subwords=subwords,
            limits=Limits(config.data.max_length, config.data.max_length_ratio),
            cache=Path(cache),
            title="encoding",
            reason_to_drop=TrainingFilter(frozenset(), config.data.drop_duplicates).reason_to_drop,
        )
        return time.perf_counter() - started, None


def make_corpus(options: argparse.Namespace, folder: Path) -> int:
    """Writes the text; returns its size in bytes."""
    size = 0
    for lang in (options.source_lang, options.target_lang):
        lines = (options.data / f"train.{lang}").read_text(encoding="utf-8").split("\n")[:-1]
        path = folder / f"train.{lang}"
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            for first in range(0, options.pairs, len(lines)):
                ending = f" {first // len(lines)}\n" if first else "\n"
                file.writelines(line + ending for line in lines[: options.pairs - first])
        size += path.stat().st_size
    return size


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", metavar="FOLDER", type=Path, required=True, help="holds train.de and train.en"
    )
    parser.add_argument("--source-lang", metavar="LANG", default="de", help="its ending (de)")
    parser.add_argument("--target-lang", metavar="LANG", default="en", help="its ending (en)")
    parser.add_argument(
        "--pairs", metavar="N", type=int, default=4_500_000, help="of the large corpus (4500000)"
    )
    options = parser.parse_args()
    for language in (options.source_lang, options.target_lang):
        path = options.data / f"train.{language}"
        if not path.is_file() or not path.stat().st_size:
            parser.error(f"--data: {path}: there is no such file, or it is empty")
    if options.pairs < 1000:
        parser.error("--pairs: expected at least 1000")
    return options


if __name__ == "__main__":
    sys.exit(exit_code(main))

"""How good and how fast non-autoregressive models are, compared with the model they learn from.

    .venv/bin/python scripts/benchmark_non_autoregressive.py MODEL_DIR CONFIG --data FOLDER \\
        --output FOLDER [key=value ...] > out.md

MODEL_DIR holds the teacher, a trained autoregressive model. CONFIG is the recipe of its students,
such as configs/non_autoregressive.yaml; key=value replaces a value of it. The folder of --data
holds the text as train.en, train.de, dev.en, ... with the teacher's languages. The commands of the
program do everything, and write to the folder of --output:

- The teacher translates the source side of the training text (sequence-level distillation: Kim and
  Rush 2016, arXiv 1606.07947; for these models Gu et al. 2018, arXiv 1711.02281, section 4.1).
- For each kind (model.non_autoregressive: length, end), one student is trained on the original
  text, and one on the teacher's translations.
- The teacher and all students translate the test set, and are scored and timed. The students do it
  with several numbers of iterations and of length candidates.

An interrupted benchmark can be started again: runs continue, and existing translations are used.
Results go to stdout as Markdown, progress to stderr.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import positive, read_lines

TEXTS = {"raw": "the corpus", "distilled": "the teacher's"}
BEAMS = (5, 1)
HEADER = [
    *("model", "trained on", "iterations", "length candidates"),
    *("BLEU", "chrF", "length ratio", "lines/s", f"times beam {BEAMS[0]}"),
]


def measure(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    # The program runs in another folder.
    for name in ("teacher", "config", "data", "output"):
        setattr(options, name, getattr(options, name).resolve())
    options.languages = languages(options.teacher)
    changed, count = distil(options)
    yield f"In {changed:,} of {count:,} lines the teacher's translation differs from the text."
    minutes = []
    for kind, text in product(options.kinds, TEXTS):
        started = time.perf_counter()
        train(options, kind, text)
        spent = (time.perf_counter() - started) / 60
        minutes.append(f"- {kind}, trained on {TEXTS[text]}: {spent:.1f} minutes")
    yield "\n".join(minutes)
    yield harness.table(HEADER, list(lines(options)))


def languages(teacher: Path) -> tuple[str, str]:
    """The source and target language of the teacher."""
    from transformer_mt.model_directory import ModelDirectory

    data = ModelDirectory(teacher).load_config().data
    return data.source_lang, data.target_lang


def distil(options: argparse.Namespace) -> tuple[int, int]:
    """Writes the original text to OUTPUT/text/raw, and the text with the teacher's translations to
    OUTPUT/text/distilled.

    Returns:
        How many lines of the training text the teacher translates differently, and how many there
        are.
    """
    source, target = options.languages
    raw, distilled = (options.output / "text" / name for name in TEXTS)
    translated = distilled / f"train.{target}"
    for folder in (raw, distilled):
        folder.mkdir(parents=True, exist_ok=True)
        for name, lang in product(("train", "dev", "test"), options.languages):
            copy = folder / f"{name}.{lang}"
            if copy != translated:
                shutil.copyfile(options.data / f"{getattr(options, name)}.{lang}", copy)
    if not translated.exists():
        files = "--input", raw / f"train.{source}", "--output", translated
        harness.program("translate", options.teacher, *files, "--resume")
    pairs = list(zip(read_lines(raw / translated.name), read_lines(translated), strict=True))
    return sum(original != other for original, other in pairs), len(pairs)


def train(options: argparse.Namespace, kind: str, text: str) -> None:
    """Trains a student, or continues its training."""
    source, target = options.languages
    settings = {
        "model.non_autoregressive": kind,
        "model_dir": student(options, kind, text),
        "data.dataset": "files",
        "data.root": options.output / "text" / text,
        "data.train": "train",
        "data.dev": "dev",
        "data.test": "null",
        "data.held_out": 0,
        "data.source_lang": source,
        "data.target_lang": target,
    }
    overrides = [f"{key}={value}" for key, value in settings.items()]
    harness.program("train", options.config, *options.overrides, *overrides)


def student(options: argparse.Namespace, kind: str, text: str) -> Path:
    return options.output / f"{kind}_{text}"


def lines(options: argparse.Namespace) -> Iterator[list[str]]:
    """The lines of the table."""
    test = [options.output / "text" / "raw" / f"test.{lang}" for lang in options.languages]
    baseline = None
    for beam in BEAMS:
        (scores,) = harness.evaluate(options.output, [options.teacher], *test, "--beam-size", beam)
        baseline = baseline or scores["lines_per_second"]
        yield [f"teacher, beam {beam}", TEXTS["raw"], "", "", *cells(scores, baseline)]
    for kind, iterations in product(options.kinds, options.iterations):
        for count in options.candidates if kind == "length" else [None]:
            settings = ["--iterations", iterations]
            settings += [] if count is None else ["--length-candidates", count]
            models = [student(options, kind, text) for text in TEXTS]
            found = harness.evaluate(options.output, models, *test, *settings)
            for text, scores in zip(TEXTS.values(), found, strict=True):
                yield [kind, text, str(iterations), str(count or ""), *cells(scores, baseline)]


def cells(scores: dict[str, Any], baseline: float) -> list[str]:
    """The cells of the columns from "BLEU" on; `baseline` is the teacher's speed."""
    speed = scores["lines_per_second"]
    return [
        f"{scores['bleu']:.2f}",
        f"{scores['chrf']:.2f}",
        f"{scores['length_ratio']:.3f}",
        f"{speed:,.1f}",
        f"{speed / baseline:.2f}",
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("teacher", metavar="MODEL_DIR", type=Path)
    parser.add_argument("config", metavar="CONFIG", type=Path)
    harness.add_overrides(parser)
    folder = {"metavar": "FOLDER", "type": Path, "required": True}
    parser.add_argument("--data", **folder, help="the text")
    parser.add_argument("--output", **folder, help="translations, students and scores")
    for name in ("train", "dev", "test"):
        meaning = f"name of the files without suffix ({name})"
        parser.add_argument(f"--{name}", metavar="NAME", default=name, help=meaning)
    kinds = ["length", "end"]
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=kinds, help="students (both)")
    numbers = {"metavar": "N", "nargs": "+", "type": positive(int)}
    parser.add_argument("--iterations", **numbers, default=[1, 4, 10], help="(1 4 10)")
    parser.add_argument("--candidates", **numbers, default=[1, 3, 5], help="of length (1 3 5)")


if __name__ == "__main__":
    harness.run(__doc__, add_arguments, measure)

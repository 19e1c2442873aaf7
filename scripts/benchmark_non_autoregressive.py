"""How good and how fast non-autoregressive models are, beside the model that they learn from.

    .venv/bin/python scripts/benchmark_non_autoregressive.py MODEL_DIR CONFIG --data FOLDER \\
        --output FOLDER [key=value ...] > out.md

MODEL_DIR holds the teacher, a trained autoregressive model, and CONFIG the recipe of its students,
such as configs/non_autoregressive.yaml; key=value go over its values. FOLDER of --data holds the
text as train.en, train.de, dev.en, ... with the teacher's languages. Everything is done by the
program's own verbs, in processes of their own, into FOLDER of --output:

- the teacher translates the source side of the training text (sequence-level distillation: Kim and
  Rush 2016, arXiv 1606.07947; for these models Gu et al. 2018, arXiv 1711.02281, section 4.1);
- of each kind (model.non_autoregressive: length, end) one student is trained on the text as it is,
  and one on what the teacher has made of it;
- the teacher and all students translate the test set, these with several numbers of iterations and
  of length candidates, and are scored and timed.

What is there already is not done again: a run that was stopped goes on, and text that was
translated is used. The results go to stdout as Markdown, what is going on to stderr.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from benchmarking import exit_code, program, table

TEXTS = {"raw": "the corpus", "distilled": "the teacher's"}
BEAMS = (5, 1)


def languages(teacher: Path) -> tuple[str, str]:
    """Those of the teacher's source and target."""
    from transformer_mt.model_directory import ModelDirectory

    data = ModelDirectory(teacher).load_config().data
    return data.source_lang, data.target_lang


def distil(options: argparse.Namespace) -> tuple[int, int]:
    """Makes OUTPUT/text/distilled from the text in OUTPUT/text/raw; returns how many lines of the
    training text are others now, and how many there are."""
    source, target = options.languages
    raw, distilled = (options.output / "text" / name for name in TEXTS)
    for folder in (raw, distilled):
        folder.mkdir(parents=True, exist_ok=True)
        for name, lang in product(("train", "dev", "test"), options.languages):
            given = options.data / f"{getattr(options, name)}.{lang}"
            if folder is raw or (name, lang) != ("train", target):
                shutil.copyfile(given, folder / f"{name}.{lang}")
    translated = distilled / f"train.{target}"
    if not translated.exists():
        program(
            "translate", options.teacher,
            "--input", raw / f"train.{source}", "--output", translated, "--resume",
        )  # fmt: skip
    sides = [
        (folder / f"train.{target}").read_text("utf-8").split("\n") for folder in (raw, distilled)
    ]
    return sum(a != b for a, b in zip(*sides, strict=True)), len(sides[0]) - 1


def train(options: argparse.Namespace, kind: str, text: str) -> float:
    """Trains a student, or goes on with it; returns the minutes that this took."""
    source, target = options.languages
    started = time.perf_counter()
    program(
        "train", options.config, *options.overrides,
        f"model.non_autoregressive={kind}",
        "data.dataset=files", f"data.root={options.output / 'text' / text}",
        "data.train=train", "data.dev=dev", "data.test=null", "data.held_out=0",
        f"data.source_lang={source}", f"data.target_lang={target}",
        f"model_dir={student(options, kind, text)}",
    )  # fmt: skip
    return (time.perf_counter() - started) / 60


def student(options: argparse.Namespace, kind: str, text: str) -> Path:
    return options.output / f"{kind}_{text}"


def evaluate(options: argparse.Namespace, models: list[Path], *settings) -> list[dict]:
    """What `evaluate --json` says of each model."""
    source, target = (
        options.output / "text" / "raw" / f"test.{lang}" for lang in options.languages
    )
    scores = options.output / "scores.json"
    program(
        "evaluate", *models, "--source", source, "--reference", target, "--json", scores, *settings
    )
    found = json.loads(scores.read_text("utf-8"))
    return found if isinstance(found, list) else [found]


def lines(options: argparse.Namespace) -> Iterator[list[str]]:
    """The lines of the table; the first is what the others' speed is compared with."""
    first = None
    for beam in BEAMS:
        (one,) = evaluate(options, [options.teacher], "--beam-size", beam)
        first = first or one
        yield line([f"teacher, beam {beam}", TEXTS["raw"], "", ""], one, first)
    for kind, iterations in product(options.kinds, options.iterations):
        for count in options.candidates if kind == "length" else [None]:
            settings = ["--iterations", iterations]
            settings += [] if count is None else ["--length-candidates", count]
            models = [student(options, kind, text) for text in TEXTS]
            for text, one in zip(TEXTS.values(), evaluate(options, models, *settings), strict=True):
                shown = "" if count is None else str(count)
                yield line([kind, text, str(iterations), shown], one, first)


def line(labels: list[str], one: dict, first: dict) -> list[str]:
    speed = one["lines_per_second"]
    return [
        *labels,
        f"{one['bleu']:.2f}",
        f"{one['chrf']:.2f}",
        f"{one['length_ratio']:.3f}",
        f"{speed:,.1f}",
        f"{speed / first['lines_per_second']:.2f}",
    ]


HEADER = ["model", "trained on", "iterations", "length candidates", "BLEU", "chrF", "length ratio",
          "lines/s", f"times beam {BEAMS[0]}"]  # fmt: skip


def main() -> None:
    options = parse()
    changed, count = distil(options)
    minutes = {
        (kind, text): train(options, kind, text) for kind, text in product(options.kinds, TEXTS)
    }
    print(f"In {changed:,} of {count:,} lines the teacher's training text is another.\n")
    for (kind, text), spent in minutes.items():
        print(f"- {kind}, trained on {TEXTS[text]}: {spent:.1f} minutes")
    print()
    print(table(HEADER, list(lines(options))))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("teacher", metavar="MODEL_DIR", type=Path)
    parser.add_argument("config", metavar="CONFIG", type=Path)
    parser.add_argument("overrides", metavar="key=value", nargs="*")
    parser.add_argument("--data", metavar="FOLDER", type=Path, required=True)
    parser.add_argument("--output", metavar="FOLDER", type=Path, required=True)
    for name in ("train", "dev", "test"):
        parser.add_argument(
            f"--{name}", metavar="NAME", default=name, help=f"of the files ({name})"
        )
    parser.add_argument("--kinds", nargs="+", choices=("length", "end"), default=["length", "end"])
    parser.add_argument("--iterations", metavar="N", nargs="+", type=int, default=[1, 4, 10])
    parser.add_argument("--candidates", metavar="N", nargs="+", type=int, default=[1, 3, 5])
    options = parser.parse_args(arguments)
    for name in ("teacher", "config", "data", "output"):
        setattr(options, name, getattr(options, name).resolve())  # the program runs elsewhere
    options.languages = languages(options.teacher)
    return options


if __name__ == "__main__":
    sys.exit(exit_code(main))

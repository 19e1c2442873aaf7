"""What ways of fine-tuning a model learn, what they forget, and what they cost.

    .venv/bin/python scripts/benchmark_fine_tuning.py MODEL_DIR [key=value ...] --train PREFIX \
        --dev PREFIX --test PREFIX --general PREFIX --general-dev PREFIX --general-test PREFIX \
        > results.md

MODEL_DIR is any model directory, an imported one for example. PREFIX.LANGUAGE are the files of a
text, in the languages of the model: --train, --dev and --test are those of the domain, and the
others are of the kind that the model was made for. `new --from` writes the recipes, `train` runs
them one after another, and the scores are those that it tells at its end. key=value replaces a
value of the recipes. --runs keeps what they write. Results go to stdout as Markdown, progress to
stderr.

How to read the results

All ways have the recipe of the first, and no mix of the weights before and after, unless they are
called a mix. BLEU is sacreBLEU's, with its 95% interval in brackets. "Gained" and "lost" are the
differences from the model before; a * marks those that are unlikely to be chance (paired bootstrap,
p < 0.05). Minutes are those of training with its validations, and the seconds of CPU those of the
whole command. The memory is the largest resident set of a training process, while `train --check`
takes some steps. The last two columns are the sizes of the weights and of the optimiser in a
checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import ROOT, Failure, positive, read_lines, say

TEXTS = ("train", "dev", "test", "general", "general-dev", "general-test")
WEIGHTS = "model.safetensors", "adapters.safetensors"
MB = 1e6
# What is frozen, in the way that freezes a part.
FROZEN = 'training.freeze=["encoder.*","*embedding*"]'
# How many times the rate of whole weights is that of adapters.
ADAPTER_RATE = 10
HEADER = [
    *("way", "domain BLEU", "gained", "general BLEU", "lost", "steps", "minutes", "CPU s"),
    *("memory, MB", "weights, MB", "optimiser, MB"),
]


@dataclass(frozen=True)
class Way:
    """A way of fine-tuning: its name, whether general text is mixed in, and changed settings."""

    name: str
    is_mixed: bool
    settings: tuple[str, ...] = ()


def measure(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    runs = options.runs or folder
    runs.mkdir(parents=True, exist_ok=True)
    recipes = {is_mixed: new_recipe(options, runs, is_mixed) for is_mixed in (False, True)}
    rate = learning_rate(recipes[False])
    adapters = f"adapter.rank={options.rank}", f"training.learning_rate={ADAPTER_RATE * rate:g}"
    ways = [
        Way("all weights", False),
        Way("encoder and embeddings frozen", False, (FROZEN,)),
        Way(f"adapters of rank {options.rank}", False, adapters),
        Way("all weights, half general text", True),
    ]
    lines: list[list[str]] = []
    for number, way in enumerate(ways):
        model_dir = runs / f"way_{number}"
        arguments = recipes[way.is_mixed], model_dir, way, options.overrides
        checked = train(*arguments, "--check", is_interpolated=False)
        used = train(*arguments, is_interpolated=False)
        changes, rest = results(model_dir), costs(model_dir, checked, used)
        if not lines:
            lines.append(["the model before", *scores(changes, "before"), *[""] * len(rest)])
        lines.append([way.name, *scores(changes, "after"), *rest])
        if number == 0:
            # The finished run is continued, and does nothing but mix.
            train(*arguments, is_interpolated=True)
            share = chosen_share(model_dir)
            mixed = scores(results(model_dir), "after")
            lines.append([f"the same, a mix: {share:.0%} of it", *mixed, *[""] * len(rest)])
        say("  ".join(lines[-1]))
    yield harness.table(HEADER, lines)
    yield harness.machine("paddlepaddle")


def new_recipe(options: argparse.Namespace, runs: Path, is_mixed: bool) -> Path:
    """The recipe that `new` writes for all weights."""
    path = runs / ("mixed.yaml" if is_mixed else "recipe.yaml")
    flags = ["--from", options.model_dir.resolve(), "--minutes", options.minutes]
    for name in TEXTS:
        text = getattr(options, name.replace("-", "_")).resolve()
        if name != "general":
            flags += [f"--{name}", text]
        elif is_mixed:
            flags += ["--mix", text]
    harness.program("new", path, *flags, "--force")
    return path


def learning_rate(recipe: Path) -> float:
    import yaml

    return float(yaml.safe_load(recipe.read_text("utf-8"))["training"]["learning_rate"])


def train(
    recipe: Path,
    model_dir: Path,
    way: Way,
    overrides: list[str],
    *flags: str,
    is_interpolated: bool,
) -> Any:
    """Runs `train`, and returns what it and its processes have used."""
    settings = [f"model_dir={model_dir.resolve()}", *way.settings, *overrides, *flags]
    settings += [f"training.interpolate={json.dumps(is_interpolated)}"]
    say(" ".join(["train", *flags, way.name]))
    command = [sys.executable, "-m", "transformer_mt", "train", str(recipe.resolve()), *settings]
    with open(model_dir.with_suffix(".log"), "ab") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        _, status, use = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise Failure(f"train: {harness.tail(model_dir.with_suffix('.log'))}")
    return use


def records(model_dir: Path, kind: str) -> list[dict[str, Any]]:
    lines = map(json.loads, read_lines(model_dir / "metrics.jsonl"))
    return [line for line in lines if line["kind"] == kind]


def results(model_dir: Path) -> dict[str, dict[str, Any]]:
    """What a run says of the BLEU before and after, for each test set."""
    return {line["set"]: line["scores"]["bleu"] for line in records(model_dir, "change")}


def scores(changes: dict[str, dict[str, Any]], when: str) -> list[str]:
    """The cells from "domain BLEU" to "lost"."""
    cells = []
    for name in ("test", "general_test"):
        change = changes[name]
        low, high = change["intervals"][when == "after"]
        cells.append(f"{change[when]:.2f} [{low:.1f}, {high:.1f}]")
        star = "*" * (change["p"] < 0.05)
        cells.append(f"{change['difference']:+.2f}{star}" if when == "after" else "")
    return cells


def costs(model_dir: Path, checked: Any, used: Any) -> list[str]:
    """The cells from "steps" on.

    Args:
        checked, used: what `train --check` and `train` have used.
    """
    last = records(model_dir, "train")[-1]
    return [
        f"{last['step']:,}",
        f"{last['seconds'] / 60:.1f}",
        f"{used.ru_utime + used.ru_stime:,.0f}",
        f"{checked.ru_maxrss * 1024 / MB:,.0f}",
        f"{size_of(model_dir, *WEIGHTS) / MB:,.1f}",
        f"{size_of(model_dir, 'optimizer.safetensors') / MB:,.1f}",
    ]


def size_of(model_dir: Path, *names: str) -> int:
    """The bytes of the largest file of such a name in the checkpoints of a training."""
    paths = [path for name in names for path in model_dir.glob(f"checkpoints/step_*/{name}")]
    # The model before is there, too, with all weights.
    return max(path.stat().st_size for path in paths if path.parent.name != "step_0")


def chosen_share(model_dir: Path) -> float:
    """The share of the fine-tuned model in the mix that was chosen."""
    name = records(model_dir, "change")[-1]["checkpoint"]
    return next(mix["share"] for mix in records(model_dir, "mix") if mix["checkpoint"] == name)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_dir", metavar="MODEL_DIR", type=Path)
    harness.add_overrides(parser)
    for name in TEXTS:
        parser.add_argument(f"--{name}", metavar="PREFIX", type=Path, required=True)
    minutes = "how long `new` plans each training for (default: 60)"
    parser.add_argument("--minutes", metavar="N", type=positive(float), default=60.0, help=minutes)
    parser.add_argument("--rank", metavar="N", type=positive(int), default=16)
    parser.add_argument("--runs", metavar="FOLDER", type=Path, help="where the runs are kept")


if __name__ == "__main__":
    harness.run(__doc__, add_arguments, measure)

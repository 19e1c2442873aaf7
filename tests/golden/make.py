"""Trains the golden models and records what the program does with them today.

    python -m tests.golden.make [NAME ...]            # trains, and records
    python -m tests.golden.make --record [NAME ...]   # records anew of the models that are kept

Run it only when a result is meant to change, and say in the commit which and why.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tests.golden import corpus, observe, recipes

FOLDER = Path(__file__).resolve().parent
MODELS = FOLDER / "models"
EXPECTED = FOLDER / "expected"


def train(name: str) -> None:
    """Trains a golden model in the current folder, and keeps its directory."""
    observe.command("train", observe.recipe(name))
    keep(name)


def keep(name: str) -> None:
    """Copies a model directory of the current folder to where the golden models are."""
    checkpoints = sorted(Path(name, "checkpoints").iterdir(), key=lambda path: path.stat().st_mtime)
    # Few are trained further, and without the others the repository stays small.
    for checkpoint in checkpoints[: -1 if name in recipes.CONTINUED else None]:
        (checkpoint / "optimizer.safetensors").unlink()
    shutil.rmtree(MODELS / name, ignore_errors=True)
    shutil.copytree(name, MODELS / name, ignore=shutil.ignore_patterns(".lock"))


def record(name: str) -> None:
    """Writes what is observed of a name in the current folder, where all models are."""
    found = {
        title: observe.observe(name, observation)
        for title, observation in observe.all_observations()[name].items()
    }
    lines = [f"{json.dumps(key)}: {as_json(value)}" for key, value in found.items()]
    EXPECTED.mkdir(exist_ok=True)
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    (EXPECTED / f"{name}.json").write_text(text, encoding="utf-8")


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", metavar="NAME", nargs="*", help="which (all)")
    parser.add_argument("--record", action="store_true", help="train nothing")
    options = parser.parse_args()
    names = options.names or [*observe.all_observations()]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        corpus.write(Path(folder))
        if not options.record:
            for name in names:
                train(name)
                print("trained", name, flush=True)
        for path in MODELS.iterdir():
            shutil.copytree(path, path.name, dirs_exist_ok=True)
        for name in names:
            record(name)
            print("recorded", name, flush=True)
        os.chdir(FOLDER)


if __name__ == "__main__":
    main()

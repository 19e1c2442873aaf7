"""The rows of the table of results. Each is a folder of docs/results with a file row.yaml."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from transformer_mt.scoring.metrics import SACREBLEU
from transformer_mt.utils.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
# The file with the scores of a row; a row without it was not trained yet.
SCORES = "scores.json"


@dataclass(frozen=True)
class Row:
    """A published result, and the commands that lead to it.

    The commands, and `model` and `hypothesis`, are templates. `{runs}` stands for the folder in
    which the row is trained, `{data}` for the folder of the corpus, and `{seed}` for a seed.

    Attributes:
        name: the name of its folder.
        title: the corpus, the languages, and what else tells it from other rows.
        budget: the time that it takes, and on which hardware.
        corpus: what the folder of --data must hold.
        downloads: whether the corpus is downloaded where --data is left out.
        seeds: the values of training.seed.
        steps: commands of the program, in their order. One with `{seed}` runs for each seed.
        model: the model directory of a seed.
        hypothesis: the file with the translations of its test set.
        needs: the names of rows whose models are read, in `{runs:NAME}`, and which of their seeds.
        protocols: how the translations are scored: `sacrebleu`, `lc.norm.tok`, or both.
    """

    name: str
    title: str
    budget: str
    corpus: str
    seeds: list[int]
    steps: list[str]
    model: str
    downloads: bool = False
    hypothesis: str = ""
    needs: dict[str, list[int]] = field(default_factory=dict)
    protocols: list[str] = field(default_factory=lambda: [SACREBLEU])

    @property
    def folder(self) -> Path:
        return RESULTS / self.name

    @property
    def is_recorded(self) -> bool:
        return (self.folder / SCORES).is_file()

    def commands(self, places: Places, seeds: list[int]) -> list[list[str]]:
        """Returns the arguments of the program for each step of some seeds."""
        commands = []
        for step in self.steps:
            # A folder may have a space in its name, so the words are told apart first.
            words = shlex.split(step)
            for seed in seeds if "{seed}" in step else seeds[:1]:
                commands.append([places.fill_word(word, self, seed) for word in words])
        return commands

    def model_of(self, places: Places, seed: int) -> Path:
        """Returns the model directory of a seed."""
        return Path(places.fill(self.model, self, seed))

    def ensemble_of(self, places: Places, seed: int) -> list[str]:
        """Returns what the steps that translate give to `--ensemble`, for a seed."""
        return [
            value
            for command in self.commands(places, [seed])
            if command[0] == "translate"
            for flag, value in pairwise(command)
            if flag == "--ensemble"
        ]

    def hypothesis_of(self, places: Places, seed: int) -> Path:
        """Returns the file with a seed's translations of the test set."""
        if self.hypothesis:
            return Path(places.fill(self.hypothesis, self, seed))
        return self.model_of(places, seed) / "test.hypothesis"


@dataclass(frozen=True)
class Places:
    """Where a row is reproduced.

    Attributes:
        runs: the folder of all runs; each row has a folder in it.
        data: the folder of the corpus; None: it is downloaded.
    """

    runs: Path
    data: Path | None

    def of(self, name: str) -> Path:
        """Returns the folder of a row."""
        return self.runs / name

    def fill(self, template: str, row: Row, seed: int) -> str:
        """Returns a template of a row with its placeholders filled in."""
        values = {"runs": self.of(row.name), "seed": seed}
        values["data"] = "null" if self.data is None else self.data
        values |= {f"runs:{name}": self.of(name) for name in row.needs}
        # All at once, because a folder may have the name of a placeholder.
        return re.sub(r"{([\w:]+)}", lambda match: str(values[match[1]]), template)

    def fill_word(self, word: str, row: Row, seed: int) -> str:
        """Fills in a word of a command. The texts of key=[text,text] become quoted YAML."""
        if not (match := re.fullmatch(r"([\w.]+=)\[(.*)\]", word)):
            return self.fill(word, row, seed)
        texts = [self.fill(text, row, seed) for text in match[2].split(",")]
        return match[1] + json.dumps(texts, ensure_ascii=False)


def rows() -> dict[str, Row]:
    """Returns all rows by their names, in alphabetical order."""
    return {path.parent.name: _read(path) for path in sorted(RESULTS.glob("*/row.yaml"))}


def find(name: str) -> Row:
    """
    Raises:
        UsageError: there is no such row.
    """
    known = rows()
    if name not in known:
        raise UsageError(f"{name}: there is no such row. The rows are {', '.join(known)}")
    return known[name]


def _read(path: Path) -> Row:
    content: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return Row(name=path.parent.name, **content)

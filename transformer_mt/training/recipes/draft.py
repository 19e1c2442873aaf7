"""A recipe in the making, and the numbers of its steps."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformer_mt.config import file as config_file
from transformer_mt.config.file import recipe_text
from transformer_mt.config.schema import Config
from transformer_mt.training.recipes.sizes import SIZES, Size
from transformer_mt.utils.console import quoted, visible

# The length of the longest pair that is read, in subwords, unless many are longer.
USUAL_LENGTH = 256
# The size of a joint vocabulary for the largest texts, and of one that is not chosen yet.
LARGEST_VOCABULARY = 32_000
# A small text is seen for at least this number of steps.
FEWEST_STEPS = 1000
# The largest number of validations and checkpoints.
VALIDATIONS = 8
# The target tokens that a process computes at once. On a core with AVX2, 4,096 were 25 % slower.
CPU_TOKENS = 2048


class Draft:
    """A recipe in the making. Before a value is chosen, it has one that is valid."""

    validations = VALIDATIONS

    def __init__(self, path: Path, place: dict[str, str | None]) -> None:
        self.path = path
        self.vocabulary = {"vocab_size": LARGEST_VOCABULARY}
        self.values: dict[str, Any] = {**place, "joint": True, "character_coverage": 1.0}
        self.values |= {"protect": [], "max_length": USUAL_LENGTH, "dropout": 0.1}
        self.values |= {"seconds": 0.0, "epochs": 0.0}
        self.values |= {"precision": "float32", "device_tokens": CPU_TOKENS, "word_noise": 0.0}
        self.values |= {"consistency": None, "consistency_weight": None}
        self.set_size(SIZES[0])
        self.set_steps(FEWEST_STEPS)

    def set_size(self, size: Size) -> None:
        self.values |= asdict(size)

    def set_steps(self, most: int) -> None:
        """Sets the number of steps, and what depends on it."""
        interval = max(1, most // self.validations)
        unit = 10 ** max(0, len(str(interval)) - 2)
        interval = interval // unit * unit  # two digits and zeros
        steps = most // interval * interval
        # The rate of a short run should not rise for much of it.
        warmup = min(1000, max(steps // 20, min(300, steps // 10)))
        self.values |= {"max_steps": steps, "interval": interval, "warmup_steps": warmup}

    @property
    def shown_path(self) -> str:
        """The name of the recipe, as it is typed at a shell."""
        return visible(quoted(self.path)).replace("\n", "\\n")

    def text(self) -> str:
        file = self.shown_path
        sizes = "\n".join(f"  {key}: {size}" for key, size in self.vocabulary.items())
        return recipe_text("recipe.yaml", self.values, {"vocabulary": sizes}, file)

    def config(self) -> Config:
        """
        Raises:
            UsageError: a value that the user gave is wrong.
        """
        return config_file.parse(self.text(), str(self.path))

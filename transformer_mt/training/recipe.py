"""A recipe that fits a text and a time: what the command `new` writes.

docs/new.md lists the rules, and compares a recipe with one that was chosen by hand.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_mt.config import file as config_file
from transformer_mt.config.recipe_text import recipe_text
from transformer_mt.config.schema import Config
from transformer_mt.data.corpus import Split, open_corpus
from transformer_mt.data.facts import RARE
from transformer_mt.data.prepare import PreparedData
from transformer_mt.training.advice import advice
from transformer_mt.training.loop import seconds_per_step
from transformer_mt.training.parallel import Processes
from transformer_mt.training.setup import make_trainer, prepare_for
from transformer_mt.utils import device as devices
from transformer_mt.utils.console import duration, progress, quoted, say, visible, warn

# The size of a vocabulary for texts of fewer pairs than this.
VOCABULARIES = [(10_000, 2000), (250_000, 4000), (1_000_000, 8000), (5_000_000, 16_000)]
LARGEST_VOCABULARY = 32_000
# Languages share their subwords if this share of their letters is the same.
SHARED_LETTERS = 0.5
# Above this number of different characters, the rarest are left out.
MANY_CHARACTERS = 500
# More passes over the text than this rarely help.
MOST_EPOCHS = 40
# A small text is seen for at least this number of steps.
FEWEST_STEPS = 1000
# How many validations and checkpoints there are, at least.
VALIDATIONS = 10
AVERAGED = 5
# The time that is not training, in seconds: importing, and the tests and the report at the end.
OTHER_SECONDS = 60.0
# How long the speed of a model is measured, in seconds.
MEASURED_SECONDS = 5.0
# Training that gets less than this share of a core is slowed down by other programs.
BUSY = 0.8


@dataclass(frozen=True)
class Size:
    """A model, and what it needs.

    Attributes:
        pairs: the smallest number of pairs that it is used for.
        epochs: the smallest number of passes over the text in which it learns more than a smaller
            model does in the same time.
    """

    pairs: int
    epochs: float
    num_layers: int
    d_model: int
    num_heads: int
    d_ff: int
    batch_tokens: int
    learning_rate: float


SIZES = [
    Size(0, 0, 2, 128, 4, 256, 2048, 4e-3),
    Size(10_000, 3, 4, 128, 4, 256, 2048, 4e-3),
    Size(50_000, 10, 4, 256, 4, 1024, 4096, 2e-3),
    Size(500_000, 10, 6, 512, 8, 2048, 25_000, 1e-3),
]


@dataclass(frozen=True)
class Recipe:
    """The text of a recipe, and lines that say why its values are as they are."""

    text: str
    reasons: list[str]


def make_recipe(
    path: Path, place: dict[str, str | None], minutes: float, device: str | None
) -> Recipe:
    """Reads a text, measures the speed of some models, and returns a recipe. Only the cache is
    written, and training reads the same entries of it.

    Args:
        path: the file that the recipe will be written to. It is not written here.
        place: values of model_dir and of the keys of `data`.
        minutes: how long the training may take, with its end.

    Raises:
        UserError: something is wrong with the text.
    """
    used = devices.use(device)
    draft = _Draft(path, place)
    corpus = open_corpus(draft.config().data)
    letters = Letters.of(corpus.train)
    draft.values |= {
        "joint": letters.shared >= SHARED_LETTERS,
        "character_coverage": 1.0 if letters.different <= MANY_CHARACTERS else 0.9995,
    }
    draft.vocabulary = _vocabulary(corpus.train.line_count, draft.values, letters)
    data = _fit_vocabulary(draft, letters)
    timed = _choose_size(draft, data, minutes * 60, used)
    for message in advice(draft.config(), data.facts, draft.values["max_steps"]):
        warn(message)
    return Recipe(draft.text(), [*_about_text(draft, data, letters), *timed])


class _Draft:
    """A recipe in the making. Before a value is chosen, it has one that is valid."""

    def __init__(self, path: Path, place: dict[str, str | None]) -> None:
        self.path = path
        self.vocabulary = {"vocab_size": LARGEST_VOCABULARY}
        self.values: dict[str, Any] = {
            **place,
            "joint": True,
            "character_coverage": 1.0,
            "dropout": 0.1,
            "average_last": AVERAGED,
            "seconds": 0.0,
            "epochs": 0.0,
        }
        self.set_size(SIZES[0])
        self.set_steps(FEWEST_STEPS)

    def set_size(self, size: Size) -> None:
        for key in ("num_layers", "d_model", "num_heads", "d_ff", "batch_tokens", "learning_rate"):
            self.values[key] = getattr(size, key)

    def set_steps(self, most: int) -> None:
        """Sets the number of steps, and what depends on it."""
        interval = _two_digits(max(1, most // VALIDATIONS))
        steps = most // interval * interval
        # A short run has less time to recover from a start that was too fast.
        warmup = min(4000, max(1, steps // 10, min(500, steps // 5)))
        self.values |= {"max_steps": steps, "interval": interval, "warmup_steps": warmup}
        self.values["average_last"] = min(AVERAGED, steps)

    def text(self) -> str:
        file = visible(quoted(self.path)).replace("\n", "\\n")
        return recipe_text(self.values, self.vocabulary, file)

    def config(self) -> Config:
        """
        Raises:
            UsageError: a value that the user gave is wrong.
        """
        return config_file.parse(self.text(), str(self.path))


def _two_digits(number: int) -> int:
    """Rounds a number down to two digits and zeros."""
    unit = 10 ** max(0, len(str(number)) - 2)
    return number // unit * unit


# --------------------------------------------------------------------------------------- the text


@dataclass(frozen=True)
class Letters:
    """The characters of both sides of a text.

    Attributes:
        source, target: how often each character occurs.
        shared: the share of the letters that both sides have in common, from 0 to 1: the
            intersection of the two histograms.
    """

    source: Counter[str]
    target: Counter[str]

    @classmethod
    def of(cls, split: Split) -> Letters:
        """Reads a split, and counts its characters."""
        sides: tuple[Counter[str], Counter[str]] = Counter(), Counter()
        total = split.line_count
        with progress(total=total, title="reading", unit="pairs", unit_scale=True) as bar:
            for number, pair in enumerate(split.examples(), 1):
                sides[0].update(pair["source"])
                sides[1].update(pair["target"])
                if number % 1000 == 0:
                    bar.update(1000)
        return cls(*sides)

    @property
    def shared(self) -> float:
        shares = []
        for side in (self.source, self.target):
            letters = {text: count for text, count in side.items() if text.isalpha()}
            total = max(1, sum(letters.values()))
            shares.append({text: count / total for text, count in letters.items()})
        source, target = shares
        return sum(min(share, target.get(text, 0.0)) for text, share in source.items())

    @property
    def different(self) -> int:
        """The number of different characters of both sides."""
        return len(self.source | self.target)

    def needed(self, coverage: float) -> tuple[int, int, int]:
        """Returns how many subwords the characters of source, target and both sides need."""
        sides = self.source, self.target, self.source + self.target
        source, target, both = (_needed(side, coverage) for side in sides)
        return source, target, both


def _needed(characters: Counter[str], coverage: float) -> int:
    """Returns the size of the smallest vocabulary that covers this share of the characters. It is a
    little larger than SentencePiece's own."""
    left = coverage * characters.total()
    for number, (_, count) in enumerate(characters.most_common(), 1):
        left -= count
        if left <= 0:
            return number + 20
    return 20


def _smallest_sizes(values: dict[str, Any], letters: Letters) -> list[int]:
    """Returns the smallest size of each vocabulary."""
    source, target, both = letters.needed(values["character_coverage"])
    return [both] if values["joint"] else [source, target]


def _vocabulary(pairs: int, values: dict[str, Any], letters: Letters) -> dict[str, int]:
    """Returns the sizes to begin with, by their keys."""
    usual = next((size for most, size in VOCABULARIES if pairs < most), LARGEST_VOCABULARY)
    names = ["vocab_size"] if values["joint"] else ["source_vocab_size", "target_vocab_size"]
    sizes = {}
    for name, smallest in zip(names, _smallest_sizes(values, letters), strict=True):
        # Beside its characters, a script with thousands of them needs room for words.
        sizes[name] = max(usual, math.ceil(1.5 * smallest / 500) * 500)
    return sizes


def _fit_vocabulary(draft: _Draft, letters: Letters) -> PreparedData:
    """Prepares the data. Shrinks a vocabulary as long as most of its subwords are rare."""
    smallest = _smallest_sizes(draft.values, letters)
    while True:
        _, data = prepare_for(draft.config())
        is_changed = False
        # A joint vocabulary has the same facts on both sides.
        sides = [data.facts[side] for side in ("source", "target")][: len(smallest)]
        for key, facts, least in zip(list(draft.vocabulary), sides, smallest, strict=True):
            # A small text has fewer subwords than it was asked for.
            size = min(draft.vocabulary[key], facts["vocabulary"])
            is_changed = is_changed or size < draft.vocabulary[key]
            if facts["rare"] > 0.5 and size > least:
                say(
                    f"{facts['rare']:.0%} of the {size:,} subwords occur less than {RARE} times; "
                    "trying a smaller vocabulary"
                )
                frequent = round(size * (1 - facts["rare"]))
                size, is_changed = max(least, min(size // 2, 2 * frequent)), True
            draft.vocabulary[key] = size
        if not is_changed:
            return data


def _about_text(draft: _Draft, data: PreparedData, letters: Letters) -> list[str]:
    facts, values = data.facts, draft.values
    sizes = " and ".join(f"{size:,}" for size in draft.vocabulary.values())
    why = "shared, because" if values["joint"] else "for each language, because"
    kept = "all are kept"
    if values["character_coverage"] < 1:
        kept = f"the rarest are left out (character_coverage {values['character_coverage']})"
    lines = [
        f"text         {facts['pairs']:,} pairs to train on; dev set {facts['dev']:,}, test set "
        f"{facts['test']:,}",
        f"subwords     {sizes}, {why} {letters.shared:.0%} of the letters are the same",
        f"characters   {letters.different:,} different ones; {kept}",
    ]
    if facts["pairs"] < 10_000:
        lines.append("             this is little text: do not expect much of the translations")
    return lines


# --------------------------------------------------------------------------------------- the time


def _choose_size(draft: _Draft, data: PreparedData, seconds: float, used: str) -> list[str]:
    """Sets the size of the model and the length of the training. Returns lines that say why."""
    pairs = data.facts["pairs"]
    chosen, rejected = None, None
    for size in (size for size in SIZES if pairs >= size.pairs):
        timing = _measure(draft, size, data, seconds, used)
        if chosen and timing.epochs < size.epochs:
            rejected = timing
            break
        chosen = timing
    if chosen.is_slowed:
        warn(
            "other programs are using this computer, so the steps are slower than they could be. "
            "Run `new` again when they have ended, for a longer training or a larger model"
        )
    size = chosen.size
    limit = max(FEWEST_STEPS, MOST_EPOCHS * chosen.steps_per_epoch)
    epochs = min(chosen.steps, limit) / chosen.steps_per_epoch
    draft.values["dropout"] = dropout = _dropout(pairs, epochs, size.d_model)
    if dropout == 0:  # its steps are faster
        chosen = _measure(draft, size, data, seconds, used)
    draft.set_size(size)
    draft.set_steps(min(chosen.steps, limit))
    steps = draft.values["max_steps"]
    epochs = steps / chosen.steps_per_epoch
    draft.values |= {"seconds": float(f"{chosen.seconds:.2g}"), "epochs": round(epochs, 1)}
    lines = [
        f"model        {_described(size)}",
        f"dropout      {dropout}, for {pairs:,} pairs and {epochs:.1f} passes over them",
        f"training     {steps:,} steps of {size.batch_tokens:,} target tokens, "
        f"{chosen.seconds:.2g} s each on {chosen.where}",
        f"time         {duration(chosen.total(steps))}, with validations and the final test",
    ]
    if chosen.steps > limit:
        lines.append("             more passes over this text would hardly help")
    if rejected:
        lines.append(
            f"             a larger model ({_described(rejected.size)}) would see the text only "
            f"{rejected.epochs:.1f} times"
        )
    return lines


@dataclass(frozen=True)
class _Timing:
    """What a time is enough for.

    Attributes:
        seconds: the time of a step.
        validation, end: the time of a validation, and of everything after the last step.
        steps: the number of steps.
        is_slowed: whether other programs computed during the measurement.
    """

    size: Size
    where: str
    seconds: float
    validation: float
    end: float
    steps_per_epoch: int
    steps: int
    is_slowed: bool

    @property
    def epochs(self) -> float:
        return self.steps / self.steps_per_epoch

    def total(self, steps: int) -> float:
        """The time of a whole training."""
        return steps * self.seconds + VALIDATIONS * self.validation + self.end


def _measure(draft: _Draft, size: Size, data: PreparedData, seconds: float, used: str) -> _Timing:
    """Tries some steps of a model.

    Args:
        seconds: how long the whole training may take.
    """
    draft.set_size(size)
    config = draft.config()
    processes = devices.processes(config.training.devices, used)
    say(f"timing some steps of a model with {_described(size)} ...")
    trainer = make_trainer(config, data, Processes(world_size=processes))
    started, computed = time.perf_counter(), time.process_time()
    step, per_epoch = seconds_per_step(trainer, MEASURED_SECONDS), trainer.plan.updates_per_epoch
    busy = (time.process_time() - computed) / (time.perf_counter() - started)
    # To translate a sentence takes about as long as to train on it, and 3 times as long with a
    # beam. At the end, two models translate the dev set, and one the test set.
    sentence = step * per_epoch / data.facts["pairs"]
    validation = data.facts["dev"] * sentence
    end = OTHER_SECONDS + 3 * sentence * (2 * data.facts["dev"] + data.facts["test"])
    training = max(seconds - VALIDATIONS * validation - end, seconds / 2)
    where = used if processes == 1 else f"{processes} processes on {used}"
    steps = max(1, int(training / step))
    is_slowed = used == "cpu" and busy < BUSY
    return _Timing(size, where, step, validation, end, per_epoch, steps, is_slowed)


def _dropout(pairs: int, epochs: float, d_model: int) -> float:
    # A text that is seen only a few times can't be learnt by heart; dropout would slow learning.
    if epochs < 8:
        return 0.0
    if epochs < 15:
        return 0.1
    if pairs < 50_000:
        return 0.3
    return 0.2 if pairs < 500_000 and d_model > 128 else 0.1


def _described(size: Size) -> str:
    return f"{size.num_layers}+{size.num_layers} layers, d_model {size.d_model}, d_ff {size.d_ff}"

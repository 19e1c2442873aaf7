"""A recipe that fits a text and a time: what the command `new` writes.

docs/new.md lists the rules, and compares a recipe with one that was chosen by hand.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from transformer_mt.config import file as config_file
from transformer_mt.config.file import recipe_text
from transformer_mt.config.schema import Config, TrainingConfig
from transformer_mt.config.text import PROTECTED_IN_DOCUMENTS
from transformer_mt.data.corpus import Split, open_corpus
from transformer_mt.data.facts import RARE
from transformer_mt.data.prepare import PreparedData
from transformer_mt.data.spans import SYMBOLS, SpanFinder
from transformer_mt.training.advice import advice
from transformer_mt.training.loop import Trainer, seconds_per_step
from transformer_mt.training.parallel import Processes
from transformer_mt.training.run import has_bfloat16, prepare_for
from transformer_mt.utils import device as devices
from transformer_mt.utils.console import duration, progress, quoted, say, visible, warn

# The size of a joint vocabulary for texts of fewer pairs than this.
VOCABULARIES = [(10_000, 4000), (1_000_000, 8000), (5_000_000, 16_000)]
LARGEST_VOCABULARY = 32_000
# The size of each of two vocabularies, as a share of that of a joint one.
SEPARATE_VOCABULARY = 0.75
# Languages share their subwords if this share of their letters is the same.
SHARED_LETTERS = 0.5
# Above this number of different characters, the rarest are left out.
MANY_CHARACTERS = 500
# Tags, placeholders and the like are protected if this share of the pairs has some, of about so
# many pairs that are looked at.
PROTECTED_SHARE = 0.005
SPAN_PAIRS = 20_000
# Longer pairs are read if at least this share of them is longer than usual, in subwords.
LONG_SHARE = 0.01
USUAL_LENGTH, GREAT_LENGTH = 256, 512
# More passes over the text than this rarely help.
MOST_EPOCHS = 60
# A text that is seen so often, or oftener, is learnt by heart without regularisation.
MANY_EPOCHS = 15
WORD_NOISE = 0.1
# R-Drop, for texts of at most so many pairs, if there is time for so many passes with it.
R_DROP_WEIGHT = 2.0
R_DROP_PAIRS = 100_000
R_DROP_EPOCHS = 40
# A small text is seen for at least this number of steps.
FEWEST_STEPS = 1000
# How many validations and checkpoints there are, about: one in so many minutes, within limits.
VALIDATION_MINUTES = 4
FEWEST_VALIDATIONS, VALIDATIONS = 3, 8
# The time that is not training, in seconds: importing, and the tests and the report at the end.
OTHER_SECONDS = 60.0
# To translate a sentence with a beam takes about so many times as long as without one.
BEAM_TIME = 3
# The target tokens that a process computes at once. On a core with AVX2, 4,096 were 25 % slower.
CPU_TOKENS = 2048
# The smallest width of a model that a CPU trains in bfloat16. Smaller ones were not measured.
LEAST_BFLOAT16_WIDTH = 512
# How long the speed of a model is measured, in seconds.
MEASURED_SECONDS = 8.0
# Training that gets less than this share of a core is slowed down by other programs.
BUSY = 0.8


@dataclass(frozen=True)
class Size:
    """A model, and what it needs.

    Attributes:
        least_pairs: the smallest number of pairs that it is used for.
        least_epochs: the smallest number of passes over the text in which it learns more than a
            smaller model does in the same time.
    """

    least_pairs: int
    least_epochs: float
    num_layers: int
    d_model: int
    num_heads: int
    d_ff: int
    batch_tokens: int
    learning_rate: float

    def __str__(self) -> str:
        layers = f"{self.num_layers}+{self.num_layers} layers"
        return f"{layers}, d_model {self.d_model}, d_ff {self.d_ff}"


SIZES = [
    Size(0, 0, 2, 128, 4, 256, 2048, 8e-3),
    Size(10_000, 3, 4, 128, 4, 256, 4096, 8e-3),
    Size(50_000, 10, 4, 192, 6, 384, 4096, 8e-3),
    Size(100_000, 15, 4, 256, 4, 1024, 4096, 4e-3),
    Size(500_000, 10, 6, 512, 8, 2048, 25_000, 2e-3),
]


def make_recipe(
    path: Path, place: dict[str, str | None], minutes: float, device: str | None
) -> tuple[str, list[str]]:
    """Reads a text, measures the speed of some models, and returns the text of a recipe, and lines
    that say why its values are as they are. Only the cache is written, and training reads the same
    entries of it.

    Args:
        path: the file that the recipe will be written to. It is not written here.
        place: values of model_dir and of the keys of `data`.
        minutes: how long the training may take, with its end.

    Raises:
        UserError: something is wrong with the text.
    """
    used = devices.use(device)
    draft = Draft(path, place)
    usual = round(minutes / VALIDATION_MINUTES)
    draft.validations = max(FEWEST_VALIDATIONS, min(usual, VALIDATIONS))
    corpus = open_corpus(draft.config().data)
    (letters, characters, spans), smallest = _choose_subwords(draft, corpus.train)
    data = _fit_vocabulary(draft, smallest)
    facts, sizes = data.facts, [f"{size:,}" for size in draft.vocabulary.values()]
    reasons = [
        f"text         {facts['pairs']:,} pairs to train on; dev set {facts['dev']:,}, test set "
        f"{facts['test']:,}",
        f"subwords     {' and '.join(sizes)}, {letters}",
        characters,
        *spans,
    ]
    if draft.values["max_length"] > USUAL_LENGTH:
        reasons.append(
            f"length       pairs of up to {GREAT_LENGTH} subwords, because at least "
            f"{LONG_SHARE:.0%} have more than {USUAL_LENGTH}"
        )
    if facts["pairs"] < 10_000:
        reasons.append("             this is little text: do not expect much of the translations")
    reasons += choose_size(
        draft, facts["pairs"], lambda size: _measure(draft, size, data, minutes * 60, used)
    )
    for message in advice(draft.config(), facts, draft.values["max_steps"]):
        warn(message)
    return draft.text(), reasons


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


# ---- The text ----


def _choose_subwords(draft: Draft, split: Split) -> tuple[tuple[str, str, list[str]], list[int]]:
    """Counts the characters and the protected spans of a text, and sets what follows from them.
    Returns the reasons, and the smallest size of each vocabulary."""
    sides: tuple[Counter[str], Counter[str]] = Counter(), Counter()
    total = split.line_count
    with progress(total=total, title="reading", unit="pairs", unit_scale=True) as bar:
        for source, target in split.pairs():
            sides[0].update(source)
            sides[1].update(target)
            bar.update()
    spans = choose_protected(draft, split)
    shared, different = _shared_letters(*sides), len(sides[0] | sides[1])
    joint, coverage = shared >= SHARED_LETTERS, 1.0 if different <= MANY_CHARACTERS else 0.9995
    draft.values |= {"joint": joint, "character_coverage": coverage}
    symbols = len(SYMBOLS) if spans else 0
    smallest = [
        _needed(side, coverage) + symbols for side in ([sides[0] + sides[1]] if joint else sides)
    ]
    # Beside its characters, a script with thousands of them needs room for words.
    usual = next((size for most, size in VOCABULARIES if total < most), LARGEST_VOCABULARY)
    usual = usual if joint else round(SEPARATE_VOCABULARY * usual)
    sizes = [max(usual, math.ceil(1.5 * size / 500) * 500) for size in smallest]
    keys = ["vocab_size"] if joint else ["source_vocab_size", "target_vocab_size"]
    draft.vocabulary = dict(zip(keys, sizes, strict=True))
    why = "shared, because" if joint else "for each language, because"
    kept = "all are kept" if coverage == 1 else f"the rarest are left out ({coverage:.2%} are kept)"
    letters = f"{why} {shared:.0%} of the letters are the same"
    return (letters, f"characters   {different:,} different ones; {kept}", spans), smallest


def choose_protected(draft: Draft, split: Split) -> list[str]:
    """Sets what is protected, if enough pairs of a text have such spans. Returns lines that say
    why."""
    finder = SpanFinder(PROTECTED_IN_DOCUMENTS)
    looked_at = islice(split.pairs(), 0, None, 1 + split.line_count // SPAN_PAIRS)
    found = [bool(finder.find(source) and finder.find(target)) for source, target in looked_at]
    share = sum(found) / max(1, len(found))
    if share < PROTECTED_SHARE:
        return []
    draft.values["protect"] = list(PROTECTED_IN_DOCUMENTS)
    return [
        f"protected    tags, placeholders, addresses and the like, which {share:.1%} of the pairs "
        "have"
    ]


def _shared_letters(*sides: Counter[str]) -> float:
    """Returns the share of the letters that both sides have in common, from 0 to 1: the
    intersection of the two histograms."""
    letters = [Counter({c: n for c, n in side.items() if c.isalpha()}) for side in sides]
    source, target = letters
    totals = [max(1, side.total()) for side in letters]
    return sum(min(source[c] / totals[0], target[c] / totals[1]) for c in source)


def _needed(characters: Counter[str], coverage: float) -> int:
    """Returns the size of the smallest vocabulary that covers this share of the characters. It is a
    little larger than SentencePiece's own."""
    enough = coverage * characters.total()
    covered = accumulate(count for _, count in characters.most_common())
    return 20 + sum(count < enough for count in covered) + 1


def _fit_vocabulary(draft: Draft, smallest: list[int]) -> PreparedData:
    """Prepares the data. Shrinks a vocabulary as long as most of its subwords are rare."""
    while True:
        _, data = prepare_for(draft.config())
        before = dict(draft.vocabulary)
        # A joint vocabulary has the same facts on both sides.
        for key, side, least in zip(before, ("source", "target"), smallest, strict=False):
            facts = data.facts[side]
            # A small text has fewer subwords than it was asked for.
            size = min(before[key], facts["vocabulary"])
            if facts["rare"] > 0.5 and size > least:
                say(
                    f"{facts['rare']:.0%} of the {size:,} subwords occur less than {RARE} times; "
                    "trying a smaller vocabulary"
                )
                size = max(least, min(size // 2, 2 * round(size * (1 - facts["rare"]))))
            draft.vocabulary[key] = size
        too_long = data.facts["dropped"].get(f"longer than {USUAL_LENGTH} subwords", {"count": 0})
        if too_long["count"] >= LONG_SHARE * data.facts["pairs"]:
            draft.values["max_length"] = GREAT_LENGTH
        elif draft.vocabulary == before:
            return data


# ---- The time ----


@dataclass(frozen=True)
class Timing:
    """What a time is enough for.

    Attributes:
        seconds: the time of a step.
        others: the time of everything that is not a step.
        is_slowed: whether other programs computed during the measurement.
        size: None for the model that is fine-tuned.
    """

    size: Size | None
    where: str
    seconds: float
    others: float
    steps_per_epoch: int
    steps: int
    is_slowed: bool = False

    @property
    def epochs(self) -> float:
        return self.steps / self.steps_per_epoch


def choose_size(draft: Draft, pairs: int, measure: Callable[[Size], Timing]) -> list[str]:
    """Sets the size of the model, the regularisation and the length of the training. Returns lines
    that say why.

    Args:
        measure: tries some steps of a model of a size, with the other values of the draft.
    """
    chosen, rejected = measure(SIZES[0]), None
    for size in SIZES[1:]:
        if pairs < size.least_pairs:
            break
        timing = measure(size)
        if timing.epochs < size.least_epochs:
            rejected = timing
            break
        chosen = timing
    warn_if_slowed(chosen)
    size = chosen.size
    draft.values |= _regularisation(pairs, chosen.epochs, size.d_model)
    if draft.values["dropout"] == 0:  # its steps are faster
        chosen = measure(size)
    if pairs <= R_DROP_PAIRS and chosen.epochs >= 2 * R_DROP_EPOCHS:
        # Beside R-Drop, word noise does not help.
        draft.values |= {"consistency": "r_drop", "consistency_weight": R_DROP_WEIGHT}
        draft.values["word_noise"] = 0.0
        chosen = measure(size)
    limit = max(FEWEST_STEPS, MOST_EPOCHS * chosen.steps_per_epoch)
    draft.set_size(size)
    draft.set_steps(min(chosen.steps, limit))
    values = draft.values
    steps = values["max_steps"]
    epochs = steps / chosen.steps_per_epoch
    values |= {"seconds": float(f"{chosen.seconds:.2g}"), "epochs": round(epochs, 1)}
    beside = ""
    if values["consistency"]:
        beside = f", R-Drop {R_DROP_WEIGHT:g}"
    elif values["word_noise"]:
        beside = f", word noise {WORD_NOISE}"
    lines = [
        f"model        {size}",
        f"dropout      {values['dropout']}{beside}, for {pairs:,} pairs and {epochs:.1f} passes "
        "over them",
        f"training     {steps:,} steps of {size.batch_tokens:,} target tokens, "
        f"{chosen.seconds:.2g} s each on {chosen.where}",
        f"time         {duration(steps * chosen.seconds + chosen.others)}, of which "
        f"{duration(chosen.others)} are validations and the final test",
    ]
    if chosen.steps > limit:
        lines.append("             more passes over this text would hardly help")
    if rejected:
        lines.append(
            f"             a larger model ({rejected.size}) would see the text only "
            f"{rejected.epochs:.1f} times"
        )
    return lines


def _measure(draft: Draft, size: Size, data: PreparedData, seconds: float, used: str) -> Timing:
    """Tries some steps of a model.

    Args:
        seconds: how long the whole training may take.
    """
    draft.set_size(size)
    draft.values["precision"] = _precision(size, used)
    if used != "cpu":
        draft.values["device_tokens"] = TrainingConfig.model_fields["device_tokens"].default
    say(f"timing some steps of a model with {size} ...")
    # At the end, two models translate the dev set, and one the test set.
    dev, test = data.facts["dev"], data.facts["test"]
    sentences = draft.validations * dev + BEAM_TIME * (2 * dev + test)
    return replace(measure(draft.config(), data, sentences, seconds, used), size=size)


def _precision(size: Size, used: str) -> str:
    """Returns the precision in which a device trains a model."""
    if used == "cpu" and size.d_model < LEAST_BFLOAT16_WIDTH:
        return "float32"
    return "bfloat16" if has_bfloat16(used) else "float32"


def measure(
    config: Config, data: PreparedData, sentences: float, seconds: float, used: str
) -> Timing:
    """Tries some steps of the model of a config.

    Args:
        sentences: how many sentences a run translates besides its steps, greedily. To translate a
            sentence so takes about as long as to train on it.
        seconds: how long the whole training may take.
        used: the name of the device.
    """
    processes = devices.processes(config.training.devices, used)
    trainer = Trainer(config, data, Processes(world_size=processes))
    started, computed = time.perf_counter(), time.process_time()
    step, per_epoch = seconds_per_step(trainer, MEASURED_SECONDS), trainer.plan.updates_per_epoch
    busy = (time.process_time() - computed) / (time.perf_counter() - started)
    others = OTHER_SECONDS + step * per_epoch / data.facts["pairs"] * sentences
    steps = max(1, int(max(seconds - others, seconds / 2) / step))
    where = used if processes == 1 else f"{processes} processes on {used}"
    return Timing(None, where, step, others, per_epoch, steps, used == "cpu" and busy < BUSY)


def warn_if_slowed(timing: Timing) -> None:
    """Warns if other programs computed while the steps were timed."""
    if timing.is_slowed:
        warn(
            "other programs are using this computer, so the steps are slower than they could be. "
            "Run `new` again when they have ended, for a longer training or a larger model"
        )


def _regularisation(pairs: int, epochs: float, d_model: int) -> dict[str, float]:
    """Returns the dropout and the word noise."""
    # A text that is seen only a few times can't be learnt by heart; dropout would slow learning.
    if epochs < 8:
        return {"dropout": 0.0, "word_noise": 0.0}
    if epochs < MANY_EPOCHS:
        return {"dropout": 0.2 if pairs < 50_000 else 0.1, "word_noise": 0.0}
    if pairs < 50_000:
        dropout = 0.3
    elif pairs < 100_000 or (pairs < 500_000 and d_model > 128):
        dropout = 0.2
    else:
        dropout = 0.1
    return {"dropout": dropout, "word_noise": WORD_NOISE if pairs < 500_000 else 0.0}

"""A recipe for fine-tuning that fits a model, a text and a time: what `new --from` writes.

docs/fine-tuning.md says how its values were chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer_mt.config.file import on_a_line, recipe_text
from transformer_mt.config.schema import Config
from transformer_mt.data.corpus import open_corpus
from transformer_mt.data.prepare import PreparedData
from transformer_mt.data.spans import has_symbols
from transformer_mt.model_directory import ModelDirectory, subwords_to_keep
from transformer_mt.training import settings
from transformer_mt.training.advice import advice
from transformer_mt.training.fine_tuning import PERCENTAGES
from transformer_mt.training.recipes.draft import FEWEST_STEPS, VALIDATIONS, Draft
from transformer_mt.training.recipes.plan import MOST_EPOCHS
from transformer_mt.training.recipes.text import choose_protected
from transformer_mt.training.recipes.timing import BEAM_TIME, Timing, measure, warn_if_slowed
from transformer_mt.training.run import prepare_for
from transformer_mt.utils import device as devices
from transformer_mt.utils.console import duration, say, warn
from transformer_mt.utils.errors import UserError

# The learning rate of a model of width 128, for Adam. It falls with 1 / d_model, and is about a
# tenth of the rate with which Adam trains such a model from the beginning.
RATE_OF_128 = 4e-4
BATCH_TOKENS = 2048
MOST_WARMUP = 200
PATIENCE = 4
# The number of pairs that are held out for each set, unless translating them takes more than this
# share of the time.
HELD_OUT, FEWEST_HELD_OUT = 1000, 100
OTHER_SHARE = 1 / 3


def make_recipe(
    path: Path,
    base: str,
    place: dict[str, str | None],
    symbols: Sequence[str],
    minutes: float,
    device: str | None,
) -> tuple[str, list[str]]:
    """Reads a text, measures the speed of a model, and returns the text of a recipe that fine-tunes
    it, and lines that say why its values are as they are. Only the cache is written, and training
    reads the same entries of it.

    Args:
        path: the file that the recipe will be written to. It is not written here.
        base: the directory of the model.
        place: values of model_dir and of the keys of `data`; `mix` is a general text.
        symbols: new subwords.
        minutes: how long the training may take, with its end.

    Raises:
        UserError: something is wrong with the text or with the model.
    """
    used = devices.use(device)
    draft = FineTuningDraft(path, base, place, symbols)
    protected = [f"protected    {', '.join(draft.values['protect'])}, as before"]
    if not draft.values["protect"]:  # The symbols are added to the subwords.
        protected = choose_protected(draft, open_corpus(draft.config().data).train)
    shares = _mix_in(draft, place["mix"])
    say(f"timing some steps of {base} ...")
    data, timing = _fit_held_out(draft, minutes * 60, used)
    warn_if_slowed(timing)
    # Patience ends a training that more passes no longer help.
    limit = max(FEWEST_STEPS, MOST_EPOCHS * timing.steps_per_epoch)
    draft.set_steps(min(timing.steps, limit))
    values, facts = draft.values, data.facts
    epochs = values["max_steps"] / timing.steps_per_epoch
    values |= {"seconds": float(f"{timing.seconds:.2g}"), "epochs": round(epochs, 1)}
    config = draft.config()
    for message in advice(config, facts, values["max_steps"]):
        warn(message)
    model = config.model
    sets = "; ".join(
        f"{name.replace('_', ' ')} set {facts[name]:,}"
        for name in ("dev", "test", "general_dev", "general_test")
        if name in facts
    )
    reasons = [
        f"model        {base}: {model.encoder_layers}+{model.decoder_layers} layers, d_model "
        f"{model.d_model}, d_ff {model.d_ff}; its sizes and its subwords stay",
        f"text         {facts['pairs']:,} pairs to train on; {sets}",
        shares or "general text none: the model may forget; --mix PREFIX mixes some in",
        *(
            [f"new subwords {', '.join(symbols[:5])}{', ...' * (len(symbols) > 5)}"]
            if symbols
            else []
        ),
        *protected,
        f"rate         {values['learning_rate']:g}, constant after {values['warmup_steps']:,} "
        "steps of warm-up: low, so that little is forgotten",
        f"training     at most {values['max_steps']:,} steps of {BATCH_TOKENS:,} target tokens "
        f"({epochs:.1f} passes over the text), {timing.seconds:.2g} s each on {timing.where}",
        f"early end    after {PATIENCE} validations without a new best; there is one every "
        f"{values['interval']:,} steps",
        "mixes        of the weights before and after are tried; the best on the dev sets is used",
        f"time         at most {duration(values['max_steps'] * timing.seconds + timing.others)}, "
        "with validations and the final tests",
    ]
    return draft.text(), reasons


class FineTuningDraft(Draft):
    """A recipe for fine-tuning in the making.

    Args:
        base: the directory of the model that is fine-tuned.
        symbols: new subwords.

    Raises:
        UserError: the model is missing or damaged.
    """

    def __init__(
        self, path: Path, base: str, place: dict[str, str | None], symbols: Sequence[str]
    ) -> None:
        self.path = path
        self.symbols = list(symbols)
        try:
            theirs = ModelDirectory(base).load_config()
            keeps_spans = has_symbols(ModelDirectory(base).load_subwords())
        except UserError as error:
            raise type(error)(f"--from: {error}") from None
        rate = RATE_OF_128 * 128 / theirs.model.d_model
        self.values: dict[str, Any] = {**place, "base": base, "held_out": HELD_OUT}
        self.values |= {"protect": theirs.data.protect if keeps_spans else []}
        self.values |= {"batch_tokens": BATCH_TOKENS, "learning_rate": float(f"{rate:.2g}")}
        self.values |= {"patience": PATIENCE, "seconds": 0.0, "epochs": 0.0}
        self.set_steps(FEWEST_STEPS)

    def set_steps(self, most: int) -> None:
        super().set_steps(most)
        self.values["warmup_steps"] = max(1, min(MOST_WARMUP, self.values["max_steps"] // 5))

    def text(self) -> str:
        block = ""
        if self.symbols:
            block = (
                "\nsubword:\n  # New subwords, which the vocabulary of the model gets.\n"
                f"  user_symbols: {on_a_line(self.symbols)}\n"
            )
        return recipe_text("fine_tuning.yaml", self.values, {"subword": block}, self.shown_path)

    def config(self) -> Config:
        return settings.load(self.path, restart=True, text=self.text())


def _mix_in(draft: FineTuningDraft, general: str | None) -> str:
    """Adds a general text to the training text, with a weight that makes it half of each pass.
    Returns a line that says so; empty if there is none."""
    if general is None:
        return ""
    own: dict[str, Any] = {"text": general, "weight": 1.0, "general": True}
    draft.values["train"] = [draft.values["train"], own]
    pairs, others = open_corpus(draft.config().data).train.line_counts
    weight = own["weight"] = float(f"{min(1000.0, pairs / others):.3g}")
    return (
        f"general text {others:,} pairs with weight {weight:g}: half of each pass, so that little "
        "is forgotten"
    )


def _fit_held_out(draft: FineTuningDraft, seconds: float, used: str) -> tuple[PreparedData, Timing]:
    """Prepares the data, and times the model. Holds fewer pairs out as long as translating the dev
    and test sets takes too much of the time."""
    while True:
        config = draft.config()
        config, data = prepare_for(config, subwords_to_keep(config))
        dev, test = (
            data.facts[name] + data.facts.get(f"general_{name}", 0) for name in ("dev", "test")
        )
        # The model before is validated too, and translates the test sets; so do the mixes.
        sentences = (VALIDATIONS + 1 + len(PERCENTAGES) + 2) * dev + 2 * BEAM_TIME * test
        timing = measure(config, data, sentences, seconds, used)
        held_out = draft.values["held_out"] // 2
        names = ("dev", "test") + ("general_dev", "general_test") * ("general_dev" in data.facts)
        is_given = all(draft.values[name] is not None for name in names)
        if timing.others <= OTHER_SHARE * seconds or held_out < FEWEST_HELD_OUT or is_given:
            return data, timing
        draft.values["held_out"] = held_out

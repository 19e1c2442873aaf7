"""What a recipe says of a model: its size, its regularisation, and how long it is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from transformer_mt.config.schema import TrainingConfig
from transformer_mt.data.prepare import PreparedData
from transformer_mt.training.recipes.draft import FEWEST_STEPS, Draft
from transformer_mt.training.recipes.sizes import SIZES, Size
from transformer_mt.training.recipes.timing import BEAM_TIME, Timing, measure, warn_if_slowed
from transformer_mt.training.run import has_bfloat16
from transformer_mt.utils.console import duration, say

# More passes over the text than this rarely help.
MOST_EPOCHS = 60
# A text that is seen so often, or oftener, is learnt by heart without regularisation.
MANY_EPOCHS = 15
WORD_NOISE = 0.1
# R-Drop, for texts of at most so many pairs, if there is time for so many passes with it.
R_DROP_WEIGHT = 2.0
R_DROP_PAIRS = 100_000
R_DROP_EPOCHS = 40
# The smallest width of a model that a CPU trains in bfloat16. Smaller ones were not measured.
LEAST_BFLOAT16_WIDTH = 512


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


def measure_size(draft: Draft, size: Size, data: PreparedData, seconds: float, used: str) -> Timing:
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

"""A recipe for a new model that fits a text and a time: what the command `new` writes.

docs/new.md lists the rules, and compares a recipe with one that was chosen by hand.
"""

from __future__ import annotations

from pathlib import Path

from transformer_mt.data.corpus import open_corpus
from transformer_mt.training.advice import advice
from transformer_mt.training.recipes.draft import USUAL_LENGTH, VALIDATIONS, Draft
from transformer_mt.training.recipes.plan import choose_size, measure_size
from transformer_mt.training.recipes.text import (
    GREAT_LENGTH,
    LONG_SHARE,
    choose_subwords,
    fit_vocabulary,
)
from transformer_mt.utils import device as devices
from transformer_mt.utils.console import warn

# There is about one validation, and one checkpoint, in so many minutes.
VALIDATION_MINUTES = 4
FEWEST_VALIDATIONS = 3


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
    (letters, characters, spans), smallest = choose_subwords(draft, corpus.train)
    data = fit_vocabulary(draft, smallest)
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
        draft, facts["pairs"], lambda size: measure_size(draft, size, data, minutes * 60, used)
    )
    for message in advice(draft.config(), facts, draft.values["max_steps"]):
        warn(message)
    return draft.text(), reasons

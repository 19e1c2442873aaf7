"""Limits of non-autoregressive models: what they can't do, and can't be combined with."""

from collections.abc import Iterable
from typing import Any, NoReturn

from transformer_mt.config.section import Problems, Section, needs
from transformer_mt.utils.errors import UsageError

# The longest target, in subwords, whose length a model can predict.
LONGEST_TARGET = 1024

# Keys, the one value of each that a non-autoregressive model needs, and why.
NEEDED = (
    ("scheduled_sampling.decay", None, "there are no preceding words that could be replaced"),
    ("guided_attention.by", None, "its decoder reads masks, but words are what would be guided"),
    ("decoding.sampling", False, "all words are predicted at once, none after another"),
    ("decoding.n_best", 1, "it has one output per line"),
    ("decoding.segmentations", 1, "there is no next word whose probabilities could be averaged"),
)


def rules(config: Any) -> Problems:
    """
    - `model.non_autoregressive` cannot be combined with `model.copying`,
      `scheduled_sampling.decay`, `guided_attention.by` or `decoding.sampling`, and needs
      `decoding.n_best: 1` and `decoding.segmentations: 1`.
    - `model.non_autoregressive: length` needs `data.max_length` of at most 1024.
    """
    option = "model.non_autoregressive"
    if config.model.non_autoregressive and config.model.copying:
        message = "model.copying needs the preceding words; one of the two must be off"
        yield (option, "model.copying"), message
    if config.model.non_autoregressive == "length" and config.data.max_length > LONGEST_TARGET:
        message = f"needs data.max_length of at most {LONGEST_TARGET}: it knows no greater length"
        yield (option, "data.max_length"), message
    for needed in NEEDED:
        yield from needs(config, option, *needed)


# What a model can't do that does not predict one word after another, and why.
IMPOSSIBLE = {
    "prefix": "does not go with --prefix: an output is not continued, all of it is predicted at "
    "once",
    "alignment": "does not go with --alignment: its attention is that of masks, not of words",
    "scores": "gives no probability to a whole translation: that of a word depends on which "
    "other words are masked",
    "attention": "attends from masks, which are replaced by words only at the end",
    "ensemble": "can't be a member: the members of an ensemble continue the same preceding words, "
    "and here there are none",
}


def require_possible(settings: Section, asked: Iterable[str] = ()) -> None:
    """Checks what a non-autoregressive model is asked to do.

    Args:
        settings: the section `decoding`.
        asked: keys of IMPOSSIBLE.

    Raises:
        UsageError: a non-autoregressive model can't do what the settings or `asked` ask for.
    """
    for key, needed, reason in NEEDED:
        section, _, name = key.partition(".")
        if section == "decoding" and (value := getattr(settings, name)) != needed:
            raise UsageError(
                f"{key}: {value} does not go with a non-autoregressive model: {reason}"
            )
    for what in asked:
        refuse(what)


def refuse(what: str) -> NoReturn:
    """Raises a UsageError that says why a non-autoregressive model can't do something, a key of
    IMPOSSIBLE."""
    option = "--ensemble: " if what == "ensemble" else ""
    raise UsageError(f"{option}a non-autoregressive model {IMPOSSIBLE[what]}")

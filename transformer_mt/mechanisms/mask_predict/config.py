"""Limits of non-autoregressive models, and what they cannot be combined with."""

from typing import Any

from transformer_mt.config.section import Problems, needs

# The longest target, in subwords, whose length a model can predict.
LONGEST_TARGET = 1024

# Keys, the one value of each that a non-autoregressive model needs, and why.
NEEDED = (
    ("scheduled_sampling.decay", None, "there are no preceding words that could be replaced"),
    ("guided_attention.by", None, "its decoder reads masks, but words are what would be guided"),
    ("decoding.sampling", False, "all words are predicted at once, none after another"),
    ("decoding.n_best", 1, "it has one output per line"),
)


def rules(config: Any) -> Problems:
    option = "model.non_autoregressive"
    if config.model.non_autoregressive and config.model.copying:
        message = "model.copying needs the preceding words; one of the two must be off"
        yield (option, "model.copying"), message
    if config.model.non_autoregressive == "length" and config.data.max_length > LONGEST_TARGET:
        message = f"needs data.max_length of at most {LONGEST_TARGET}: it knows no greater length"
        yield (option, "data.max_length"), message
    for needed in NEEDED:
        yield from needs(config, option, *needed)

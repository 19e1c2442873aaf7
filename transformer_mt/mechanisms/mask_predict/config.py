"""Limits of non-autoregressive models, and what they cannot be combined with."""

from transformer_mt.config.section import Rule, needs

# The longest target, in subwords, whose length a model can predict.
LONGEST_TARGET = 1024

# Keys, the one value of each that a non-autoregressive model needs, and why.
NEEDED = (
    ("scheduled_sampling.decay", None, "there are no preceding words that could be replaced"),
    ("guided_attention.by", None, "its decoder reads masks, but words are what would be guided"),
    ("decoding.sampling", False, "all words are predicted at once, none after another"),
    ("decoding.n_best", 1, "it has one output per line"),
)

RULES = [
    Rule(
        "model.non_autoregressive",
        lambda c: c.model.non_autoregressive and c.model.copying,
        "model.copying needs the preceding words; one of the two must be off",
    ),
    Rule(
        "model.non_autoregressive",
        lambda c: c.model.non_autoregressive == "length" and c.data.max_length > LONGEST_TARGET,
        f"needs data.max_length of at most {LONGEST_TARGET}: it knows no greater length",
    ),
    *(needs("model.non_autoregressive", *needed) for needed in NEEDED),
]

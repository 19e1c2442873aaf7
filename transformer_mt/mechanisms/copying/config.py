"""What model.copying cannot be combined with."""

from transformer_mt.config.section import needs

RULES = [
    needs(
        *("model.copying", "subword.joint", True),
        "a subword is copied by its number, the same on both sides",
    ),
]

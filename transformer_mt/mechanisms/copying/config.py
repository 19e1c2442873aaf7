"""What model.copying cannot be combined with."""

from typing import Any

from transformer_mt.config.section import Problems, needs


def rules(config: Any) -> Problems:
    """
    - `model.copying` needs `subword.joint: true`.
    """
    reason = "a subword is copied by its number, the same on both sides"
    yield from needs(config, "model.copying", "subword.joint", True, reason)

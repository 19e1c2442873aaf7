"""What a non-autoregressive model can't do when it translates."""

from collections.abc import Iterable
from typing import NoReturn

from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.config.rules import NON_AUTOREGRESSIVE_NEEDS
from transformer_mt.runtime.errors import UsageError

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


def require_possible(settings: DecodingConfig, asked: Iterable[str] = ()) -> None:
    """Checks what a non-autoregressive model is asked to do.

    Args:
        settings: the section `decoding`.
        asked: keys of IMPOSSIBLE.

    Raises:
        UsageError: a non-autoregressive model can't do what the settings or `asked` ask for.
    """
    for key, needed, reason in NON_AUTOREGRESSIVE_NEEDS:
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

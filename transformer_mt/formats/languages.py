"""Compares the codes of languages in documents, such as de_DE, with those of a translation."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import cache


@cache
def _subtags(code: str) -> tuple[str, ...]:
    """The subtags of the standard form: ("zh", "cn") of zh_CN and of chi-CN."""
    from langcodes import standardize_tag
    from langcodes.tag_parser import LanguageTagError

    with suppress(LanguageTagError):  # whatever is no code is compared as it is
        code = standardize_tag(code.replace("_", "-"))
    return tuple(code.lower().replace("_", "-").split("-"))


def fits(code: str, language: str) -> bool:
    """Returns whether text in one language serves as text in the other: de-AT and de do, but not
    pt-BR and pt-PT."""
    (first, *regions), (second, *others) = _subtags(code), _subtags(language)
    return first == second and (set(regions) <= set(others) or set(others) <= set(regions))


def closest(codes: Iterable[str], language: str) -> str | None:
    """Returns the code that fits a language: one that means the same if there is one."""
    fitting = [code for code in codes if fits(code, language)]
    same = [code for code in fitting if _subtags(code) == _subtags(language)]
    return next(iter(same + fitting), None)

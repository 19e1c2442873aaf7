"""What the codes of languages mean, and which languages are written without spaces."""

import re
from functools import cache

# The languages are named by their standard codes (see `primary`).
CHINESE = {"zh", "cmn", "yue", "wuu", "lzh", "nan", "hak", "gan", "hsn", "cdo", "cjy"}
JAPANESE = {"ja"}
KOREAN = {"ko"}  # is written with spaces
# Thai, Lao, Khmer, Burmese, Tibetan, Dzongkha and Shan have no spaces between words either.
WITHOUT_SPACES = CHINESE | JAPANESE | {"th", "lo", "km", "my", "bo", "dz", "shn"}
# What is often given for a code, as in the names of files: mostly the code of a country. These are
# no codes of languages, except that kr is Kanuri's (which has kau too).
_TAKEN_FOR = {
    **{"cn": "zh", "zhs": "zh", "zht": "zh", "jp": "ja", "kr": "ko", "kh": "km", "mm": "my"},
    **{"cz": "cs", "dk": "da", "gr": "el", "ua": "uk", "vn": "vi"},
    **{"iw": "he", "in": "id", "ji": "yi", "mo": "ro", "sh": "sr"},  # these are outdated
}
# Letters of scripts. Korean separates words by spaces, in Hangul.
HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]")
KANA = re.compile(r"[\u3040-\u30ff]")
HANGUL = re.compile(r"[\u1100-\u11ff\uac00-\ud7af]")
# Thai, Lao, Tibetan, Burmese and Khmer.
OTHER_UNSPACED = re.compile(r"[\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff]")


def taken_for(language: str) -> str | None:
    """Returns the code of the language that is meant by a wrong one, such as zh for cn or cn-TW;
    None if the code is not known to be wrong."""
    return _TAKEN_FOR.get(_first(language))


@cache
def standard(language: str) -> str:
    """Returns the standard form (BCP 47) of a code: zh-CN of zh_cn, my of bur, ja of jp. Whatever
    is no code is returned as it is."""
    first, *rest = re.split("[-_]", language)
    first = taken_for(first) or first
    if not rest and re.fullmatch("[a-z]{2}", first):
        return first  # Most codes are, and need no library.
    import langcodes

    try:
        return langcodes.standardize_tag("-".join([first, *rest]))
    except langcodes.LanguageTagError:
        return language


def primary(language: str) -> str:
    """Returns the standard code of a language without its region and script: zh of zh-CN, of chi
    and of cn."""
    return _first(standard(language))


def _first(code: str) -> str:
    return re.split("[-_]", code.lower())[0]


def has_spaces(language: str) -> bool:
    """Returns whether a language, such as de or zh-CN, is written with spaces between its words."""
    return primary(language) not in WITHOUT_SPACES


def joins_sentences_with_space(language: str) -> bool:
    """Returns whether a space separates the sentences of a language: not in Chinese and Japanese.
    Thai, Lao, Khmer, Burmese and Tibetan separate sentences by a space, though not words."""
    return primary(language) not in CHINESE | JAPANESE


def is_in_unspaced_script(text: str) -> bool:
    """Returns whether most letters of a text are of scripts without spaces between words."""
    letters = "".join(filter(str.isalpha, text))
    scripts = HAN, KANA, OTHER_UNSPACED
    return sum(len(script.findall(letters)) for script in scripts) * 2 > len(letters)

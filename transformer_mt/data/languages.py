"""Facts about the writing of languages."""

import re

# Languages written without spaces between their words, by their codes of two and of three letters.
CHINESE = {"zh", "zho", "cmn", "yue", "wuu", "lzh"}
JAPANESE = {"ja", "jpn"}
KOREAN = {"ko", "kor"}  # is written with spaces
WITHOUT_SPACES = {
    *CHINESE,
    *JAPANESE,
    *("th", "tha"),  # Thai
    *("lo", "lao"),  # Lao
    *("km", "khm"),  # Khmer
    *("my", "mya"),  # Burmese
    *("bo", "bod"),  # Tibetan
    *("dz", "dzo"),  # Dzongkha
    "shn",  # Shan
}


def primary(language: str) -> str:
    """Returns the code of a language without its region and script: zh of zh-CN or zh_Hant."""
    return re.split("[-_]", language.lower())[0]


def has_spaces(language: str) -> bool:
    """Returns whether a language, such as de or zh-CN, is written with spaces between its words."""
    return primary(language) not in WITHOUT_SPACES


def joins_sentences_with_space(language: str) -> bool:
    """Returns whether a space separates the sentences of a language: not in Chinese and Japanese.
    Thai, Lao, Khmer, Burmese and Tibetan separate sentences by a space, though not words."""
    return primary(language) not in CHINESE | JAPANESE

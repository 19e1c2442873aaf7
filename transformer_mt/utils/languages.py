"""What the codes of languages mean, which languages are written without spaces, and where the
sentences of a line are.

The package sentencex knows the marks and the abbreviations of many languages. The rules here are
for what it leaves: lists, brackets, addresses of the web, ordinals, and languages whose sentences
it does not know.
"""

import re
from collections.abc import Iterable, Iterator
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
# Letters of scripts: Han, Kana, Hangul (where spaces separate words), and those of Thai, Lao,
# Tibetan, Burmese and Khmer.
_SCRIPTS = [
    re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]"),
    re.compile(r"[\u3040-\u30ff]"),
    re.compile(r"[\u1100-\u11ff\uac00-\ud7af]"),
    re.compile(r"[\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff]"),
]


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
    from langcodes import standardize_tag
    from langcodes.tag_parser import LanguageTagError

    try:
        return standardize_tag("-".join([first, *rest]))
    except LanguageTagError:
        return language


def primary(language: str) -> str:
    """Returns the standard code of a language without its region and script: zh of zh-CN, of chi
    and of cn."""
    return _first(standard(language))


def _first(code: str) -> str:
    return re.split("[-_]", code.lower())[0]


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


@cache
def _subtags(code: str) -> tuple[str, ...]:
    """The subtags of the standard form: ("zh", "cn") of zh_CN and of chi-CN."""
    return tuple(re.split("[-_]", standard(code).lower()))


def has_spaces(language: str) -> bool:
    """Returns whether a language, such as de or zh-CN, is written with spaces between its words."""
    return primary(language) not in WITHOUT_SPACES


def joins_sentences_with_space(language: str) -> bool:
    """Returns whether a space separates the sentences of a language: not in Chinese and Japanese.
    Thai, Lao, Khmer, Burmese and Tibetan separate sentences by a space, though not words."""
    return primary(language) not in CHINESE | JAPANESE


def written_like(lines: list[str]) -> str:
    """Returns a language with the script of most letters of the first 1,000 lines: zh, ja, ko, th
    for any other script without spaces between words, or "" for all other scripts."""
    letters = "".join(filter(str.isalpha, "".join(lines[:1000])))
    han, kana, hangul, unspaced = (len(script.findall(letters)) for script in _SCRIPTS)
    half = len(letters) / 2
    if han + kana > half:
        # Japanese text is about half kana. Chinese text may quote some.
        return "ja" if kana > (han + kana) / 10 else "zh"
    if hangul > half:
        return "ko"
    return "th" if unspaced > half else ""


def has_spaces_in(lines: list[str]) -> bool:
    """Returns whether spaces separate the words of a text, judged by its script."""
    return has_spaces(written_like(lines))


# --------------------------------------------------------------------------------------- sentences

# [start, end) in characters, without the spaces around.
Place = tuple[int, int]

# How many characters around an end decide whether it is one.
NEAR = 100
_LETTER = re.compile(r"[^\W_]")
# After these marks a sentence ends as well, and sentencex does not know it: the marks of Khmer and
# Tibetan; an ellipsis, or a bracket that closes behind an end, before a letter that is not a small
# one; an end before the next item of a list.
_FURTHER_END = re.compile(
    r"[។៕༎]+\s*|།+\s+|(?:\.\.\.|…|[.!?][)\]])\s+(?=[^\W\d_a-zß-öø-ÿа-яё])|[。！？][）】]"
    r"|[.!?…]\s+(?=\(?(?:\d{1,3}|[a-z])\)\s)"
)
# Thai and Lao have no mark for the end of a sentence but a space, which separates clauses too. A
# space beside a number or a foreign word is none, and neither is one behind a repetition mark.
_SPACE_END = {
    "th": re.compile(r"(?<=[\u0e01-\u0e2e\u0e30-\u0e45\u0e47-\u0e4e])\s+(?=[\u0e01-\u0e4e])"),
    "lo": re.compile(r"(?<=[\u0e81-\u0ec5\u0ec7-\u0ecd])\s+(?=[\u0e81-\u0edf])"),
}
# The number or letter in front of an item of a list.
_LIST_MARK = re.compile(r"\(?(?:\d{1,3}|[A-Za-z]|[ivxIVX]{1,5})[.)]")
# In these languages a number with a full stop is an ordinal: "der 2. Weltkrieg".
_WITH_ORDINALS = {
    *("cs", "da", "de", "et", "fi", "hr", "hu", "is", "lv"),
    *("nb", "nn", "no", "pl", "sk", "sl", "sr"),
}
_ORDINAL = re.compile(r"(?:^|\s)\d{1,2}\.$")
# Abbreviations that sentencex does not know, and that rarely end a sentence.
_ABBREVIATIONS = {
    language: re.compile(rf"(?:^|[\s(\"'«“„])(?:{words})\.$")
    for language, words in {
        "en": "approx|vol|Dr",
        "fr": "MM?|Mme|Mlle|Mgr|Dr|Pr|St|Ste|[Aa]rt|[Cc]f|env|chap|h",
        "it": "pag|pagg|art|sig",
        "nl": "mevr|dhr|mr|drs",
        "pl": "dr|prof|mgr|ul",
        "pt": "Av|Dr|Dra|Prof",
        "ru": "[Тт]\\. ?е|[Тт]\\. ?к|см|стр|им",
    }.items()
}
# A word that holds the end of a sentence and the beginning of the next, without a space between.
_TWO_WORDS = re.compile(
    r"[^\W\d_]+[!?…]+[^\W\d_]+[.,!?;:]*|[^\W\d_]*[a-zß-öø-ÿа-яё]\.[^\W\d_][a-zß-öø-ÿа-яё]+[.,!?;:]*"
)
_ADDRESS = re.compile(r"[/=&@\\]|www\.")


def sentences(line: str, language: str) -> list[Place]:
    """The places of the sentences of a line, in order. They hold everything except the spaces
    between them."""
    found: list[Place] = []
    for start, end in _pieces(line, primary(language)):
        start += len(line[start:end]) - len(line[start:end].lstrip())
        end = start + len(line[start:end].rstrip())
        if start < end:
            found.append((start, end))
    return found


def _pieces(line: str, language: str) -> Iterator[Place]:
    """Joins what sentencex and the further ends have cut wrongly. What has no letter and no digit
    is not a sentence."""
    start = 0
    letter = _LETTER.search(line)
    last = next((place for place in reversed(range(len(line))) if line[place].isalnum()), -1)
    for end in _ends(line, language):
        if letter is None or letter.start() >= end or end > last:
            continue
        if not _goes_on(line, start, end, language):
            yield start, end
            start = end
            letter = _LETTER.search(line, start)
    if start < len(line):
        yield start, len(line)


def _ends(line: str, language: str) -> list[int]:
    from sentencex import get_sentence_boundaries

    # Half a surrogate pair is not a character, but text in Python may hold one.
    characters = line.encode("utf-8", "replace").decode("utf-8")
    ends = {found["end_index"] for found in get_sentence_boundaries(language, characters)}
    ends |= {match.end() for match in _FURTHER_END.finditer(line)}
    if language in _SPACE_END:
        ends |= {match.end() for match in _SPACE_END[language].finditer(line)}
    return sorted(ends - {0, len(line)})


def _goes_on(line: str, start: int, end: int, language: str) -> bool:
    """Whether the sentence that begins at `start` does not end at `end`."""
    # Only what is near decides, so that a long line takes no more than its share of time.
    text, rest = line[max(start, end - NEAR) : end].strip(), line[end : end + NEAR]
    if not text:
        return False
    if end - start <= NEAR and _LIST_MARK.fullmatch(text):
        return True
    if language in _WITH_ORDINALS and _ORDINAL.search(text):
        return True
    if language in _ABBREVIATIONS and _ABBREVIATIONS[language].search(text):
        return True
    if text[-1] not in ".!?…" or line[end - 1].isspace() or rest[0].isspace():
        return False
    # Without a space, a sentence ends between two words ("Yes!No."), but not within an address or
    # a name such as ASP.NET.
    word = text.split()[-1] + re.split(r"[\s!?…]", rest, maxsplit=1)[0]
    is_two_words = rest[0].isalpha() and not rest[0].islower() and _TWO_WORDS.fullmatch(word)
    return not is_two_words or _ADDRESS.search(word) is not None

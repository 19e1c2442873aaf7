"""Scores translations as their model or their text requires: which tokeniser, which note."""

from typing import Any

from transformer_mt.config.schema import Config
from transformer_mt.data.datasets import DATASETS
from transformer_mt.data.languages import (
    CHINESE,
    HAN,
    HANGUL,
    JAPANESE,
    KANA,
    KOREAN,
    OTHER_UNSPACED,
    has_spaces,
    primary,
)
from transformer_mt.data.normalization import normalized
from transformer_mt.scoring.metrics import METRICS, Scores, score

# The name of the protocol that scores text as it is.
SACREBLEU = "sacrebleu"
# What the reader of scores of text in the form lc.norm.tok has to know.
LC_NORM_TOK_NOTE = (
    "of lower-cased, normalised and tokenised text (lc.norm.tok): not comparable with scores of "
    "raw text"
)


def score_for(
    config: Config, hypotheses: list[str], references: list[str], **options: Any
) -> Scores:
    """Scores translations by the model of a config, against references that are normalised as its
    training text was.

    Args:
        references: one line per hypothesis.
        options: of `metrics.score`: metrics, lowercase, confidence.

    Raises:
        UserError: as `score` does.
    """
    references = [normalized(reference, config.subword.normalization) for reference in references]
    return score(hypotheses, [references], tokenizer_for(config), note_for(config), **options)


def note_for(config: Config) -> str:
    """Returns what the reader of a model's scores has to know, or ""."""
    if config.subword.type == "vocabulary":
        return (
            "of text with its BPE removed, against the tokenised reference: not comparable with "
            "scores of raw text"
        )
    if DATASETS[config.data.dataset].is_lc_norm_tok:
        return LC_NORM_TOK_NOTE
    return ""


def tokenizer_for(config: Config) -> str:
    """Returns the name of sacreBLEU's tokeniser for the target language of a model."""
    if config.evaluation.tokenize:
        return config.evaluation.tokenize
    if config.subword.type == "vocabulary" or DATASETS[config.data.dataset].is_lc_norm_tok:
        return "none"
    return tokenizer_for_language(config.data.target_lang)


def tokenizer_for_language(language: str) -> str:
    """Returns the name of the tokeniser for a target language, such as de or zh-CN.

    Chinese, Japanese and Korean have sacreBLEU's own choice. In other languages without spaces
    between words, each character is a token. 13a is for all other languages.
    """
    code = primary(language)
    for languages, name in ((CHINESE, "zh"), (JAPANESE, "ja-mecab"), (KOREAN, "ko-mecab")):
        if code in languages:
            return name
    return "13a" if has_spaces(language) else "char"


def tokenizer_for_text(references: list[str]) -> str:
    """Returns the name of the tokeniser for the language of a text, as `tokenizer_for_language`
    does. The script of most letters of the first 1,000 lines decides."""
    letters = "".join(filter(str.isalpha, "".join(references[:1000])))
    han, kana, hangul, unspaced = (
        len(script.findall(letters)) for script in (HAN, KANA, HANGUL, OTHER_UNSPACED)
    )
    half = len(letters) / 2
    if han + kana > half:
        # Japanese text is about half kana. Chinese text may quote some.
        return "ja-mecab" if kana > (han + kana) / 10 else "zh"
    if hangul > half:
        return "ko-mecab"
    return "char" if unspaced > half else "13a"


def has_spaces_in(text: list[str]) -> bool:
    """Returns whether spaces separate the words of a text, judged by its script."""
    return tokenizer_for_text(text) in ("13a", "ko-mecab")


def require_tokenizer(config: Config) -> None:
    """Checks that training will be able to score the dev set and the test set, if it has any.

    Raises:
        UserError: a package for the tokeniser of the target language is missing.
    """
    data = config.data
    if data.dev or data.test or data.held_out:
        require_package_of(tokenizer_for(config))


def require_package_of(tokenize: str) -> None:
    """
    Raises:
        UserError: a package for this tokeniser is missing.
    """
    from sacrebleu import metrics as library  # slow to import

    METRICS["bleu"].create(library, tokenize, False)

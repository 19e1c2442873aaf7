"""Scores translations as their model or their text requires: which tokeniser, which note."""

import re

from transformer_mt.config.schema import Config
from transformer_mt.evaluation.metrics import Scores, score


def score_for(config: Config, hypotheses: list[str], references: list[str]) -> Scores:
    """Scores translations by the model of a config.

    Raises:
        UserError: as `score` does.
    """
    note = ""
    if config.subword.type == "vocabulary":
        note = (
            "of text with its BPE removed, against the tokenised reference: not comparable with "
            "scores of raw text"
        )
    return score(hypotheses, references, tokenizer_for(config), note)


def tokenizer_for(config: Config) -> str:
    """Returns the name of sacreBLEU's tokeniser for the target language of a model."""
    if config.evaluation.tokenize:
        return config.evaluation.tokenize
    if config.subword.type == "vocabulary":
        return "none"
    return "zh" if config.data.target_lang.lower().startswith("zh") else "13a"


def tokenizer_for_text(references: list[str]) -> str:
    """Returns "zh" if most letters are Chinese characters and none is Japanese kana, else "13a"."""
    text = "".join(references[:1000])
    letters = sum(character.isalpha() for character in text)
    han = len(re.findall(r"[\u3400-\u4dbf\u4e00-\u9fff]", text))
    kana = re.search(r"[\u3040-\u30ff]", text)
    return "zh" if han > letters / 2 and not kana else "13a"

"""BLEU and chrF by sacreBLEU, with the signatures that say how they were computed."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from transformer_mt.config.schema import Config
from transformer_mt.runtime.errors import UserError


@dataclass(frozen=True)
class Scores:
    """Corpus scores of a set of translations, 0 to 100.

    length_ratio is that of hypotheses to references in BLEU's tokens; note is what a reader of the
    score has to know besides.
    """

    bleu: float
    signature: str
    chrf: float
    chrf_signature: str
    length_ratio: float
    lines: int
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"BLEU {self.bleu:.2f}   chrF {self.chrf:.2f}   ({self.lines:,} lines, "
            f"length ratio {self.length_ratio:.3f})\n"
            f"  {self.signature}\n  {self.chrf_signature}"
            + (f"\n  {self.note}" if self.note else "")
        )


def score(hypotheses: list[str], references: list[str], tokenize: str, note: str = "") -> Scores:
    """Scores by sacreBLEU (Post 2018, arXiv 1804.08771), cased.

    Args:
        tokenize: sacreBLEU's name of a tokeniser: 13a, zh, char, intl or none.

    Raises:
        UserError: the numbers of lines differ, or there are none.
    """
    # It imports slowly, and translating does without it.
    from sacrebleu.metrics import BLEU, CHRF

    if len(hypotheses) != len(references):
        raise UserError(
            f"{len(hypotheses):,} translations, but {len(references):,} references: one line of "
            "each belongs together"
        )
    if not references:
        raise UserError("there is nothing to score: the reference is empty")
    # `force` silences a warning about tokenised text, which is what tokenize none is for.
    bleu_metric = BLEU(tokenize=tokenize, force=True)
    bleu = bleu_metric.corpus_score(hypotheses, [references])
    chrf_metric = CHRF()
    chrf = chrf_metric.corpus_score(hypotheses, [references])
    return Scores(
        bleu=bleu.score,
        signature=f"BLEU|{bleu_metric.get_signature()}",
        chrf=chrf.score,
        chrf_signature=f"chrF2|{chrf_metric.get_signature()}",
        length_ratio=bleu.ratio,
        lines=len(references),
        note=note,
    )


def score_for(config: Config, hypotheses: list[str], references: list[str]) -> Scores:
    """Scores translations of a config's model, as its target side and its text ask for."""
    note = ""
    if config.subword.type == "vocabulary":
        note = (
            "of text with its BPE removed, against the tokenised reference: not comparable with "
            "scores of raw text"
        )
    return score(hypotheses, references, tokenizer_for(config), note)


def tokenizer_for(config: Config) -> str:
    """sacreBLEU's tokeniser for a model's target side."""
    if config.evaluation.tokenize:
        return config.evaluation.tokenize
    if config.subword.type == "vocabulary":
        return "none"
    return "zh" if config.data.target_lang.lower().startswith("zh") else "13a"


def tokenizer_for_text(references: list[str]) -> str:
    """zh where most letters are Chinese characters (and none is Japanese kana), else 13a."""
    text = "".join(references[:1000])
    letters = sum(character.isalpha() for character in text)
    han = len(re.findall(r"[\u3400-\u4dbf\u4e00-\u9fff]", text))
    kana = re.search(r"[\u3040-\u30ff]", text)
    return "zh" if han > letters / 2 and not kana else "13a"

"""Metrics of translation, computed by sacreBLEU, with the signatures that say how.

To add a metric, add an entry to `METRICS`, and describe it in config/schema.py. This module
is light to import, because the config's schema takes the choices of training.best_metric from it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformer_mt.runtime.errors import UserError

# A BLEU below this comes from the few words that are right by chance.
NEAR_ZERO_BLEU = 2.0


@dataclass(frozen=True)
class Metric:
    """A corpus-level score of translations against one reference per line.

    Attributes:
        label: the name in tables and messages.
        signature_key: the key of the signature in JSON and metrics.jsonl.
        create: maps (the module `sacrebleu.metrics`, the name of a tokeniser) to an object with the
            methods `corpus_score` and `get_signature` of sacreBLEU's metrics.
        higher_is_better: whether a better translation has a higher score.
    """

    label: str
    signature_key: str
    create: Callable[[Any, str], Any]
    higher_is_better: bool = True


# The keys are those of JSON and metrics.jsonl, and the values of training.best_metric.
METRICS = {
    "bleu": Metric(
        "BLEU",
        "signature",
        # `force` silences a warning about tokenised text, for which the tokeniser `none` is.
        lambda library, tokenize: library.BLEU(tokenize=tokenize, force=True),
    ),
    "chrf": Metric("chrF", "chrf_signature", lambda library, tokenize: library.CHRF()),
}


@dataclass(frozen=True)
class Scores:
    """The scores of a set of translations.

    Attributes:
        values: the score per key of `METRICS`; BLEU and chrF go from 0 to 100.
        signatures: the signature per key of `METRICS`.
        length_ratio: the length of the hypotheses divided by that of the references, in BLEU's
            tokens.
        lines: the number of lines.
        note: a remark for the reader of the scores, or "".
    """

    values: dict[str, float]
    signatures: dict[str, str]
    length_ratio: float
    lines: int
    note: str = ""

    def by_key(self) -> dict[str, float | str]:
        """Returns scores and signatures under the keys of JSON and metrics.jsonl."""
        result: dict[str, float | str] = {}
        for key, metric in METRICS.items():
            result[key] = self.values[key]
            result[metric.signature_key] = self.signatures[key]
        return result

    def as_dict(self) -> dict[str, Any]:
        """Returns everything under the keys of JSON and metrics.jsonl."""
        rest = {"length_ratio": self.length_ratio, "lines": self.lines, "note": self.note}
        return self.by_key() | rest

    def labelled(self) -> list[str]:
        """Returns each score after its label, such as "BLEU 31.41"."""
        return [f"{metric.label} {self.values[key]:.2f}" for key, metric in METRICS.items()]

    def notes(self) -> list[str]:
        """Returns the signatures, and the note if there is one."""
        return [*self.signatures.values(), *filter(None, [self.note])]

    def __str__(self) -> str:
        counts = f"({self.lines:,} lines, length ratio {self.length_ratio:.3f})"
        first = "   ".join([*self.labelled(), counts])
        return "\n  ".join([first, *self.notes()])


def score(hypotheses: list[str], references: list[str], tokenize: str, note: str = "") -> Scores:
    """Computes every metric with sacreBLEU (Post 2018, arXiv 1804.08771).

    Args:
        tokenize: the name of a tokeniser of sacreBLEU: 13a, zh, char, intl or none.

    Raises:
        UserError: the numbers of lines differ, or there are no lines.
    """
    # sacreBLEU is slow to import, and only scoring needs it.
    from sacrebleu import metrics as library

    if len(hypotheses) != len(references):
        raise UserError(
            f"there are {len(hypotheses):,} translations, but {len(references):,} references. Give "
            "one reference per translation"
        )
    if not references:
        raise UserError("there is nothing to score: the reference is empty")
    values, signatures, length_ratio = {}, {}, 0.0
    for key, metric in METRICS.items():
        computer = metric.create(library, tokenize)
        result = computer.corpus_score(hypotheses, [references])
        values[key] = result.score
        signatures[key] = f"{result.name}|{computer.get_signature()}"
        if key == "bleu":
            length_ratio = result.ratio
    return Scores(values, signatures, length_ratio, len(references), note)

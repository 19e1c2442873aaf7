"""The scores of single sentences."""

from collections.abc import Sequence

from transformer_mt.evaluation.metrics import METRICS, require_lines


def sentence_scores(
    hypotheses: list[str],
    references: Sequence[list[str]],
    tokenize: str,
    metrics: Sequence[str],
    lowercase: bool = False,
) -> dict[str, list[float]]:
    """Computes metrics with sacreBLEU for each line by itself.

    BLEU counts only the lengths of n-grams that the hypothesis has, so that a sentence of three
    words that is all right has 100 (sacreBLEU's `effective_order`).

    Args: those of `metrics.score`.

    Returns: the scores of the lines, per key of `METRICS`.

    Raises:
        UserError: as `metrics.score` does.
    """
    from sacrebleu import metrics as library  # slow to import

    require_lines(hypotheses, references)
    result = {}
    for key in metrics:
        computer = METRICS[key].create(library, tokenize, lowercase)
        computer.effective_order = True  # which only BLEU reads
        result[key] = [
            computer.sentence_score(hypothesis, own).score
            for hypothesis, *own in zip(hypotheses, *references, strict=True)
        ]
    return result

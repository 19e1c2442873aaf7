"""The scores of single sentences, and the table of them."""

import csv
import io
import re
from collections.abc import Sequence

from transformer_mt.evaluation.groups import length_of
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


# What would start another cell or line in some reader of tables.
_SEPARATORS = re.compile("[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")


def sentence_table(
    scores: dict[str, list[float]],
    sources: list[str] | None,
    hypotheses: list[str],
    references: Sequence[list[str]],
    spaces: bool,
) -> str:
    """Returns a table with a header line and one line per sentence, whose cells are separated by
    tabs: the number of the line from 1, the length of the source, each score, the source, the
    hypothesis and the references.

    Separators in the texts become spaces. A text with double quotes is written as spreadsheets do.

    Args:
        scores: the scores of the lines per metric.
        sources: None leaves the cells of the source empty.
        spaces: whether spaces separate the words of the source. Without them, its length is in
            characters.
    """
    count = len(references)
    names = ["reference"] if count == 1 else [f"reference_{i}" for i in range(1, count + 1)]
    file = io.StringIO()
    writer = csv.writer(file, "excel-tab", lineterminator="\n")
    writer.writerow(["line", "source_length", *scores, "source", "hypothesis", *names])
    for index, hypothesis in enumerate(hypotheses):
        source = "" if sources is None else sources[index]
        texts = [source, hypothesis, *(reference[index] for reference in references)]
        length = "" if sources is None else length_of(source, spaces)
        numbers = [f"{values[index]:.4f}" for values in scores.values()]
        cells = [_SEPARATORS.sub(" ", text) for text in texts]
        writer.writerow([index + 1, length, *numbers, *cells])
    return file.getvalue()

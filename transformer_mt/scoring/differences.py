"""Where two systems differ: the words of two texts, and the lines whose scores changed most."""

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import NamedTuple

from transformer_mt.scoring.groups import length_of
from transformer_mt.scoring.metrics import METRICS, require_lines

# Texts in which the same words occur more often than in this number of pairs, such as the endless
# repetitions of a model at the beginning of its training, would take seconds to compare.
MOST_PAIRS = 5000


class Piece(NamedTuple):
    """A part of a text: some words (or characters) in a row.

    Attributes:
        differs: whether the other text has something else at this place.
    """

    text: str
    differs: bool


def differences(first: str, second: str, spaces: bool = True) -> tuple[list[Piece], list[Piece]]:
    """Compares two texts word by word.

    Args:
        spaces: whether spaces separate the words. Without them, characters are compared.

    Returns: the pieces of each of the two texts. Joined with a space (or, without spaces, with
        nothing), they give the text back. Texts that repeat the same words very often are one
        piece that differs.
    """
    words, others = (text.split(" ") if spaces else list(text) for text in (first, second))
    glue = " " if spaces else ""
    counts, other_counts = Counter(words), Counter(others)
    if sum(counts[word] * other_counts[word] for word in counts) > MOST_PAIRS:
        return [Piece(first, first != second)], [Piece(second, first != second)]
    result: tuple[list[Piece], list[Piece]] = ([], [])
    matcher = SequenceMatcher(None, words, others, autojunk=False)
    for kind, start, end, other_start, other_end in matcher.get_opcodes():
        spans = words[start:end], others[other_start:other_end]
        for pieces, span in zip(result, spans, strict=True):
            if span:
                pieces.append(Piece(glue.join(span), kind != "equal"))
    return result


@dataclass(frozen=True)
class Shares:
    """How many lines got better, worse, or kept their score."""

    better: int
    worse: int
    unchanged: int

    @property
    def total(self) -> int:
        return self.better + self.worse + self.unchanged


def shares(before: Sequence[float], after: Sequence[float]) -> Shares:
    """Counts the lines whose score (higher is better) rose, fell or stayed."""
    pairs = list(zip(before, after, strict=True))
    better = sum(new > old for old, new in pairs)
    worse = sum(new < old for old, new in pairs)
    return Shares(better, worse, len(pairs) - better - worse)


def most_changed(
    before: Sequence[float], after: Sequence[float], count: int
) -> tuple[list[int], list[int]]:
    """Returns the lines whose score (higher is better) rose most, and those whose score fell most.

    Returns: at most `count` indices of each, the largest change first. Equal changes are in the
        order of the lines.
    """
    changes = [new - old for old, new in zip(before, after, strict=True)]
    order = sorted(range(len(changes)), key=lambda line: -abs(changes[line]))
    risen = [line for line in order if changes[line] > 0]
    fallen = [line for line in order if changes[line] < 0]
    return risen[:count], fallen[:count]


# ------------------------------------------------------------------- the scores of single sentences


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

"""How good the translations of a run are: as a whole, by length, and sentence by sentence."""

from collections.abc import Sequence
from typing import NamedTuple

from transformer_mt.evaluation.groups import Group, by_length, spread
from transformer_mt.evaluation.metrics import DEFAULT_METRICS, METRICS, Scores, score
from transformer_mt.evaluation.scoring import note_for, tokenizer_for, tokenizer_for_text
from transformer_mt.evaluation.sentences import sentence_scores
from transformer_mt.inspect.record import Record, Translations, number

# Of a longer text, this number of lines, spread evenly over it, is scored here.
MOST_LINES = 5000


class GroupScore(NamedTuple):
    """The BLEU of the sentences of some lengths, with its 95 % interval."""

    name: str
    lines: int
    bleu: float
    interval: tuple[float, float]


class Quality(NamedTuple):
    """Scores of the translations of a run.

    Attributes:
        scores: of all translations, with 95 % intervals where they could be computed; None if there
            are no scores.
        translations: the lines that were scored one by one, which are some of a long text; None if
            the run has not kept its translations.
        lines: the indices of these lines in the whole text.
        total: the number of lines of the whole text.
        groups: by the length of the source (of the reference if there are no sources).
        chrf: the chrF of each of `lines`.
    """

    scores: Scores | None
    translations: Translations | None = None
    lines: Sequence[int] = ()
    total: int = 0
    groups: Sequence[GroupScore] = ()
    chrf: Sequence[float] = ()


def judge(record: Record) -> Quality:
    """Scores the translations of a run.

    Raises:
        UserError: a package for the tokeniser of the target language is missing.
    """
    whole = record.translations
    logged = _logged_scores(record)
    if whole is None:
        return Quality(logged)
    total = len(whole.hypotheses)
    lines = spread(total, MOST_LINES)
    sources, references, hypotheses = (
        None if text is None else [text[line] for line in lines]
        for text in (whole.sources, whole.references, whole.hypotheses)
    )
    tokenize = tokenizer_for(record.config) if record.config else tokenizer_for_text(references)
    note = note_for(record.config) if record.config else ""

    def scored(group: Group, *metrics: str) -> Scores:
        own = group.of(hypotheses), [group.of(references)]
        return score(*own, tokenize, note, metrics=metrics, confidence=True)

    scores = logged if whole.split == "test" else None
    if scores is None or not (scores.intervals or total > len(lines)):
        metrics = scores.values if scores else DEFAULT_METRICS
        scores = scored(Group("", list(range(len(lines)))), *metrics)
    groups = []
    for group in by_length(sources or references, record.has_spaces(0 if sources else 1)):
        own = scored(group, "bleu")
        values = own.values["bleu"], own.intervals["bleu"]
        groups.append(GroupScore(group.name, len(group.lines), *values))
    chrf = sentence_scores(hypotheses, [references], tokenize, ["chrf"])["chrf"]
    chosen = whole._replace(sources=sources, references=references, hypotheses=hypotheses)
    return Quality(scores, chosen, lines, total, groups, chrf)


def _logged_scores(record: Record) -> Scores | None:
    """Returns the scores of the test set that the run has logged."""
    line = record.last("test")
    values = {key: number(line.get(key)) for key in METRICS}
    values = {key: value for key, value in values.items() if value is not None}
    if not values:
        return None
    logged, intervals = line.get("intervals"), {}
    for key in values if isinstance(logged, dict) else ():
        ends = logged.get(key)
        ends = [number(end) for end in ends] if isinstance(ends, list) else []
        if len(ends) == 2 and None not in ends:
            intervals[key] = (ends[0], ends[1])
    signatures = {key: str(line.get(METRICS[key].signature_key, "")) for key in values}
    count, note = number(line.get("lines")), str(line.get("note") or "")
    return Scores(values, signatures, None, int(count or 0), note, intervals)

"""What a run has recorded in its model directory, and how good its translations are. A directory
can be read while the run trains.

Nothing is locked, and any file may be missing, damaged, or of an earlier version. What can't be
read is left out, and `Record.problems` says why.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from transformer_mt.config.schema import Config
from transformer_mt.data.languages import has_spaces
from transformer_mt.model_directory import DATA_FACTS, HYPOTHESIS, LOG, ModelDirectory, entries
from transformer_mt.scoring.groups import Group, by_length, spread
from transformer_mt.scoring.metrics import DEFAULT_METRICS, METRICS, Scores, score, sentence_scores
from transformer_mt.scoring.tokenizers import note_for, tokenizer_for, tokenizer_for_text
from transformer_mt.utils import files
from transformer_mt.utils.errors import UsageError, UserError, describe

Result = TypeVar("Result")

# A larger number is no measurement, and could not be drawn.
_LARGEST = 1e30
# Of a longer text, this number of lines, spread evenly over it, is scored here.
MOST_LINES = 5000


class Translations(NamedTuple):
    """A text and its translations by the model, line by line.

    Attributes:
        split: "test" or "dev".
        checkpoint: the name of the checkpoint that translated, such as step_500.
        sources: None if they are not in the directory.
    """

    split: str
    checkpoint: str
    sources: list[str] | None
    references: list[str]
    hypotheses: list[str]


@dataclass
class Record:
    """What a run has recorded.

    Attributes:
        name: what the run is called in figures and tables.
        logged: the lines of metrics.jsonl, per kind. Their values may have any type.
        config: None if it can't be read.
        facts: the content of data.json; empty if there is none.
        translations: those of the test set, or else the newest ones of the dev set.
        problems: what could not be read, and why.
    """

    path: Path
    name: str
    logged: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    config: Config | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    translations: Translations | None = None
    problems: list[str] = field(default_factory=list)

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """Returns the lines of a kind, such as "dev", in the order in which they were written."""
        return self.logged.get(kind, [])

    def last(self, kind: str) -> dict[str, Any]:
        """Returns the last line of a kind; empty if there is none."""
        return (self.lines(kind) or [{}])[-1]

    def points(
        self, kind: str, key: str, x: str = "step", scale: float = 1.0
    ) -> list[tuple[float, float | None]]:
        """Returns (x * scale, value) of each line of a kind that has the key, in the order of x;
        the value is None if it is not a finite number."""
        values = {
            at * scale: number(line[key])
            for line in self.lines(kind)
            if key in line and (at := number(line.get(x))) is not None
        }
        return sorted(values.items())

    @property
    def seconds(self) -> float | None:
        """The seconds of training so far; None if none are recorded."""
        return self._largest("seconds", self.logged)

    @property
    def step(self) -> int:
        """The number of updates so far."""
        return int(self._largest("step", ("train", "dev")) or 0)

    def _largest(self, key: str, kinds: Iterable[str]) -> float | None:
        values = [number(line.get(key)) for kind in kinds for line in self.lines(kind)]
        return max((value for value in values if value is not None), default=None)

    @property
    def languages(self) -> tuple[str, str]:
        """The codes of the source and the target language; empty if they are not known."""
        data = self.config.data if self.config else None
        return (data.source_lang, data.target_lang) if data else ("", "")

    def has_spaces(self, side: int) -> bool:
        """Returns whether spaces separate the words of the source (0) or the target (1)."""
        return not self.languages[side] or has_spaces(self.languages[side])


def read(path: str | Path, name: str) -> Record:
    """Reads a model directory.

    Raises:
        UserError: a part of the directory is a link that leads out of it.
        UsageError: it is no model directory.
    """
    directory = ModelDirectory(path)
    if not directory.holds_run and not directory.own(LOG).is_file():
        what = (
            f"neither config.yaml nor {LOG} in it" if directory.path.is_dir() else "no such folder"
        )
        raise UsageError(f"{path} is not a model directory that `train` wrote (there is {what})")
    record = Record(directory.path, name)

    def attempt(reader: Callable[[], Result]) -> Result | None:
        try:
            return reader()
        except (UserError, OSError, ValueError, RecursionError) as error:
            record.problems.append(describe(error))
            return None

    for line in attempt(lambda: list(directory.logged())) or []:
        record.logged.setdefault(str(line.get("kind")), []).append(line)
    if not record.logged:
        record.problems.append(f"{LOG} has no measurements yet")
    record.config = attempt(directory.load_config)
    record.facts = attempt(lambda: _facts(directory)) or {}
    record.translations = attempt(lambda: _translations(directory, record))
    return record


def number(value: Any) -> float | None:
    """Returns a value of JSON as a finite number; None if it is anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        value = float(value)
    except OverflowError:
        return None
    return value if math.isfinite(value) and abs(value) < _LARGEST else None


def interval(line: dict[str, Any], metric: str) -> tuple[float, float] | None:
    """Returns the 95 % interval of a score in a line of metrics.jsonl; None if it has none."""
    intervals = line.get("intervals")
    ends = intervals.get(metric) if isinstance(intervals, dict) else None
    if not isinstance(ends, list) or len(ends) != 2:
        return None
    low, high = map(number, ends)
    return None if low is None or high is None else (low, high)


def _facts(directory: ModelDirectory) -> dict[str, Any]:
    path = directory.own(DATA_FACTS)
    if not path.is_file():
        return {}
    try:
        facts = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict):
        raise UserError(f"{path}: damaged: not a JSON object")
    return facts


def _translations(directory: ModelDirectory, record: Record) -> Translations | None:
    """Returns the translations of the test set, or the newest ones of the dev set if the test set
    has not been scored; None if there are neither.

    Raises:
        UserError: the numbers of lines differ.
    """
    matches = [HYPOTHESIS.fullmatch(path.name) for path in entries(directory.own("dev"))]
    newest = f"step_{max((int(match[1]) for match in matches if match), default=0)}"
    checkpoint = str(record.last("test").get("checkpoint", ""))
    splits = {"test": (checkpoint, "test."), "dev": (newest, "dev/")}
    if record.lines("dev") and not record.lines("test"):
        splits = dict(reversed(splits.items()))
    for split, (name, start) in splits.items():
        hypothesis = "test.hypothesis" if split == "test" else f"dev/{name}.hypothesis"
        paths = map(directory.own, (f"{start}source", f"{start}reference", hypothesis))
        found = [list(files.lines(path)) if path.is_file() else None for path in paths]
        sources, references, hypotheses = found
        if references is None or not hypotheses:
            continue
        counts = sorted({len(text) for text in found if text is not None})
        if len(counts) > 1:
            raise UserError(
                f"the {split} set: its sources, references and translations have different numbers "
                f"of lines: {', '.join(f'{count:,}' for count in counts)}"
            )
        return Translations(split, name, sources, references, hypotheses)
    return None


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
    values = {key: value for key in METRICS if (value := number(line.get(key))) is not None}
    if not values:
        return None
    intervals = {key: ends for key in values if (ends := interval(line, key)) is not None}
    signatures = {key: str(line.get(METRICS[key].signature_key, "")) for key in values}
    count, note = number(line.get("lines")), str(line.get("note") or "")
    return Scores(values, signatures, None, int(count or 0), note, intervals)

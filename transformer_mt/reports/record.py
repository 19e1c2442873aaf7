"""What a run has recorded in its model directory, how good its translations are, and which of them
a page shows. A directory can be read while the run trains.

Nothing is locked, and any file may be missing, damaged, or of an earlier version. What can't be
read is left out, and `Record.problems` says why.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import AliasChoices, BaseModel, Field, ValidationError, field_validator

from transformer_mt.config.schema import Config
from transformer_mt.model_directory import (
    DATA_FACTS,
    HYPOTHESIS,
    LOG,
    ModelDirectory,
    entries,
    texts,
)
from transformer_mt.reports.page import thinned
from transformer_mt.scoring.groups import Group, by_length, spread
from transformer_mt.scoring.metrics import (
    DEFAULT_METRICS,
    METRICS,
    Scores,
    note_for,
    score,
    sentence_scores,
    tokenizer_for,
    tokenizer_for_text,
)
from transformer_mt.scoring.significance import p_number
from transformer_mt.utils import files
from transformer_mt.utils.errors import UsageError, UserError, describe
from transformer_mt.utils.languages import has_spaces

Result = TypeVar("Result")

# A larger number is no measurement, and could not be drawn.
_LARGEST = 1e30
# Of a longer text, this number of lines, spread evenly over it, is scored here.
MOST_LINES = 5000
# A text is shown with at most this many sentences, and all texts in about this many bytes of HTML.
MOST_SENTENCES = 1500
MOST_BYTES = 2_000_000
# About the bytes of the HTML around a text. What marks its words is about as long as the text.
_BYTES_AROUND = 150
# The rest of a longer text is cut.
LONGEST_TEXT = 600
# Of the fixed sentences, this many sentences, and this many translations of each.
MOST_VERSIONS = 10
MOST_SAMPLES = 8

Number = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]
Interval = tuple[float, float]
EMPTY = Scores({}, {}, None, 0)


class Lenient(BaseModel):
    """The base of what data.json says. A value of the wrong form counts as missing."""

    @field_validator("*", mode="wrap")
    @classmethod
    def _default_if_wrong(cls, value: Any, validate: Callable[[Any], Any], info: Any) -> Any:
        try:
            return validate(value)
        except ValidationError:
            return cls.model_fields[info.field_name].get_default()


class Pairs(Lenient):
    """The number of some pairs of the text, and examples of them."""

    count: Number = Field(default=0, validation_alias=AliasChoices("count", "lines"))
    examples: list[list[str]] = []


class SideFacts(Lenient):
    """What data.json says about a side of the training text. `lengths` is a histogram: the shortest
    and the longest sentence of a bar, in subwords, and the number of its sentences. `rare` is the
    share of the vocabulary that occurs less than 10 times."""

    sentences: Number | None = None
    words: Number | None = None
    subwords: Number | None = None
    subwords_per_word: Number | None = None
    mean: Number | None = None
    longest: Number | None = None
    vocabulary: Number | None = None
    rare: Number | None = None
    lengths: list[tuple[Number, Number, Number]] = []


class DataFacts(Lenient):
    """What data.json says about the text of a run, as far as a page shows it. `dropped` are the
    pairs that were left out, by the reason; `overlap` those of a set of which a side is also in the
    training text."""

    files: dict[str, list[str]] = {}
    pairs: Number | None = None
    dev: Number | None = None
    test: Number | None = None
    unknown: Number | None = None
    source: SideFacts = SideFacts()
    target: SideFacts = SideFacts()
    dropped: dict[str, Pairs] = {}
    overlap: dict[str, Pairs] = {}
    copies: Pairs = Pairs()


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


class Quality(NamedTuple):
    """Scores of the translations of a run.

    Attributes:
        scores: of all translations, with 95 % intervals where they could be computed.
        translations: the lines that were scored one by one, which are some of a long text; None if
            the run has not kept its translations.
        lines: the indices of these lines in the whole text.
        total: the number of lines of the whole text.
        groups: the name, the number of lines, the BLEU and its 95 % interval of each group by the
            length of the source (of the reference if there are no sources).
        chrf: the chrF of each of `lines`.
    """

    scores: Scores = EMPTY
    translations: Translations | None = None
    lines: Sequence[int] = ()
    total: int = 0
    groups: Sequence[tuple[str, int, float, Interval]] = ()
    chrf: Sequence[float] = ()

    @property
    def split(self) -> str:
        """The set that was translated: test or dev."""
        return self.translations.split if self.translations else "test"


@dataclass
class Record:
    """What a run has recorded.

    Attributes:
        name: what the run is called in figures and tables.
        logged: the lines of metrics.jsonl, per kind. Their values may have any type.
        config: None if it can't be read.
        facts: the content of data.json.
        translations: those of the test set, or else the newest ones of the dev set.
        quality: what `judge` has found out.
        problems: what could not be read, and why.
    """

    path: Path
    name: str
    logged: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    config: Config | None = None
    facts: DataFacts = field(default_factory=DataFacts)
    translations: Translations | None = None
    quality: Quality = field(default_factory=Quality)
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
        is_folder = directory.path.is_dir()
        what = f"neither config.yaml nor {LOG} in it" if is_folder else "no such folder"
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
    record.facts = attempt(lambda: _facts(directory)) or DataFacts()
    record.translations = attempt(lambda: _translations(directory, record))
    return record


def number(value: Any) -> float | None:
    """Returns a value of JSON as a finite number; None if it is anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < _LARGEST else None  # which NaN is not


def _facts(directory: ModelDirectory) -> DataFacts | None:
    path = directory.own(DATA_FACTS)
    try:
        return DataFacts.model_validate(json.loads(path.read_bytes())) if path.is_file() else None
    except (ValueError, RecursionError):  # what pydantic raises is a ValueError
        raise UserError(f"{path}: damaged: not a JSON object") from None


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


# ---- Scores


def judge(record: Record) -> None:
    """Scores the translations of a run.

    Raises:
        UserError: a package for the tokeniser of the target language is missing.
    """
    whole = record.translations
    logged = scores_of(record.last("test"))
    record.quality = Quality(logged)
    if whole is None:
        return
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

    scores = logged if whole.split == "test" else EMPTY
    if not scores.intervals and (total <= len(lines) or not scores.values):
        metrics = scores.values or DEFAULT_METRICS
        scores = scored(Group("", list(range(len(lines)))), *metrics)
    groups = []
    for group in by_length(sources or references, record.has_spaces(0 if sources else 1)):
        own = scored(group, "bleu")
        values = own.values["bleu"], own.intervals["bleu"]
        groups.append((group.name, len(group.lines), *values))
    chrf = sentence_scores(hypotheses, [references], tokenize, ["chrf"])["chrf"]
    chosen = whole._replace(sources=sources, references=references, hypotheses=hypotheses)
    record.quality = Quality(scores, chosen, lines, total, groups, chrf)


def scores_of(line: dict[str, Any]) -> Scores:
    """Returns the scores in a line of metrics.jsonl."""
    values = {key: value for key in METRICS if (value := number(line.get(key))) is not None}
    logged = line.get("intervals")
    intervals = {}
    for key in values:
        ends = logged.get(key) if isinstance(logged, dict) else None
        if isinstance(ends, list) and len(ends) == 2 and None not in map(number, ends):
            intervals[key] = (float(ends[0]), float(ends[1]))
    signatures = {key: str(line.get(METRICS[key].signature_key, "")) for key in values}
    count, note = number(line.get("lines")), str(line.get("note") or "")
    return Scores(values, signatures, None, int(count or 0), note, intervals)


# ---- Before and after fine-tuning


class ChangedScore(NamedTuple):
    """A score before and after fine-tuning, as text."""

    label: str
    before: str
    after: str
    difference: str
    p: str


class Change(NamedTuple):
    """What fine-tuning has changed on a test set.

    Attributes:
        name: of the set, such as "general test set".
        checkpoint: the fine-tuned model.
        verdict: a sentence, as `significance.verdict` returns it.
    """

    name: str
    checkpoint: str
    verdict: str
    scores: list[ChangedScore]


def changes_of(record: Record) -> list[Change]:
    """Returns what fine-tuning has changed on each test set; nothing of other runs."""
    changes = {}
    for line in record.lines("change"):
        logged, scores = line.get("scores"), []
        for key, metric in METRICS.items():
            values = logged.get(key) if isinstance(logged, dict) else None
            if not isinstance(values, dict):
                continue
            found = [number(values.get(name)) for name in ("before", "after", "difference", "p")]
            if None not in found:
                before, after, difference = (f"{value:.{metric.digits}f}" for value in found[:3])
                sign = "" if difference.startswith("-") else "+"
                p = p_number(found[3])
                scores.append(ChangedScore(metric.label, before, after, sign + difference, p))
        name = "general test set" if line.get("set") == "general_test" else "test set"
        verdict = str(line.get("verdict") or "")[:LONGEST_TEXT]
        changes[name] = Change(name, str(line.get("checkpoint")), verdict, scores)
    return list(changes.values())


# ---- Sentences for a page


class Sentence(NamedTuple):
    """A sentence with translations of it.

    Attributes:
        source: None if it is not known.
        hypotheses: a label and a translation, of each run or of each time.
        line: its number in the text, from 0.
        scores: the chrF of each of `hypotheses`.
    """

    source: str | None
    reference: str
    hypotheses: list[tuple[str, str]]
    line: int = 0
    scores: Sequence[float] = ()

    @property
    def score(self) -> float:
        return fmean(self.scores)

    @property
    def bytes(self) -> int:
        """About its size on a page."""
        every = [self.source or "", self.reference, *(text for _, text in self.hypotheses)]
        return sum(_BYTES_AROUND + 2 * len(text.encode("utf-8", "replace")) for text in every)


def translated_texts(
    records: Sequence[Record],
) -> Iterator[tuple[list[Record], list[Sentence]]]:
    """Yields each text that runs have translated, once for all runs with the same text: the runs,
    and the sentences that are shown, the worst first."""
    together: dict[tuple, list[Record]] = {}
    for record in records:
        if (text := record.quality.translations) is not None:
            key = (text.split, tuple(text.sources or ()), tuple(text.references))
            together.setdefault(key, []).append(record)
    for runs in together.values():
        text = runs[0].quality.translations
        sentences = []
        for index, place in enumerate(runs[0].quality.lines):
            hypotheses, scores = [], [run.quality.chrf[index] for run in runs]
            for run, chrf in zip(runs, scores, strict=True):
                label = f"{run.name} ({chrf:.1f})" if len(runs) > 1 else f"chrF {chrf:.1f}"
                hypotheses.append((label, _cut(run.quality.translations.hypotheses[index])))
            source = _cut(text.sources[index]) if text.sources else None
            reference = _cut(text.references[index])
            sentences.append(Sentence(source, reference, hypotheses, place, scores))
        sentences.sort(key=lambda sentence: sentence.score)
        yield runs, _chosen(sentences, MOST_BYTES // len(together))


def _chosen(sentences: list[Sentence], room: int) -> list[Sentence]:
    """Returns the sentences that the page has room for: half of them the worst, and the others
    spread evenly over the rest.

    Args:
        sentences: the worst first.
        room: the number of bytes.
    """
    needed = sum(sentence.bytes for sentence in sentences)
    count = min(MOST_SENTENCES, len(sentences), len(sentences) * room // needed)
    worst, rest = sentences[: (count + 1) // 2], sentences[(count + 1) // 2 :]
    return worst + thinned(rest, count - len(worst))


def samples(record: Record) -> list[Sentence]:
    """Returns the fixed sentences of a run, whose translations each validation prints, with those
    translations in the order of time. Equal ones in a row are one."""
    line = record.last("samples")
    pairs = list(zip(texts(line.get("source")), texts(line.get("reference")), strict=False))
    sentences = []
    for place, (source, reference) in enumerate(pairs[:MOST_SAMPLES]):
        versions: list[tuple[str, str]] = []
        steps_and_texts = (
            (number(line.get("step")) or 0.0, text)
            for line in record.lines("dev")
            for text in texts(line.get("samples"))[place : place + 1]
        )
        for text, group in groupby(steps_and_texts, key=lambda pair: pair[1]):
            steps = [step for step, _ in group]
            label = f"step {steps[0]:,.0f}" + (f" to {steps[-1]:,.0f}" if len(steps) > 1 else "")
            versions.append((label, _cut(text)))
        if versions:
            shown = thinned(versions, MOST_VERSIONS)
            sentences.append(Sentence(_cut(source), _cut(reference), shown))
    return sentences


def _cut(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]} … ({len(text) - LONGEST_TEXT:,} more characters)"

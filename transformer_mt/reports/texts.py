"""What a report shows of the texts of runs: facts about the data, the translations from worst to
best, and those of a few sentences over time."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import fmean
from typing import Any, NamedTuple

from transformer_mt.model_directory import texts
from transformer_mt.reports import charts
from transformer_mt.reports.charts import Figure, Line, shown_number, thinned
from transformer_mt.reports.page import Table
from transformer_mt.reports.record import Quality, Record, Translations, number

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
_SIDE = {
    "sentences": "sentences",
    "words": "words",
    "subwords": "subwords",
    "subwords_per_word": "subwords per word",
    "mean": "subwords per sentence, mean",
    "longest": "subwords of the longest sentence",
    "vocabulary": "vocabulary",
}


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
    def spread(self) -> float:
        return max(self.scores) - min(self.scores)


class TranslatedText(NamedTuple):
    """A text, and the runs that have translated it.

    Attributes:
        names: of the runs, each with the checkpoint that has translated.
        total: the number of sentences of the whole text.
        sentences: those that are shown, the worst first.
    """

    record: Record
    split: str
    names: str
    runs: int
    total: int
    sentences: list[Sentence]


class Facts(NamedTuple):
    """What data.json says about the data of some runs.

    Attributes:
        names: of the runs.
        tables, lengths: empty if these facts were not recorded.
        dropped: the counts of pairs that were left out, by the reason; None if there are none.
        examples: sentences about pairs, each with examples of them, which may be missing.
    """

    names: list[str]
    tables: list[Table]
    lengths: Figure | None
    dropped: Table | None
    examples: list[tuple[str, list[list[str]]]]


def translated_texts(
    records: Sequence[Record], judged: Sequence[Quality]
) -> Iterator[TranslatedText]:
    """Yields each text that runs have translated, once for all runs with the same text."""
    together: dict[tuple, list[tuple[Record, Quality, Translations]]] = {}
    for record, quality in zip(records, judged, strict=True):
        if (text := quality.translations) is not None:
            key = (text.split, tuple(text.sources or ()), tuple(text.references))
            together.setdefault(key, []).append((record, quality, text))
    for runs in together.values():
        record, quality, text = runs[0]
        sentences = []
        for line, place in enumerate(quality.lines):
            source = _cut(text.sources[line]) if text.sources else None
            hypotheses = []
            for run, scored, translated in runs:
                label = f"chrF {scored.chrf[line]:.1f}"
                if len(runs) > 1:
                    label = f"{run.name} ({scored.chrf[line]:.1f})"
                hypotheses.append((label, _cut(translated.hypotheses[line])))
            scores = [scored.chrf[line] for _, scored, _ in runs]
            reference = _cut(text.references[line])
            sentences.append(Sentence(source, reference, hypotheses, place, scores))
        names = ", ".join(
            f"{run.name}: {own.checkpoint or 'unknown checkpoint'}" for run, _, own in runs
        )
        sentences.sort(key=lambda sentence: sentence.score)
        shown = _chosen(sentences, MOST_BYTES // len(together))
        yield TranslatedText(record, text.split, names, len(runs), quality.total, shown)


def _chosen(sentences: list[Sentence], room: int) -> list[Sentence]:
    """Returns the sentences that the page has room for: half of them the worst, and the others
    spread evenly over the rest.

    Args:
        sentences: the worst first.
        room: the number of bytes.
    """
    count = min(MOST_SENTENCES, len(sentences))
    while True:
        worst, rest = sentences[: (count + 1) // 2], sentences[(count + 1) // 2 :]
        others = count - len(worst)
        shown = worst + [rest[(i + 1) * len(rest) // others - 1] for i in range(others)]
        if count <= 2 or sum(map(_bytes, shown)) <= room:
            return shown
        count = count * 3 // 4


def _bytes(sentence: Sentence) -> int:
    parts = [sentence.source or "", sentence.reference, *(text for _, text in sentence.hypotheses)]
    return sum(_BYTES_AROUND + 2 * len(part.encode("utf-8", "replace")) for part in parts)


def samples(record: Record) -> list[Sentence]:
    """Returns the fixed sentences of a run, whose translations each validation prints."""
    line = record.last("samples")
    pairs = list(zip(texts(line.get("source")), texts(line.get("reference")), strict=False))
    sentences = [
        Sentence(_cut(source), _cut(reference), _versions(record, place))
        for place, (source, reference) in enumerate(pairs[:MOST_SAMPLES])
    ]
    return [sentence for sentence in sentences if sentence.hypotheses]


def _versions(record: Record, place: int) -> list[tuple[str, str]]:
    """Returns the translations of a fixed sentence in the order of time, each with its steps. Equal
    ones in a row are one."""
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
    return thinned(versions, MOST_VERSIONS)


def _cut(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]} … ({len(text) - LONGEST_TEXT:,} more characters)"


def data_facts(records: Sequence[Record]) -> list[Facts]:
    """Returns what is known about the data of runs; runs with the same data are together."""
    distinct: list[dict[str, Any]] = []
    for record in records:
        if record.facts not in distinct:
            distinct.append(record.facts)
    return [
        _facts(facts, [record.name for record in records if record.facts == facts])
        for facts in distinct
    ]


def _facts(facts: dict[str, Any], names: list[str]) -> Facts:
    """Returns the facts of a data.json, whose values may have any type."""
    if not facts:
        return Facts(names, [], None, None, [])
    rows = [
        ["training pairs", _count(facts, "pairs")],
        ["dev pairs", _count(facts, "dev")],
        ["test pairs", _count(facts, "test")],
        ["unknown subwords in the training text", _count(facts, "unknown")],
    ]
    files = _dict(facts, "files").items()
    rows += [[f"{name} files", ", ".join(texts(paths))] for name, paths in files if texts(paths)]
    sides = {name: _dict(facts, name) for name in ("source", "target")}
    of_sides = [
        [label, *(_count(side, key) for side in sides.values())] for key, label in _SIDE.items()
    ]
    rare = [number(side.get("rare")) for side in sides.values()]
    shares = ["–" if share is None else f"{share:.1%}" for share in rare]
    of_sides.append(["subwords of the vocabulary that occur less than 10 times", *shares])
    lengths = [
        Line(name, points, place)
        for place, (name, side) in enumerate(sides.items(), 1)
        if (points := _lengths(side.get("lengths")))
    ]
    dropped = _dict(facts, "dropped")
    counts = {reason: number(_dict(dropped, reason).get("count")) or 0 for reason in dropped}
    left_out = [[reason, f"{count:,.0f}"] for reason, count in counts.items()]
    examples = [
        (f"Examples: {reason}", _dict(dropped, reason))
        for reason in dropped
        if any(counts.values())
    ]
    overlaps = _dict(facts, "overlap")
    for name in overlaps:
        text = f"Lines of the {name} set of which a side is also in the training text"
        if number(_dict(overlaps, name).get("lines")):
            examples.append((f"{text}: {_count(overlaps[name], 'lines')}", overlaps[name]))
    copies = _dict(facts, "copies")
    if number(copies.get("count")):
        text = "Training pairs whose target is a copy of the source"
        examples.append((f"{text}: {_count(copies, 'count')}", copies))
    return Facts(
        names,
        [
            Table(["", ""], rows, sides="<"),
            Table(["", *sides], of_sides, "Of the training text:"),
        ],
        charts.lines("Lengths of sentences", "subwords", "sentences", lengths) if lengths else None,
        Table(["Pairs that were left out", "pairs"], left_out) if any(counts.values()) else None,
        [(text, _pairs(value.get("examples"))) for text, value in examples],
    )


def _lengths(value: Any) -> list[tuple[float, float | None]]:
    """Returns the middle of each interval of lengths, and the number of sentences in it."""
    points = []
    for interval in value if isinstance(value, list) else ():
        ends = [number(part) for part in interval] if isinstance(interval, list) else []
        if len(ends) == 3 and None not in ends:
            points.append(((ends[0] + ends[1]) / 2, ends[2]))
    return sorted(points)


def _pairs(examples: Any) -> list[list[str]]:
    pairs = [texts(pair) for pair in examples[:10]] if isinstance(examples, list) else []
    return [[text[:400] for text in pair[:2]] for pair in pairs if pair]


def _count(facts: dict[str, Any], key: str) -> str:
    return shown_number(number(facts.get(key)))


def _dict(facts: dict[str, Any], key: str) -> dict[str, Any]:
    value = facts.get(key)
    return value if isinstance(value, dict) else {}

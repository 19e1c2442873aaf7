"""The report of one run, or of several side by side, as one self-contained HTML page."""

import json
import os
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from transformer_mt.config import file as config_file
from transformer_mt.config.schema import SECTIONS
from transformer_mt.model_directory import require_safe_outputs, texts
from transformer_mt.reports import attention, page
from transformer_mt.reports.attention import Side
from transformer_mt.reports.page import (
    ACCENT,
    BACKGROUND,
    Bars,
    Figure,
    Line,
    Table,
    render,
    shown_number,
)
from transformer_mt.reports.record import (
    DataFacts,
    Record,
    changes_of,
    judge,
    number,
    read,
    samples,
    translated_texts,
)
from transformer_mt.scoring.metrics import METRICS
from transformer_mt.utils.console import duration
from transformer_mt.utils.errors import UsageError, UserError, describe
from transformer_mt.utils.files import write_atomically

# Attention is drawn for sentences of at most this many subwords, whose maps are readable.
LONGEST = 40
# Where the sentences are in the order from the worst translation (0) to the best (1).
PLACES = (0.1, 0.5, 0.9)
# Below this number of hours of training, the time is shown in minutes.
_FEW_HOURS = 0.5


class Curve(NamedTuple):
    """A figure of the report.

    Attributes:
        key: of the lines of metrics.jsonl. The loss and the first of the metrics are what a page
            shows at once.
        unit: of the y-axis.
        kinds: the kinds of lines that have the key.
        scale: a factor for the values.
    """

    title: str
    key: str
    unit: str
    kinds: tuple[str, ...] = ("train",)
    log: bool = False
    scale: float = 1.0
    note: str = ""


_BOTH, _NATS = ("train", "dev"), "nats per target subword"
_LOSS = "The smoothed loss, which training lowers. With label smoothing, it cannot reach 0."
_GENERAL = "The general dev set is text of the kind that the model before fine-tuning was made for."
_NLL = "The loss without label smoothing. During training, dropout raises it."
CURVES = [
    Curve("Loss", "loss", _NATS, _BOTH, note=_LOSS),
    Curve("Negative log-likelihood", "nll", _NATS, _BOTH, note=_NLL),
    Curve("Perplexity", "perplexity", "exp(nll), log scale", _BOTH, log=True),
    Curve(
        "Perplexity of the general dev set",
        "perplexity",
        "exp(nll)",
        ("general_dev",),
        note=_GENERAL,
    ),
    *(
        Curve(
            f"{metric.label} of the dev set",
            key,
            "0 to 100" + ("" if metric.higher_is_better else ", lower is better"),
            ("dev", "general_dev"),
        )
        for key, metric in METRICS.items()
    ),
    Curve("Learning rate", "learning_rate", ""),
    Curve("Gradient norm", "gradient_norm", "largest since the last line, log scale", log=True),
    Curve("Speed", "tokens_per_second", "target subwords per second"),
    Curve("Padding", "padding", "% of the cells of batches", scale=100.0),
]


def write_report(model_dirs: Sequence[str | Path], output: str | Path) -> None:
    """Writes the report of one run or of several, which may be training.

    Raises:
        UserError: a model directory has a link that leads out of it, or the file can't be written.
        UsageError: a folder is no model directory, or the file belongs to one.
        ModuleNotFoundError: Jinja2 or Matplotlib is not installed.
    """
    folders = [Path(folder) for folder in model_dirs]
    require_safe_outputs({"--output": Path(output)}, {})
    records = [read(folder, name) for folder, name in zip(folders, _names(folders), strict=True)]
    for record in records:
        try:
            judge(record)
        except UserError as error:
            record.problems.append(f"the translations could not be scored: {error}")
    longest = max((record.seconds or 0.0 for record in records), default=0.0) / 3600
    unit, seconds = ("hours", 3600.0) if longest >= _FEW_HOURS else ("minutes", 60.0)
    pages, notes = _attention_pages(records)
    text = render(
        "run.html",
        title="Report: " + ", ".join(record.name for record in records),
        records=records,
        metrics=METRICS,
        glance=_glance(records),
        curves=[
            (kind, *_figures(records, *axis))
            for kind, axis in (
                ("steps", ("step", 1.0, "step")),
                ("time", ("seconds", 1 / seconds, f"{unit} of training")),
            )
        ],
        unit=unit,
        scores=_scores(records),
        changes=[table for record in records if (table := _changes(record))],
        mixes=[figure for record in records if (figure := _mixes(record))],
        texts=list(translated_texts(records)),
        samples=[(record, samples(record)) for record in records],
        attention=pages,
        attention_notes=notes,
        data=_data(records),
        settings=_settings(records),
        configs=[(one.name, config_file.dump(one.config)) for one in records if one.config],
        starts=[(record.name, line) for record in records for line in record.lines("start")],
        cell=_cell,
        changes_of=changes_of,
    )
    write_atomically(output, text)


def _names(folders: Sequence[Path]) -> list[str]:
    """Returns the names of the folders, or their paths where two have the same name."""
    names = [os.path.basename(os.path.realpath(folder)) for folder in folders]
    return [
        name if names.count(name) == 1 else str(folder)
        for folder, name in zip(folders, names, strict=True)
    ]


# ------------------------------------------------------------------------------------------ glance


def _glance(records: Sequence[Record]) -> Table:
    columns = [dict(facts) for facts in map(_facts, records)]
    names = list(dict.fromkeys(name for column in columns for name in column))
    rows = [[name, *(column.get(name, "–") for column in columns)] for name in names]
    return Table(["", *(record.name for record in records)], rows, sides="<")


def _facts(record: Record) -> Iterator[tuple[str, str]]:
    """Yields what is most important about a run: a name and a value of each fact."""
    start = record.last("start")
    total = number(start.get("total_steps"))
    state = "training, or stopped: no end is recorded"
    if (total and record.step >= total) or record.lines("test"):
        state = "finished early" if total and record.step < total else "finished"
    yield "state", state
    yield "steps", f"{record.step:,}" + (f" of {total:,.0f}" if total else "")
    every = [line for lines in record.logged.values() for line in lines]
    epochs = [number(line.get("epoch")) for line in every if "seconds" in line]
    if known := [epoch for epoch in epochs if epoch is not None]:
        yield "epochs", f"{max(known):,.0f}"
    if record.seconds is not None:
        yield "time of training", duration(record.seconds)
    if (parameters := number(start.get("parameters"))) is not None:
        yield "parameters", f"{parameters:,.0f}"
    measured = [("nll", "lowest dev nll", False)]
    measured += [(key, f"best dev {m.label}", m.higher_is_better) for key, m in METRICS.items()]
    for key, label, higher_is_better in measured:
        if points := [(y, x) for x, y in record.points("dev", key) if y is not None]:
            best = max if higher_is_better else min
            value, step = best(points, key=lambda point: point[0])
            yield label, f"{shown_number(value)} at step {step:,.0f}"
    skipped = [number(line.get("skipped")) or 0 for line in record.lines("train")]
    yield "skipped updates", f"{max([*skipped, len(record.lines('skipped'))]):,.0f}"
    if times := [str(line["time"]) for line in every if "time" in line]:
        yield "last recorded", max(times)[:100].replace("T", " ")


# ------------------------------------------------------------------------------------------ curves


def _figures(
    records: Sequence[Record], x: str, scale: float, label: str
) -> tuple[list[Figure], list[Figure]]:
    """Returns the curves that most readers look at, which are the loss and a score of the dev set,
    and the others."""
    first: dict[str, Figure] = {}
    others: list[Figure] = []
    for curve in CURVES:
        drawn = _lines(records, curve, x, scale)
        if not any(value is not None for line in drawn for _, value in line.points):
            continue
        figure = page.lines(curve.title, label, curve.unit, drawn, log=curve.log, note=curve.note)
        subject = "score" if curve.key in METRICS else curve.key
        if subject in ("loss", "score") and subject not in first:
            first[subject] = figure
        else:
            others.append(figure)
    return list(first.values()), others


def _lines(records: Sequence[Record], curve: Curve, x: str, scale: float) -> list[Line]:
    """Returns the lines of a figure. In one run, the dev set has the accent colour. In several
    runs, each run has its colour, and what is not measured on the dev set is dashed."""
    drawn = []
    for place, record in enumerate(records, 1):
        for kind in curve.kinds:
            points = record.points(kind, curve.key, x, scale)
            points = [(at, None if y is None else y * curve.scale) for at, y in points]
            if not any(y is not None for _, y in points):
                continue
            is_second = kind != "dev" and len(curve.kinds) > 1
            label = kind.replace("_", " ")
            if len(records) > 1:
                is_alone = len(curve.kinds) == 1 or (kind == "dev" and "train" not in curve.kinds)
                name = record.name if is_alone else f"{record.name}, {label}"
                drawn.append(Line(name, points, place, is_second))
                continue
            second = BACKGROUND if kind == "train" else 1
            drawn.append(Line(label, points, second if is_second else ACCENT))
            if kind == "dev" and (best := _best(record, curve, x, scale)):
                drawn.append(best)
    return drawn


def _best(record: Record, curve: Curve, x: str, scale: float) -> Line | None:
    """Returns the place of the best checkpoint on a curve, if it is known."""
    best: dict[str, Any] = next(
        (line for line in reversed(record.lines("dev")) if line.get("best") is True), {}
    )
    step, at, value = (number(best.get(key)) for key in ("step", x, curve.key))
    if step is None or at is None or value is None:
        return None
    return Line(f"best checkpoint (step {step:,.0f})", [(at * scale, value * curve.scale)], ACCENT)


# ------------------------------------------------------------------------------------------ scores


def _changes(record: Record) -> Table | None:
    """Returns the table of the scores before and after fine-tuning; None if there are none."""
    rows = [[change.name, *score] for change in changes_of(record) for score in change.scores]
    columns = ["set", "metric", "before", "after", "difference", "p"]
    return (
        Table(columns, rows, f"{record.name}: before and after fine-tuning", "<<>")
        if rows
        else None
    )


def _scores(records: Sequence[Record]) -> list[Figure]:
    """Returns the figures of the scores."""
    keys = list(dict.fromkeys(key for record in records for key in record.quality.scores.values))
    if not keys:
        return []
    drawn = []
    for place, record in enumerate(records, 1):
        scores = record.quality.scores
        values, ends = map(scores.values.get, keys), map(scores.intervals.get, keys)
        series = place if len(records) > 1 else ACCENT
        drawn.append(Bars(record.name, list(values), list(ends), series))
    splits = sorted({record.quality.split for record in records if record.quality.scores.values})
    title = "Scores of " + " and ".join(f"the {split} set" for split in splits)
    figures = [page.bars(title, [METRICS[key].label for key in keys], "score", drawn)]
    if any(record.quality.groups for record in records):
        figures.append(_by_length(records))
    return figures


def _mixes(record: Record) -> Figure | None:
    """Returns the figure of the mixes of the model before fine-tuning and the model after; None if
    the run has not tried any."""
    lines = record.lines("mix")
    keys = [key for key in METRICS if any(number(line.get(key)) is not None for line in lines)]
    if not keys:
        return None
    key = record.config.training.best_metric if record.config else keys[0]
    key = key if key in keys else keys[0]
    drawn = []
    for series, kind in enumerate(dict.fromkeys(str(line.get("set")) for line in lines), 1):
        points = [
            (100 * share, number(line.get(key)))
            for line in lines
            if str(line.get("set")) == kind and (share := number(line.get("share"))) is not None
        ]
        drawn.append(Line(kind.replace("_", " ")[:40], sorted(points), series))
    title = f"{record.name}: mixes of the model before and the model after fine-tuning"
    note = "At 0 % are the weights of the model before, at 100 % those after training."
    return page.lines(title, "% of the model after", METRICS[key].label, drawn, note=note)


def _by_length(records: Sequence[Record]) -> Figure:
    """Returns the figure of BLEU by the length of a sentence."""
    counts = {name: count for record in records for name, count, *_ in record.quality.groups}
    drawn = []
    for place, record in enumerate(records, 1):
        values = {name: bleu for name, _, bleu, _ in record.quality.groups}
        ends = {name: interval for name, *_, interval in record.quality.groups}
        columns = [values.get(name) for name in counts], [ends.get(name) for name in counts]
        drawn.append(Bars(record.name, *columns, place if len(records) > 1 else ACCENT))
    texts = [record.quality.translations for record in records]
    by = "source" if all(text is None or text.sources for text in texts) else "reference"
    labels = [f"{name} ({count:,})" for name, count in counts.items()]
    note = "In parentheses: the number of sentences. Few sentences have a wide interval."
    if any(record.quality.total > len(record.quality.lines) for record in records):
        note += " Of a long text, only some lines, spread evenly over it, are counted here."
    return page.bars(f"BLEU by the length of the {by}", labels, "BLEU", drawn, note=note)


# --------------------------------------------------------------------------------------- attention


def _attention_pages(records: Sequence[Record]) -> tuple[list[tuple[str, str]], list[str]]:
    """Returns the attention maps of the runs, a title and HTML each, and why some are missing."""
    pages: list[tuple[str, str]] = []
    notes: list[str] = []
    for record in records:
        try:
            pages += _attention(record, is_only=len(records) == 1)
        except (UserError, OSError) as error:
            notes.append(f"There are no attention maps of {record.name}: {describe(error)}")
    return pages, notes


def _attention(record: Record, is_only: bool) -> Iterator[tuple[str, str]]:
    """Yields the attention maps of a bad, a middling and a good translation; of several runs, those
    of one sentence, which is the same if they have translated the same text.

    Raises:
        UserError: the model has no checkpoint yet, can't give its attention, or is damaged.
    """
    pairs = _pairs(record, by_score=is_only)
    if not pairs:
        raise UserError("it has not kept translations with their sources")
    spec = attention.find(record.path)
    labels, vocabularies = ("Source", "Translation"), (spec.subwords.source, spec.subwords.target)
    chosen: list[list[Side]] = []
    for place in PLACES if is_only else (0.5,):
        first = int(place * len(pairs))
        for pair in pairs[first:] + pairs[:first]:
            found = [
                Side(label, text, subwords.encode(text))
                for label, text, subwords in zip(labels, pair, vocabularies, strict=True)
            ]
            if found not in chosen and all(0 < len(side.ids) <= LONGEST for side in found):
                chosen.append(found)
                break
    if not chosen:
        raise UsageError(f"no sentence has from 1 to {LONGEST} subwords on both sides")
    engine = attention.load(spec)
    for source, target in chosen:
        yield f"{record.name}: {source.text}", attention.draw(spec, engine, source, target)


def _pairs(record: Record, by_score: bool) -> list[tuple[str, str]]:
    """Returns sources and their translations, from the worst to the best or in the order of the
    text; if the run has kept none, those of the last validation's samples."""
    text, chrf = record.quality.translations, record.quality.chrf
    if text is not None and text.sources is not None:
        pairs = list(zip(text.sources, text.hypotheses, strict=True))
        if by_score:
            pairs = [pairs[line] for line in sorted(range(len(pairs)), key=chrf.__getitem__)]
        return pairs
    sources = texts(record.last("samples").get("source"))
    return list(zip(sources, texts(record.last("dev").get("samples")), strict=False))


# ------------------------------------------------------------------------------------------- data


def _data(records: Sequence[Record]) -> list[tuple[list[str], DataFacts, Figure | None]]:
    """Returns what is known about the text of the runs: the names of runs with the same text, the
    facts, and a figure of the lengths of sentences, if they are known."""
    data: list[tuple[list[str], DataFacts, Figure | None]] = []
    for facts in (record.facts for record in records):
        if any(facts == known for _, known, _ in data):
            continue
        lengths = [
            Line(name, sorted(((low + high) / 2, count) for low, high, count in lengths), series)
            for series, (name, lengths) in enumerate(
                (("source", facts.source.lengths), ("target", facts.target.lengths)), 1
            )
            if lengths
        ]
        title = "Lengths of sentences"
        figure = page.lines(title, "subwords", "sentences", lengths) if lengths else None
        names = [record.name for record in records if record.facts == facts]
        data.append((names, facts, figure))
    return data


# --------------------------------------------------------------------------------------- settings


def _settings(records: Sequence[Record]) -> list[tuple[str, list[str], str]]:
    """Returns the settings that differ from their default in a run: the key, its value in each run
    whose config could be read, and the default."""
    configs = [record.config for record in records if record.config is not None]
    names = dict.fromkeys(name for config in configs for name in config_file.changed(config))
    return [
        (name, [_shown(attrgetter(name)(config)) for config in configs], _default(name))
        for name in names
    ]


def _default(name: str) -> str:
    section, _, key = name.partition(".")
    field = SECTIONS[section].model_fields[key] if key else None
    return "–" if field is None or field.is_required() else _shown(field.default)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _cell(value: Any) -> str:
    return shown_number(number(value)) if number(value) is not None else str(value)[:200]

"""The report of one run, or of several side by side, as one self-contained HTML page."""

import json
import os
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from transformer_mt.config import file as config_file
from transformer_mt.config.schema import SECTIONS, Config
from transformer_mt.model_directory import require_safe_outputs, texts
from transformer_mt.reports import attention, charts
from transformer_mt.reports.attention import Side
from transformer_mt.reports.charts import Bars, Figure, Line, shown_number
from transformer_mt.reports.page import Table, render
from transformer_mt.reports.record import Quality, Record, judge, number, read
from transformer_mt.reports.texts import data_facts, samples, translated_texts
from transformer_mt.scoring.metrics import METRICS, Scores
from transformer_mt.utils.console import duration
from transformer_mt.utils.errors import UsageError, UserError, describe
from transformer_mt.utils.files import write_atomically

# Attention is drawn for sentences of at most this many subwords, whose maps are readable; in all
# pages together, for at most this many characters of data.
LONGEST = 40
MOST_CHARACTERS = 1_500_000
# Where the sentences are in the order from the worst translation (0) to the best (1).
PLACES = (0.1, 0.5, 0.9)
# Below this number of hours of training, the time is shown in minutes.
_FEW_HOURS = 0.5
_ENVIRONMENT = {
    "time": "begun",
    "step": "from step",
    "version": "transformer_mt",
    "paddle": "Paddle",
    "python": "Python",
    "device": "device",
    "device_name": "processor",
    "cores": "cores",
    "memory_gb": "memory (GB)",
}


class Curve(NamedTuple):
    """A figure of the report.

    Attributes:
        key: of the lines of metrics.jsonl.
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
_NLL = "The loss without label smoothing. During training, dropout raises it."
CURVES = [
    Curve("Loss", "loss", _NATS, _BOTH, note=_LOSS),
    Curve("Negative log-likelihood", "nll", _NATS, _BOTH, note=_NLL),
    Curve("Perplexity", "perplexity", "exp(nll), log scale", _BOTH, log=True),
    *(
        Curve(
            f"{metric.label} of the dev set",
            key,
            f"{metric.label}, 0 to 100" + ("" if metric.higher_is_better else ", lower is better"),
            ("dev",),
        )
        for key, metric in METRICS.items()
    ),
    Curve("Learning rate", "learning_rate", "learning rate"),
    Curve("Gradient norm", "gradient_norm", "largest since the last line, log scale", log=True),
    Curve("Speed", "tokens_per_second", "target subwords per second"),
    Curve("Padding", "padding", "% of the cells of batches", scale=100.0),
]


class AttentionPage(NamedTuple):
    """A page of attention maps, and the sentence that it is of."""

    title: str
    html: str


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
    judged = list(map(_judged, records))
    write_atomically(output, report_page(records, judged, *_attention_pages(records, judged)))


def _names(folders: Sequence[Path]) -> list[str]:
    """Returns the names of the folders, or their paths where two have the same name."""
    names = [os.path.basename(os.path.realpath(folder)) for folder in folders]
    return [
        name if names.count(name) == 1 else str(folder)
        for folder, name in zip(folders, names, strict=True)
    ]


def _judged(record: Record) -> Quality:
    try:
        return judge(record)
    except UserError as error:
        record.problems.append(f"the translations could not be scored: {error}")
        return Quality(None)


def report_page(
    records: Sequence[Record],
    judged: Sequence[Quality],
    attention: Sequence[AttentionPage],
    notes: Sequence[str],
) -> str:
    """Returns the page.

    Args:
        judged: the scores of the translations of each run.
        notes: why some attention maps are missing.
    """
    longest = max((record.seconds or 0.0 for record in records), default=0.0) / 3600
    unit, seconds = ("hours", 3600.0) if longest >= _FEW_HOURS else ("minutes", 60.0)
    return render(
        "run.html",
        title="Report: " + ", ".join(record.name for record in records),
        records=records,
        glance=_glance(records, judged),
        over_steps=_figures(records, "step", 1.0, "step"),
        over_time=_figures(records, "seconds", 1 / seconds, f"{unit} of training"),
        unit=unit,
        scores=_scores(records, judged),
        texts=list(translated_texts(records, judged)),
        samples=[(record, samples(record)) for record in records],
        attention=attention,
        attention_notes=notes,
        data=data_facts(records),
        config=_config([record for record in records if record.config is not None]),
        machine=_machine(records),
    )


# ------------------------------------------------------------------------------------------ glance


def _glance(records: Sequence[Record], judged: Sequence[Quality]) -> Table:
    columns = [dict(facts) for facts in map(_facts, records, judged)]
    names = list(dict.fromkeys(name for column in columns for name in column))
    rows = [[name, *(column.get(name, "–") for column in columns)] for name in names]
    return Table(["", *(record.name for record in records)], rows, sides="<")


def _facts(record: Record, quality: Quality) -> Iterator[tuple[str, str]]:
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
    if quality.scores is not None:
        for key in quality.scores.values:
            yield f"{_split(quality)} {METRICS[key].label}", quality.scores.shown(key)
    skipped = [number(line.get("skipped")) or 0 for line in record.lines("train")]
    yield "skipped updates", f"{max([*skipped, len(record.lines('skipped'))]):,.0f}"
    if times := [str(line["time"]) for line in every if "time" in line]:
        yield "last recorded", max(times)[:100].replace("T", " ")


def _split(quality: Quality) -> str:
    return quality.translations.split if quality.translations else "test"


# ------------------------------------------------------------------------------------------ curves


def _figures(records: Sequence[Record], x: str, scale: float, label: str) -> list[Figure]:
    figures = []
    for curve in CURVES:
        drawn = _lines(records, curve, x, scale)
        if any(value is not None for line in drawn for _, value in line.points):
            figures.append(
                charts.lines(curve.title, label, curve.unit, drawn, log=curve.log, note=curve.note)
            )
    return figures


def _lines(records: Sequence[Record], curve: Curve, x: str, scale: float) -> list[Line]:
    """Returns the lines of a figure. In one run, each kind of line has its colour. In several runs,
    each run has its colour, and what is measured in training is dashed."""
    drawn = []
    for place, record in enumerate(records, 1):
        for kind in curve.kinds:
            points = record.points(kind, curve.key, x, scale)
            points = [(at, None if y is None else y * curve.scale) for at, y in points]
            if not any(y is not None for _, y in points):
                continue
            is_second = kind == "train" and len(curve.kinds) > 1
            if len(records) > 1:
                label = f"{record.name}, {kind}" if len(curve.kinds) > 1 else record.name
                drawn.append(Line(label, points, place, is_second))
                continue
            drawn.append(Line(kind, points, 2 if is_second else 1))
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
    return Line(f"best checkpoint (step {step:,.0f})", [(at * scale, value * curve.scale)], 3)


# ------------------------------------------------------------------------------------------ scores


class _Scored(NamedTuple):
    """A run that has scores; `place` is the number of its colour."""

    place: int
    name: str
    quality: Quality
    scores: Scores


def _scores(records: Sequence[Record], judged: Sequence[Quality]) -> dict[str, Any] | None:
    """Returns what is scored, the figures of the scores, and their signatures; None if no run has
    scores."""
    runs = [
        _Scored(place, record.name, quality, quality.scores)
        for place, (record, quality) in enumerate(zip(records, judged, strict=True), 1)
        if quality.scores is not None
    ]
    if not runs:
        return None
    keys = list(dict.fromkeys(key for run in runs for key in run.scores.values))
    bars = [
        Bars(
            run.name,
            [run.scores.values.get(key) for key in keys],
            [run.scores.intervals.get(key) for key in keys],
            run.place,
        )
        for run in runs
    ]
    what = " and ".join(f"the {split} set" for split in sorted({_split(r.quality) for r in runs}))
    labels = [METRICS[key].label for key in keys]
    figures = [charts.bars(f"Scores of {what}", labels, "score", bars)]
    if any(run.quality.groups for run in runs):
        figures.append(_by_length(runs))
    rows = []
    for run in runs:
        rows += [
            [run.name, METRICS[key].label, run.scores.shown(key), signature]
            for key, signature in run.scores.signatures.items()
        ]
        rows += [[run.name, "note", "", run.scores.note]] if run.scores.note else []
    signatures = Table(["run", "metric", "score", "signature"], rows, sides="<<><")
    return {"what": what, "figures": figures, "signatures": signatures}


def _by_length(runs: list[_Scored]) -> Figure:
    """Returns the figure of BLEU by the length of a sentence."""
    counts = {group.name: group.lines for run in runs for group in run.quality.groups}
    bars = []
    for run in runs:
        groups = {group.name: group for group in run.quality.groups}
        own = [groups.get(name) for name in counts]
        values = [group and group.bleu for group in own]
        bars.append(Bars(run.name, values, [group and group.interval for group in own], run.place))
    texts = [run.quality.translations for run in runs]
    by = "source" if all(text is None or text.sources for text in texts) else "reference"
    labels = [f"{name} ({count:,})" for name, count in counts.items()]
    note = "In parentheses: the number of sentences. Few sentences have a wide interval."
    if any(run.quality.total > len(run.quality.lines) for run in runs):
        note += " Of a long text, only some lines, spread evenly over it, are counted here."
    return charts.bars(f"BLEU by the length of the {by}", labels, "BLEU", bars, note=note)


# --------------------------------------------------------------------------------------- attention


def _attention_pages(
    records: Sequence[Record], judged: Sequence[Quality]
) -> tuple[list[AttentionPage], list[str]]:
    """Returns the attention maps of the runs, and why some are missing."""
    pages: list[AttentionPage] = []
    notes: list[str] = []
    room = MOST_CHARACTERS
    for record, quality in zip(records, judged, strict=True):
        try:
            for page in _attention(record, quality, is_only=len(records) == 1):
                if len(page.html) <= room:
                    room -= len(page.html)
                    pages.append(page)
                else:
                    notes.append(f"{page.title}: left out, because the maps are too large")
        except (UserError, OSError) as error:
            notes.append(f"There are no attention maps of {record.name}: {describe(error)}")
    return pages, notes


def _attention(record: Record, quality: Quality, is_only: bool) -> Iterator[AttentionPage]:
    """Yields the attention maps of a bad, a middling and a good translation; of several runs, those
    of one sentence, which is the same if they have translated the same text.

    Raises:
        UserError: the model has no checkpoint yet, can't give its attention, or is damaged.
    """
    pairs = _pairs(record, quality, by_score=is_only)
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
        title = f"{record.name}: {source.text}"
        yield AttentionPage(title, attention.draw(spec, engine, source, target))


def _pairs(record: Record, quality: Quality, by_score: bool) -> list[tuple[str, str]]:
    """Returns sources and their translations, from the worst to the best or in the order of the
    text; if the run has kept none, those of the last validation's samples."""
    text = quality.translations
    if text is not None and text.sources is not None:
        order = list(range(len(quality.chrf)))
        if by_score:
            order.sort(key=quality.chrf.__getitem__)
        return [(text.sources[line], text.hypotheses[line]) for line in order]
    sources = texts(record.last("samples").get("source"))
    return list(zip(sources, texts(record.last("dev").get("samples")), strict=False))


# ----------------------------------------------------------------------- the config and the machine


def _config(records: Sequence[Record]) -> dict[str, Any]:
    """Returns the tables of settings that differ, and the whole config of each run."""
    configs = {record.name: record.config for record in records if record.config}
    names = {name for config in configs.values() for name in config_file.changed(config)}
    ordered = ["model_dir"]
    ordered += [f"{name}.{key}" for name, part in SECTIONS.items() for key in part.model_fields]
    rows = [
        [name, *(_value(config, name) for config in configs.values()), _default(name)]
        for name in ordered
        if name in names
    ]
    differing = [row for row in rows if len(set(row[1:-1])) > 1]
    tables = []
    if differing:
        title = "Between the runs, these differ:"
        tables.append(Table(["key", *configs, "default"], differing, title, sides="<"))
    title = "These differ from the defaults" + (", in all runs:" if len(configs) > 1 else ":")
    same = [[row[0], row[1], row[-1]] for row in rows if row not in differing]
    tables.append(Table(["key", "value", "default"], same, title, sides="<"))
    whole = {name: config_file.dump(config) for name, config in configs.items()}
    return {"tables": tables, "whole": whole}


def _default(name: str) -> str:
    section, _, key = name.partition(".")
    field = SECTIONS[section].model_fields[key] if key else None
    return "–" if field is None or field.is_required() else _shown(field.default)


def _value(config: Config, name: str) -> str:
    return _shown(attrgetter(name)(config))


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _machine(records: Sequence[Record]) -> Table:
    starts = [(record, line) for record in records for line in record.lines("start")]
    keys = [key for key in _ENVIRONMENT if any(key in line for _, line in starts)]
    rows = [[record.name, *(_cell(line.get(key)) for key in keys)] for record, line in starts]
    return Table(["run", *(_ENVIRONMENT[key] for key in keys)], rows, sides="<")


def _cell(value: Any) -> str:
    return shown_number(number(value)) if number(value) is not None else str(value)[:200]

"""The report of one run, or of several side by side, as one self-contained HTML page."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_mt.config import file as config_file
from transformer_mt.config.schema import SECTIONS
from transformer_mt.evaluation.metrics import METRICS
from transformer_mt.inspect.quality import Quality
from transformer_mt.inspect.record import Record, number
from transformer_mt.pages import charts
from transformer_mt.pages.charts import Bars, shown_number
from transformer_mt.pages.page import escaped, page, section, table
from transformer_mt.pages.report_curves import curves
from transformer_mt.pages.report_data import data_facts
from transformer_mt.pages.report_translations import samples, translations
from transformer_mt.utils.console import duration

SCRIPT = Path(__file__).with_name("report.js")
# Reports the height of a page of attention maps, which is in a frame, to the page around it.
_HEIGHT = """<script>
const post = () => parent.postMessage({height: document.documentElement.offsetHeight}, "*");
new ResizeObserver(post).observe(document.body);
post();  // a frame that is not in view observes nothing
</script></body>"""
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


class AttentionPage(NamedTuple):
    """A page of attention maps, and the sentence that it is of."""

    title: str
    html: str


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
    title = "Report: " + ", ".join(record.name for record in records)
    sections = {
        "At a glance": _glance(records, judged),
        "Curves": _curves(records),
        "Scores": _scores(records, judged),
        "Translations": "\n".join(translations(records, judged)) or _no_translations(),
        "The same sentences over time": samples(records),
        "Attention": _attention(attention, notes),
        "Data": data_facts(records),
        "Config": _config(records),
        "Machine": _machine(records),
    }
    links = "".join(
        f'<a href="#part-{number}">{escaped(name)}</a>' for number, name in enumerate(sections)
    )
    parts = "\n".join(
        f'<div id="part-{number}">{html}</div>' for number, html in enumerate(sections.values())
    )
    body = (
        f'<h1>{escaped(title)}</h1>\n<nav aria-label="Parts of the report">{links}</nav>\n{parts}'
    )
    return page(title, body, SCRIPT.read_text(encoding="utf-8"), frames=True)


# ------------------------------------------------------------------------------------------ glance


def _glance(records: Sequence[Record], judged: Sequence[Quality]) -> str:
    columns = [dict(_facts(*pair)) for pair in zip(records, judged, strict=True)]
    names = list(dict.fromkeys(name for column in columns for name in column))
    rows = [[name, *(column.get(name, "–") for column in columns)] for name in names]
    heads = ["", *(record.name for record in records)]
    problems = [
        f"<li>{escaped(record.name)}: {escaped(problem)}</li>"
        for record in records
        for problem in record.problems
    ]
    missing = f"<p>What could not be read:</p><ul>{''.join(problems)}</ul>" if problems else ""
    return section("At a glance", table(heads, rows, sides="<" * len(heads)), missing)


def _facts(record: Record, quality: Quality) -> Iterator[tuple[str, str]]:
    """Yields what is most important about a run: a name and a value of each fact."""
    start = record.last("start")
    total = number(start.get("total_steps"))
    steps = f"{record.step:,}" + (f" of {total:,.0f}" if total else "")
    if total and record.step >= total:
        yield "state", "finished"
    elif record.lines("test"):
        yield "state", "finished early" if total else "finished"
    else:
        yield "state", "training, or stopped: no end is recorded"
    yield "steps", steps
    every = [line for lines in record.logged.values() for line in lines]
    epochs = [number(line.get("epoch")) for line in every if "seconds" in line]
    if known := [epoch for epoch in epochs if epoch is not None]:
        yield "epochs", f"{max(known):,.0f}"
    if record.seconds is not None:
        yield "time of training", duration(record.seconds)
    if (parameters := number(start.get("parameters"))) is not None:
        yield "parameters", f"{parameters:,.0f}"
    for key, label, best in (
        ("nll", "lowest dev nll", min),
        *((key, f"best dev {metric.label}", _better(metric)) for key, metric in METRICS.items()),
    ):
        known = [(y, x) for x, y in record.points("dev", key) if y is not None]
        if known:
            value, step = best(known, key=lambda pair: pair[0])
            yield label, f"{shown_number(value)} at step {step:,.0f}"
    if quality.scores is not None:
        split = quality.translations.split if quality.translations else "test"
        for key in quality.scores.values:
            yield f"{split} {METRICS[key].label}", quality.scores.shown(key)
    skipped = [number(line.get("skipped")) or 0 for line in record.lines("train")]
    yield "skipped updates", f"{max([*skipped, len(record.lines('skipped'))]):,.0f}"
    if times := [str(line["time"]) for line in every if "time" in line]:
        yield "last recorded", max(times)[:100].replace("T", " ")


def _better(metric: Any) -> Any:
    return max if metric.higher_is_better else min


# ------------------------------------------------------------------------------------- the figures


def _curves(records: Sequence[Record]) -> str:
    over_steps, over_time, unit = curves(records)
    if not over_steps and not over_time:
        return section("Curves", '<p class="quiet">No measurements have been recorded yet.</p>')
    choice = (
        '<div class="tools" role="group" aria-label="The horizontal axis of the figures">'
        '<button type="button" data-axis="steps" aria-pressed="true">over steps</button> '
        f'<button type="button" data-axis="time" aria-pressed="false">over {unit}</button></div>'
    )
    return section(
        "Curves",
        choice if over_time else '<p class="quiet">These runs have not recorded the time.</p>',
        f'<div class="figures over-steps">{over_steps}</div>',
        f'<div class="figures over-time">{over_time}</div>' if over_time else "",
    )


def _scores(records: Sequence[Record], judged: Sequence[Quality]) -> str:
    found = [
        (place, record, quality)
        for place, (record, quality) in enumerate(zip(records, judged, strict=True), 1)
        if quality.scores is not None
    ]
    if not found:
        text = "There are no scores yet, and no translations with references to compute them from."
        return section("Scores", f'<p class="quiet">{text}</p>')
    keys = list(dict.fromkeys(key for _, _, quality in found for key in quality.scores.values))
    bars = [
        Bars(
            record.name,
            [quality.scores.values.get(key) for key in keys],
            [quality.scores.intervals.get(key) for key in keys],
            place,
        )
        for place, record, quality in found
    ]
    splits = {
        quality.translations.split if quality.translations else "test" for *_, quality in found
    }
    what = " and ".join(f"the {split} set" for split in sorted(splits))
    figures = [
        charts.bars(f"Scores of {what}", [METRICS[key].label for key in keys], "score", bars)
    ]
    names = list(dict.fromkeys(group.name for *_, quality in found for group in quality.groups))
    if names:
        figures.append(_by_length(found, names))
    rows = []
    for _, record, quality in found:
        rows += [
            [record.name, METRICS[key].label, quality.scores.shown(key), signature]
            for key, signature in quality.scores.signatures.items()
        ]
        rows += [[record.name, "note", "", quality.scores.note]] if quality.scores.note else []
    signatures = table(["run", "metric", "score", "signature"], rows, sides="<<><")
    return section(
        "Scores",
        f"<p>Of {what}, with 95 % confidence intervals where they could be computed (bootstrap "
        "resampling). If the intervals of two runs overlap, the command compare tells whether the "
        "difference may be chance.</p>",
        f'<div class="figures">{"".join(figures)}</div>',
        f"<details><summary>Signatures</summary>{signatures}</details>",
    )


def _by_length(found: list[tuple[int, Record, Quality]], names: list[str]) -> str:
    """Returns the figure of BLEU by length, whose groups are ordered as `names`."""
    bars, counts = [], {}
    for place, record, quality in found:
        groups = {group.name: group for group in quality.groups}
        counts |= {name: group.lines for name, group in groups.items()}
        own = [groups.get(name) for name in names]
        values = [group and group.bleu for group in own]
        bars.append(Bars(record.name, values, [group and group.interval for group in own], place))
    has_sources = all(q.translations is None or q.translations.sources for *_, q in found)
    by = "source" if has_sources else "reference"
    labels = [f"{name} ({counts[name]:,})" for name in names]
    note = "In parentheses: the number of sentences. Few sentences have a wide interval."
    if any(quality.total > len(quality.lines) for *_, quality in found):
        note += " Of a long text, only some lines, spread evenly over it, are counted here."
    return charts.bars(f"BLEU by the length of the {by}", labels, "BLEU", bars, note=note)


def _no_translations() -> str:
    text = "There are no translations with their references in the model directory yet."
    return section("Translations", f'<p class="quiet">{text}</p>')


def _attention(pages: Sequence[AttentionPage], notes: Sequence[str]) -> str:
    frames = [
        f'<details class="attention"{"" if place else " open"}>'
        f'<summary>{escaped(one.title)}</summary><iframe sandbox="allow-scripts" '
        f'title="Attention maps of {escaped(one.title)}" '
        f'data-page="{escaped(one.html.replace("</body>", _HEIGHT))}"></iframe></details>'
        for place, one in enumerate(pages)
    ]
    reasons = [f'<p class="quiet">{escaped(note)}</p>' for note in notes]
    about = "<p>Which subwords a model looks at when it translates a sentence.</p>"
    return section("Attention", *([about] if pages else []), *frames, *reasons)


# ----------------------------------------------------------------------- the config and the machine


def _config(records: Sequence[Record]) -> str:
    known = [record for record in records if record.config is not None]
    if not known:
        return section("Config", '<p class="quiet">No config could be read.</p>')
    changes = [config_file.changed(record.config) for record in known]
    names = {name for change in changes for name in change}
    ordered = ["model_dir"]
    ordered += [f"{name}.{key}" for name, part in SECTIONS.items() for key in part.model_fields]
    rows = [
        [name, *(_value(record.config, name) for record in known), _default(name)]
        for name in ordered
        if name in names
    ]
    tables = []
    if len(known) > 1:
        differing = [row for row in rows if len(set(row[1:-1])) > 1]
        head = ["key", *(record.name for record in known), "default"]
        title = "Between the runs, these differ:"
        if differing:
            tables.append(table(head, differing, title, sides="<" * len(head)))
        rows = [row for row in rows if row not in differing]
    rows = [[row[0], row[1], row[-1]] for row in rows]
    title = "These differ from the defaults" + (", in all runs:" if len(known) > 1 else ":")
    tables.append(table(["key", "value", "default"], rows, title, sides="<<<"))
    whole = [
        f"<details><summary>The whole config of {escaped(record.name)}</summary>"
        f"<pre>{escaped(config_file.dump(record.config))}</pre></details>"
        for record in known
    ]
    return section("Config", *tables, *whole)


def _default(name: str) -> str:
    section_name, _, key = name.partition(".")
    if not key or SECTIONS[section_name].model_fields[key].is_required():
        return "–"
    return _shown(SECTIONS[section_name].model_fields[key].default)


def _value(config: Any, name: str) -> str:
    for part in name.split("."):
        config = getattr(config, part)
    return _shown(config)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _machine(records: Sequence[Record]) -> str:
    starts = [(record, line) for record in records for line in record.lines("start")]
    if not starts:
        text = "The versions and the hardware were not recorded: an earlier version has trained."
        return section("Machine and versions", f'<p class="quiet">{text}</p>')
    keys = [key for key in _ENVIRONMENT if any(key in line for _, line in starts)]
    head = ["run", *(_ENVIRONMENT[key] for key in keys)]
    rows = [[record.name, *(_cell(line.get(key)) for key in keys)] for record, line in starts]
    return section(
        "Machine and versions",
        "<p>A run that was stopped and resumed has a row for each part.</p>",
        table(head, rows, sides="<" * len(head)),
    )


def _cell(value: Any) -> str:
    return shown_number(number(value)) if number(value) is not None else str(value)[:200]

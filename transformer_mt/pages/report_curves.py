"""The curves of a report: how the measurements of runs change over steps and over time."""

from collections.abc import Sequence
from typing import NamedTuple

from transformer_mt.evaluation.metrics import METRICS
from transformer_mt.inspect.record import Record, number
from transformer_mt.pages import charts
from transformer_mt.pages.charts import Line

NATS = "nats per target subword"
# Below this number of hours of training, the time is shown in minutes.
_FEW_HOURS = 0.5


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


_BOTH = ("train", "dev")
CURVES = [
    Curve(
        "Loss",
        "loss",
        NATS,
        _BOTH,
        note="The smoothed loss, which training lowers. With label smoothing, it cannot reach 0.",
    ),
    Curve(
        "Negative log-likelihood",
        "nll",
        NATS,
        _BOTH,
        note="The loss without label smoothing. During training, dropout raises it.",
    ),
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
    Curve(
        "Gradient norm",
        "gradient_norm",
        "largest since the last line, log scale",
        log=True,
    ),
    Curve("Speed", "tokens_per_second", "target subwords per second"),
    Curve("Padding", "padding", "% of the cells of batches", scale=100.0),
]


def curves(records: Sequence[Record]) -> tuple[str, str, str]:
    """Returns the figures over steps and those over time, as HTML, and the unit of the time.

    Figures over time, and the unit, are empty if no run has recorded times.
    """
    longest = max((record.seconds or 0.0 for record in records), default=0.0) / 3600
    unit, seconds = ("hours", 3600.0) if longest >= _FEW_HOURS else ("minutes", 60.0)
    over_steps = _figures(records, "step", 1.0, "step")
    over_time = _figures(records, "seconds", 1 / seconds, f"{unit} of training")
    return over_steps, over_time, unit if over_time else ""


def _figures(records: Sequence[Record], x: str, scale: float, label: str) -> str:
    found = []
    for curve in CURVES:
        drawn = _lines(records, curve, x, scale)
        if any(value is not None for line in drawn for _, value in line.points):
            options = {"log": curve.log, "note": curve.note}
            found.append(charts.lines(curve.title, label, curve.unit, drawn, **options))
    return "\n".join(found)


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
            if len(records) > 1:
                label = f"{record.name}, {kind}" if len(curve.kinds) > 1 else record.name
                is_dashed = kind == "train" and len(curve.kinds) > 1
                drawn.append(Line(label, points, place, is_dashed))
                continue
            series = 2 if kind == "train" and len(curve.kinds) > 1 else 1
            drawn.append(Line(kind, points, series))
            if kind == "dev" and (best := _best(record, curve, x, scale)):
                drawn.append(Line(f"best checkpoint ({best[0]})", [best[1:]], 3))
    return drawn


def _best(
    record: Record, curve: Curve, x: str, scale: float
) -> tuple[str, float, float | None] | None:
    """Returns the name, the place and the value of the best checkpoint on a curve, if known."""
    chosen = [line for line in record.lines("dev") if line.get("best") is True]
    if not chosen:
        return None
    step, at, value = (number(chosen[-1].get(key)) for key in ("step", x, curve.key))
    if step is None or at is None or value is None:
        return None
    return f"step {step:,.0f}", at * scale, value * curve.scale

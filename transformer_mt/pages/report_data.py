"""What a report says about the text that runs were trained on, from data.json."""

from collections.abc import Iterator, Sequence
from typing import Any

from transformer_mt.inspect.record import Record, number
from transformer_mt.model_directory import texts
from transformer_mt.pages import charts
from transformer_mt.pages.charts import Line, shown_number
from transformer_mt.pages.page import escaped, section, table

_SIDE = {
    "sentences": "sentences",
    "words": "words",
    "subwords": "subwords",
    "subwords_per_word": "subwords per word",
    "mean": "subwords per sentence, mean",
    "longest": "subwords of the longest sentence",
    "vocabulary": "vocabulary",
}


def data_facts(records: Sequence[Record]) -> str:
    """Returns the section about the data. Runs with the same data are shown once."""
    groups: list[tuple[dict[str, Any], list[str]]] = []
    for record in records:
        for facts, names in groups:
            if facts == record.facts:
                names.append(record.name)
                break
        else:
            groups.append((record.facts, [record.name]))
    parts = []
    for facts, names in groups:
        parts += [f"<h3>{escaped(', '.join(names))}</h3>"] if len(groups) > 1 else []
        parts += _facts(facts) if facts else [_quiet("These facts were not recorded (data.json).")]
    return section("Data", *parts)


def _quiet(text: str) -> str:
    return f'<p class="quiet">{escaped(text)}</p>'


def _facts(facts: dict[str, Any]) -> Iterator[str]:
    files = _dict(facts.get("files"))
    rows = [
        ["training pairs", _count(facts, "pairs")],
        ["dev pairs", _count(facts, "dev")],
        ["test pairs", _count(facts, "test")],
        ["unknown subwords in the training text", _count(facts, "unknown")],
    ]
    rows += [[f"{name} files", ", ".join(texts(own))] for name, own in files.items() if texts(own)]
    yield table(["", ""], rows, sides="<<")
    sides = {name: _dict(facts.get(name)) for name in ("source", "target")}
    rows = [
        [label, *(shown_number(number(side.get(key))) for side in sides.values())]
        for key, label in _SIDE.items()
    ]
    rare = [number(side.get("rare")) for side in sides.values()]
    shares = ["–" if share is None else f"{share:.1%}" for share in rare]
    rows.append(["subwords of the vocabulary that occur less than 10 times", *shares])
    yield table(["", *sides], rows, "Of the training text:")
    if lengths := [
        Line(name, points, place)
        for place, (name, side) in enumerate(sides.items(), 1)
        if (points := _lengths(side.get("lengths")))
    ]:
        figure = charts.lines("Lengths of sentences", "subwords", "sentences", lengths)
        yield f'<div class="figures">{figure}</div>'
    yield from _dropped(_dict(facts.get("dropped")))
    for name, overlap in _dict(facts.get("overlap")).items():
        overlap = _dict(overlap)
        if number(overlap.get("lines")):
            count = shown_number(number(overlap["lines"]))
            text = f"Lines of the {name} set of which a side is also in the training text: {count}"
            yield _with_examples(text, overlap.get("examples"))
    copies = _dict(facts.get("copies"))
    if number(copies.get("count")):
        count = shown_number(number(copies["count"]))
        text = f"Training pairs whose target is a copy of the source: {count}"
        yield _with_examples(text, copies.get("examples"))


def _lengths(value: Any) -> list[tuple[float, float | None]]:
    """Returns the middle of each interval of lengths, and the number of sentences in it."""
    points = []
    for interval in value if isinstance(value, list) else ():
        ends = [number(part) for part in interval] if isinstance(interval, list) else []
        if len(ends) == 3 and None not in ends:
            points.append(((ends[0] + ends[1]) / 2, ends[2]))
    return sorted(points)


def _dropped(dropped: dict[str, Any]) -> Iterator[str]:
    counts = {reason: number(_dict(value).get("count")) or 0 for reason, value in dropped.items()}
    if not any(counts.values()):
        yield _quiet("No pair of the training text was left out.")
        return
    rows = [[reason, f"{count:,.0f}"] for reason, count in counts.items()]
    yield table(["Pairs that were left out", "pairs"], rows)
    for reason, value in dropped.items():
        yield _with_examples(f"Examples: {reason}", _dict(value).get("examples"))


def _with_examples(text: str, examples: Any) -> str:
    """Returns a sentence that opens to examples of pairs, if there are any."""
    pairs = [texts(pair) for pair in examples[:10]] if isinstance(examples, list) else []
    rows = "".join(
        '<div class="pair"><dl>'
        + "".join(
            f'<dt>{name}</dt><dd dir="auto">{escaped(text[:400])}</dd>'
            for name, text in zip(("source", "target"), pair, strict=False)
        )
        + "</dl></div>"
        for pair in pairs
        if pair
    )
    if not rows:
        return f"<p>{escaped(text)}.</p>"
    return f"<details><summary>{escaped(text)}</summary>{rows}</details>"


def _count(facts: dict[str, Any], key: str) -> str:
    return shown_number(number(facts.get(key)))


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

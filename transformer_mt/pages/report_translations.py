"""The translations of a report: from worst to best, and those of a few sentences over time."""

from collections.abc import Callable, Sequence
from functools import cache
from statistics import fmean

from transformer_mt.evaluation.differences import differences
from transformer_mt.inspect.quality import Quality
from transformer_mt.inspect.record import Record, number
from transformer_mt.model_directory import texts
from transformer_mt.pages.page import escaped, marked, section

# A text is shown with at most this many sentences, and all texts in this many bytes of HTML.
MOST_SENTENCES = 1500
MOST_BYTES = 2_000_000
# The rest of a longer text is cut.
LONGEST_TEXT = 600
# Of the fixed sentences, this many sentences, and this many translations of each.
MOST_VERSIONS = 10
MOST_SAMPLES = 8


def translations(records: Sequence[Record], judged: Sequence[Quality]) -> list[str]:
    """Returns a section of sentences for each text that runs have translated. Runs that have
    translated the same text are shown together."""
    together: dict[tuple, list[tuple[Record, Quality]]] = {}
    for record, quality in zip(records, judged, strict=True):
        if quality.translations is not None:
            text = quality.translations
            key = (text.split, tuple(text.sources or ()), tuple(text.references))
            together.setdefault(key, []).append((record, quality))
    return [_sentences(runs, len(together)) for runs in together.values()]


def _sentences(runs: list[tuple[Record, Quality]], texts: int) -> str:
    """Returns the section of one of several texts."""
    record, quality = runs[0]
    text = quality.translations
    order = sorted(
        range(len(quality.lines)), key=lambda line: fmean(own.chrf[line] for _, own in runs)
    )
    html = cache(lambda line: _sentence(line, runs))
    shown = _chosen(order, html, MOST_BYTES // texts)
    names = ", ".join(
        f"{own.name}: {quality.translations.checkpoint or 'unknown checkpoint'}"
        for own, quality in runs
    )
    what = f"the {text.split} set ({names})"
    count = f"All {quality.total:,} sentences of {what}"
    if len(shown) < quality.total:
        count = (
            f"{len(shown):,} of the {quality.total:,} sentences of {what}: the worst ones, and "
            "others spread evenly over the rest, because the page would be too large with all"
        )
    title = "Translations, from worst to best" + (f": {record.name}" if texts > 1 else "")
    marked = "Marked words differ from the reference" + (
        "; in the reference, from the translation." if len(runs) == 1 else "."
    )
    orders = {"worst": "worst first", "best": "best first", "line": "in the order of the text"}
    orders["length"] = "longest first"
    if len(runs) > 1:
        orders["spread"] = "largest difference between runs first"
    options = "".join(f'<option value="{key}">{name}</option>' for key, name in orders.items())
    return section(
        title,
        f"<p>{escaped(count)}. They are ordered by chrF, the score of each sentence. "
        f"{escaped(marked)} A low score is not always a bad translation: the reference is only "
        "one of many good ones.</p>",
        '<div class="sentences"><div class="tools" hidden>'
        '<label>Search <input type="search" placeholder="a word"></label> '
        f"<label>Order <select>{options}</select></label> "
        '<span class="quiet" role="status"></span></div>',
        "\n".join(shown),
        '<button type="button" class="more" hidden>Show more</button></div>',
    )


def _chosen(order: list[int], html: Callable[[int], str], room: int) -> list[str]:
    """Returns the HTML of the lines that the page has room for: half of them the worst, and the
    others spread evenly over the rest.

    Args:
        order: the lines, worst first.
        html: returns the HTML of a line.
        room: the number of bytes.
    """
    count = min(MOST_SENTENCES, len(order))
    while True:
        worst, rest = order[: (count + 1) // 2], order[(count + 1) // 2 :]
        others = count - len(worst)
        lines = worst + [rest[(i + 1) * len(rest) // others - 1] for i in range(others)]
        shown = [html(line) for line in lines]
        if count <= 2 or sum(len(one.encode()) for one in shown) <= room:
            return shown
        count = count * 3 // 4


def _sentence(line: int, runs: list[tuple[Record, Quality]]) -> str:
    """Returns one sentence with its translations."""
    record, quality = runs[0]
    text = quality.translations
    source_lang, target_lang = record.languages
    spaces = record.has_spaces(1)
    reference = _cut(text.references[line])
    scores = [own.chrf[line] for _, own in runs]
    rows, marked_reference = [], escaped(reference)
    for own, other in runs:
        hypothesis = _cut(other.translations.hypotheses[line])
        hypothesis, in_reference = _differences(hypothesis, reference, spaces)
        score = f"{other.chrf[line]:.1f}"
        label = f"chrF {score}" if len(runs) == 1 else f"{own.name} ({score})"
        rows.append(_row(label, hypothesis, target_lang))
        if len(runs) == 1:
            marked_reference = in_reference
    first = [_row("source", escaped(_cut(text.sources[line])), source_lang)] if text.sources else []
    number = quality.lines[line]
    return (
        f'<div class="pair" data-line="{number}" data-score="{fmean(scores):.3f}" '
        f'data-spread="{max(scores) - min(scores):.3f}">'
        f'<p class="note">line {number + 1:,}</p><dl>'
        + "".join([*first, *rows, _row("reference", marked_reference, target_lang)])
        + "</dl></div>"
    )


def samples(records: Sequence[Record]) -> str:
    """Returns the section of the fixed sentences, whose translations each validation prints."""
    parts = []
    for record in records:
        parts += [f"<h3>{escaped(record.name)}</h3>"] if len(records) > 1 else []
        own = _samples_of(record)
        parts += own or ['<p class="quiet">This run has recorded no sentences yet.</p>']
    return section(
        "The same sentences over time",
        "<p>How validations translated a few sentences of the dev set. Marked words differ from "
        "the reference.</p>",
        *parts,
        id="samples",
    )


def _samples_of(record: Record) -> list[str]:
    line = record.last("samples")
    pairs = zip(texts(line.get("source")), texts(line.get("reference")), strict=False)
    source_lang, target_lang = record.languages
    found = []
    for place, (source, reference) in enumerate(list(pairs)[:MOST_SAMPLES]):
        versions = _versions(record, place)
        if not versions:
            break
        rows = [_row("source", escaped(_cut(source)), source_lang)]
        for steps, text in versions:
            html, _ = _differences(_cut(text), _cut(reference), record.has_spaces(1))
            rows.append(_row(steps, html, target_lang))
        rows.append(_row("reference", escaped(_cut(reference)), target_lang))
        found.append(f'<div class="pair"><dl>{"".join(rows)}</dl></div>')
    return found


def _versions(record: Record, place: int) -> list[tuple[str, str]]:
    """Returns the translations of a fixed sentence in the order of time, each with its steps. Equal
    ones in a row are one."""
    versions: list[tuple[str, list[float]]] = []
    for line in record.lines("dev"):
        step = number(line.get("step")) or 0.0
        for text in texts(line.get("samples"))[place : place + 1]:
            if versions and versions[-1][0] == text:
                versions[-1][1].append(step)
            else:
                versions.append((text, [step]))
    if len(versions) > MOST_VERSIONS:
        last = MOST_VERSIONS - 1
        kept = {round(i * (len(versions) - 1) / last) for i in range(MOST_VERSIONS)}
        versions = [versions[i] for i in sorted(kept)]
    return [
        (f"step {steps[0]:,.0f}" + (f" to {steps[-1]:,.0f}" if len(steps) > 1 else ""), text)
        for text, steps in versions
    ]


def _differences(hypothesis: str, reference: str, spaces: bool) -> tuple[str, str]:
    """Returns two texts as HTML, with the words marked in which they differ."""
    if not hypothesis.strip():
        return '<span class="quiet">(empty)</span>', escaped(reference)
    one, other = differences(hypothesis, reference, spaces)
    return marked(one, spaces), marked(other, spaces)


def _row(label: str, html: str, lang: str) -> str:
    return f'<dt>{escaped(label)}</dt><dd dir="auto" lang="{escaped(lang)}">{html}</dd>'


def _cut(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]} … ({len(text) - LONGEST_TEXT:,} more characters)"

"""A comparison of systems as text for the terminal, 80 columns wide except for sentences."""

from collections.abc import Iterator
from textwrap import wrap

from transformer_mt.evaluation.comparison import (
    SENTENCE_METRIC,
    Comparison,
    Contrast,
    Example,
)
from transformer_mt.evaluation.differences import Piece, Shares, differences
from transformer_mt.evaluation.metrics import METRICS
from transformer_mt.evaluation.paired_tests import MetricComparison
from transformer_mt.evaluation.verdict import p_number
from transformer_mt.utils.console import table, visible

# ANSI escapes of the words that only the baseline has, and of those that only the system has.
_RED, _GREEN, _END = "\x1b[31m", "\x1b[32m", "\x1b[0m"
# The width of verdicts and notes, in columns.
_WIDTH = 80


def as_text(comparison: Comparison, colour: bool = False) -> str:
    """Returns the whole comparison as text. Differing words are in [brackets].

    Args:
        colour: whether to colour these words too, by ANSI escapes.
    """
    return "\n".join(_lines(comparison, colour))


def _lines(comparison: Comparison, colour: bool) -> Iterator[str]:
    for system in comparison.systems:
        baseline = "  (baseline)" if system is comparison.baseline else ""
        yield f"{system.letter}  {visible(system.name)}{baseline}"
    yield f"{comparison.lines:,} lines, {_references(comparison)}"
    yield ""
    for contrast in comparison.contrasts:
        yield from wrap(str(contrast.verdict), _WIDTH)
        yield ""
    for note in comparison.caveats:
        yield from wrap(f"note: {note}", _WIDTH)
        yield ""
    for one in comparison.metrics:
        yield from table(score_rows(comparison, one))
        yield ""
    for contrast in comparison.contrasts:
        yield from _contrast(comparison, contrast, colour)
        yield ""
    for one in comparison.metrics:
        yield from one.signatures.values()


def _references(comparison: Comparison) -> str:
    count = len(comparison.references)
    return "one reference each" if count == 1 else f"{count} references each"


def score_rows(comparison: Comparison, one: MetricComparison) -> list[tuple[str, ...]]:
    """Returns the table of the systems' scores in a metric, with its head. The p-values are shown
    as "–" where a system has no other translations than the baseline: sacreBLEU's mean nothing
    there."""
    head = ("", one.metric.label, "95 % interval", f"minus {comparison.baseline.letter}")
    rows = [(*head, "95 % interval", "bootstrap p", "randomised p")]
    for system, own in zip(comparison.systems, one.scores, strict=True):
        cells = [system.letter, f"{own.value:.2f}", _interval(own.interval)]
        if (difference := own.difference) is None:
            cells += [""] * 4
        else:
            cells += [f"{difference.value:+.2f}", _interval(difference.interval, "+")]
            p_values = difference.bootstrap_p, difference.randomisation_p
            cells += [p_number(p) if difference.changed else "–" for p in p_values]
        rows.append(tuple(cells))
    return rows


def _interval(ends: tuple[float, float], sign: str = "") -> str:
    lower, upper = (f"{end:{sign}.2f}" for end in ends)
    return f"{lower} to {upper}"


def _contrast(comparison: Comparison, contrast: Contrast, colour: bool) -> Iterator[str]:
    letter, baseline = contrast.system.letter, comparison.baseline.letter
    yield f"{letter} beside {baseline}, sentence by sentence:"
    yield f"  {share_text(contrast.shares)}"
    for title, rows in group_tables(comparison, contrast):
        yield ""
        yield from wrap(f"{title[0].upper()}{title[1:]}:", _WIDTH)
        yield from table(rows, indent="  ")
    for side, examples in (("gained", contrast.better), ("lost", contrast.worse)):
        if examples:
            yield ""
            yield f"Sentences in which {letter} {side} most:"
        for example in examples:
            yield ""
            yield from _example(comparison, contrast, example, colour)


def share_text(counts: Shares) -> str:
    """Returns, for example, "better 40 (40.0 %), worse 35 (35.0 %), unchanged 25 (25.0 %)"."""
    return ", ".join(
        f"{name} {count:,} ({100 * count / counts.total:.1f} %)"
        for name, count in counts._asdict().items()
    )


def group_tables(
    comparison: Comparison, contrast: Contrast
) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """Yields what the lines are grouped by, and the table of the groups with its head."""
    label = comparison.metrics[0].metric.label
    letters = comparison.baseline.letter, contrast.system.letter
    head = ("", "lines", *(f"{letter} {label}" for letter in letters), "difference")
    for title, groups in contrast.groups.items():
        rows: list[tuple[str, ...]] = [(*head, "better", "worse", "unchanged")]
        for group in groups:
            scores = f"{group.before:.2f}", f"{group.after:.2f}"
            difference = f"{group.after - group.before:+.2f}"
            counts = (f"{count:,}" for count in group.shares)
            rows.append((group.name, f"{group.shares.total:,}", *scores, difference, *counts))
        yield title, rows


def _example(
    comparison: Comparison, contrast: Contrast, example: Example, colour: bool
) -> Iterator[str]:
    line = example.line
    yield f"Line {line + 1}: {change_text(example)}"
    texts = [("source", comparison.sources[line])] if comparison.sources else []
    texts += [("reference", reference[line]) for reference in comparison.references]
    marked = differences(
        comparison.baseline.translations[line],
        contrast.system.translations[line],
        comparison.spaces,
    )
    letters = comparison.baseline.letter, contrast.system.letter
    for letter, pieces, code in zip(letters, marked, (_RED, _GREEN), strict=True):
        texts.append((letter, _marked(pieces, comparison.spaces, code if colour else "")))
    for label, text in texts:
        shown = text if label in letters else visible(text)
        yield f"  {label:11}{shown or '(empty)'}"


def change_text(example: Example) -> str:
    """Returns, for example, "chrF 41.2 → 78.9 (+37.7)"."""
    before, after = example.before, example.after
    return f"{METRICS[SENTENCE_METRIC].label} {before:.1f} → {after:.1f} ({after - before:+.1f})"


def _marked(pieces: list[Piece], spaces: bool, code: str) -> str:
    """A text whose differing pieces are in brackets, and in a colour if there is a code for it."""
    start, end = (code, _END) if code else ("", "")
    if not any(piece.text for piece in pieces):
        return ""
    return (" " if spaces else "").join(
        f"{start}[{visible(piece.text)}]{end}" if piece.differs else visible(piece.text)
        for piece in pieces
    )

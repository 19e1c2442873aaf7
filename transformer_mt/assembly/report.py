"""Writes the report of runs: reads their model directories, scores their translations, and draws
their attention."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from transformer_mt.assembly import attention
from transformer_mt.assembly.attention import Side
from transformer_mt.inspect.quality import Quality, judge
from transformer_mt.inspect.record import Record, read
from transformer_mt.model_directory import require_safe_outputs, texts
from transformer_mt.pages.report_page import AttentionPage, report_page
from transformer_mt.utils.errors import UsageError, UserError, describe
from transformer_mt.utils.files import write_atomically

# Attention is drawn for sentences of at most this many subwords, whose maps are readable; in all
# pages together, for at most this many characters of data.
LONGEST = 40
MOST_CHARACTERS = 1_500_000
# Where the sentences are in the order from the worst translation (0) to the best (1).
PLACES = (0.1, 0.5, 0.9)


def write_report(model_dirs: Sequence[str | Path], output: str | Path) -> None:
    """Writes the report of one run or of several, which may be training.

    Raises:
        UserError: a model directory has a link that leads out of it, or the file can't be written.
        UsageError: a folder is no model directory, or the file belongs to one.
    """
    folders = [Path(folder) for folder in model_dirs]
    require_safe_outputs({"--output": Path(output)}, {})
    records = [read(folder, name) for folder, name in zip(folders, _names(folders), strict=True)]
    judged = [_judged(record) for record in records]
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
    write_atomically(output, report_page(records, judged, pages, notes))


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
    sides = (spec.subwords.source, spec.subwords.target)
    chosen: list[list[Side]] = []
    for place in PLACES if is_only else (0.5,):
        first = int(place * len(pairs))
        for pair in pairs[first:] + pairs[:first]:
            own = [
                Side(label, text, vocabulary.encode(text))
                for label, text, vocabulary in zip(
                    ("Source", "Translation"), pair, sides, strict=True
                )
            ]
            if own not in chosen and all(0 < len(side.ids) <= LONGEST for side in own):
                chosen.append(own)
                break
    if not chosen:
        raise UsageError(f"no sentence has from 1 to {LONGEST} subwords on both sides")
    engine = spec.load()
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

"""What goes into a translator and what comes out of it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

from transformer_mt.data import alignments
from transformer_mt.data.alignments import Link
from transformer_mt.data.vocabulary import Place
from transformer_mt.decoding.checks import Warning


class Line(NamedTuple):
    """A line to translate. Its translation begins with `prefix`."""

    text: str
    prefix: str = ""


class LinePart(NamedTuple):
    """A part of a line that is translated by itself.

    Attributes:
        start, end: its place in the line.
        text: what is translated: the part, with the tags of its line before it.
        before: what stands before its translation in that of the line.
    """

    start: int
    end: int
    text: str
    before: str


@dataclass(frozen=True)
class Output:
    """A translation of a line.

    Attributes:
        score: the log-probability divided by the length penalty.
        log_prob: in nats.
        pieces: the subwords.
        alignment: if asked for, pairs (source word, target word), both from 0.
        words: if `alignment` is there, the place in the text of each word that it counts.
        parts: the place in the text of each part that was translated by itself.
    """

    text: str
    score: float
    log_prob: float
    pieces: list[str]
    alignment: list[Link] | None = None
    words: list[Place] | None = None
    parts: list[Place] = field(default_factory=list)


def unchecked(text: str) -> list[Warning]:
    """No warnings: nothing is known of the line."""
    return []


@dataclass(frozen=True)
class Translation:
    """The outputs for a line, best first. They are all different, except for those of sampling. An
    empty line has one output, which is empty. `text`, `score`, `pieces`, `alignment` and `words`
    are those of the best output. Iterating yields the outputs.

    Attributes:
        source: the line.
        source_words: if the alignment was asked for, the place in the source of each word that it
            counts. A place is a pair (start, end): the word is source[start:end].
        source_parts: the place in the source of each part that was translated by itself: its
            sentences, or the line as a whole, or parts of what is too long.
        protected_by: how the protected spans of the line came into its outputs: by the search, by
            the word alignment ("alignment"), or because the line was cut at them ("cutting"). None
            if there are none.
        check: gives the warnings about a text, such as that of an output, as the translation of the
            line (see `checks.warnings_of`).
    """

    source: str
    source_pieces: list[str]
    outputs: list[Output]
    source_words: list[Place] | None = None
    source_parts: list[Place] = field(default_factory=list)
    protected_by: str | None = None
    check: Callable[[str], list[Warning]] = field(default=unchecked, repr=False, compare=False)

    @cached_property
    def warnings(self) -> list[Warning]:
        """What was lost in the best output, or looks wrong in it. It is computed when it is asked
        for."""
        return self.check(self.text)

    @property
    def text(self) -> str:
        return self.outputs[0].text

    @property
    def score(self) -> float:
        return self.outputs[0].score

    @property
    def pieces(self) -> list[str]:
        return self.outputs[0].pieces

    @property
    def alignment(self) -> list[Link] | None:
        return self.outputs[0].alignment

    @property
    def words(self) -> list[Place] | None:
        return self.outputs[0].words

    def __iter__(self) -> Iterator[Output]:
        return iter(self.outputs)


class Aligned(NamedTuple):
    """The links of two lines, pairs (source word, target word) from 0 in rising order, and the
    numbers of their words."""

    links: list[Link]
    source_words: int
    target_words: int


# Characters that end a line for some readers, and that JSON does not require to be escaped.
_LINE_ENDS = re.compile("[\x7f-\x9f\u2028\u2029]")


def plain(translation: Translation) -> str:
    """The best translation."""
    return translation.text


def tsv(translation: Translation, n_best: int = 1) -> str:
    """The source, and for each output its text, its score and, if asked for, its alignment. Empty
    columns stand for outputs that are missing to `n_best`. A tab or an end of line in a text is
    written as a space."""
    columns = [translation.source]
    for output in translation.outputs:
        columns += [output.text, score(output.score)]
        if output.alignment is not None:
            columns.append(alignments.write(output.alignment))
    of_each = (len(columns) - 1) // len(translation.outputs)
    columns += [""] * (of_each * (n_best - len(translation.outputs)))
    return "\t".join(re.sub(r"[\t\r\n]", " ", column) for column in columns)


def jsonl(translation: Translation, with_warnings: bool = False) -> str:
    """An object with source, source_pieces, source_parts and outputs and, if asked for,
    protected_by and warnings. Each output has text, score, log_prob, pieces, parts and, if asked
    for, alignment. Parts are the texts that were translated by themselves."""
    source = translation.source
    values: dict[str, Any] = {
        "source": source,
        "source_pieces": translation.source_pieces,
        "source_parts": [source[start:end] for start, end in translation.source_parts],
        "outputs": [_values(output) for output in translation.outputs],
    }
    if with_warnings:
        values["protected_by"] = translation.protected_by
        values["warnings"] = [warning._asdict() for warning in translation.warnings]
    text = json.dumps(values, ensure_ascii=False)
    return _LINE_ENDS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


FORMATS: dict[str, Callable[[Translation], str]] = {"plain": plain, "tsv": tsv, "jsonl": jsonl}


def formatter(name: str, n_best: int, with_warnings: bool = False) -> Callable[[Translation], str]:
    """The function of one of FORMATS, for translations with up to `n_best` outputs.

    Args:
        with_warnings: whether the format jsonl has them.
    """
    if name == "jsonl":
        return partial(jsonl, with_warnings=with_warnings)
    return partial(tsv, n_best=n_best) if name == "tsv" else FORMATS[name]


def best_in(line: str, name: str) -> str:
    """The best translation in a line of one of FORMATS."""
    if name == "jsonl":
        return json.loads(line)["outputs"][0]["text"]
    return line.split("\t")[1] if name == "tsv" else line


def score(value: float) -> str:
    """A score, or a log-probability, as text."""
    return f"{value:.6f}"


def _values(output: Output) -> dict[str, Any]:
    values = {
        "text": output.text,
        "score": _number(output.score),
        "log_prob": _number(output.log_prob),
        "pieces": output.pieces,
        "parts": [output.text[start:end] for start, end in output.parts],
    }
    if output.alignment is not None:
        values["alignment"] = alignments.write(output.alignment)
    return values


def _number(value: float) -> float | None:
    # JSON has no numbers that are not finite.
    return round(value, 6) if math.isfinite(value) else None

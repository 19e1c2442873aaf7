"""What goes into a translator and what comes out of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from transformer_mt.data.pharaoh import Link
from transformer_mt.data.subword import Place


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
    """

    source: str
    source_pieces: list[str]
    outputs: list[Output]
    source_words: list[Place] | None = None
    source_parts: list[Place] = field(default_factory=list)

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

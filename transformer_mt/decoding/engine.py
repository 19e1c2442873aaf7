"""What the translator asks of whatever computes: sentences of ids in, hypotheses of ids out.

There are several engines (see `ENGINES`); the text, the batches and the order of lines are the
translator's business, and the same for all of them. Nothing heavy is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from transformer_mt.config.schema import DecodingConfig


@dataclass(frozen=True)
class Sentence:
    """What is to be translated, as ids without bos and eos; the output begins with `prefix`.

    `number` is its place in the whole input, which sampling draws by: so a sentence's outputs do
    not depend on the batch it is in.
    """

    source: list[int]
    prefix: list[int] = field(default_factory=list)
    number: int = 0


@dataclass(frozen=True)
class Hypothesis:
    """An output: its ids without bos and eos, the log-probability of ids and eos (in nats), and
    its score, which is the log-probability divided by the length penalty.

    `attention`, if it was asked for, holds for each id how much the decoder attended to each id of
    the source: float32 (len(ids), source_len), rows that sum to at most 1 (the rest went to eos).
    """

    ids: list[int]
    log_prob: float
    score: float
    attention: np.ndarray | None = None


@dataclass(frozen=True)
class Attention:
    """What a model attends to where it reads a sentence and puts out a translation of it, by layer
    and head; each row of the weights sums to 1.

    Attributes:
        source: the ids that the encoder reads; ends in eos.
        read: those that the decoder reads, one at each of its positions; begins with bos.
        said: those that it is to put out there; ends in eos.
        encoder: float32 (layers, heads, len(source), len(source)).
        decoder: float32 (layers, heads, len(read), len(read)).
        cross: float32 (layers, heads, len(read), len(source)).
    """

    source: list[int]
    read: list[int]
    said: list[int]
    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray


class Engine(Protocol):
    """Searches a batch of sentences. Settings may differ from call to call."""

    def search(
        self, sentences: list[Sentence], settings: DecodingConfig, need_attention: bool = False
    ) -> list[list[Hypothesis]]:
        """At most `settings.n_best` hypotheses of each sentence, best first, at least one.

        Raises:
            UsageError: this engine can't do what the settings ask for.
        """

    def log_probs(self, sources: list[list[int]], targets: list[list[int]]) -> list[float]:
        """The log-probability (in nats) of each target, given its source, eos included."""

    def cross_attention(
        self, sources: list[list[int]], targets: list[list[int]]
    ) -> list[np.ndarray]:
        """What the decoder attends to where it is made to put out these targets; each is as
        `Hypothesis.attention`, of the heads of the config's `alignment_heads`."""


def with_attention(
    engine: Engine, sentences: list[Sentence], found: list[list[Hypothesis]]
) -> list[list[Hypothesis]]:
    """The hypotheses of some sentences with their attention, for which they are read once more."""
    sources = [s.source for s, own in zip(sentences, found, strict=True) for _ in own]
    attention = iter(engine.cross_attention(sources, [h.ids for own in found for h in own]))
    return [[replace(h, attention=next(attention)) for h in own] for own in found]


def length_penalty(length: int | np.ndarray, settings: DecodingConfig) -> float | np.ndarray:
    """What a log-probability is divided by; `length` counts eos.

    gnmt is ((5 + length) / 6)^alpha (Wu et al. 2016, arXiv 1609.08144, formula 14), average is
    length^alpha, with alpha = 1 the mean log-probability of a subword.
    """
    base = (5 + length) / 6 if settings.length_penalty_kind == "gnmt" else length
    return base**settings.length_penalty


def length_limits(source_length: int, settings: DecodingConfig) -> tuple[int, int]:
    """The shortest and the longest output of a source, in subwords, eos not counted."""
    shortest = settings.min_length_ratio * source_length + settings.min_length_extra
    longest = settings.max_length_ratio * source_length + settings.max_length_extra
    return min(int(shortest), int(longest)), int(longest)

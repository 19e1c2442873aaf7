"""The interface between the translator and whatever computes: sentences of ids in, hypotheses of
ids out.

There are several engines (see `export.registry`). Text, batches and the order of lines are the
same for all of them, and are the translator's business. Nothing heavy is imported here.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import numpy as np

from transformer_mt.config.decoding import MAX_LENGTH_RATIO, NEEDS_PRECEDING_WORDS, DecodingConfig
from transformer_mt.utils.errors import UsageError


@dataclass(frozen=True)
class Constraint:
    """Something that an output must contain.

    Attributes:
        forms: sequences of ids, of which the output must contain one.
        is_symbol: whether it is the symbol of a protected span. Its only form is one id, which no
            output contains unless a constraint asks for it. The search leaves it to the model where
            the symbol stands; the forms of all others are tried at every place.
        after: for the symbol that closes a pair, the place of the opening one among the
            constraints of the sentence; -1 for all others. Pairs nest in the output.
        is_once: whether the output must not contain it more than once.
        is_forbidden: whether the output must contain none of the forms.
    """

    forms: tuple[tuple[int, ...], ...]
    is_symbol: bool = False
    after: int = -1
    is_once: bool = False
    is_forbidden: bool = False

    @property
    def longest(self) -> int:
        """The length of its longest form that an output must contain."""
        return 0 if self.is_forbidden else max(map(len, self.forms))

    @property
    def shortest(self) -> int:
        """The length of its shortest form that an output must contain."""
        return 0 if self.is_forbidden else min(map(len, self.forms))


@dataclass(frozen=True)
class Sentence:
    """A sentence to translate, as ids without bos and eos. The output begins with `prefix`.

    `number` is the sentence's place in the whole input. Sampling derives its random numbers from
    it, so that the outputs of a sentence do not depend on the batch that it is in.

    `others` are further segmentations of the source (see `decoding.segmentations`). All sentences
    of a batch have the same number of them. Lengths and attention are those of `source`.

    `constraints` is what the outputs must contain; `symbol_places` are the places in the source of
    the symbols among them. `need_attention` asks for the attention of the outputs.
    """

    source: list[int]
    prefix: list[int] = field(default_factory=list)
    number: int = 0
    others: list[list[int]] = field(default_factory=list)
    constraints: tuple[Constraint, ...] = ()
    symbol_places: tuple[int, ...] = ()
    need_attention: bool = False

    @property
    def segmentations(self) -> list[list[int]]:
        """All segmentations of the source, the best one first."""
        return [self.source, *self.others]

    @property
    def length(self) -> int:
        """The length of the longest segmentation in subwords, with eos."""
        return 1 + max(map(len, self.segmentations))

    @property
    def symbol_constraints(self) -> list[Constraint]:
        """Those constraints that are symbols. They come first among all."""
        return [constraint for constraint in self.constraints if constraint.is_symbol]


@dataclass(frozen=True)
class Hypothesis:
    """An output.

    Attributes:
        ids: without bos and eos.
        log_prob: the log-probability of the ids and eos, in nats.
        score: the log-probability divided by the length penalty.
        attention: if it was asked for, how much the decoder attended to each id of the source when
            it generated each id: float32 (len(ids), source_len). A row sums to at most 1; the rest
            went to eos.
        is_repaired: whether symbols were put into it after the search.
    """

    ids: list[int]
    log_prob: float
    score: float
    attention: np.ndarray | None = None
    is_repaired: bool = False


@dataclass(frozen=True)
class Attention:
    """The attention weights of a model that reads a sentence and generates a given translation, by
    layer and head. Each row of the weights sums to 1.

    Attributes:
        source: the ids that the encoder reads, ending in eos.
        decoder_input: the ids that the decoder reads, beginning with bos.
        labels: the ids that it generates at the same positions, ending in eos.
        encoder: float32 (layers, heads, source_len, source_len).
        decoder: float32 (layers, heads, target_len, target_len).
        cross: float32 (layers, heads, target_len, source_len).
    """

    source: list[int]
    decoder_input: list[int]
    labels: list[int]
    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray


# The ids of some sentences, without bos and eos; and the hypotheses of each sentence, best first.
Rows = list[list[int]]
Hypotheses = list[list[Hypothesis]]
# One length, or an array of them.
Length = TypeVar("Length", float, np.ndarray)

# The number of sentences of a length in subwords, with eos, that are decoded at once with some
# settings. It may be 0, where one is decoded.
AtOnce = Callable[[DecodingConfig, int], int]
# A sentence is done when it has this many outputs for each hypothesis of its beam.
PATIENCE = 2
# The number of padded source tokens in a batch, if `decoding.batch_tokens` is null.
BATCH_TOKENS = 2_048


def default_at_once(settings: DecodingConfig, length: int) -> int:
    """As many sentences as have the tokens of a batch, with all segmentations; see `AtOnce`."""
    return (settings.batch_tokens or BATCH_TOKENS) // (length * settings.segmentations)


# What an engine can't do, each with the reason, by these names: sampling, n_best, segmentations and
# shortlist (which are settings), prefix, alignment, scores, attention (the weights of all layers
# and heads), ensemble, constraints, and tuning.
Limits = Mapping[str, str]
# Those of a model that predicts all positions of an output at once.
NON_AUTOREGRESSIVE_LIMITS: Limits = {
    **{
        key: f"the model is non-autoregressive: {why}" for key, why in NEEDS_PRECEDING_WORDS.items()
    },
    "prefix": "a non-autoregressive model does not go with --prefix: it continues no output",
    "alignment": "a non-autoregressive model does not go with --alignment: it attends from masks",
    "scores": "a non-autoregressive model gives no probability to a whole translation",
    "attention": "a non-autoregressive model attends from masks, and not from words",
    "constraints": "a non-autoregressive model predicts all words at once, so none can be required",
    "ensemble": "--ensemble: a non-autoregressive model can't be a member of one",
    "tuning": "a non-autoregressive model has no beam and no length penalty. Its settings are "
    "decoding.iterations and decoding.length_candidates",
}


def require_able(limits: Limits, settings: DecodingConfig, asked: Iterable[str] = ()) -> None:
    """
    Args:
        asked: what an engine is to do besides following the settings.

    Raises:
        UsageError: it can't do what the settings or `asked` ask for.
    """
    for key, value in settings:
        if key in limits and value != DecodingConfig.model_fields[key].default:
            raise UsageError(f"decoding.{key}: {value}: {limits[key]}")
    for what in asked:
        if what in limits:
            raise UsageError(limits[what])


def way_of_terms(decoding: DecodingConfig, limits: Limits, reads_annotations: bool) -> str:
    """Returns the way in which terms are followed: "search" or "annotation".

    Args:
        limits: what the engine can't do.
        reads_annotations: whether the model was trained with data.annotate_terms.

    Raises:
        UsageError: terms can't be followed, or not in the way that `decoding.terms_by` asks for.
    """
    refused: dict[str, str] = {}
    if "constraints" in limits:
        refused["search"] = limits["constraints"]
    elif decoding.sampling:
        refused["search"] = "decoding.sampling: true: only a search can follow terms"
    if not reads_annotations:
        refused["annotation"] = (
            "decoding.terms_by: annotation: the model was trained without data.annotate_terms"
        )
    ways = [decoding.terms_by] if decoding.terms_by else ["search", "annotation"]
    for way in ways:
        if way not in refused:
            return way
    raise UsageError(refused[ways[0]])


class Engine(Protocol):
    """Searches a batch of sentences. The settings may differ from call to call."""

    def search(self, sentences: list[Sentence], settings: DecodingConfig) -> Hypotheses:
        """At least one and at most `settings.n_best` hypotheses of each sentence, best first.

        Raises:
            UsageError: this engine can't do what the settings ask for.
        """

    def log_probs(self, sources: Rows, targets: Rows) -> list[float]:
        """The log-probability (in nats) of each target with eos, given its source.

        Raises:
            UsageError: this engine can't score.
        """

    def cross_attention(self, sources: Rows, targets: Rows) -> list[np.ndarray]:
        """The decoder's attention to each source when it is forced to generate the target, as
        `Hypothesis.attention`. It is the mean of the heads that word alignments are read from.

        Raises:
            UsageError: this engine can't give attention.
        """


@dataclass(frozen=True)
class Search:
    """The search for the translations of a batch, which is called with an engine.

    Attributes:
        need_attention: whether all hypotheses get their attention, which takes another pass. Those
            of a sentence that asks for it get it anyway.
    """

    sentences: list[Sentence]
    settings: DecodingConfig
    need_attention: bool = False

    def __call__(self, engine: Engine) -> Hypotheses:
        """
        Raises:
            UsageError: the engine can't give attention. That is found after the search.
        """
        return self.with_attention(engine, self.found(engine))

    def found(self, engine: Engine) -> Hypotheses:
        """The hypotheses without their attention."""
        return engine.search(self.sentences, self.settings)

    def with_attention(
        self, engine: Engine, found: Hypotheses, numbers: Collection[int] | None = None
    ) -> Hypotheses:
        """Adds the attention to the hypotheses of some sentences.

        Args:
            numbers: the places of the sentences; None: of those that are asked for.
        """
        if numbers is None:
            asking = enumerate(self.sentences)
            numbers = [n for n, s in asking if self.need_attention or s.need_attention]
        if not numbers:
            return found
        sources = [self.sentences[number].source for number in numbers for _ in found[number]]
        targets = [hypothesis.ids for number in numbers for hypothesis in found[number]]
        attention = iter(engine.cross_attention(sources, targets))
        all_found = list(found)
        for number in numbers:
            all_found[number] = [replace(h, attention=next(attention)) for h in found[number]]
        return all_found


def length_penalty(length: Length, settings: DecodingConfig) -> Length:
    """The number that a log-probability is divided by; `length` counts eos.

    gnmt is ((5 + length) / 6)^alpha (Wu et al. 2016, arXiv 1609.08144, formula 14). average is
    length^alpha; with alpha = 1 the score is the mean log-probability per subword.
    """
    base = (5 + length) / 6 if settings.length_penalty_kind == "gnmt" else length
    return base**settings.length_penalty


def length_limits(source_length: int, settings: DecodingConfig) -> tuple[int, int]:
    """The least and the greatest length of a source's outputs, in subwords without eos."""
    shortest = settings.min_length_ratio * source_length + settings.min_length_extra
    ratio = settings.max_length_ratio or MAX_LENGTH_RATIO
    longest = ratio * source_length + settings.max_length_extra
    return min(int(shortest), int(longest)), int(longest)


def limits_of(sentences: list[Sentence], settings: DecodingConfig) -> tuple[np.ndarray, np.ndarray]:
    """The least and the greatest length of the outputs of each sentence, int64 (sentences,)."""
    limits = [length_limits(len(sentence.source), settings) for sentence in sentences]
    shortest, longest = np.array(limits, np.int64).reshape(-1, 2).T
    for number, sentence in enumerate(sentences):
        if sentence.constraints:  # there must be room for everything that they ask for
            needed = sum(constraint.longest for constraint in sentence.constraints)
            longest[number] = max(longest[number], len(sentence.prefix)) + needed
    return shortest, longest

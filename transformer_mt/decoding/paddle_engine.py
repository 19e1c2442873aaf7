"""The engine that searches with this package's own autoregressive model, and what it shares with
other engines that compute logits step by step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np
import paddle
from paddle import Tensor

from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.config.schema import Heads, ModelConfig
from transformer_mt.data.batches import encoded_rows
from transformer_mt.data.shortlist import Candidates, Shortlist
from transformer_mt.data.spans import symbol_ids
from transformer_mt.data.subword import Subwords
from transformer_mt.data.vocabulary import Vocabulary
from transformer_mt.decoding.engine import (
    NON_AUTOREGRESSIVE_LIMITS,
    Attention,
    Engine,
    Hypotheses,
    Rows,
    Sentence,
    default_at_once,
    length_limits,
)
from transformer_mt.decoding.mask_predict import MaskPredictEngine
from transformer_mt.decoding.search import search
from transformer_mt.kernels.cpu_decoder import CpuDecoderState, cpu_decoders
from transformer_mt.kernels.scores import (
    CandidateLogProbs,
    DeviceLogProbs,
    LogProbs,
    mixture,
    next_log_probs,
)
from transformer_mt.model.cache import capacity
from transformer_mt.model.operations import array
from transformer_mt.model.transformer import Transformer, evaluating
from transformer_mt.model.variants import NonAutoregressiveTransformer
from transformer_mt.utils import device
from transformer_mt.utils.errors import UsageError

# The number of logits that are held at once: 128 MB in float32.
LOGITS_AT_ONCE = 2**25


def engine_of(
    models: list[Transformer],
    subwords: Subwords,
    alignment_heads: Heads | None = None,
    shortlist: Callable[[], Shortlist] | None = None,
) -> Engine:
    """Returns the engine for a kind of model.

    Args:
        models: with the same subwords; several make an ensemble.
        alignment_heads, shortlist: as in `PaddleEngine`.

    Raises:
        UsageError: models of this kind can't be an ensemble.
    """
    if any(isinstance(model, NonAutoregressiveTransformer) for model in models):
        if len(models) > 1:
            raise UsageError(NON_AUTOREGRESSIVE_LIMITS["ensemble"])
        return MaskPredictEngine(models[0], subwords)
    return PaddleEngine(models, subwords, alignment_heads, shortlist)


class StepwiseEngine:
    """What engines that compute logits step by step share. They implement `engine.Engine`, and
    their subclasses only compute what `_states`, `_logits` and `_attention` return.

    Args:
        models: are put into evaluation mode while the engine computes.
    """

    def __init__(self, subwords: Subwords, models: Sequence[Transformer] = ()) -> None:
        self._source = subwords.source
        self._target = subwords.target
        self._models = models

    def search(self, sentences: list[Sentence], settings: DecodingConfig) -> Hypotheses:
        """As `Engine.search`."""
        with evaluating(self._models):
            stepper_of = self._shortlisted_stepper if settings.shortlist else self._stepper
            return search(stepper_of, sentences, settings, self._target)

    def log_probs(self, sources: Rows, targets: Rows) -> list[float]:
        """As `Engine.log_probs`."""
        decoder_input, labels = target_arrays(targets, self._target)
        totals: list[float] = []
        with evaluating(self._models):
            for rows, logits in self._logits(self._source_tensor(sources), decoder_input):
                log_probs = next_log_probs(logits, ()).of(labels[rows])
                is_real = labels[rows] != self._target.pad
                totals += np.where(is_real, log_probs, 0.0).sum(axis=1).tolist()
        return totals

    def cross_attention(self, sources: Rows, targets: Rows) -> list[np.ndarray]:
        """As `Engine.cross_attention`, of the first model."""
        decoder_input, _ = target_arrays(targets, self._target)
        with evaluating(self._models):
            weights = self._attention(self._source_tensor(sources), decoder_input)
        # Each map is cropped to the real subwords of its pair, without eos.
        return [
            own[: len(target), : len(source)]
            for own, source, target in zip(weights, sources, targets, strict=True)
        ]

    def _states(
        self, source: Tensor, candidates: np.ndarray | None = None
    ) -> Sequence[DecoderState]:
        """The state of each model's decoder that reads the sources, int64 (sources, source_len).

        Args:
            candidates: the ids to compute the logits of, as arrays; None: all ids. An engine whose
                `_candidates` gives none need not heed it.
        """
        raise NotImplementedError

    def _logits(
        self, source: Tensor, decoder_input: np.ndarray
    ) -> Iterator[tuple[slice, list[Tensor]]]:
        """Yields some rows of the decoder input, int64 (rows, target_len), at a time, with the
        logits of each model, (some, target_len, vocabulary)."""
        raise NotImplementedError

    def _attention(self, source: Tensor, decoder_input: np.ndarray) -> Iterable[np.ndarray]:
        """The attention that `cross_attention` crops, (target_len, source_len) for each row."""
        raise NotImplementedError

    def _candidates(self, sentences: list[Sentence]) -> Candidates:
        """The target ids that may follow, if `decoding.shortlist` asks for a shortlist.

        Raises:
            UsageError: there is no shortlist.
        """
        raise UsageError("decoding.shortlist: true: this engine has no shortlist")

    def _shortlisted_stepper(self, sentences: list[Sentence]) -> MixtureStepper:
        return self._stepper(sentences, self._candidates(sentences))

    def _stepper(
        self, sentences: list[Sentence], candidates: Candidates | None = None
    ) -> MixtureStepper:
        # The first segmentation of each sentence, then the second one of each sentence, and so on.
        by_place = list(zip(*(sentence.segmentations for sentence in sentences), strict=True))
        source = self._source_tensor(list(chain.from_iterable(by_place)))
        states = self._states(source, None if candidates is None else candidates.ids)
        # The symbols of protected spans come only where constraints ask for them.
        never = [*self._target.special, *symbol_ids(self._target)]
        return MixtureStepper(states, len(sentences), len(by_place), never, candidates)

    def _source_tensor(self, rows: Rows) -> Tensor:
        return paddle.to_tensor(encoded_rows(rows, self._source.pad, self._source.eos))

    def _some_rows(self, decoder_input: np.ndarray) -> Iterator[slice]:
        """The rows of a decoder input (rows, target_len), cut so that the logits of a slice fit
        into memory. The logits of all rows would be many times as large as everything else."""
        rows, length = decoder_input.shape
        count = max(1, LOGITS_AT_ONCE // (length * self._target.size))
        for start in range(0, rows, count):
            yield slice(start, start + count)


def target_arrays(rows: Rows, target: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """The decoder input, which begins with bos, and the labels, which end with eos: both int64
    (rows, longest + 1)."""
    labels = encoded_rows(rows, target.pad, target.eos)
    decoder_input = np.concatenate([np.full((len(rows), 1), target.bos), labels[:, :-1]], axis=1)
    return decoder_input, labels


class DecoderState(Protocol):
    """A model's decoder that reads some sources; the arguments are as in `search.Stepper`."""

    def step(self, ids: np.ndarray, parents: np.ndarray) -> np.ndarray | Tensor:
        """The logits (sources, width, vocabulary)."""

    def select(self, sentences: np.ndarray) -> None: ...


@dataclass
class MixtureStepper:
    """Implements `search.Stepper` with the mean of the probabilities of the models of an ensemble,
    and of the segmentations of each source (Takase et al. 2022, arXiv 2203.13528, section 3).

    Attributes:
        states: one for each model. They read the first segmentation of each sentence, then the
            second one of each sentence, and so on.
        sentences: their number.
        segmentations: the number of them for each sentence.
        never: as in `LogProbs`.
        candidates: the ids that the states compute the logits of; None: all ids.
    """

    states: Sequence[DecoderState]
    sentences: int
    segmentations: int
    never: Sequence[int]
    candidates: Candidates | None = None

    def step(
        self, ids: np.ndarray, parents: np.ndarray
    ) -> LogProbs | CandidateLogProbs | DeviceLogProbs:
        if self.segmentations > 1:
            ids, parents = (np.tile(x, (self.segmentations, 1)) for x in (ids, parents))
        all_logits = [state.step(ids, parents) for state in self.states]
        if self.segmentations > 1:
            all_logits = [
                logits[first : first + self.sentences]
                for logits in all_logits
                for first in range(0, self.segmentations * self.sentences, self.sentences)
            ]
        if self.candidates is None:
            return next_log_probs(all_logits, self.never)
        for logits in all_logits:
            logits += self.candidates.forbidden[:, np.newaxis]
        return CandidateLogProbs(mixture(all_logits), self.never, self.candidates.ids)

    def select(self, sentences: np.ndarray) -> None:
        firsts = self.sentences * np.arange(self.segmentations)
        rows = (firsts[:, np.newaxis] + sentences).reshape(-1)
        self.sentences = len(sentences)
        for state in self.states:
            state.select(rows)
        if self.candidates is not None:
            self.candidates.select(sentences)


class PaddleEngine(StepwiseEngine):
    """Implements `engine.Engine` with one model, or with the mean of the probabilities of several.

    The weights must not change during the engine's life.

    Args:
        models: are put into evaluation mode while the engine computes.
        alignment_heads: the heads of the first model that word alignments are read from; None
            chooses those of a model that was not guided by alignments.
        shortlist: reads the shortlist of the subwords, if a search needs one.
    """

    def __init__(
        self,
        models: list[Transformer],
        subwords: Subwords,
        alignment_heads: Heads | None = None,
        shortlist: Callable[[], Shortlist] | None = None,
    ) -> None:
        super().__init__(subwords, models)
        layers = models[0].decoder.layers
        self._alignment_heads = alignment_heads or Heads.nearest_to_alignment(
            len(layers), layers[0].cross_attention.num_heads
        )
        self._cpu_decoders = cpu_decoders(models)
        self._shortlist = shortlist and functools.cache(shortlist)

    def attention(self, source: list[int], target: list[int]) -> Attention:
        """The attention weights of all layers and heads of the first model when it reads `source`
        and is forced to generate `target`, both ids without bos and eos."""
        model = self._models[0]
        source_ids = self._source_tensor([source])
        decoder_input, labels = target_arrays([target], self._target)
        with evaluating(self._models):
            memory, encoder = model.encode(source_ids, need_weights=True)
            _, decoder, cross = model.decode(
                paddle.to_tensor(decoder_input), memory, source_ids, need_weights=True
            )
        ids = (row.tolist() for row in (source_ids.numpy()[0], decoder_input[0], labels[0]))
        # (layers, batch, heads, queries, keys) -> (layers, heads, queries, keys)
        stacks = (paddle.stack(layers)[:, 0] for layers in (encoder, decoder, cross))
        return Attention(*ids, *(weights.astype("float32").numpy() for weights in stacks))

    def _candidates(self, sentences: list[Sentence]) -> Candidates:
        if self._shortlist is None:
            return super()._candidates(sentences)
        sources = [list(chain.from_iterable(one.segmentations)) for one in sentences]
        needed = [
            [*one.prefix, *(i for own in one.constraints for i in chain(*own.forms))]
            for one in sentences
        ]
        return self._shortlist().candidates(sources, needed)

    def _states(
        self, source: Tensor, candidates: np.ndarray | None = None
    ) -> Sequence[DecoderState]:
        if not self._cpu_decoders:
            return [_PaddleState(model, source, candidates) for model in self._models]
        return [
            CpuDecoderState(decoder, decoder.encode(source), source, candidates)
            for decoder in self._cpu_decoders
        ]

    def _logits(
        self, source: Tensor, decoder_input: np.ndarray
    ) -> Iterator[tuple[slice, list[Tensor]]]:
        read = [(model, model.encode(source)) for model in self._models]
        for rows in self._some_rows(decoder_input):
            target = paddle.to_tensor(decoder_input[rows])
            yield rows, [model.logits(target, memory[rows], source[rows]) for model, memory in read]

    def _attention(self, source: Tensor, decoder_input: np.ndarray) -> Iterable[np.ndarray]:
        model, (layer, heads) = self._models[0], self._alignment_heads
        target = paddle.to_tensor(decoder_input)
        _, _, weights = model.decode(target, model.encode(source), source, need_weights=(layer,))
        # (batch, heads, target_len, source_len) -> (batch, target_len, source_len)
        return weights[layer][:, :heads].astype("float32").mean(axis=1).numpy()


class _PaddleState:
    """The state of a model's decoder on any device; as `CpuDecoderState` on a CPU. Candidates save
    no time here, but give the translations that they give there."""

    def __init__(
        self, model: Transformer, source: Tensor, candidates: np.ndarray | None = None
    ) -> None:
        self._model = model
        self._cache = model.start_cache(model.encode(source), source)
        self.select = self._cache.select
        self._candidates = candidates

    def step(self, ids: np.ndarray, parents: np.ndarray) -> np.ndarray | Tensor:
        last_ids = paddle.to_tensor(np.ascontiguousarray(ids))
        logits = self._model.decode_step(last_ids, parents, self._cache)
        return logits if self._candidates is None else array(logits)[..., self._candidates]


# ---- How many sentences fit on a GPU ----

# The memory that decoding needs besides the weights is counted. It is proportional to the number of
# sentences. Outputs are counted as if they became as long as they may (decoding.max_length_ratio)
# and as if the hypotheses of a sentence had nothing in common, so that no search needs more.

FLOAT32, FLOAT64, INT64 = 4, 8, 8
# The share of the free memory that a batch may need by this count. Paddle's allocator and the
# libraries of the GPU need the rest.
SHARE = 0.8
# The arrays of the size of attention weights that are held while they are computed: scores, the
# same with the mask, the output of the softmax, and the same with the mask.
WEIGHTS = 4


def sentences_in_free_memory(
    models: list[ModelConfig], vocab_size: int, settings: DecodingConfig, length: int
) -> int:
    """As many sentences as fit into the free memory of the selected GPU, if `decoding.batch_tokens`
    is null; at least 1.

    Args:
        models: those that are loaded; several make an ensemble.
        vocab_size: the number of target ids.
        settings, length: as in `AtOnce`.
    """
    if settings.batch_tokens is not None:
        return default_at_once(settings, length)
    need = sentence_bytes(models, vocab_size, settings, length)
    return max(1, int(SHARE * device.free_memory()) // need)


def sentence_bytes(
    models: list[ModelConfig], vocab_size: int, settings: DecodingConfig, source_len: int
) -> int:
    """Counts the bytes of one sentence of a batch, whose longest segmentation has `source_len`
    subwords with eos. The other arguments are those of `sentences_in_free_memory`."""
    if models[0].non_autoregressive is not None:
        return _filled(models[0], settings, source_len)
    longest = length_limits(source_len - 1, settings)[1] + 1
    hypotheses = settings.n_best if settings.sampling else settings.beam_size
    positions = capacity(hypotheses * longest)
    # Encoding comes before the first step.
    started = sum(_caches(model, source_len, 0) for model in models)
    encoding = started + max(_layer(model, source_len, source_len) for model in models)
    held = sum(_caches(model, source_len, positions) for model in models)
    moments = []
    for model in models:
        moments += [
            _layer(model, hypotheses, max(positions, source_len)),
            # The keys and values of one layer are copied when their buffers grow, and when
            # sentences are done.
            2 * FLOAT32 * max(positions, source_len) * model.d_model,
        ]
    mask = hypotheses * positions
    # Each segmentation is a row of a batch, and its logits are mixed as those of a model are.
    rows = settings.segmentations
    logits = _logits(rows * len(models), hypotheses * vocab_size, settings)
    return max(rows * encoding, rows * (held + mask) + max(rows * max(moments), logits))


def _caches(model: ModelConfig, source_len: int, positions: int) -> int:
    """Counts keys and values, and what copying keeps of the source."""
    copying = source_len**2 * FLOAT32 + source_len * INT64 if model.copying else 0
    return 2 * FLOAT32 * model.decoder_layers * (source_len + positions) * model.d_model + copying


def _layer(model: ModelConfig, queries: int, keys: int) -> int:
    """Counts what is held at once while a layer computes: its input, its normalised input, and the
    larger of attention (with projections, which are copied when heads are split) and feed-forward
    network."""
    attention = WEIGHTS * model.num_heads * queries * keys + 6 * queries * model.d_model
    feed_forward = 2 * queries * model.d_ff
    return FLOAT32 * (3 * queries * model.d_model + max(attention, feed_forward))


def _logits(models: int, size: int, settings: DecodingConfig) -> int:
    """Counts the logits and what is computed from them, for `size` logits of a model."""
    # An ensemble's logits, their log-probabilities, and these in one array.
    held = size * FLOAT32 * (1 if models == 1 else 3 * models)
    if not settings.sampling:
        return held + size * FLOAT32
    # The logits with temperature and mask, the same relative to the largest, and masks.
    drawing = 4 * FLOAT32 + 2 if settings.top_k is not None else 3 * FLOAT32 + 2
    if settings.top_k is None:  # everything from here on is as wide as the vocabulary
        drawing += 2 * FLOAT64  # the exponentials, and the sums of these
        if settings.top_p < 1:
            # They are sorted with their ids, in buffers of that size, and sums are compared.
            drawing += 2 * (INT64 + FLOAT32) + FLOAT64
    return held + size * drawing


def _filled(model: ModelConfig, settings: DecodingConfig, source_len: int) -> int:
    """Counts the targets of a non-autoregressive model, which are filled in side by side. Few of
    their logits are computed at a time."""
    targets = settings.length_candidates if model.non_autoregressive == "length" else 1
    target_len = length_limits(source_len - 1, settings)[1]
    memory = FLOAT32 * (1 + targets) * source_len * model.d_model
    layer = targets * _layer(model, target_len, max(source_len, target_len))
    return memory + max(_layer(model, source_len, source_len), layer)

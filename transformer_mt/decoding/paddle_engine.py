"""The engine that searches with this package's own autoregressive model, and what it shares with
other engines that compute logits step by step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Protocol

import numpy as np
import paddle
from paddle import Tensor

from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.config.mechanisms import Heads
from transformer_mt.data.batches import encoded_rows
from transformer_mt.data.subword import Subwords, Vocabulary
from transformer_mt.decoding.engine import (
    NON_AUTOREGRESSIVE_LIMITS,
    Attention,
    Engine,
    Hypotheses,
    Rows,
    Sentence,
)
from transformer_mt.decoding.mask_predict import MaskPredictEngine
from transformer_mt.decoding.search import search
from transformer_mt.kernels.cpu_decoder import CpuDecoderState, cpu_decoders
from transformer_mt.kernels.scores import DeviceLogProbs, LogProbs, next_log_probs
from transformer_mt.model.nonautoregressive import NonAutoregressiveTransformer
from transformer_mt.model.transformer import Transformer, evaluating
from transformer_mt.utils.errors import UsageError

# The number of logits that are held at once: 128 MB in float32.
LOGITS_AT_ONCE = 2**25


def engine_of(
    models: list[Transformer], subwords: Subwords, alignment_heads: Heads | None = None
) -> Engine:
    """Returns the engine for a kind of model.

    Args:
        models: with the same subwords; several make an ensemble.
        alignment_heads: as in `PaddleEngine`.

    Raises:
        UsageError: models of this kind can't be an ensemble.
    """
    if any(isinstance(model, NonAutoregressiveTransformer) for model in models):
        if len(models) > 1:
            raise UsageError(NON_AUTOREGRESSIVE_LIMITS["ensemble"])
        return MaskPredictEngine(models[0], subwords)
    return PaddleEngine(models, subwords, alignment_heads)


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
            return search(self._stepper, sentences, settings, self._target)

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

    def _states(self, source: Tensor) -> Sequence[DecoderState]:
        """The state of each model's decoder that reads the sources, int64 (sources, source_len)."""
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

    def _stepper(self, sentences: list[Sentence]) -> MixtureStepper:
        # The first segmentation of each sentence, then the second one of each sentence, and so on.
        by_place = list(zip(*(sentence.segmentations for sentence in sentences), strict=True))
        states = self._states(self._source_tensor(list(chain.from_iterable(by_place))))
        return MixtureStepper(states, len(sentences), len(by_place), self._target.special)

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


class MixtureStepper:
    """Implements `search.Stepper` with the mean of the probabilities of the models of an ensemble,
    and of the segmentations of each source (Takase et al. 2022, arXiv 2203.13528, section 3).

    Args:
        states: one for each model. They read the first segmentation of each sentence, then the
            second one of each sentence, and so on.
        sentences: their number.
        segmentations: the number of them for each sentence.
        never: as in `LogProbs`.
    """

    def __init__(
        self,
        states: Sequence[DecoderState],
        sentences: int,
        segmentations: int,
        never: Sequence[int],
    ) -> None:
        self._states = states
        self._sentences = sentences
        self._segmentations = segmentations
        self._never = never

    def step(self, ids: np.ndarray, parents: np.ndarray) -> LogProbs | DeviceLogProbs:
        if self._segmentations > 1:
            ids, parents = (np.tile(x, (self._segmentations, 1)) for x in (ids, parents))
        all_logits = [state.step(ids, parents) for state in self._states]
        if self._segmentations > 1:
            all_logits = [
                logits[first : first + self._sentences]
                for logits in all_logits
                for first in range(0, self._segmentations * self._sentences, self._sentences)
            ]
        return next_log_probs(all_logits, self._never)

    def select(self, sentences: np.ndarray) -> None:
        firsts = self._sentences * np.arange(self._segmentations)
        rows = (firsts[:, np.newaxis] + sentences).reshape(-1)
        self._sentences = len(sentences)
        for state in self._states:
            state.select(rows)


class PaddleEngine(StepwiseEngine):
    """Implements `engine.Engine` with one model, or with the mean of the probabilities of several.

    The weights must not change during the engine's life.

    Args:
        models: are put into evaluation mode while the engine computes.
        alignment_heads: the heads of the first model that word alignments are read from; None
            chooses those of a model that was not guided by alignments.
    """

    def __init__(
        self, models: list[Transformer], subwords: Subwords, alignment_heads: Heads | None = None
    ) -> None:
        super().__init__(subwords, models)
        layers = models[0].decoder.layers
        self._alignment_heads = alignment_heads or Heads.nearest_to_alignment(
            len(layers), layers[0].cross_attention.num_heads
        )
        self._cpu_decoders = cpu_decoders(models)

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

    def _states(self, source: Tensor) -> Sequence[DecoderState]:
        if not self._cpu_decoders:
            return [_PaddleState(model, source) for model in self._models]
        return [
            CpuDecoderState(decoder, model.encode(source), source)
            for model, decoder in zip(self._models, self._cpu_decoders, strict=True)
        ]

    def _logits(
        self, source: Tensor, decoder_input: np.ndarray
    ) -> Iterator[tuple[slice, list[Tensor]]]:
        memories = [model.encode(source) for model in self._models]
        for rows in self._some_rows(decoder_input):
            target = paddle.to_tensor(decoder_input[rows])
            yield (
                rows,
                [
                    model.logits(target, memory[rows], source[rows])
                    for model, memory in zip(self._models, memories, strict=True)
                ],
            )

    def _attention(self, source: Tensor, decoder_input: np.ndarray) -> Iterable[np.ndarray]:
        model, (layer, heads) = self._models[0], self._alignment_heads
        target = paddle.to_tensor(decoder_input)
        _, _, weights = model.decode(target, model.encode(source), source, need_weights=(layer,))
        # (batch, heads, target_len, source_len) -> (batch, target_len, source_len)
        return weights[layer][:, :heads].astype("float32").mean(axis=1).numpy()


class _PaddleState:
    """The state of a model's decoder on any device; as `CpuDecoderState` on a CPU."""

    def __init__(self, model: Transformer, source: Tensor) -> None:
        self._model = model
        self._cache = model.start_cache(model.encode(source), source)
        self.select = self._cache.select

    def step(self, ids: np.ndarray, parents: np.ndarray) -> Tensor:
        last_ids = paddle.to_tensor(np.ascontiguousarray(ids))
        return self._model.decode_step(last_ids, parents, self._cache)

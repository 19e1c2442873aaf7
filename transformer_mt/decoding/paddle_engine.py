"""The engine that searches with this package's own autoregressive model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import paddle
from paddle import Tensor

from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.config.schema import Heads
from transformer_mt.data.batches import encoded_rows
from transformer_mt.data.subword import Subwords
from transformer_mt.decoding import batch
from transformer_mt.decoding.engine import (
    NON_AUTOREGRESSIVE_LIMITS,
    Attention,
    Engine,
    Hypotheses,
    Rows,
    Sentence,
)
from transformer_mt.decoding.mask_predict import MaskPredictEngine
from transformer_mt.kernels.cpu_decoder import CpuDecoderState, cpu_decoders
from transformer_mt.kernels.scores import DecoderState, MixtureStepper, next_log_probs
from transformer_mt.model.transformer import Transformer, evaluating
from transformer_mt.model.variants import NonAutoregressiveTransformer
from transformer_mt.utils.errors import UsageError


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


class PaddleEngine:
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
        self._models = models
        layers = models[0].decoder.layers
        self._alignment_heads = alignment_heads or Heads.nearest_to_alignment(
            len(layers), layers[0].cross_attention.num_heads
        )
        self._source = subwords.source
        self._target = subwords.target
        self._cpu_decoders = cpu_decoders(models)

    def search(self, sentences: list[Sentence], settings: DecodingConfig) -> Hypotheses:
        """As `Engine.search`."""
        with evaluating(self._models):
            return batch.search(self._stepper, sentences, settings, self._target)

    def log_probs(self, sources: Rows, targets: Rows) -> list[float]:
        """As `Engine.log_probs`."""
        source = self._source_tensor(sources)
        decoder_input, labels = batch.target_arrays(targets, self._target)
        totals: list[float] = []
        with evaluating(self._models):
            memories = [model.encode(source) for model in self._models]
            for rows in batch.rows_at_once(decoder_input, self._target):
                target = paddle.to_tensor(decoder_input[rows])
                logits = [
                    model.logits(target, memory[rows], source[rows])
                    for model, memory in zip(self._models, memories, strict=True)
                ]
                log_probs = next_log_probs(logits, ()).of(labels[rows])
                totals += batch.sums_of_log_probs(log_probs, labels[rows], self._target.pad)
        return totals

    def cross_attention(self, sources: Rows, targets: Rows) -> list[np.ndarray]:
        """As `Engine.cross_attention`, of the first model."""
        model, (layer, heads) = self._models[0], self._alignment_heads
        source = self._source_tensor(sources)
        decoder_input, _ = batch.target_arrays(targets, self._target)
        with evaluating(self._models):
            _, _, cross_weights = model.decode(
                paddle.to_tensor(decoder_input), model.encode(source), source, need_weights=(layer,)
            )
        # (batch, heads, target_len, source_len) -> (batch, target_len, source_len)
        weights = cross_weights[layer][:, :heads].astype("float32").mean(axis=1).numpy()
        return batch.without_padding(weights, sources, targets)

    def attention(self, source: list[int], target: list[int]) -> Attention:
        """The attention weights of all layers and heads of the first model when it reads `source`
        and is forced to generate `target`, both ids without bos and eos."""
        model = self._models[0]
        source_ids = self._source_tensor([source])
        decoder_input, labels = batch.target_arrays([target], self._target)
        with evaluating(self._models):
            memory, encoder = model.encode(source_ids, need_weights=True)
            _, decoder, cross = model.decode(
                paddle.to_tensor(decoder_input), memory, source_ids, need_weights=True
            )
        ids = (row.tolist() for row in (source_ids.numpy()[0], decoder_input[0], labels[0]))
        # (layers, batch, heads, queries, keys) -> (layers, heads, queries, keys)
        stacks = (paddle.stack(layers)[:, 0] for layers in (encoder, decoder, cross))
        return Attention(*ids, *(weights.astype("float32").numpy() for weights in stacks))

    def _stepper(self, sentences: list[Sentence]) -> MixtureStepper:
        source = self._source_tensor(batch.sources(sentences))
        states: Sequence[DecoderState]
        if self._cpu_decoders:
            states = [
                CpuDecoderState(decoder, model.encode(source), source)
                for model, decoder in zip(self._models, self._cpu_decoders, strict=True)
            ]
        else:
            states = [_PaddleState(model, source) for model in self._models]
        count = len(sentences[0].segmentations)
        return MixtureStepper(states, len(sentences), count, batch.never_chosen(self._target))

    def _source_tensor(self, rows: Rows) -> Tensor:
        return paddle.to_tensor(encoded_rows(rows, self._source.pad, self._source.eos))


class _PaddleState:
    """The state of a model's decoder on any device; as `CpuDecoderState` on a CPU."""

    def __init__(self, model: Transformer, source: Tensor) -> None:
        self._model = model
        self._cache = model.start_cache(model.encode(source), source)
        self.select = self._cache.select

    def step(self, ids: np.ndarray, parents: np.ndarray) -> Tensor:
        last_ids = paddle.to_tensor(np.ascontiguousarray(ids))
        return self._model.decode_step(last_ids, parents, self._cache)

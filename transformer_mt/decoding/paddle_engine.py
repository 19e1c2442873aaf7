"""The engine that searches with this package's own model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import paddle

from transformer_mt.assembly.model import build_model
from transformer_mt.config.schema import DecodingConfig, Heads, ModelConfig
from transformer_mt.data.batches import encoded_rows
from transformer_mt.data.subword import Subwords
from transformer_mt.decoding import batch
from transformer_mt.decoding.device_log_probs import DeviceLogProbs, device_mixture
from transformer_mt.decoding.engine import Attention, Hypothesis, Sentence, with_attention
from transformer_mt.decoding.log_probs import LogProbs, mixture
from transformer_mt.mechanisms.mask_predict import search as mask_predict
from transformer_mt.mechanisms.mask_predict.model import NonAutoregressiveTransformer
from transformer_mt.mechanisms.mask_predict.predictor import PaddlePredictor
from transformer_mt.model.cpu_decoder import HostDecoder, HostDecoding
from transformer_mt.model.transformer import Transformer
from transformer_mt.weights import load_weights


class PaddleEngine:
    """Searches with one model, or with the mean of the probabilities of several.

    The weights must not change in the engine's life. Models are put into evaluation mode.

    Raises UsageError if there are several, and one of them is non-autoregressive.
    """

    def __init__(
        self,
        models: list[Transformer],
        subwords: Subwords,
        alignment_heads: Heads | None = None,
    ) -> None:
        """
        Args:
            alignment_heads: of the first model's config; None: it was not guided by alignments.
        """
        self._models = models
        layers = models[0].decoder.layers
        self._alignment_heads = alignment_heads or Heads.nearest_to_alignment(
            len(layers), layers[0].cross_attention.num_heads
        )
        self._source = subwords.source
        self._target = subwords.target
        on_host = all(HostDecoder.can_decode(model) for model in models)
        self._host_decoders = [HostDecoder(model) for model in models] if on_host else []
        self._is_non_autoregressive = any(
            isinstance(model, NonAutoregressiveTransformer) for model in models
        )
        if self._is_non_autoregressive and len(models) > 1:
            mask_predict.refuse("ensemble")

    @classmethod
    def load(
        cls,
        checkpoints: list[tuple[ModelConfig, Path]],
        subwords: Subwords,
        alignment_heads: Heads | None = None,
    ) -> PaddleEngine:
        """The engine of checkpoints of models with the same subwords; see `__init__`.

        Raises:
            UserError: a checkpoint is damaged, or does not fit its config.
        """
        models = []
        for config, checkpoint in checkpoints:
            models.append(build_model(config, subwords))
            load_weights(checkpoint, models[-1])
            models[-1].eval()
        return cls(models, subwords, alignment_heads)

    def search(
        self, sentences: list[Sentence], settings: DecodingConfig, need_attention: bool = False
    ) -> list[list[Hypothesis]]:
        """As `Engine.search`."""
        if self._is_non_autoregressive:
            return self._fill_in(sentences, settings, need_attention)
        with self._evaluating():
            found = batch.search(self._stepper, sentences, settings, self._target)
        return with_attention(self, sentences, found) if need_attention else found

    def _fill_in(
        self, sentences: list[Sentence], settings: DecodingConfig, need_attention: bool
    ) -> list[list[Hypothesis]]:
        asked = ["prefix"] if any(sentence.prefix for sentence in sentences) else []
        mask_predict.require_possible(settings, asked + ["alignment"] * need_attention)
        source = self._source_tensor([sentence.source for sentence in sentences])
        with self._evaluating():
            predictor = PaddlePredictor(self._models[0], source, self._target)
            return mask_predict.search(predictor, sentences, settings, self._target)

    def _stepper(self, rows: list[list[int]]) -> _HostStepper | _DeviceStepper:
        source = self._source_tensor(rows)
        never = batch.never_put_out(self._target)
        if not self._host_decoders:
            return _DeviceStepper(self._models, source, never)
        decodings = [
            HostDecoding(decoder, model.encode(source), source)
            for model, decoder in zip(self._models, self._host_decoders, strict=True)
        ]
        return _HostStepper(decodings, never)

    def log_probs(self, sources: list[list[int]], targets: list[list[int]]) -> list[float]:
        """As `Engine.log_probs`.

        Raises:
            UsageError: the model is non-autoregressive.
        """
        self._require_autoregressive("scores")
        source = self._source_tensor(sources)
        read, wanted = batch.target_arrays(targets, self._target)
        totals: list[float] = []
        with self._evaluating():
            memories = [model.encode(source) for model in self._models]
            # The logits of all positions at once would be many times as large as all else.
            rows = max(1, batch.LOGITS_AT_ONCE // (read.shape[1] * self._target.size))
            for start in range(0, len(read), rows):
                part = slice(start, start + rows)
                target = paddle.to_tensor(read[part])
                logits = [
                    model.logits(target, memory[part], source[part]).numpy()
                    for model, memory in zip(self._models, memories, strict=True)
                ]
                totals += batch.sums_of_log_probs(
                    logits[0] if len(logits) == 1 else mixture(logits),
                    wanted[part],
                    self._target.pad,
                )
        return totals

    def attention(self, source: list[int], target: list[int]) -> Attention:
        """The attention weights of the first model, in all its layers and heads, where it reads
        `source` and puts out `target`, ids without bos and eos (force decoding).

        Raises:
            UsageError: the model is non-autoregressive.
        """
        self._require_autoregressive("attention")
        model = self._models[0]
        source_ids = self._source_tensor([source])
        read, said = batch.target_arrays([target], self._target)
        with self._evaluating():
            memory, encoder = model.encode(source_ids, need_weights=True)
            _, decoder, cross = model.decode(
                paddle.to_tensor(read), memory, source_ids, need_weights=True
            )
        ids = (row.tolist() for row in (source_ids.numpy()[0], read[0], said[0]))
        # (layers, batch, heads, queries, keys) -> (layers, heads, queries, keys)
        stacks = (paddle.stack(layers)[:, 0] for layers in (encoder, decoder, cross))
        return Attention(*ids, *(weights.astype("float32").numpy() for weights in stacks))

    def cross_attention(
        self, sources: list[list[int]], targets: list[list[int]]
    ) -> list[np.ndarray]:
        """As `Engine.cross_attention`, of the first model; all are read at once.

        Raises:
            UsageError: the model is non-autoregressive.
        """
        self._require_autoregressive("attention")
        model, (layer, heads) = self._models[0], self._alignment_heads
        source = self._source_tensor(sources)
        read, _ = batch.target_arrays(targets, self._target)
        with self._evaluating():
            _, _, cross_weights = model.decode(
                paddle.to_tensor(read), model.encode(source), source, need_weights=(layer,)
            )
        weights = cross_weights[layer][:, :heads].astype("float32").mean(axis=1).numpy()
        return batch.without_padding(weights, sources, targets)

    def _require_autoregressive(self, what: str) -> None:
        if self._is_non_autoregressive:
            mask_predict.refuse(what)

    def _source_tensor(self, rows: list[list[int]]) -> paddle.Tensor:
        return paddle.to_tensor(encoded_rows(rows, self._source.pad, self._source.eos))

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        # To set the mode goes through all layers, and is spared where it is set already.
        training = [model for model in self._models if model.training]
        for model in training:
            model.eval()
        try:
            with paddle.no_grad():
                yield
        finally:
            for model in training:
                model.train()


class _HostStepper:
    """A batch of source sentences as the search sees it, on a CPU; one model or several."""

    def __init__(self, decodings: list[HostDecoding], never: tuple[int, ...]) -> None:
        self._decodings = decodings
        self._never = never

    def step(self, ids: np.ndarray, parents: np.ndarray) -> LogProbs:
        logits = [decoding.step(ids, parents) for decoding in self._decodings]
        return LogProbs(logits[0] if len(logits) == 1 else mixture(logits), self._never)

    def select(self, sentences: np.ndarray) -> None:
        for decoding in self._decodings:
            decoding.select(sentences)


class _DeviceStepper:
    """As `_HostStepper`, by Paddle on any device."""

    def __init__(
        self, models: list[Transformer], source: paddle.Tensor, never: tuple[int, ...]
    ) -> None:
        self._models = models
        self._caches = [model.start_cache(model.encode(source), source) for model in models]
        self._never = never

    def step(self, ids: np.ndarray, parents: np.ndarray) -> DeviceLogProbs:
        last = paddle.to_tensor(np.ascontiguousarray(ids))
        logits = [
            model.decode_step(last, parents, cache)
            for model, cache in zip(self._models, self._caches, strict=True)
        ]
        mixed = logits[0] if len(logits) == 1 else device_mixture(logits)
        return DeviceLogProbs(mixed, self._never)

    def select(self, sentences: np.ndarray) -> None:
        for cache in self._caches:
            cache.select(sentences)

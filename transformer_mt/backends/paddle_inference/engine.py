"""The engine that searches with Paddle Inference, in a folder that the command `export` wrote.

The package's docstring describes the programs. They hold the model: its layers are not built here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import paddle
from paddle import Tensor, inference

from transformer_mt.backends.backend import EngineSpec
from transformer_mt.backends.paddle_inference import BACKEND, DECODER, ENCODER, SUFFIXES
from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.data.batches import encoded_rows
from transformer_mt.data.subword import Subwords
from transformer_mt.decoding import batch
from transformer_mt.decoding.device_log_probs import MixtureStepper, next_log_probs
from transformer_mt.decoding.engine import Hypotheses, Rows, Sentence
from transformer_mt.model.ancestors import AncestorMask
from transformer_mt.runtime import device as devices
from transformer_mt.runtime.errors import UserError

# Megabytes of a GPU's memory that Paddle Inference takes at the start.
GPU_MEMORY = 256


class InferenceEngine:
    """Implements `engine.Engine` on the device that Paddle is set to. Two threads must not use it
    at the same time.

    Args:
        folder: an export.
        subwords: those of the folder.

    Raises:
        UsageError: the folder is not an export.
        UserError: a program is damaged, or this version of Paddle can't load it.
    """

    def __init__(self, folder: Path, subwords: Subwords) -> None:
        self._source = subwords.source
        self._target = subwords.target
        BACKEND.require_whole(Path(folder))
        self._encoder = _load(folder, ENCODER)
        self._decoder = _load(folder, DECODER)

    def search(self, sentences: list[Sentence], settings: DecodingConfig) -> Hypotheses:
        """As `Engine.search`."""
        return batch.search(self._stepper, sentences, settings, self._target)

    def log_probs(self, sources: Rows, targets: Rows) -> list[float]:
        """As `Engine.log_probs`."""
        decoder_input, labels = batch.target_arrays(targets, self._target)
        totals: list[float] = []
        for rows, logits, _ in self._forward(sources, decoder_input):
            log_probs = next_log_probs([logits], ()).of(labels[rows])
            totals += batch.sums_of_log_probs(log_probs, labels[rows], self._target.pad)
        return totals

    def cross_attention(self, sources: Rows, targets: Rows) -> list[np.ndarray]:
        """As `Engine.cross_attention`."""
        decoder_input, _ = batch.target_arrays(targets, self._target)
        forward = self._forward(sources, decoder_input)
        weights = [row for _, _, attention in forward for row in attention.numpy()]
        return batch.without_padding(weights, sources, targets)

    def _stepper(self, sentences: list[Sentence]) -> MixtureStepper:
        state = _State(self._decoder, self._encode(batch.sources(sentences)))
        count = len(sentences[0].segmentations)
        return MixtureStepper([state], len(sentences), count, batch.never_chosen(self._target))

    def _encode(self, rows: Rows) -> list[Tensor]:
        ids = encoded_rows(rows, self._source.pad, self._source.eos)
        return self._encoder.run([paddle.to_tensor(ids)])

    def _forward(
        self, sources: Rows, decoder_input: np.ndarray
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yields some rows of the decoder input, int64 (rows, target_len), at a time, with their
        logits and attention, which are overwritten when the next rows are computed."""
        encoded = self._encode(sources)
        length = decoder_input.shape[1]
        positions = paddle.arange(length)
        later = paddle.to_tensor(np.triu(np.ones((1, 1, length, length), bool), 1))
        for rows in batch.rows_at_once(decoder_input, self._target):
            ids = paddle.to_tensor(decoder_input[rows])
            padding, *keys_and_values = (x[rows] for x in encoded)
            past = [x[:, :, :0] for x in keys_and_values]
            inputs = [ids, positions, later, padding, *keys_and_values, *past]
            logits, attention, *_ = self._decoder.run(inputs)
            yield rows, logits, attention


def load(spec: EngineSpec) -> InferenceEngine:
    devices.use(spec.device)
    return InferenceEngine(spec.folder, spec.subwords)


class _State:
    """Implements `DecoderState` with the decoder's program."""

    def __init__(self, decoder: inference.Predictor, encoded: list[Tensor]) -> None:
        self._decoder = decoder
        self._encoded = encoded  # the padding, then the keys and values of the source
        self._past = [x[:, :, :0] for x in encoded[1:]]
        self._ancestors = AncestorMask()

    def step(self, ids: np.ndarray, parents: np.ndarray) -> Tensor:
        kept = self._ancestors.prune()
        if kept is not None:
            index = paddle.to_tensor(kept[:, np.newaxis, :, np.newaxis])
            self._past = [paddle.take_along_axis(x, index, axis=2) for x in self._past]
        position = self._ancestors.length
        mask = self._ancestors.grow(parents)
        forbidden = np.zeros((1, 1, 1, 1), bool) if mask is None else mask
        own = (np.ascontiguousarray(ids), np.array([position]), forbidden)
        inputs = [*(paddle.to_tensor(x) for x in own), *self._encoded, *self._past]
        logits, _, *past = self._decoder.run(inputs)
        # The outputs lie in the predictor's own memory, where its next run may write.
        self._past = [x.clone() for x in past]
        return logits

    def select(self, sentences: np.ndarray) -> None:
        self._ancestors.select(sentences)
        index = paddle.to_tensor(sentences)
        self._encoded = [paddle.index_select(x, index) for x in self._encoded]
        self._past = [paddle.index_select(x, index) for x in self._past]


def _load(folder: Path, name: str) -> inference.Predictor:
    files = [Path(folder) / f"{name}{suffix}" for suffix in SUFFIXES]
    config = inference.Config(*map(str, files))
    config.disable_glog_info()
    # oneDNN's operations, the default on a CPU, are slower here and print to stdout.
    config.disable_mkldnn()
    device, _, number = paddle.get_device().partition(":")
    if device == "gpu":
        config.enable_use_gpu(GPU_MEMORY, int(number))
    try:
        return inference.create_predictor(config)
    except Exception as error:  # Paddle's type of error for an unknown format is not documented
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise UserError(
            f"{files[0]}: Paddle {paddle.__version__} can't load it ({reason}). Export the model "
            "again, with this version of Paddle"
        ) from None

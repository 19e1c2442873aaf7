"""The engine that searches with Paddle Inference, in a folder that the verb `export` wrote.

The programs and their inputs and outputs are described in `export.paddle_inference`. The code of
the model is not needed, and not imported here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import paddle
from paddle import Tensor, inference

from transformer_mt.config.schema import DecodingConfig
from transformer_mt.data.batches import encoded_rows
from transformer_mt.data.subword import Subwords
from transformer_mt.decoding import batch
from transformer_mt.decoding.device_log_probs import DeviceLogProbs
from transformer_mt.decoding.engine import Hypothesis, Sentence, with_attention
from transformer_mt.decoding.log_probs import LogProbs
from transformer_mt.model.ancestors import AncestorMask
from transformer_mt.runtime.checksums import damage
from transformer_mt.runtime.errors import UsageError, UserError

# The programs of an exported folder; of each, the graph and the weights.
ENCODER, DECODER = "encoder", "decoder"
SUFFIXES = (".json", ".pdiparams")
# Megabytes of a GPU that Paddle Inference takes at the start.
GPU_MEMORY = 256


class InferenceEngine:
    """Implements `engine.Engine` on the device that Paddle is set to. Not to be used by two threads
    at once."""

    def __init__(self, folder: Path, subwords: Subwords) -> None:
        """
        Args:
            folder: what `export` wrote.
            subwords: those of the folder.

        Raises:
            UsageError: the folder is not an export.
            UserError: a program is damaged, or this version of Paddle can't load it.
        """
        self._source = subwords.source
        self._target = subwords.target
        graph = f"{ENCODER}{SUFFIXES[0]}"
        if not (Path(folder) / graph).is_file():
            raise UsageError(
                f"{folder} is not a model for Paddle Inference (there is no {graph} in it). Make "
                "one with python -m transformer_mt export MODEL_DIR --format paddle"
            )
        if problem := damage(Path(folder)):
            raise UserError(f"{folder}: damaged ({problem}). Export the model again")
        self._encoder = _load(folder, ENCODER)
        self._decoder = _load(folder, DECODER)

    def search(
        self, sentences: list[Sentence], settings: DecodingConfig, need_attention: bool = False
    ) -> list[list[Hypothesis]]:
        """As `Engine.search`."""
        found = batch.search(self._stepper, sentences, settings, self._target)
        return with_attention(self, sentences, found) if need_attention else found

    def log_probs(self, sources: list[list[int]], targets: list[list[int]]) -> list[float]:
        """As `Engine.log_probs`."""
        read, wanted = batch.target_arrays(targets, self._target)
        totals: list[float] = []
        for logits, _ in self._read(sources, read):
            own = wanted[len(totals) : len(totals) + len(logits)]
            totals += batch.sums_of_log_probs(_array(logits), own, self._target.pad)
        return totals

    def cross_attention(
        self, sources: list[list[int]], targets: list[list[int]]
    ) -> list[np.ndarray]:
        """As `Engine.cross_attention`."""
        read, _ = batch.target_arrays(targets, self._target)
        weights = [row for _, attention in self._read(sources, read) for row in attention.numpy()]
        return batch.without_padding(weights, sources, targets)

    def _stepper(self, rows: list[list[int]]) -> _Stepper:
        return _Stepper(self._decoder, self._encode(rows), batch.never_put_out(self._target))

    def _encode(self, rows: list[list[int]]) -> list[Tensor]:
        ids = encoded_rows(rows, self._source.pad, self._source.eos)
        return self._encoder.run([paddle.to_tensor(ids)])

    def _read(self, sources: list[list[int]], read: np.ndarray) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the logits and the attention, see `export.paddle_inference`, of whole targets,
        `read`, int64 (rows, target_len); some rows at a time. They hold until the next are asked
        for."""
        rows, length = read.shape
        encoded = self._encode(sources)
        positions = paddle.arange(length)
        later = paddle.to_tensor(np.triu(np.ones((1, 1, length, length), bool), 1))
        size = max(1, batch.LOGITS_AT_ONCE // (length * self._target.size))
        for start in range(0, rows, size):
            ids = paddle.to_tensor(read[start : start + size])
            padding, *keys_and_values = (x[start : start + size] for x in encoded)
            past = [x[:, :, :0] for x in keys_and_values]
            inputs = [ids, positions, later, padding, *keys_and_values, *past]
            logits, attention, *_ = self._decoder.run(inputs)
            yield logits, attention


class _Stepper:
    """A batch of source sentences as the search sees it."""

    def __init__(
        self, decoder: inference.Predictor, encoded: list[Tensor], never: tuple[int, ...]
    ) -> None:
        self._decoder = decoder
        self._encoded = encoded  # the padding, and keys and values
        self._past = [x[:, :, :0] for x in encoded[1:]]
        self._ancestors = AncestorMask()
        self._never = never

    def step(self, ids: np.ndarray, parents: np.ndarray) -> LogProbs | DeviceLogProbs:
        kept = self._ancestors.prune()
        if kept is not None:
            index = paddle.to_tensor(kept[:, np.newaxis, :, np.newaxis])
            self._past = [paddle.take_along_axis(x, index, axis=2) for x in self._past]
        position = self._ancestors.length
        strangers = self._ancestors.grow(parents)
        forbidden = np.zeros((1, 1, 1, 1), bool) if strangers is None else strangers
        own = (np.ascontiguousarray(ids), np.array([position]), forbidden)
        inputs = [*(paddle.to_tensor(x) for x in own), *self._encoded, *self._past]
        logits, _, *past = self._decoder.run(inputs)
        # What a predictor gives lies in its own memory, where its next run may write.
        self._past = [x.clone() for x in past]
        if logits.place.is_cpu_place():
            return LogProbs(_array(logits), self._never)
        return DeviceLogProbs(logits, self._never)

    def select(self, sentences: np.ndarray) -> None:
        self._ancestors.select(sentences)
        index = paddle.to_tensor(sentences)
        self._encoded = [paddle.index_select(x, index) for x in self._encoded]
        self._past = [paddle.index_select(x, index) for x in self._past]


def _load(folder: Path, name: str) -> inference.Predictor:
    files = [Path(folder) / f"{name}{suffix}" for suffix in SUFFIXES]
    config = inference.Config(*map(str, files))
    config.disable_glog_info()
    # oneDNN's operations, else the default on a CPU, are slower here, and print to stdout.
    config.disable_mkldnn()
    device, _, number = paddle.get_device().partition(":")
    if device == "gpu":
        config.enable_use_gpu(GPU_MEMORY, int(number))
    try:
        return inference.create_predictor(config)
    except Exception as error:  # whatever Paddle makes of a format that it does not know
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise UserError(
            f"{files[0]}: Paddle {paddle.__version__} can't load it ({reason}). Export the model "
            "again, with this version of Paddle"
        ) from None


def _array(x: Tensor) -> np.ndarray:
    """The same numbers, on a CPU in the same memory."""
    return np.from_dlpack(x) if x.place.is_cpu_place() else x.numpy()

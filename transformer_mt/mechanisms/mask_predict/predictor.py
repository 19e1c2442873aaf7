"""What Mask-Predict asks of a model, by this package's own one."""

from __future__ import annotations

import numpy as np
import paddle
from paddle import Tensor

from transformer_mt.data.subword import Vocabulary
from transformer_mt.decoding import batch
from transformer_mt.decoding.device_log_probs import DeviceLogProbs
from transformer_mt.decoding.log_probs import LogProbs
from transformer_mt.mechanisms.mask_predict.model import NonAutoregressiveTransformer
from transformer_mt.model.operations import array, is_float32_on_cpu
from transformer_mt.model.transformer import at_positions

# Positions whose logits are computed at once: some 32 MB on a CPU with a usual vocabulary.
POSITIONS = 1024


class PaddlePredictor:
    """Implements `mask_predict.Predictor`.

    Args:
        model: in evaluation mode.
        source: int64 (sentences, source_len).
    """

    def __init__(
        self, model: NonAutoregressiveTransformer, source: Tensor, target: Vocabulary
    ) -> None:
        self._model = model
        self._source = source
        self._eos = target.eos
        self._never = tuple(i for i in batch.never_put_out(target) if i != target.eos)
        self._lengths = None
        if model.predicts_length:
            self._memory, self._lengths = model.encode_with_lengths(source)
        else:
            self._memory = model.encode(source)

    def length_log_probs(self) -> np.ndarray | None:
        """As `Predictor.length_log_probs`."""
        if self._lengths is None:
            return None
        logits = self._lengths.astype("float32").numpy()
        return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)

    def best(
        self, sentences: np.ndarray, ids: np.ndarray, masked: np.ndarray, may_end: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `Predictor.best`."""
        rows = paddle.to_tensor(sentences)
        memory = paddle.index_select(self._memory, rows)
        source = paddle.index_select(self._source, rows)
        hidden = self._model.decode(paddle.to_tensor(ids), memory, source)
        hidden = at_positions(hidden, paddle.to_tensor(np.flatnonzero(masked)))
        may_end = may_end[masked]
        best_ids, log_probs = np.empty(len(may_end), np.int64), np.empty(len(may_end))
        # Those that may be eos apart from those that may not.
        for ending, never in ((True, self._never), (False, (*self._never, self._eos))):
            places = np.flatnonzero(may_end == ending)
            for start in range(0, len(places), POSITIONS):
                part = places[start : start + POSITIONS]
                own = hidden if len(part) == len(may_end) else hidden.gather(paddle.to_tensor(part))
                logits = self._model.generator(own).unsqueeze(1)
                on_host = is_float32_on_cpu(logits)
                found = (
                    LogProbs(array(logits), never) if on_host else DeviceLogProbs(logits, never)
                ).best(np.zeros((len(part), 1)), 1)
                log_probs[part], _, best_ids[part] = (x[:, 0] for x in found)
        return best_ids, log_probs

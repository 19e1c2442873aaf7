"""The engine of non-autoregressive models: `search.search` with this package's own model."""

import numpy as np
import paddle
from paddle import Tensor

from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.data.batches import encoded_rows
from transformer_mt.data.subword import Subwords, Vocabulary
from transformer_mt.decoding import batch
from transformer_mt.decoding.device_log_probs import next_log_probs
from transformer_mt.decoding.engine import Attention, Hypotheses, Rows, Sentence
from transformer_mt.decoding.paddle_engine import evaluating
from transformer_mt.mechanisms.mask_predict import search as mask_predict
from transformer_mt.mechanisms.mask_predict.config import refuse, require_possible
from transformer_mt.mechanisms.mask_predict.model import NonAutoregressiveTransformer
from transformer_mt.model.transformer import at_positions

# The number of positions whose logits are computed at once: some 32 MB with a usual vocabulary.
POSITIONS = 1024


class MaskPredictEngine:
    """Implements `engine.Engine`. The weights must not change during the engine's life.

    Args:
        model: is put into evaluation mode while the engine computes.
    """

    def __init__(self, model: NonAutoregressiveTransformer, subwords: Subwords) -> None:
        self._model = model
        self._source = subwords.source
        self._target = subwords.target

    def search(self, sentences: list[Sentence], settings: DecodingConfig) -> Hypotheses:
        """As `Engine.search`, with one hypothesis per sentence.

        Raises:
            UsageError: the settings or a prefix ask for what this kind of model can't do.
        """
        has_prefix = any(sentence.prefix for sentence in sentences)
        require_possible(settings, ["prefix"] if has_prefix else [])
        rows = [sentence.source for sentence in sentences]
        source = paddle.to_tensor(encoded_rows(rows, self._source.pad, self._source.eos))
        with evaluating([self._model]):
            predictor = PaddlePredictor(self._model, source, self._target)
            return mask_predict.search(predictor, sentences, settings, self._target)

    def log_probs(self, sources: Rows, targets: Rows) -> list[float]:
        """Raises a UsageError: the model gives no probability to a whole translation."""
        refuse("scores")

    def cross_attention(self, sources: Rows, targets: Rows) -> list[np.ndarray]:
        """Raises a UsageError: the model attends from masks."""
        refuse("attention")

    def attention(self, source: list[int], target: list[int]) -> Attention:
        """Raises a UsageError: the model attends from masks."""
        refuse("attention")


class PaddlePredictor:
    """Implements `search.Predictor` with this package's own model.

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
        self._never = tuple(i for i in batch.never_chosen(target) if i != target.eos)
        self._memory, self._lengths = model.encode_with_lengths(source)

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
        may_end = may_end[masked]  # (masked positions,)
        found: list[np.ndarray] | list[Tensor] = []
        order = []
        # The positions that may be eos are computed apart from the others, and some at a time.
        for ending, never in ((True, self._never), (False, (*self._never, self._eos))):
            places = np.flatnonzero(may_end == ending)
            for start in range(0, len(places), POSITIONS):
                part = places[start : start + POSITIONS]
                own = hidden if len(part) == len(may_end) else hidden.gather(paddle.to_tensor(part))
                logits = self._model.generator(own).unsqueeze(1)  # (positions, 1, vocabulary)
                found.append(next_log_probs([logits], never).most_probable())
                order.append(part)
        # Nothing is read on the host before everything is computed.
        on_host = isinstance(found[0], np.ndarray)
        both = np.concatenate(found) if on_host else paddle.concat(found).numpy()
        both[np.concatenate(order)] = both.copy()
        return both[:, 0].astype(np.int64), both[:, 1]

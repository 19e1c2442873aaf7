"""Mask-Predict (Ghazvininejad et al. 2019, arXiv 1904.09324, section 3).

All positions are predicted at once, and then those again that the model is least sure of.

The search knows ids and their probabilities, but neither models nor text.
"""

from __future__ import annotations

import numpy as np
import paddle
from paddle import Tensor

from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.data.batches import encoded_rows
from transformer_mt.data.subword import Subwords
from transformer_mt.data.vocabulary import Vocabulary
from transformer_mt.decoding.engine import (
    NON_AUTOREGRESSIVE_LIMITS,
    Hypotheses,
    Hypothesis,
    Rows,
    Sentence,
    length_penalty,
    limits_of,
    require_able,
)
from transformer_mt.kernels.scores import next_log_probs
from transformer_mt.model.transformer import at_positions, evaluating
from transformer_mt.model.variants import NonAutoregressiveTransformer
from transformer_mt.utils.errors import UsageError


def search(
    predictor: Predictor, sentences: list[Sentence], settings: DecodingConfig, target: Vocabulary
) -> Hypotheses:
    """One hypothesis of each sentence.

    If the model predicts lengths, targets of the `settings.length_candidates` most probable lengths
    are filled in side by side, without eos. The result is the target whose words and length have
    the highest log-probability per word (section 3.3 leaves out that of the length). If the model
    does not predict lengths, a target of the greatest length allowed is filled in, and cut at its
    first eos.

    The log-probability of a hypothesis is the sum of the log-probabilities that its words (and the
    eos at which it was cut) had when they were predicted.
    """
    shortest, longest = limits_of(sentences, settings)
    length_log_probs = predictor.length_log_probs()
    if length_log_probs is None:
        rows, lengths, ends = np.arange(len(sentences)), longest, shortest
    else:
        candidates = [
            best_lengths(*own, settings.length_candidates)
            for own in zip(length_log_probs, shortest, longest, strict=True)
        ]
        rows = np.repeat(np.arange(len(sentences)), [len(own) for own in candidates])
        lengths = ends = np.concatenate([*candidates, np.zeros(0, np.int64)])

    ids, log_probs = fill(predictor, rows, lengths, ends, settings.iterations, target)
    found: list[list[tuple[float, Hypothesis]]] = [[] for _ in sentences]
    for sentence, length, own_ids, own in zip(rows, lengths, ids, log_probs, strict=True):
        ends = np.flatnonzero(own_ids[:length] == target.eos)
        words = own_ids[: ends[0] if len(ends) else length].tolist()
        counted = own[: min(len(words) + 1, length)]
        log_prob = float(counted.sum())
        score = log_prob / length_penalty(len(words) + 1, settings)
        # The length counts too, because a wrong, shorter one often has more probable words.
        of_length = 0.0 if length_log_probs is None else length_log_probs[sentence, length - 1]
        mean = (log_prob + of_length) / max(1, len(counted))
        found[sentence].append((mean, Hypothesis(words, log_prob, score)))
    # Of equal ones, max takes the first, which has the more probable length.
    return [[max(own, key=lambda item: item[0])[1]] for own in found]


def best_lengths(log_probs: np.ndarray, shortest: int, longest: int, count: int) -> np.ndarray:
    """The `count` most probable lengths from `shortest` to `longest`, best first: int64. There may
    be fewer; if there is none, the result is the length 0.

    Args:
        log_probs: (lengths,), of the lengths 1, 2, ...; greater lengths can't be predicted.
    """
    shortest = min(max(shortest, 1), len(log_probs))
    allowed = log_probs[shortest - 1 : longest]
    if not len(allowed):
        return np.zeros(1, np.int64)
    return shortest + np.argsort(-allowed, kind="stable")[:count]


def fill(
    predictor: Predictor,
    sentences: np.ndarray,
    lengths: np.ndarray,
    ends: np.ndarray,
    iterations: int,
    target: Vocabulary,
) -> tuple[np.ndarray, np.ndarray]:
    """Fills in targets (section 3.1), one in each row.

    Args:
        sentences: int64 (rows,), the sentence that each row is a target of.
        lengths: int64 (rows,), the number of positions.
        ends: int64 (rows,), the first position that may be eos.

    The first of T iterations predicts all N ids of a target. Iteration t (from 0) predicts the
    N * (T - t) / T ids (rounded down) with the lowest log-probabilities again.

    Returns: the ids, int64 (rows, longest), and their log-probabilities, float64 of the same shape;
        beyond a target's length they are pad and 0.
    """
    places = np.arange(max(lengths, default=0))
    is_real = places < lengths[:, np.newaxis]
    may_end = places >= ends[:, np.newaxis]
    # Such a decoder does not read bos as the beginning, so bos can stand for a mask.
    ids = np.where(is_real, target.bos, target.pad)
    log_probs = np.zeros(ids.shape)
    for iteration in range(iterations):
        counts = lengths * (iterations - iteration) // iterations
        ranks = _ranks(np.where(is_real, log_probs, np.inf))
        masked = is_real & (ranks < counts[:, np.newaxis])
        rows = np.flatnonzero(masked.any(axis=1))  # short targets are done before the others
        if not len(rows):
            break
        ids[masked] = target.bos
        ids[masked], log_probs[masked] = predictor.best(
            sentences[rows], ids[rows], masked[rows], may_end[rows]
        )
    return ids, log_probs


def _ranks(values: np.ndarray) -> np.ndarray:
    """The rank of each number in its row, int64 (rows, len). The lowest has the rank 0; of equal
    numbers the first is lower."""
    return values.argsort(axis=1, kind="stable").argsort(axis=1)


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
        require_able(NON_AUTOREGRESSIVE_LIMITS, settings, ["prefix"] if has_prefix else [])
        rows = [sentence.source for sentence in sentences]
        source = paddle.to_tensor(encoded_rows(rows, self._source.pad, self._source.eos))
        with evaluating([self._model]):
            predictor = Predictor(self._model, source, self._target)
            return search(predictor, sentences, settings, self._target)

    def log_probs(self, sources: Rows, targets: Rows) -> list[float]:
        """Raises a UsageError: the model gives no probability to a whole translation."""
        raise UsageError(NON_AUTOREGRESSIVE_LIMITS["scores"])

    def cross_attention(self, sources: Rows, targets: Rows) -> list[np.ndarray]:
        """Raises a UsageError: the model attends from masks."""
        raise UsageError(NON_AUTOREGRESSIVE_LIMITS["attention"])


class Predictor:
    """A model that has encoded the sources of some sentences.

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
        self._never = tuple(i for i in target.special if i != target.eos)
        self._memory, self._lengths = model.encode_with_lengths(source)

    def length_log_probs(self) -> np.ndarray | None:
        """log p(length) of the lengths 1, 2, ... of each target, (sentences, lengths); None if the
        model does not predict lengths."""
        if self._lengths is None:
            return None
        logits = self._lengths.astype("float32").numpy()
        return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)

    def best(
        self, sentences: np.ndarray, ids: np.ndarray, masked: np.ndarray, may_end: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The most probable id at each masked position, int64 (count,), and its log-probability,
        float64 (count,), row after row.

        Args:
            sentences: int64 (rows,), the sentence that each row is a target of.
            ids: int64 (rows, target_len), padded; the mask's id stands at masked positions.
            masked: bool (rows, target_len), True at masked positions.
            may_end: bool (rows, target_len), True where the id may be eos.
        """
        rows = paddle.to_tensor(sentences)
        memory = paddle.index_select(self._memory, rows)
        source = paddle.index_select(self._source, rows)
        hidden, _, _ = self._model.decode(paddle.to_tensor(ids), memory, source)
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

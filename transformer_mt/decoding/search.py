"""Beam search over any step function. It knows ids and scores, neither models nor text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor


class Stepper(Protocol):
    """What is searched: rows that each hold one partial hypothesis."""

    def logits(self, ids: np.ndarray) -> Tensor:
        """Appends ids (rows,) to the rows, and returns the scores of what may follow:
        (rows, vocabulary), not normalised."""

    def reorder(self, index: np.ndarray) -> None:
        """Row i becomes what row index[i] was; rows may be left out or repeated."""


@dataclass(frozen=True)
class Hypothesis:
    """A finished output: its ids without eos, and the log-probability of ids and eos, divided by
    the length penalty."""

    ids: list[int]
    score: float


def length_penalty(length: int | np.ndarray, alpha: float) -> float | np.ndarray:
    """((5 + length) / 6)^alpha (Wu et al. 2016, arXiv 1609.08144, formula 14), eos counted."""
    return ((5 + length) / 6) ** alpha


def beam_search(
    stepper: Stepper,
    max_lengths: np.ndarray,
    *,
    bos: int,
    eos: int,
    forbidden: tuple[int, ...] = (),
    beam_size: int = 5,
    alpha: float = 1.0,
) -> list[Hypothesis]:
    """The best hypothesis found for each sentence; greedy search is beam_size 1.

    The stepper begins with one row a sentence. A sentence is done when no open hypothesis can
    become better than the best finished one, or when beam_size have finished and no open one is
    better as it stands; its rows then leave. (Their number alone tells nothing: a model that is
    sure of its next word has ends of tiny probability among its beam_size best at every step.) At
    its maximum length a hypothesis can only end.

    Args:
        max_lengths: longest output of each sentence, eos included: (sentences,), at least 1.
        forbidden: ids that are never put out. They keep their share of the probability, so that
            scores are those of the model.
    """
    count = len(max_lengths)
    finished: list[list[Hypothesis]] = [[] for _ in range(count)]
    sentences = np.arange(count)  # those still open; their rows lie together, `width` each
    width = 1
    scores = np.zeros((count, 1))  # (open sentences, width)
    prefixes = np.zeros((count, 1, 0), np.int64)  # (open sentences, width, length)
    last = np.full(count, bos, np.int64)  # (rows,)
    length = 0
    while len(sentences):
        length += 1
        ids, log_probs = _best_next(stepper.logits(last), eos, forbidden, 2 * beam_size)
        must_end = length >= max_lengths[sentences]
        log_probs = np.where(np.repeat(must_end, width)[:, None] & (ids != eos), -np.inf, log_probs)
        # (open sentences, width * candidates of a row)
        total = (scores.reshape(-1, 1) + log_probs).reshape(len(sentences), -1)
        ids = ids.reshape(len(sentences), -1)
        order = np.argsort(-total, axis=1, kind="stable")[:, : 2 * beam_size]
        total = np.take_along_axis(total, order, axis=1)
        ids = np.take_along_axis(ids, order, axis=1)
        parents = order // (log_probs.shape[1])  # within the sentence

        # Of the beam_size best, those that end are finished.
        ends = (ids == eos) & np.isfinite(total)
        for i, rank in np.argwhere(ends[:, :beam_size]):
            finished[sentences[i]].append(
                Hypothesis(
                    prefixes[i, parents[i, rank]].tolist(),
                    float(total[i, rank] / length_penalty(length, alpha)),
                )
            )
        # The best that do not end go on; stable sorting keeps their order.
        total = np.where(ids == eos, -np.inf, total)
        order = np.argsort(-total, axis=1, kind="stable")[:, :beam_size]
        scores = np.take_along_axis(total, order, axis=1)
        ids = np.take_along_axis(ids, order, axis=1)
        parents = np.take_along_axis(parents, order, axis=1)

        best = np.array(
            [max((h.score for h in finished[i]), default=-np.inf) for i in sentences], np.float64
        )
        is_full = np.array([len(finished[i]) >= beam_size for i in sentences], bool)
        # A log-probability only falls, so this is the best that an open hypothesis can reach.
        reachable = scores[:, 0] / length_penalty(max_lengths[sentences], alpha)
        as_it_stands = scores[:, 0] / length_penalty(length, alpha)
        open_still = np.isfinite(reachable) & (reachable > best)
        open_still &= ~is_full | (as_it_stands > best)
        rows = (np.arange(len(sentences))[:, None] * width + parents)[open_still]
        prefixes = np.take_along_axis(prefixes, parents[:, :, None], axis=1)
        prefixes = np.concatenate([prefixes, ids[:, :, None]], axis=2)[open_still]
        scores, sentences = scores[open_still], sentences[open_still]
        last = ids[open_still].reshape(-1)
        width = prefixes.shape[1]
        if len(sentences):
            stepper.reorder(rows.reshape(-1))
    # Nothing finishes only where the scores are not numbers.
    nothing = Hypothesis([], -np.inf)
    return [max(hypotheses, key=lambda h: h.score, default=nothing) for hypotheses in finished]


def _best_next(
    logits: Tensor, eos: int, forbidden: tuple[int, ...], count: int
) -> tuple[np.ndarray, np.ndarray]:
    """The `count` best next ids of each row and eos, with their log-probabilities in float64:
    (rows, count + 1) each. A slot that has nothing to offer has -inf."""
    wanted = min(count + len(forbidden), logits.shape[-1])
    top, best = paddle.topk(logits, wanted, axis=-1)
    values, ids = top.numpy(), best.numpy()
    # log p = logit - log(sum(exp(logits))), and that sum is known from the best id. (Paddle's
    # logsumexp and log_softmax take many times longer on a CPU, and its softmax never goes below
    # exp(-64), which the best id is far from.)
    best_nll = F.cross_entropy(logits, best[:, :1], reduction="none").numpy()
    log_total = values[:, :1].astype(np.float64) + best_nll
    log_probs = values - log_total
    log_probs[np.isin(ids, [*forbidden, eos])] = -np.inf
    # eos has a slot of its own: a hypothesis at its maximum length needs it, however unlikely.
    end_log_prob = logits[:, eos : eos + 1].numpy() - log_total
    ids = np.concatenate([np.full((len(ids), 1), eos, ids.dtype), ids], axis=1)
    return ids, np.concatenate([end_log_prob, log_probs], axis=1)

"""Beam search and sampling over any step function. They know ids and scores, neither models nor
text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from transformer_mt.decoding.engine import Hypothesis

# The rest of the sentences goes on with those that are done until so many of them are: to take them
# out copies all that is kept of the others.
DONE_SHARE = 1 / 8


class NextLogProbs(Protocol):
    """What `log_probs.LogProbs` offers."""

    def of(self, ids: np.ndarray) -> np.ndarray: ...

    def best(self, scores: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...

    def draw(self, uniform: np.ndarray, *options) -> np.ndarray: ...


class Stepper(Protocol):
    """What is searched: sentences that each hold the same number of partial hypotheses."""

    def step(self, ids: np.ndarray, parents: np.ndarray) -> NextLogProbs:
        """What may follow each hypothesis, when hypothesis i of a sentence is what hypothesis
        parents[:, i] was before this step, and ids[:, i] after it; both (sentences, width), int64.
        At the first step all ids are bos."""

    def select(self, sentences: np.ndarray) -> None:
        """Keeps the sentences with these indices, in this order."""


@dataclass(frozen=True)
class Task:
    """What is asked for each sentence: arrays are int64 (sentences,); lengths leave out eos."""

    shortest: np.ndarray
    longest: np.ndarray
    prefixes: list[list[int]]
    bos: int
    eos: int
    penalty: Callable[[np.ndarray], np.ndarray]  # of a length that counts eos
    n_best: int = 1

    def forced(self, length: int) -> np.ndarray:
        """The id that each sentence must have at this place (from 0); -1: any."""
        return np.array(
            [prefix[length] if length < len(prefix) else -1 for prefix in self.prefixes], np.int64
        )

    def must_end(self, length: int) -> np.ndarray:
        return length >= np.maximum(self.longest, self._prefix_lengths)

    def may_end(self, length: int) -> np.ndarray:
        return (length >= self.shortest) & (length >= self._prefix_lengths) | self.must_end(length)

    @property
    def _prefix_lengths(self) -> np.ndarray:
        return np.array([len(prefix) for prefix in self.prefixes], np.int64)


def beam_search(stepper: Stepper, task: Task, beam_size: int) -> list[list[Hypothesis]]:
    """The task.n_best best hypotheses found for each sentence.

    At every step the beam_size best continuations of a sentence's hypotheses stay open. Those that
    end are put aside, if they are among the beam_size best of both kinds. The result is the best of
    all that have ended so, by log-probability divided by the length penalty. A sentence is done
    as soon as no open hypothesis can become one of the n_best: a log-probability only falls, and
    the penalty is never larger than at the longest length, so that this changes nothing but the
    time.

    With a beam_size of 1 it is greedy search: at every step the most probable id, until it is eos.
    """
    found = _Found(task)
    sentences = np.arange(len(task.longest))  # those still open
    ids = np.full((len(sentences), 1), task.bos, np.int64)  # (open, width)
    parents = np.zeros_like(ids)
    scores = np.zeros(ids.shape)
    outputs = np.zeros((*ids.shape, 0), np.int64)  # (open, width, length)
    best_penalty = task.penalty(np.maximum(task.longest, 0) + 1)
    length = 0
    while len(sentences):
        log_probs = stepper.step(ids, parents)
        ends = scores + log_probs.of(np.full_like(ids, task.eos))
        ends[~task.may_end(length)[sentences]] = -np.inf
        totals, next_parents, next_ids = log_probs.best(scores, beam_size)
        forced = task.forced(length)[sentences]
        if (forced >= 0).any():
            only = log_probs.of(np.broadcast_to(np.maximum(forced, 0)[:, np.newaxis], scores.shape))
            totals[forced >= 0] = -np.inf
            totals[forced >= 0, 0] = (scores + only)[forced >= 0, 0]
            next_parents[forced >= 0, 0] = 0
            next_ids[forced >= 0, 0] = forced[forced >= 0]
        totals[task.must_end(length)[sentences]] = -np.inf
        ends = _among_best(ends, totals, beam_size)
        if beam_size == 1:
            totals = np.where(np.isfinite(ends), -np.inf, totals)
        found.add(sentences, ends, outputs)

        parents, ids = next_parents, next_ids
        scores = totals
        outputs = np.take_along_axis(outputs, parents[:, :, np.newaxis], axis=1)
        outputs = np.concatenate([outputs, ids[:, :, np.newaxis]], axis=2)
        length += 1

        going_on = scores.max(axis=1) / best_penalty[sentences] > found.worst[sentences]
        if going_on.sum() <= (1 - DONE_SHARE) * len(sentences):
            sentences, ids, parents = sentences[going_on], ids[going_on], parents[going_on]
            scores, outputs = scores[going_on], outputs[going_on]
            if len(sentences):
                stepper.select(np.flatnonzero(going_on))
    return found.hypotheses()


def sample(
    stepper: Stepper,
    task: Task,
    uniform: np.ndarray,
    temperature: float,
    top_k: int | None,
    top_p: float,
) -> list[list[Hypothesis]]:
    """task.n_best outputs drawn at random for each sentence, the most probable first.

    Args:
        uniform: random numbers in [0, 1), (sentences, n_best, steps), with at least as many steps
            as the longest output has ids: an output depends on its own ones alone.
        temperature, top_k, top_p: as in `LogProbs.draw`.
    """
    found = _Found(task)
    sentences = np.arange(len(task.longest))
    ids = np.full((len(sentences), task.n_best), task.bos, np.int64)
    parents = np.broadcast_to(np.arange(task.n_best), ids.shape)
    scores = np.zeros(ids.shape)  # -inf once it has ended
    outputs = np.zeros((*ids.shape, 0), np.int64)
    length = 0
    while len(sentences):
        log_probs = stepper.step(ids, parents)
        may_end = task.may_end(length)[sentences][:, np.newaxis] & np.isfinite(scores)
        numbers = uniform[sentences, :, min(length, uniform.shape[2] - 1)]
        ids = log_probs.draw(numbers, temperature, top_k, top_p, ~may_end, task.eos)
        forced = np.broadcast_to(task.forced(length)[sentences][:, np.newaxis], ids.shape)
        ids = np.where(forced >= 0, forced, ids)
        ids = np.where(task.must_end(length)[sentences][:, np.newaxis], task.eos, ids)
        scores = scores + log_probs.of(ids)
        ended = ids == task.eos
        found.add(sentences, np.where(ended, scores, -np.inf), outputs)
        scores[ended | np.isnan(scores)] = -np.inf
        outputs = np.concatenate([outputs, ids[:, :, np.newaxis]], axis=2)
        length += 1

        going_on = np.isfinite(scores).any(axis=1)
        if not going_on.all():
            sentences, ids, parents = sentences[going_on], ids[going_on], parents[going_on]
            scores, outputs = scores[going_on], outputs[going_on]
            if len(sentences):
                stepper.select(np.flatnonzero(going_on))
    return found.hypotheses()


def _among_best(ends: np.ndarray, totals: np.ndarray, beam_size: int) -> np.ndarray:
    """The log-probabilities `ends` (sentences, width), -inf for those that are not among the
    beam_size best of them and `totals` (sentences, beam_size). More would be found if all counted,
    but these are outputs that break off: improbable, and for that reason short."""
    better = (totals[:, np.newaxis] > ends[:, :, np.newaxis]).sum(axis=2)
    better += (ends[:, np.newaxis] > ends[:, :, np.newaxis]).sum(axis=2)
    return np.where(better < beam_size, ends, -np.inf)


class _Found:
    """The n_best best ended hypotheses of each sentence."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._hypotheses: list[list[Hypothesis]] = [[] for _ in task.longest]
        # The score that a sentence's next one must be above.
        self.worst = np.full(len(task.longest), -np.inf)

    def add(self, sentences: np.ndarray, log_probs: np.ndarray, outputs: np.ndarray) -> None:
        """Takes in what is better than what is there: log_probs (sentences, width), eos counted,
        and the outputs (sentences, width, length) without it."""
        scores = log_probs / self._task.penalty(np.int64(outputs.shape[2] + 1))
        for i, j in np.argwhere(scores > self.worst[sentences][:, np.newaxis]):
            own = self._hypotheses[sentences[i]]
            own.append(
                Hypothesis(outputs[i, j].tolist(), float(log_probs[i, j]), float(scores[i, j]))
            )
            own.sort(key=lambda hypothesis: -hypothesis.score)
            del own[self._task.n_best :]
            if len(own) == self._task.n_best:
                self.worst[sentences[i]] = own[-1].score

    def hypotheses(self) -> list[list[Hypothesis]]:
        # Nothing is found only where the scores are not numbers.
        return [own or [Hypothesis([], -np.inf, -np.inf)] for own in self._hypotheses]

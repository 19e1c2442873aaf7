"""Beam search and sampling over any step function. They know ids and scores, but neither models nor
text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.data.vocabulary import Vocabulary
from transformer_mt.decoding import guards
from transformer_mt.decoding.constraints import ConstrainedBeam
from transformer_mt.decoding.engine import (
    PATIENCE,
    Hypotheses,
    Hypothesis,
    Rows,
    Sentence,
    length_penalty,
    limits_of,
)
from transformer_mt.utils.console import warn
from transformer_mt.utils.errors import is_out_of_memory

if TYPE_CHECKING:
    from transformer_mt.kernels.scores import CandidateLogProbs, DeviceLogProbs, LogProbs

# Sentences that are done stay in the batch until they make up this share of it, because removing
# them copies everything that is stored for the others.
DONE_SHARE = 1 / 8
# The number of pairs of hypotheses of the same sentence in a batch. Memory grows with it, because
# each hypothesis attends among the positions of all of them (see `AncestorMask`). With a beam below
# 23, a batch of 2,048 tokens never has so many.
PAIRS_AT_ONCE = 2**20


class Stepper(Protocol):
    """The step function: sentences with the same number of partial hypotheses each."""

    def step(
        self, ids: np.ndarray, parents: np.ndarray
    ) -> LogProbs | CandidateLogProbs | DeviceLogProbs:
        """The log-probabilities of what may follow each hypothesis. On a GPU, each call of their
        methods waits for the device.

        Args:
            ids: int64 (sentences, width), the last id of each hypothesis; bos at the first step.
            parents: int64 (sentences, width), the number that each hypothesis, without its last id,
                had among those of its sentence at the step before.
        """

    def select(self, sentences: np.ndarray) -> None:
        """Keeps the sentences with these indices, in this order."""


@dataclass(frozen=True)
class Task:
    """What is asked for each sentence. Arrays are int64 (sentences,); lengths do not count eos.

    Attributes:
        shortest, longest: the limits of an output's length.
        prefixes: the ids that the outputs begin with.
        settings: how to search, or to draw.
        beam: the sentences with constraints; None if there are none.
        sources: the ids of the sentences, which tell whose outputs may repeat themselves for long;
            empty: nobody's may.
    """

    shortest: np.ndarray
    longest: np.ndarray
    prefixes: Rows
    bos: int
    eos: int
    settings: DecodingConfig
    beam: ConstrainedBeam | None = None
    sources: Rows = field(default_factory=list)

    def without_loops(self, open_ones: _Open) -> tuple[np.ndarray, np.ndarray]:
        """The scores of the hypotheses, with -inf for those in a loop, and which sentences must end
        here, bool (open,): those in which loops are found for the second time, or that have nothing
        but loops. Their scores stay."""
        scores, outputs = open_ones.scores, open_ones.outputs
        is_over = np.zeros(len(scores), bool)
        if not self.settings.stop_loops or not guards.is_time(open_ones.length):
            return scores, is_over
        looping = guards.in_loop(outputs)
        if self.beam is not None:  # what their constraints ask for may still be missing
            looping &= ~self.beam.has(open_ones.sentences)
        for row in np.flatnonzero(looping.any(axis=1)):
            number = open_ones.sentences[row]
            rows = [self.prefixes[number], *self.sources[number : number + 1]]
            looping[row] &= not any(map(guards.has_loop, rows))
        if looping.any():
            open_ones.loops += looping.any(axis=1)
            is_over = (looping | ~np.isfinite(scores)).all(axis=1)
            is_over |= looping.any(axis=1) & (open_ones.loops > 1)
            scores = np.where(looping & ~is_over[:, np.newaxis], -np.inf, scores)
        return scores, is_over

    def forced(self, length: int) -> np.ndarray:
        """The id that each sentence's prefix has at this place (from 0); -1 where it has ended."""
        return np.array(
            [prefix[length] if length < len(prefix) else -1 for prefix in self.prefixes], np.int64
        )

    def must_end(self, length: int) -> np.ndarray:
        return length >= self._last

    def may_end(self, length: int) -> np.ndarray:
        return length >= self._first

    def left(self, length: int) -> np.ndarray:
        """How many ids each output may still get."""
        return self._last - length

    @cached_property
    def _last(self) -> np.ndarray:
        return np.maximum(self.longest, self._prefix_lengths)

    @cached_property
    def _first(self) -> np.ndarray:
        return np.minimum(np.maximum(self.shortest, self._prefix_lengths), self._last)

    @property
    def _prefix_lengths(self) -> np.ndarray:
        return np.array([len(prefix) for prefix in self.prefixes], np.int64)


def search(
    stepper_of: Callable[[list[Sentence]], Stepper],
    sentences: list[Sentence],
    settings: DecodingConfig,
    target: Vocabulary,
) -> Hypotheses:
    """As `Engine.search`. If memory runs out, a batch is searched in halves, with a warning.

    Args:
        stepper_of: gives the stepper of some sentences.
    """
    width = settings.n_best if settings.sampling else settings.beam_size
    count = max(1, PAIRS_AT_ONCE // width**2)
    found: Hypotheses = []
    left = sentences
    while left:
        some = left[:count]
        try:
            found += _search_together(stepper_of, some, settings, target)
        except Exception as error:
            if not is_out_of_memory(error) or len(some) == 1:
                raise
            count = len(some) // 2
            warn(
                f"memory ran out with {len(some)} sentences; they are translated in halves",
                kind="batches did not fit into memory; a lower decoding.batch_tokens saves time",
            )
        else:
            left = left[count:]
    return found


def _search_together(
    stepper_of: Callable[[list[Sentence]], Stepper],
    sentences: list[Sentence],
    settings: DecodingConfig,
    target: Vocabulary,
) -> Hypotheses:
    stepper = stepper_of(sentences)
    prefixes = [sentence.prefix for sentence in sentences]
    constraints = [one.constraints for one in sentences]
    beam = None
    if any(constraints):
        beam = ConstrainedBeam(constraints, settings.beam_size, target.final_marks)
    limits = limits_of(sentences, settings)
    sources = [one.source for one in sentences]
    task = Task(*limits, prefixes, target.bos, target.eos, settings, beam, sources)
    if not settings.sampling:
        return beam_search(stepper, task)
    # The random numbers of a sentence depend only on the seed and on its own number. They are drawn
    # step by step, so that they do not depend on the number of steps, which follows from the
    # longest sentence of the batch.
    shape = int(task.longest.max()) + 1, settings.n_best
    generators = (np.random.default_rng((settings.seed, one.number)) for one in sentences)
    return sample(stepper, task, np.stack([own.random(shape).T for own in generators]))


def beam_search(stepper: Stepper, task: Task) -> Hypotheses:
    """The n_best best hypotheses found for each sentence.

    At every step, the beam_size best continuations of a sentence's hypotheses stay open. A
    continuation by eos is kept as a result if it is among the beam_size best of both kinds. The
    outcome is the best of all results by log-probability divided by the length penalty.

    A sentence is done as soon as no open hypothesis can become one of the n_best any more: a
    log-probability only falls, and the penalty is largest at the longest length. This changes no
    result. A sentence is also done when it has PATIENCE * beam_size results (Kasai et al. 2022,
    arXiv 2204.05424): what comes later is rarely better.

    A beam_size of 1 is greedy search: at every step the most probable id, until that is eos.
    """
    open_ones = _Open(stepper, task, width=1)
    found = _Found(task)
    beam_size = task.settings.beam_size
    has_penalties = guards.are_on(task.settings)
    best_penalty = length_penalty(np.maximum(task.longest, 0) + 1, task.settings)
    while len(open_ones.sentences):
        sentences, scores, length = open_ones.sentences, open_ones.scores, open_ones.length
        log_probs = stepper.step(open_ones.ids, open_ones.parents)
        if has_penalties:
            guards.penalise(log_probs, open_ones.outputs, task.settings)
        scores, must_end = task.without_loops(open_ones)
        must_end |= task.must_end(length)[sentences]
        forced = task.forced(length)[sentences]
        within_prefix = forced >= 0
        # No hypothesis ends within its prefix, so that only one log-probability of each is asked
        # for: that of the forced id, or that of eos.
        asked = np.where(within_prefix, forced, task.eos)[:, np.newaxis]
        asked = np.broadcast_to(asked, scores.shape)
        # The best continuations, each (open, beam_size); within a prefix there is only one.
        totals, parents, ids, of_asked = log_probs.best(scores, beam_size, asked)
        # The log-probabilities of the hypotheses that end here: (open, width).
        ends = scores + of_asked
        if within_prefix.any():
            totals[within_prefix] = -np.inf
            totals[within_prefix, 0] = ends[within_prefix, 0]
            parents[within_prefix, 0] = 0
            ids[within_prefix, 0] = forced[within_prefix]
        ends[~task.may_end(length)[sentences]] = -np.inf
        totals[must_end] = -np.inf
        among_best = _among_best(ends, totals, beam_size)
        if task.beam is None:
            ends = among_best
        else:
            left, best = task.left(length)[sentences], (totals, parents, ids)
            ends, best = task.beam.step(sentences, scores, forced, ends, left, log_probs, best)
            totals, parents, ids = best
            ends = np.where(task.beam.has(sentences), ends, among_best)
        if beam_size == 1:
            totals[np.isfinite(ends).any(axis=1)] = -np.inf
        found.add(sentences, ends, open_ones.outputs)
        open_ones.extend(ids, totals, parents)
        going_on = totals.max(axis=1) / best_penalty[sentences] > found.worst[sentences]
        going_on &= found.counts[sentences] < PATIENCE * beam_size
        open_ones.keep(going_on, DONE_SHARE)
    return found.hypotheses()


def sample(stepper: Stepper, task: Task, uniform: np.ndarray) -> Hypotheses:
    """n_best outputs drawn at random for each sentence, the most probable first.

    Args:
        uniform: random numbers in [0, 1), (sentences, n_best, steps), with at least as many steps
            as the longest output has ids. An output depends only on its own numbers.
    """
    settings = task.settings
    has_penalties = guards.are_on(settings)
    open_ones = _Open(stepper, task, width=settings.n_best)
    found = _Found(task)
    while len(open_ones.sentences):
        sentences, scores, length = open_ones.sentences, open_ones.scores, open_ones.length
        after = stepper.step(open_ones.ids, open_ones.parents)
        if has_penalties:
            guards.penalise(after, open_ones.outputs, settings)
        scores, must_end = task.without_loops(open_ones)
        must_end |= task.must_end(length)[sentences]
        may_end = task.may_end(length)[sentences][:, np.newaxis] & np.isfinite(scores)
        numbers = uniform[sentences, :, min(length, uniform.shape[2] - 1)]
        # The ids, (open, n_best), are drawn; a prefix and the longest length leave no choice.
        fixed = np.where(must_end, task.eos, task.forced(length)[sentences])
        fixed = np.broadcast_to(fixed[:, np.newaxis], scores.shape)
        ids, log_probs = after.draw(
            *(numbers, settings.temperature, settings.top_k, settings.top_p),
            *(~may_end, task.eos, fixed),
        )
        scores = scores + log_probs
        ended = ids == task.eos
        found.add(sentences, np.where(ended, scores, -np.inf), open_ones.outputs)
        scores[ended | np.isnan(scores)] = -np.inf
        open_ones.extend(ids, scores)
        open_ones.keep(np.isfinite(scores).any(axis=1))
    return found.hypotheses()


class _Open:
    """The sentences that are not done, and their open hypotheses.

    Attributes:
        sentences: int64 (open,), the indices of the sentences.
        ids, parents: int64 (open, width), as in `Stepper.step`.
        scores: float64 (open, width), the log-probabilities; -inf where there is no hypothesis.
        outputs: int64 (open, width, length), the ids of the hypotheses.
        loops: int64 (open,), how often loops were found among them.
    """

    def __init__(self, stepper: Stepper, task: Task, width: int) -> None:
        self._stepper = stepper
        self.sentences = np.arange(len(task.longest))
        self.ids = np.full((len(self.sentences), width), task.bos, np.int64)
        self.parents = np.broadcast_to(np.arange(width), self.ids.shape)
        self.scores = np.zeros(self.ids.shape)
        self.outputs = np.zeros((*self.ids.shape, 0), np.int64)
        self.loops = np.zeros(len(self.sentences), np.int64)

    @property
    def length(self) -> int:
        return self.outputs.shape[2]

    def extend(
        self, ids: np.ndarray, scores: np.ndarray, parents: np.ndarray | None = None
    ) -> None:
        """Replaces the hypotheses by continuations: hypothesis parents[i, j] with ids[i, j]. By
        default, each hypothesis continues itself."""
        self.ids, self.scores = ids, scores
        if parents is not None:
            self.parents = parents
            self.outputs = self.outputs[np.arange(len(parents))[:, np.newaxis], parents]
        self.outputs = np.concatenate([self.outputs, ids[:, :, np.newaxis]], axis=2)

    def keep(self, going_on: np.ndarray, done_share: float = 0.0) -> None:
        """Keeps the sentences where `going_on`, bool (open,), is True; all of them if fewer than
        `done_share` of them are done."""
        done = len(going_on) - going_on.sum()
        if not done or going_on.sum() > (1 - done_share) * len(going_on):
            return
        self.sentences, self.outputs = self.sentences[going_on], self.outputs[going_on]
        self.ids, self.parents = self.ids[going_on], self.parents[going_on]
        self.scores, self.loops = self.scores[going_on], self.loops[going_on]
        if len(self.sentences):
            self._stepper.select(np.flatnonzero(going_on))


def _among_best(ends: np.ndarray, totals: np.ndarray, beam_size: int) -> np.ndarray:
    """`ends` (sentences, width), with -inf for those that are not among the beam_size best of them
    and `totals` (sentences, beam_size). Without this limit more results would be found, but they
    would be outputs that break off: improbable, and for that reason short."""
    better = (totals[:, np.newaxis] > ends[:, :, np.newaxis]).sum(axis=2)
    better += (ends[:, np.newaxis] > ends[:, :, np.newaxis]).sum(axis=2)
    return np.where(better < beam_size, ends, -np.inf)


class _Found:
    """The n_best best results of each sentence.

    Attributes:
        worst: float64 (sentences,), the score that a sentence's next result must exceed.
        counts: int64 (sentences,), the number of results so far.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._hypotheses: Hypotheses = [[] for _ in task.longest]
        self.worst = np.full(len(task.longest), -np.inf)
        self.counts = np.zeros(len(task.longest), np.int64)

    def add(self, sentences: np.ndarray, log_probs: np.ndarray, outputs: np.ndarray) -> None:
        """Adds the results that are better than the present ones: log_probs (sentences, width) with
        eos, and outputs (sentences, width, length) without it."""
        is_result = np.isfinite(log_probs)
        if not is_result.any():
            return
        self.counts[sentences] += is_result.sum(axis=1)
        scores = log_probs / length_penalty(outputs.shape[2] + 1, self._task.settings)
        for i, j in np.argwhere(scores > self.worst[sentences][:, np.newaxis]):
            own = self._hypotheses[sentences[i]]
            own.append(
                Hypothesis(outputs[i, j].tolist(), float(log_probs[i, j]), float(scores[i, j]))
            )
            own.sort(key=lambda hypothesis: -hypothesis.score)
            del own[self._task.settings.n_best :]
            if len(own) == self._task.settings.n_best:
                self.worst[sentences[i]] = own[-1].score

    def hypotheses(self) -> Hypotheses:
        # Nothing is found only if the scores are not numbers.
        return [own or [Hypothesis([], -np.inf, -np.inf)] for own in self._hypotheses]

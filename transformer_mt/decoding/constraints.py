"""Constrained beam search: outputs that contain what a sentence's constraints ask for.

Each hypothesis knows which constraints it has met. Hypotheses that have met equally much form a
bank, and the beam is shared out to the banks (dynamic beam allocation, Post and Vilar 2018, arXiv
1804.06609, section 3), because a hypothesis that has just been made to continue with a constraint
would otherwise lose against those that were not.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from transformer_mt.decoding.engine import Constraint

if TYPE_CHECKING:
    from transformer_mt.kernels.scores import CandidateLogProbs, DeviceLogProbs, LogProbs

# The widest beam of a sentence that has constraints of several subwords. It has one bank for each
# subword, and needs a hypothesis for each bank.
WIDEST = 20
# The number of further continuations of a hypothesis that are looked at, because some may be
# forbidden.
SPARE = 4


class State(NamedTuple):
    """What a hypothesis has of the constraints of its sentence.

    Attributes:
        met: bit i is set if constraint i is met.
        opened: the constraints of the pairs that are open, the innermost last.
        begun: the forms that the last ids are the beginning of: (constraint, form, ids so far).
        is_forced: whether a symbol was written where the model would have ended the output.
    """

    met: int = 0
    opened: tuple[int, ...] = ()
    begun: tuple[tuple[int, int, int], ...] = ()
    is_forced: bool = False


class Constraints:
    """The constraints of one sentence.

    Attributes:
        symbols: the places of those that are symbols, by their ids, in order.
        start: the state of a hypothesis without ids.
    """

    def __init__(self, constraints: Sequence[Constraint]) -> None:
        self._all = constraints
        self._everything = (1 << len(constraints)) - 1
        self.symbols = {
            one.forms[0][0]: place for place, one in enumerate(constraints) if one.is_symbol
        }
        # What closes the pair that a constraint opens.
        self._closing = {
            one.after: place for place, one in enumerate(constraints) if one.after >= 0
        }
        self._phrases = [place for place, one in enumerate(constraints) if not one.is_symbol]
        # A hypothesis without an id has met those that forbid something.
        self.start = State(sum(1 << i for i, one in enumerate(constraints) if one.is_forbidden))

    @property
    def width(self) -> int:
        """The number of hypotheses that the banks need; 1 if there are only symbols."""
        return min(WIDEST, 1 + sum(self._all[place].longest for place in self._phrases))

    def is_met(self, state: State) -> bool:
        return state.met == self._everything

    def needed(self, state: State) -> int:
        """The least number of ids that meet what is left."""
        shortest = {place: self._all[place].shortest for place in self._unmet(state)}
        begun = [
            len(self._all[place].forms[form]) - count - shortest[place]
            for place, form, count in state.begun
            if place in shortest
        ]
        return sum(shortest.values()) + min([0, *begun])

    def bank(self, state: State) -> int:
        """How many ids of the constraints an output has."""
        met = sum(one.longest for place, one in enumerate(self._all) if state.met >> place & 1)
        return met + max((count for _, _, count in state.begun), default=0)

    def may_follow(self, state: State) -> Iterator[int]:
        """Yields the ids of symbols that may come next."""
        for i, place in self.symbols.items():
            if not state.met >> place & 1:
                after = self._all[place].after
                if after < 0 or (state.opened and state.opened[-1] == after):
                    yield i

    def continuing(self, state: State) -> Iterator[int]:
        """Yields the ids that continue a phrase that is not met yet."""
        for place, form, count in state.begun:
            if not state.met >> place & 1:
                yield self._all[place].forms[form][count]

    def beginning(self, state: State) -> Iterator[int]:
        """Yields the ids that begin a phrase that is not met yet."""
        for place in self._phrases:
            if not state.met >> place & 1:
                yield from (form[0] for form in self._all[place].forms)

    def has_symbols(self, ids: Sequence[int]) -> bool:
        """Whether an output has each symbol once, and pairs nest."""
        found = [i for i in ids if i in self.symbols]
        is_once = len(found) == len(set(found)) == len(self.symbols)
        return is_once and self.is_nested(found)

    def is_nested(self, ids: Sequence[int]) -> bool:
        """Whether the pairs in an output, in which symbols may be missing, nest."""
        opened: list[int] = []
        for i in ids:
            place = self.symbols.get(i, -1)
            if place < 0:
                continue
            after = self._all[place].after
            opening = self._all[after].forms[0][0] if after >= 0 else None
            closing = self._closing.get(place)
            if opening is not None and opening in ids:
                if not opened or opened.pop() != after:
                    return False
            elif closing is not None and self._all[closing].forms[0][0] in ids:
                opened.append(place)
        return not opened

    def after(self, state: State, i: int, is_forced: bool = False) -> State | None:
        """The state after another id; None if that is not allowed, because it would complete what
        is forbidden, or repeat what must be there only once."""
        met, opened = state.met, state.opened
        is_forced |= state.is_forced
        if i in self.symbols:
            place = self.symbols[i]
            if place in self._closing:
                opened = (*opened, place)
            elif self._all[place].after >= 0:
                opened = opened[:-1]
            return State(met | 1 << place, opened, (), is_forced)
        begun: list[tuple[int, int, int]] = []
        complete: list[int] = []
        first = ((place, form, 0) for place in self._phrases for form in self._forms(place))
        for place, form, count in (*state.begun, *first):
            ids = self._all[place].forms[form]
            if ids[count] == i:
                if count + 1 < len(ids):
                    begun.append((place, form, count + 1))
                else:
                    complete.append(place)
        # Of several constraints with the same form, each needs an occurrence of its own.
        unmet = [place for place in complete if not met >> place & 1]
        if unmet:
            return State(met | 1 << unmet[0], opened, (), is_forced)
        if any(self._all[place].is_once or self._all[place].is_forbidden for place in complete):
            return None
        return State(met, opened, tuple(begun), is_forced)

    def _forms(self, place: int) -> range:
        return range(len(self._all[place].forms))

    def _unmet(self, state: State) -> Iterator[int]:
        return (place for place in range(len(self._all)) if not state.met >> place & 1)


class Candidate(NamedTuple):
    """A continuation of a hypothesis: its log-probability, the hypothesis and the id, and the state
    after it."""

    total: float
    parent: int
    id: int
    state: State


@dataclass(frozen=True)
class Options:
    """What may follow the hypotheses of a sentence. All arrays have a row for each hypothesis.

    Attributes:
        scores: float64 (width,), their log-probabilities; -inf where there is no hypothesis.
        ends: float64 (width,), the same with eos.
        totals, ids: (width, count), the best continuations, as log-probabilities with that of the
            hypothesis.
        asked, of_asked: (width, some), the same for the ids of `ConstrainedBeam.asked`.
        left: how many ids an output may still get.
    """

    scores: np.ndarray
    ends: np.ndarray
    totals: np.ndarray
    ids: np.ndarray
    asked: np.ndarray
    of_asked: np.ndarray
    left: int


class ConstrainedSentence:
    """The open hypotheses of a sentence with constraints: the state of each.

    Attributes:
        width: the greatest number of hypotheses.
    """

    def __init__(
        self, constraints: Sequence[Constraint], beam_size: int, final_marks: Container[int] = ()
    ) -> None:
        self._rules = Constraints(constraints)
        self._beam_size = beam_size
        self._final_marks = final_marks
        self._states = [self._rules.start]
        self.width = max(beam_size, self._rules.width)

    def asked(self) -> list[list[int]]:
        """The ids that the constraints suggest for each hypothesis."""
        rules = self._rules
        return [
            sorted({*rules.may_follow(state), *rules.continuing(state), *rules.beginning(state)})
            for state in self._states
        ]

    def forced(self, i: int) -> None:
        """Continues the only hypothesis with an id of the prefix."""
        state = self._rules.after(self._states[0], i)
        self._states = [self._states[0] if state is None else state]

    def step(self, options: Options) -> tuple[list[Candidate], np.ndarray]:
        """Continues the hypotheses.

        Returns: the candidates that stay open, best first, and `options.ends` with -inf where an
            output may not end yet.
        """
        rules = self._rules
        suggested = [
            dict(zip(ids.tolist(), totals.tolist(), strict=True))
            for ids, totals in zip(options.asked, options.of_asked, strict=True)
        ]
        opened = [
            (parent, state)
            for parent, state in enumerate(self._states)
            if np.isfinite(options.scores[parent])
        ]
        left = options.left - 1
        # What the model would write.
        free: list[Candidate] = []
        for parent, state in opened:
            best = options.ids[parent].tolist(), options.totals[parent].tolist()
            own = dict(zip(*best, strict=True))
            own |= {i: suggested[parent][i] for i in rules.may_follow(state)}
            free += self._candidates(parent, state, own, left)
        free.sort(key=lambda one: -one.total)
        # What the constraints ask for: phrases at every place, and symbols where the model would
        # end the output, or the sentence.
        bound: list[Candidate] = []
        for parent, state in opened:
            if rules.is_met(state):
                continue
            asked = set(rules.continuing(state)) or set(rules.beginning(state))
            own_best = next((one for one in free if one.parent == parent), None)
            must = own_best is None or options.left <= rules.needed(state)
            if own_best is not None:
                must |= options.ends[parent] > own_best.total or own_best.id in self._final_marks
            if must:
                asked |= {*rules.may_follow(state), *rules.beginning(state)}
            own = {i: suggested[parent][i] for i in asked}
            bound += self._candidates(parent, state, own, left, is_forced=must)
        kept = self._kept(free, bound)
        self._states = [one.state for one in kept]
        return kept, self._ends(opened, free, options.ends)

    def _ends(
        self, opened: list[tuple[int, State]], free: list[Candidate], ends: np.ndarray
    ) -> np.ndarray:
        """The log-probabilities of the outputs that end here; -inf for all others.

        An output ends if that is among the best continuations of those hypotheses that have met all
        constraints. As many count as is the share of these in the beam: in a bank of one, the best
        alone, or outputs would break off.
        """
        met = [parent for parent, state in opened if self._rules.is_met(state)]
        count = max(1, self._beam_size * len(met) // len(opened)) if opened else 0
        totals = [one.total for one in free if one.parent in met] + [ends[place] for place in met]
        result = np.full(ends.shape, -np.inf)
        for parent in met:
            if sum(total > ends[parent] for total in totals) < count:
                result[parent] = ends[parent]
        return result

    def _candidates(
        self,
        parent: int,
        state: State,
        totals: dict[int, float],
        left: int,
        is_forced: bool = False,
    ) -> Iterator[Candidate]:
        """The continuations by some ids, after which `left` ids suffice for the constraints."""
        for i, total in totals.items():
            after = self._rules.after(state, i, is_forced)
            if after is not None and total > -np.inf and self._rules.needed(after) <= left:
                yield Candidate(total, parent, i, after)

    def _kept(self, free: list[Candidate], bound: list[Candidate]) -> list[Candidate]:
        if not bound and not any(one.state.is_forced for one in free):
            return free[: self._beam_size]
        # The best ones of all, the best one of each hypothesis, and those of the constraints.
        pool = {(one.parent, one.id): one for one in free[: self._beam_size]}
        seen: set[int] = set()
        for one in free:
            if one.parent not in seen:
                seen.add(one.parent)
                pool[one.parent, one.id] = one
        pool |= {(one.parent, one.id): one for one in bound}
        by_bank: dict[int, list[Candidate]] = {}
        for one in sorted(pool.values(), key=lambda one: -one.total):
            by_bank.setdefault(self._rules.bank(one.state), []).append(one)
        # By turns the best one that is left of each bank, beginning with what has met the most.
        kept = [
            by_bank[bank][turn]
            for turn in range(self.width)
            for bank in sorted(by_bank, reverse=True)
            if turn < len(by_bank[bank])
        ][: self.width]
        return sorted(kept, key=lambda one: -one.total)


class ConstrainedBeam:
    """Those sentences of a batch that have constraints.

    Args:
        constraints: those of each sentence of the batch.
        final_marks: the ids of the marks that end a sentence.

    Attributes:
        width: the greatest number of hypotheses of a sentence.
    """

    def __init__(
        self,
        constraints: Sequence[Sequence[Constraint]],
        beam_size: int,
        final_marks: Container[int] = (),
    ) -> None:
        self._own = {
            number: ConstrainedSentence(own, beam_size, final_marks)
            for number, own in enumerate(constraints)
            if own
        }
        self.width = max([beam_size, *(own.width for own in self._own.values())])

    def has(self, sentences: np.ndarray) -> np.ndarray:
        """Whether each of some sentences has constraints, bool (sentences, 1)."""
        return np.isin(sentences, list(self._own))[:, np.newaxis]

    def step(
        self,
        sentences: np.ndarray,
        scores: np.ndarray,
        forced: np.ndarray,
        ends: np.ndarray,
        left: np.ndarray,
        log_probs: LogProbs | CandidateLogProbs | DeviceLogProbs,
        best: tuple[np.ndarray, np.ndarray, np.ndarray],
    ) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Replaces the continuations of the sentences that have constraints.

        Args:
            sentences: int64 (open,), the numbers of the sentences that are open.
            scores: float64 (open, width), as in `Options`.
            forced: int64 (open,), the next id of each sentence's prefix, or -1.
            ends: float64 (open, width), as in `Options`; -inf where no output may end.
            left: int64 (open,), as in `Options`.
            best: totals, parents and ids of the continuations, each (open, beam_size).

        Returns: `ends`, and `best` with as many columns as the beam is wide.
        """
        totals, parents, ids = (
            np.pad(x, ((0, 0), (0, self.width - x.shape[1])), constant_values=fill)
            for x, fill in zip(best, (-np.inf, 0, 0), strict=True)
        )
        rows = [row for row, number in enumerate(sentences) if number in self._own]
        for row in rows:
            if forced[row] >= 0:
                self._own[sentences[row]].forced(int(forced[row]))
        rows = [row for row in rows if forced[row] < 0]
        if not rows:
            return ends, (totals, parents, ids)
        owns = [self._own[sentences[row]] for row in rows]
        suggested = [own.asked() for own in owns]
        most = max((len(ids) for own in suggested for ids in own), default=0)
        asked = np.zeros((len(rows), scores.shape[1], max(most, 1)), np.int64)
        for row, of_hypotheses in zip(asked, suggested, strict=True):
            for hypothesis, some in zip(row, of_hypotheses, strict=False):
                hypothesis[: len(some)] = some
        continuations, their_ids, of_asked = log_probs.of_each(
            np.array(rows), self.width + SPARE, asked
        )
        for number, (row, own) in enumerate(zip(rows, owns, strict=True)):
            kept, ends[row] = own.step(
                Options(
                    scores[row],
                    ends[row],
                    continuations[number] + scores[row][:, np.newaxis],
                    their_ids[number],
                    asked[number],
                    of_asked[number] + scores[row][:, np.newaxis],
                    int(left[row]),
                )
            )
            totals[row], parents[row], ids[row] = -np.inf, 0, 0
            for place, one in enumerate(kept):
                totals[row, place], parents[row, place], ids[row, place] = one[:3]
        return ends, (totals, parents, ids)

"""Log-probabilities of what may follow each hypothesis, computed only where they are needed.

The logits of a step are the largest array of decoding: some hundred hypotheses times the whole
vocabulary. They are read once, for the sum of their exponentials and the maximum of each block.
Afterwards only the blocks that can hold one of the best are read.

`CpuOperations.log_sum_exp` is not used: it makes a pass of its own and always shifts, so that
results would change in their last bits.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor

from transformer_mt.kernels.recorded import exp
from transformer_mt.model.operations import array, is_float32_on_cpu

# The number of ids in a block; some blocks have one less.
BLOCK = 32
# The number of rows whose exponentials are computed at once, so that they stay in the processor's
# cache.
ROWS = 16
# exp(x) is finite in float32 below this.
LARGEST_EXPONENT = 80.0


class LogProbs:
    """log p(id | hypothesis) = logit - log(sum(exp(logits)))

    Args:
        logits: float32 (sentences, width, vocabulary). They are not copied, and only `scale`
            changes them.
        never: ids that `best` and `draw` never choose. They keep their share of the probability, so
            that scores are those of the model.
    """

    def __init__(self, logits: np.ndarray, never: Sequence[int]) -> None:
        self._logits = logits
        sentences, width, self._size = logits.shape
        self._never = np.array(never, np.int64)
        self._blocks = _blocks_of(self._size, tuple(never))
        log_total, maxima = _reduced(logits.reshape(sentences * width, self._size))
        self._log_total = log_total.reshape(sentences, width)  # float64
        self._maxima = maxima.reshape(sentences, width, -1)

    def of(self, ids: np.ndarray) -> np.ndarray:
        """The log-probability of one id for each hypothesis: (sentences, width), float64."""
        sentences, width = (np.arange(size) for size in ids.shape)
        return self._logits[sentences[:, np.newaxis], width, ids] - self._log_total

    def best(
        self, scores: np.ndarray, count: int, asked: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The `count` best continuations of each sentence's hypotheses.

        Args:
            scores: the hypotheses' own log-probabilities, float64 (sentences, width).
            asked: as `ids` in `of`; their log-probabilities are returned as well.

        Returns: (totals, parents, ids, of_asked). The first three are (sentences, count), or less
            if there are fewer, best first: the sum of both log-probabilities, the number of the
            hypothesis that is continued, and the id that continues it. The total is -inf where
            there is no further continuation, or where it is not a number. `of_asked` is
            `of(asked)`.
        """
        return (*self._best(scores, count), self.of(asked))

    def of_each(
        self, sentences: np.ndarray, count: int, asked: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The `count` best continuations of each hypothesis of some sentences.

        Args:
            asked: int64 (sentences, width, some), ids whose log-probabilities are returned as well.

        Returns: (log_probs, ids, of_asked): the first two are (sentences, width, count), or less,
            best first; `of_asked` is (sentences, width, some).
        """
        logits, log_total = self._logits[sentences], self._log_total[sentences]
        shape = logits.shape[:2]
        each = copy.copy(self)  # every hypothesis counts as a sentence
        each._logits = logits.reshape(-1, 1, self._size)
        each._log_total = log_total.reshape(-1, 1)
        each._maxima = self._maxima[sentences].reshape(len(each._logits), 1, -1)
        log_probs, _, ids = each._best(np.zeros(each._log_total.shape), count)
        of_asked = np.take_along_axis(logits, asked, axis=2) - log_total[:, :, np.newaxis]
        return log_probs.reshape(*shape, -1), ids.reshape(*shape, -1), of_asked

    def scale(
        self, sentences: np.ndarray, hypotheses: np.ndarray, ids: np.ndarray, factor: float
    ) -> None:
        """Multiplies the log-probabilities of some ids of hypotheses, each int64 (count,), by a
        factor. With an infinite one, the ids are never chosen."""
        totals = self._log_total[sentences, hypotheses]
        log_probs = self._logits[sentences, hypotheses, ids] - totals
        scaled = -np.inf if factor == np.inf else factor * log_probs + totals
        self._logits[sentences, hypotheses, ids] = scaled
        # The maxima of their blocks, of which some are computed again in `_best`.
        blocks = ids % self._blocks.count
        members = self._blocks.members[blocks]
        places = sentences[:, np.newaxis], hypotheses[:, np.newaxis]
        self._maxima[sentences, hypotheses, blocks] = self._members(places, members).max(axis=1)

    def most_probable(self) -> np.ndarray:
        """The most probable id after the only hypothesis of each sentence (width is 1), and its
        log-probability: float64 (sentences, 2)."""
        totals, _, ids = self._best(np.zeros(self._log_total.shape), 1)
        return np.concatenate([ids, totals], axis=1)

    def _best(self, scores: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        # As `best`, without `asked`.
        # Not as a decorator, whose state all threads would share.
        with np.errstate(invalid="ignore"):
            sentences, _, size = self._logits.shape
            offsets = scores - self._log_total
            blocks = self._blocks
            # The maxima of the blocks that hold an id of `never` are computed again without it.
            without = self._logits.take(blocks.affected_ids, axis=2)
            without[:, :, blocks.affected_is_never] = -np.inf
            self._maxima[:, :, blocks.affected] = without.max(axis=-1)

            # The `count` best are in the blocks with the `count` best maxima: (sentences, count).
            tops = (self._maxima + offsets[:, :, np.newaxis]).reshape(sentences, -1)
            np.fmax(tops, -np.inf, out=tops)  # fmax ignores what is not a number
            chosen = _largest(tops, count)
            parents, chosen = np.divmod(chosen, blocks.count)
            rows = np.arange(sentences)[:, np.newaxis]
            members = blocks.members[chosen]
            # The totals of all ids in these blocks: (sentences, count * block).
            values = self._members((rows[:, :, np.newaxis], parents[:, :, np.newaxis]), members)
            totals = values + offsets[rows, parents][:, :, np.newaxis]
            totals = np.fmax(totals, -np.inf, out=totals).reshape(sentences, -1)
            best = _largest(totals, count)
            totals = totals[rows, best]
            # Equal totals are in the order of hypotheses and ids, so that the order of the blocks
            # does not matter.
            best_parents = parents[rows, best // blocks.size]
            best_ids = members.reshape(sentences, -1)[rows, best]
            best_ids = np.minimum(best_ids, size - 1)  # there may be fewer than `count`
            order = np.lexsort((best_ids, best_parents, -totals), axis=1)
            return totals[rows, order], best_parents[rows, order], best_ids[rows, order]

    def draw(
        self,
        uniform: np.ndarray,
        temperature: float,
        top_k: int | None,
        top_p: float,
        banned: np.ndarray,
        banned_id: int,
        fixed: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draws an id for each hypothesis.

        Args:
            uniform: random numbers in [0, 1), (sentences, width). Equal numbers give equal draws.
            temperature: the logits are divided by it.
            top_k: draws only from the k most probable ids (Fan et al. 2018, arXiv 1805.04833);
                None: from all.
            top_p: draws only from the smallest set of ids that together have this probability
                (Holtzman et al. 2020, arXiv 1904.09751).
            banned: bool (sentences, width), True where `banned_id` must not be drawn.
            fixed: int64 (sentences, width), the id of a hypothesis that has no choice; -1 where it
                is drawn.

        Returns: (ids, log_probs), int64 and float64 (sentences, width): the ids and `of(ids)`.
        """
        logits = self._logits / np.float32(temperature)
        logits[:, :, self._never[self._never != banned_id]] = -np.inf
        logits[banned, banned_id] = -np.inf
        logits = np.where(np.isnan(logits), -np.inf, logits)
        ids = None  # None: the places along the last axis are the ids
        if top_k is not None or top_p < 1:
            ids = _largest_first(logits, min(top_k or self._size, self._size))
            logits = np.take_along_axis(logits, ids, axis=2)  # in falling order
        weights = np.exp(logits - logits.max(axis=2, keepdims=True), dtype=np.float64)
        if top_p < 1:
            before = np.cumsum(weights, axis=2) - weights
            weights = np.where(before < top_p * weights.sum(axis=2, keepdims=True), weights, 0.0)
        sums = np.cumsum(weights, axis=2)
        place = (sums <= uniform[:, :, np.newaxis] * sums[:, :, -1:]).sum(axis=2)
        place = np.minimum(place, logits.shape[2] - 1)[:, :, np.newaxis]
        drawn = (place if ids is None else np.take_along_axis(ids, place, axis=2))[:, :, 0]
        drawn = np.where(fixed >= 0, fixed, drawn)
        return drawn, self.of(drawn)

    def _members(self, hypotheses: tuple, ids: np.ndarray) -> np.ndarray:
        """The logits of ids of hypotheses; -inf for ids beyond the vocabulary or in `never`."""
        sentences, places = hypotheses
        values = self._logits[sentences, places, np.minimum(ids, self._size - 1)]
        return np.where(self._blocks.is_never[ids], -np.inf, values)


class CandidateLogProbs:
    """As `LogProbs`, where the logits are those of some candidates only. The probabilities of the
    candidates of a hypothesis add up to 1.

    Args:
        logits: float32 (sentences, width, candidates), -inf where a candidate may not follow.
        never: as in `LogProbs`; each of them is a candidate.
        ids: the id of each candidate, in rising order, int64 (candidates,).
    """

    def __init__(self, logits: np.ndarray, never: Sequence[int], ids: np.ndarray) -> None:
        self._ids = ids
        self._log_probs = LogProbs(logits, self._places(np.array(never, np.int64)).tolist())

    def _places(self, ids: np.ndarray) -> np.ndarray:
        """The places of ids among the candidates."""
        return np.searchsorted(self._ids, ids)

    def of(self, ids: np.ndarray) -> np.ndarray:
        """As `LogProbs.of`; the ids are candidates."""
        return self._log_probs.of(self._places(ids))

    def best(
        self, scores: np.ndarray, count: int, asked: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """As `LogProbs.best`; the ids that are asked for are candidates."""
        totals, parents, places, of_asked = self._log_probs.best(scores, count, self._places(asked))
        return totals, parents, self._ids[places], of_asked

    def scale(
        self, sentences: np.ndarray, hypotheses: np.ndarray, ids: np.ndarray, factor: float
    ) -> None:
        """As `LogProbs.scale`; the ids are candidates."""
        self._log_probs.scale(sentences, hypotheses, self._places(ids), factor)

    def of_each(
        self, sentences: np.ndarray, count: int, asked: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As `LogProbs.of_each`; the ids that are asked for are candidates."""
        found = self._log_probs.of_each(sentences, count, self._places(asked))
        log_probs, places, of_asked = found
        return log_probs, self._ids[places], of_asked

    def draw(
        self,
        uniform: np.ndarray,
        temperature: float,
        top_k: int | None,
        top_p: float,
        banned: np.ndarray,
        banned_id: int,
        fixed: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `LogProbs.draw`; `banned_id` and the ids in `fixed` are candidates."""
        fixed = np.where(fixed >= 0, self._places(fixed), -1)
        (banned_place,) = self._places(np.array([banned_id])).tolist()
        places, log_probs = self._log_probs.draw(
            uniform, temperature, top_k, top_p, banned, banned_place, fixed
        )
        return self._ids[places], log_probs


def mixture(all_logits: list[np.ndarray]) -> np.ndarray:
    """The logits of an ensemble: the logarithm of the mean of the models' probabilities. The logits
    of a single model are returned as they are."""
    if len(all_logits) == 1:
        return all_logits[0]
    log_probs = []
    for logits in all_logits:
        log_total, _ = _reduced(logits.reshape(-1, logits.shape[-1]))
        log_probs.append(logits - log_total.reshape(*logits.shape[:-1], 1))
    total = functools.reduce(np.logaddexp, log_probs)
    return (total - np.log(len(all_logits))).astype(np.float32)


class _Blocks:
    """The blocks of a vocabulary.

    Block b holds the ids b, b + count, b + 2 * count, ..., so that the maxima of all blocks are
    elementwise maxima of contiguous rows.

    Attributes:
        count: the number of blocks.
        size: the number of ids in a block, which is one less in some of them.
        members: int64 (count, size), the ids of each block; what is beyond the vocabulary fills up.
        is_never: bool, whether an id of `members` is beyond the vocabulary or in `never`.
        affected: the blocks that hold an id of `never`.
        affected_ids, affected_is_never: their ids, of which those beyond the vocabulary are
            replaced by its last id, and `is_never` of them; (affected, size).
    """

    def __init__(self, vocabulary: int, never: tuple[int, ...]) -> None:
        self.count, whole = _block_sizes(vocabulary)
        self.size = whole + 1
        members = np.arange(self.count * self.size)
        self.is_never = (members >= vocabulary) | np.isin(members, never)
        self.members = members.reshape(self.size, self.count).T.copy()
        self.affected = np.unique(np.array(never, np.int64) % self.count)
        affected = self.members[self.affected]
        self.affected_is_never = self.is_never[affected]
        self.affected_ids = np.minimum(affected, vocabulary - 1)


_blocks_of = functools.lru_cache(_Blocks)


def _block_sizes(size: int) -> tuple[int, int]:
    """The number of blocks, and the number of ids that all of them have; some have one more."""
    blocks = -(-size // BLOCK)
    return blocks, size // blocks


def _reduced(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The log(sum(exp)), float64 (rows,), and the maxima of the blocks, float32 (rows, blocks), of
    logits (rows, vocabulary)."""
    count, size = rows.shape
    blocks, whole = _block_sizes(size)
    rest = size - whole * blocks
    log_total = np.empty(count)
    maxima = np.empty((count, blocks), np.float32)
    buffer = np.empty((min(ROWS, count), size), np.float32)
    with np.errstate(invalid="ignore", divide="ignore"):  # infinite logits give nan
        for start in range(0, count, ROWS):
            some = rows[start : start + ROWS]
            own = maxima[start : start + ROWS]
            some[:, : whole * blocks].reshape(-1, whole, blocks).max(axis=1, out=own)
            if rest:
                np.maximum(own[:, :rest], some[:, whole * blocks :], out=own[:, :rest])
            largest = own.max(axis=1)
            exponentials = buffer[: len(some)]
            # Most models need no shift, which saves a pass.
            if np.abs(largest).max() < LARGEST_EXPONENT:
                sums = exp(some, exponentials).sum(axis=1)
                log_total[start : start + ROWS] = np.log(sums)
            else:
                np.subtract(some, largest[:, np.newaxis], out=exponentials)
                sums = exp(exponentials, exponentials).sum(axis=1)
                log_total[start : start + ROWS] = np.log(sums) + largest
    return log_total, maxima


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """The places of the `count` largest values along the last axis, in no order; all if there are
    fewer."""
    if count >= values.shape[-1]:
        return np.broadcast_to(np.arange(values.shape[-1]), values.shape)
    return np.argpartition(values, -count, axis=-1)[..., -count:]


def _largest_first(values: np.ndarray, count: int) -> np.ndarray:
    """As `_largest`, but the largest first, and equal ones in the order of their places."""
    places = _largest(values, count)
    if count < values.shape[-1]:  # otherwise they are in order already
        places = np.sort(places, axis=-1)
    order = np.argsort(-np.take_along_axis(values, places, axis=-1), axis=-1, kind="stable")
    return np.take_along_axis(places, order, axis=-1)


# ----------------------------------------------------------------- where Paddle computes the logits
# On a GPU, only what the search needs is copied to the host, as one small tensor per step: copying
# all logits would take longer than computing a step, and each copy waits for all work before it.


def next_log_probs(
    all_logits: list[np.ndarray] | list[Tensor], never: Sequence[int]
) -> LogProbs | DeviceLogProbs:
    """The log-probabilities for the logits (sentences, width, vocabulary) of one model, or for the
    mean of the probabilities of several, computed where the logits are. `never` is as in
    `LogProbs`."""
    if not isinstance(all_logits[0], np.ndarray):
        if not all(map(is_float32_on_cpu, all_logits)):
            return DeviceLogProbs(device_mixture(all_logits), never)
        all_logits = [array(logits) for logits in all_logits]
    return LogProbs(mixture(all_logits), never)


class DeviceLogProbs:
    """As `LogProbs`, for a tensor (sentences, width, vocabulary). Each method reads one tensor on
    the host."""

    def __init__(self, logits: Tensor, never: Sequence[int]) -> None:
        self._logits = logits.astype("float32")
        self._never = never
        # Sums of log-probabilities are float64, as on the host: (sentences, width).
        self._log_total = paddle.logsumexp(self._logits, axis=-1).astype("float64")

    def of(self, ids: np.ndarray) -> np.ndarray:
        """As `LogProbs.of`."""
        return self._of(_on_device(ids)).numpy()

    def best(
        self, scores: np.ndarray, count: int, asked: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """As `LogProbs.best`."""
        totals, parents, ids = self._best(_on_device(scores), count)
        of_asked = self._of(_on_device(asked))
        # The host reads (sentences, 3 * count + width) numbers. A float64 holds every id exactly.
        found = paddle.concat([totals, _float64(parents), _float64(ids), of_asked], axis=1).numpy()
        count = totals.shape[1]
        totals, parents, ids, of_asked = np.split(found, [count, 2 * count, 3 * count], axis=1)
        # Equal totals are in the order of hypotheses and ids, as in `LogProbs.best`.
        order = np.lexsort((ids, parents, -totals), axis=1)
        totals, parents, ids = (
            np.take_along_axis(x, order, axis=1) for x in (totals, parents, ids)
        )
        return totals, parents.astype(np.int64), ids.astype(np.int64), of_asked

    def scale(
        self, sentences: np.ndarray, hypotheses: np.ndarray, ids: np.ndarray, factor: float
    ) -> None:
        """As `LogProbs.scale`."""
        places = _on_device(np.stack([sentences, hypotheses, ids], axis=1))
        totals = paddle.gather_nd(self._log_total, places[:, :2])
        log_probs = _float64(paddle.gather_nd(self._logits, places)) - totals
        scaled = (
            factor * log_probs + totals if factor < np.inf else paddle.full_like(totals, -np.inf)
        )
        width, size = self._logits.shape[1:]
        flat = _on_device((sentences * width + hypotheses) * size + ids)
        logits = paddle.scatter(self._logits.flatten(), flat, scaled.astype("float32"))
        self._logits = logits.reshape(self._logits.shape)

    def of_each(
        self, sentences: np.ndarray, count: int, asked: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As `LogProbs.of_each`."""
        logits = self._logits[_on_device(sentences)]
        log_total = self._log_total[_on_device(sentences)]
        width = log_total.shape[1]
        each = copy.copy(self)  # every hypothesis counts as a sentence
        each._logits, each._log_total = (
            logits.reshape([-1, 1, logits.shape[2]]),
            log_total.reshape([-1, 1]),
        )
        log_probs, _, ids = each._best(paddle.zeros_like(each._log_total), count)
        of_asked = paddle.take_along_axis(logits, _on_device(asked), axis=2)
        of_asked = _float64(of_asked) - log_total.unsqueeze(2)
        shape = [len(sentences), width, -1]
        return (
            log_probs.reshape(shape).numpy(),
            ids.reshape(shape).numpy().astype(np.int64),
            of_asked.numpy(),
        )

    def most_probable(self) -> Tensor:
        """As `LogProbs.most_probable`, but a tensor on the device, so that nothing is read yet."""
        totals, _, ids = self._best(paddle.zeros_like(self._log_total), 1)
        return paddle.concat([_float64(ids), totals], axis=1)

    def draw(
        self,
        uniform: np.ndarray,
        temperature: float,
        top_k: int | None,
        top_p: float,
        banned: np.ndarray,
        banned_id: int,
        fixed: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `LogProbs.draw`."""
        size = self._logits.shape[2]
        ids = np.arange(size)
        is_never = np.isin(ids, [i for i in self._never if i != banned_id])
        # (sentences, width, vocabulary). True forbids.
        forbidden = _on_device(banned).unsqueeze(2) & paddle.to_tensor(ids == banned_id)
        forbidden |= paddle.to_tensor(is_never)
        logits = self._logits / temperature
        logits = paddle.masked_fill(logits, forbidden | paddle.isnan(logits), -np.inf)
        places = None  # None: the places along the last axis are the ids
        if top_k is not None or top_p < 1:
            logits, places = paddle.topk(logits, min(top_k or size, size), axis=-1)
        weights = paddle.exp(_float64(logits - logits.max(axis=2, keepdim=True)))
        if top_p < 1:
            before = paddle.cumsum(weights, axis=2) - weights
            kept = before < top_p * weights.sum(axis=2, keepdim=True)
            weights = paddle.where(kept, weights, paddle.zeros_like(weights))
        sums = paddle.cumsum(weights, axis=2)
        drawn = _on_device(uniform).unsqueeze(2) * sums[:, :, -1:]
        ids = paddle.searchsorted(sums, drawn, right=True).clip(0, logits.shape[2] - 1)
        if places is not None:
            ids = paddle.take_along_axis(places, ids, axis=2)
        fixed_ids = _on_device(fixed)  # (sentences, width)
        ids = paddle.where(fixed_ids >= 0, fixed_ids, ids.squeeze(2))
        found = paddle.stack([_float64(ids), self._of(ids)]).numpy()
        return found[0].astype(np.int64), found[1]

    def _of(self, ids: Tensor) -> Tensor:
        # The log-probabilities of int64 (sentences, width): float64, same shape.
        chosen = paddle.take_along_axis(self._logits, ids.unsqueeze(2), axis=2).squeeze(2)
        return _float64(chosen) - self._log_total

    def _best(self, scores: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        # As `best`, without `asked`: totals, parents and ids, best first, (sentences, count) each.
        sentences, width, size = self._logits.shape
        # Of the best ones of a hypothesis, at most len(never) may not be chosen.
        most = min(count + len(self._never), size)
        values, ids = paddle.topk(self._logits, most, axis=-1)  # (sentences, width, most)
        totals = _float64(values) + (scores - self._log_total).unsqueeze(2)
        forbidden = paddle.isnan(totals)
        for never in self._never:
            forbidden |= ids == never
        totals = paddle.masked_fill(totals, forbidden, -np.inf).reshape([sentences, width * most])
        totals, places = paddle.topk(totals, min(count, width * most), axis=-1)
        ids = paddle.take_along_axis(ids.reshape([sentences, width * most]), places, axis=1)
        return totals, places // most, ids


def device_mixture(all_logits: list[Tensor]) -> Tensor:
    """As `mixture`."""
    if len(all_logits) == 1:
        return all_logits[0]
    log_probs = paddle.stack([F.log_softmax(logits.astype("float32")) for logits in all_logits])
    return paddle.logsumexp(log_probs, axis=0) - np.log(len(all_logits))


def _float64(x: Tensor) -> Tensor:
    return x.astype("float64")


def _on_device(x: np.ndarray) -> Tensor:
    return paddle.to_tensor(np.ascontiguousarray(x))

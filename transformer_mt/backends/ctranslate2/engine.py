"""The engine that searches with CTranslate2, in a folder that the verb `export` wrote.

Paddle is not imported here: with this engine a model translates where there is no Paddle.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from transformer_mt.backends.ctranslate2 import BACKEND, POSITIONS, import_ctranslate2
from transformer_mt.config.schema import DecodingConfig
from transformer_mt.data.subword import Subwords
from transformer_mt.decoding.engine import (
    Hypothesis,
    Sentence,
    length_limits,
    length_penalty,
)
from transformer_mt.runtime.errors import UserError

# The settings of an exported model, in its folder.
SETTINGS = "config.json"
# Hypotheses that a thread works on at once. It does not follow from the number of threads, so that
# this number changes nothing in a result, not even its last bit.
ROWS = 160
# CTranslate2 ends a search when PATIENCE * beam_size hypotheses have ended, and gives so many.
PATIENCE = 2
# Where outputs reach their maximum length, beam_size of them end at once.
PATIENCE_AT_LIMITS = 3


class Ctranslate2Engine:
    """Implements `engine.Engine` on a CPU.

    Beam search is as Paddle's engine's, but stops when 2 * beam_size hypotheses have ended, and
    does not go on until nothing better can come. On Multi30k's test set of 1,000 sentences that
    changes nothing (with CTranslate2's default, 1 * beam_size, it would change 24).

    With a beam of 1 it is greedy search, as Paddle's engine's.

    Sampling draws other outputs than Paddle's engine. They follow from the seed and the batch: the
    same sentence in another batch has others.
    """

    def __init__(self, folder: Path, subwords: Subwords, threads: int) -> None:
        """Loads the model. Where the CPU can't compute in the type of its weights, CTranslate2
        takes the next better one, in the end float32.

        Args:
            folder: what `export` wrote.
            subwords: those of the folder.
            threads: how many parts of a batch are searched side by side, at most.

        Raises:
            UsageError: CTranslate2 is not installed, or the folder is not an export.
            UserError: the model is damaged, or this version of CTranslate2 can't load it.
        """
        self._ctranslate2 = import_ctranslate2()
        self._folder = Path(folder)
        BACKEND.require_whole(self._folder)
        self._positions = _positions(self._folder)
        self._translator = self._load(threads)
        self._source_pieces = subwords.source.pieces(range(subwords.source.size))
        target = subwords.target
        self._target_pieces = target.pieces(range(target.size))
        self._target_ids = {piece: i for i, piece in enumerate(self._target_pieces)}
        self._eos = target.eos
        self._never = [target.pad, target.bos, target.unk]

    def search(self, sentences: list[Sentence], settings: DecodingConfig) -> list[list[Hypothesis]]:
        """As `Engine.search`. An empty source gives the empty output: CTranslate2 reads none.

        Raises:
            UserError: a source or a prefix is longer than the positions that were exported.
        """
        self._check_lengths([sentence.source for sentence in sentences])
        self._check_lengths([sentence.prefix for sentence in sentences])
        tasks = [self._task(sentence, settings) for sentence in sentences]
        if settings.sampling:
            self._sample(tasks, settings)
        else:
            alike = [task for task in tasks if not task.prefix and not task.shortest]
            self._search_together(alike, settings)
            rest = [task for task in tasks if not task.candidates]
            self._search_by_limits(rest, settings)
        return [task.best(settings) for task in tasks]

    def log_probs(self, sources: list[list[int]], targets: list[list[int]]) -> list[float]:
        """As `Engine.log_probs`.

        Raises:
            UserError: a source or a target is longer than the positions that were exported.
        """
        self._check_lengths(sources)
        self._check_lengths(targets)
        if not sources:
            return []
        results = self._translator.score_batch(
            _tokens(sources, self._source_pieces),
            _tokens(targets, self._target_pieces),
            max_batch_size=ROWS,
            max_input_length=0,  # nothing is cut
        )
        return [float(np.sum(result.log_probs, dtype=np.float64)) for result in results]

    def cross_attention(
        self, sources: list[list[int]], targets: list[list[int]]
    ) -> list[np.ndarray]:
        """As `Engine.cross_attention`: targets are read as prefixes of a greedy search.

        (The attention that CTranslate2 4.8.5 gives with a beam is wrong for the first subword: in a
        batch, it is that of another sentence.)

        Raises:
            UserError: a source or a target is longer than the positions that were exported.
        """
        self._check_lengths(sources)
        self._check_lengths(targets)
        results = self._translator.translate_batch(
            _tokens(sources, self._source_pieces),
            _tokens(targets, self._target_pieces),
            max_batch_size=ROWS,
            max_input_length=0,
            beam_size=1,
            max_decoding_length=max(map(len, targets), default=0) + 1,
            return_attention=True,
        )
        rows = []
        for source, target, result in zip(sources, targets, results, strict=True):
            own = (result.attention or [[]])[0][: len(target)]  # greedy search goes on after it
            rows.append(np.array(own, np.float32).reshape(len(own), len(source)))
        return rows

    # ------------------------------------------------------------------------------- searches

    def _search_together(self, tasks: list[_Task], settings: DecodingConfig) -> None:
        """Searches for all with one call, and gives candidates to those for which that is right.

        The call has one maximum length, the largest. A sentence gets no candidates here if one of
        them reaches its own.

        What CTranslate2 is told to suppress loses its share of the probability to the others. So
        the ids that are never put out are given as more ends beside eos, and scores stay those of
        the model. They are hardly ever among the best; a sentence for which one is gets no
        candidates here.
        """
        if not tasks:
            return
        alpha = _alpha(settings)
        results = self._translate(
            self._translator,
            tasks,
            settings.beam_size,
            **_beam(settings, PATIENCE),
            length_penalty=alpha,
            return_scores=True,
            end_token=[self._eos, *self._never],
            min_decoding_length=0,
            max_decoding_length=max(task.longest for task in tasks) + 1,  # with the end
        )
        special = {self._eos, *self._never}
        for task, result in zip(tasks, results, strict=True):
            found = []
            for tokens, score in zip(result.hypotheses, result.scores, strict=True):
                ids = [self._target_ids[token] for token in tokens]
                ended = ids[-1:] == [self._eos] and special.isdisjoint(ids[:-1])
                if not ended or len(ids) > task.longest:
                    break
                # CTranslate2 has divided by this, the end counted.
                log_prob = score * len(ids) ** alpha
                found.append(_Candidate(ids[:-1], log_prob))
            else:
                task.candidates = found

    def _search_by_limits(self, tasks: list[_Task], settings: DecodingConfig) -> None:
        """Searches for those of equal limits with one call, and gives candidates to all.

        As in Paddle's search, an output at its maximum length gets its eos, however unlikely. (Here
        an end at the step before may have taken the place of one of them.) The search itself goes
        by probabilities of which the ids that are never put out have no share; log-probabilities
        are computed once more, and are the model's.
        """
        for group in _of_equal_limits(tasks):
            results = self._translate(
                self._translator,
                group,
                settings.beam_size,
                **_beam(settings, PATIENCE_AT_LIMITS),
                length_penalty=_alpha(settings),
                return_scores=True,
                **self._limits(group[0]),
            )
            for task, result in zip(group, results, strict=True):
                self._take(task, result)
                # After a prefix, a beam lets an output end at once only if eos comes first.
                may_end = len(task.prefix) >= task.shortest
                if task.prefix and may_end and settings.beam_size > 1:
                    task.candidates.append(_Candidate(task.prefix))
                unique = {tuple(candidate.ids): candidate for candidate in task.candidates}
                task.candidates = list(unique.values())
        self._compute_log_probs(tasks)

    def _sample(self, tasks: list[_Task], settings: DecodingConfig) -> None:
        """Draws outputs from the probabilities of the ids that may be put out."""
        if not tasks:
            return
        seed = np.random.SeedSequence((settings.seed, tasks[0].sentence.number))
        # The last number stands for no seed.
        self._ctranslate2.set_random_seed(int(seed.generate_state(1)[0]) % (2**32 - 1))
        # A thread takes its seed when it draws for the first time. So there is a new one each time,
        # and only one, for otherwise it would be chance which draws for what.
        translator = self._load(threads=1)
        for group in _of_equal_limits(tasks):
            results = self._translate(
                translator,
                group,
                settings.n_best,
                beam_size=1,
                # From the one most probable there is nothing to be drawn.
                num_hypotheses=1 if settings.top_k == 1 else settings.n_best,
                sampling_topk=min(settings.top_k or 0, len(self._target_pieces)),
                sampling_topp=settings.top_p,
                sampling_temperature=settings.temperature,
                **self._limits(group[0]),
            )
            for task, result in zip(group, results, strict=True):
                self._take(task, result)
        self._compute_log_probs(tasks)

    # ------------------------------------------------------------------------------- their parts

    def _load(self, threads: int) -> Any:
        try:
            return self._ctranslate2.Translator(
                str(self._folder), device="cpu", inter_threads=threads, intra_threads=1
            )
        except (RuntimeError, ValueError) as error:
            reason = str(error).split("\n")[0]
            raise UserError(
                f"{self._folder}: CTranslate2 {self._ctranslate2.__version__} can't load the model "
                f"({reason}). Export it again, with this version"
            ) from None

    def _task(self, sentence: Sentence, settings: DecodingConfig) -> _Task:
        shortest, longest = length_limits(len(sentence.source), settings)
        # bos takes the first position.
        longest = max(min(longest, self._positions - 1), len(sentence.prefix))
        return _Task(sentence, min(shortest, longest), longest)

    def _limits(self, task: _Task) -> dict[str, Any]:
        # Not 0, which CTranslate2 does not take: what is longer than the limit is left out later.
        return {
            "min_decoding_length": task.shortest,
            "max_decoding_length": max(task.longest, 1),
            "suppress_sequences": _tokens([[i] for i in self._never], self._target_pieces),
        }

    def _translate(
        self, translator: Any, tasks: list[_Task], width: int, **options: Any
    ) -> list[Any]:
        """
        Args:
            width: hypotheses of a sentence that are open at the same time.
        """
        prefixes = [task.prefix for task in tasks]
        return translator.translate_batch(
            _tokens([task.sentence.source for task in tasks], self._source_pieces),
            _tokens(prefixes, self._target_pieces) if any(prefixes) else None,
            max_batch_size=max(1, ROWS // width),
            max_input_length=0,  # nothing is cut
            return_end_token=True,
            **options,
        )

    def _take(self, task: _Task, result: Any) -> None:
        """Makes candidates of what keeps to the limits, without log-probabilities yet."""
        for tokens in result.hypotheses:
            ids = [self._target_ids[token] for token in tokens]
            if ids[-1:] == [self._eos]:
                del ids[-1]
            if task.shortest <= len(ids) <= task.longest:
                task.candidates.append(_Candidate(ids))
        if not task.candidates:
            task.candidates.append(_Candidate(task.prefix))

    def _compute_log_probs(self, tasks: list[_Task]) -> None:
        pairs = [(task, candidate) for task in tasks for candidate in task.candidates]
        log_probs = self.log_probs(
            [task.sentence.source for task, _ in pairs], [candidate.ids for _, candidate in pairs]
        )
        for (_, candidate), log_prob in zip(pairs, log_probs, strict=True):
            candidate.log_prob = log_prob

    def _check_lengths(self, rows: list[list[int]]) -> None:
        longest = max(map(len, rows), default=0)
        if longest >= self._positions:  # bos or eos takes one
            raise UserError(
                f"a sentence of {longest} subwords: {self._folder} was exported for "
                f"{self._positions - 1} at most, as data.max_length and decoding.max_length_ratio "
                "of its config want it"
            )


def _positions(folder: Path) -> int:
    """How many positions were exported.

    Raises:
        UserError: the settings do not tell.
    """
    try:
        positions = json.loads((folder / SETTINGS).read_text("utf-8"))[POSITIONS]
        if type(positions) is not int or positions < 1:
            raise ValueError("not a number of positions")
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        raise UserError(
            f"{folder}: damaged ({SETTINGS} has no {POSITIONS} of 1 or more). Export the model "
            "again"
        ) from None
    return positions


@dataclass
class _Candidate:
    """An output: its ids without eos, and the log-probability of them and eos."""

    ids: list[int]
    log_prob: float = -np.inf


@dataclass
class _Task:
    """A sentence, what limits its outputs (in subwords, without eos), and those that were found."""

    sentence: Sentence
    shortest: int
    longest: int
    candidates: list[_Candidate] = field(default_factory=list)

    @property
    def prefix(self) -> list[int]:
        return self.sentence.prefix

    def best(self, settings: DecodingConfig) -> list[Hypothesis]:
        hypotheses = []
        for found in self.candidates:
            score = found.log_prob / length_penalty(len(found.ids) + 1, settings)
            hypotheses.append(Hypothesis(found.ids, found.log_prob, score))
        return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)[: settings.n_best]


def _beam(settings: DecodingConfig, patience: int) -> dict[str, int]:
    beam_size = settings.beam_size
    # Of a greedy search there is one.
    count = patience * beam_size if beam_size > 1 else 1
    return {"beam_size": beam_size, "patience": patience, "num_hypotheses": count}


def _alpha(settings: DecodingConfig) -> float:
    """CTranslate2 divides by length^alpha, which here only decides which few it leaves out, where
    more have ended than it gives."""
    alpha = settings.length_penalty
    if settings.length_penalty_kind == "gnmt":
        # At a length of 10, both then grow with the length alike.
        alpha *= 10 / (5 + 10)
    # At 0, a search would end with its first hypothesis.
    return max(alpha, 1e-3)


def _of_equal_limits(tasks: list[_Task]) -> list[list[_Task]]:
    groups = defaultdict(list)
    for task in tasks:
        # A prefix of one sentence changes how CTranslate2 treats the ends of all others.
        groups[task.shortest, task.longest, bool(task.prefix)].append(task)
    return list(groups.values())


def _tokens(rows: list[list[int]], pieces: list[str]) -> list[list[str]]:
    return [[pieces[i] for i in row] for row in rows]

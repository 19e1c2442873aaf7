"""The engine that searches with CTranslate2, in a folder that the command `export` wrote.

Paddle is not imported here: with this engine a model translates where Paddle is not installed.
"""

from __future__ import annotations

import json
import operator
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.data.subword import Subwords
from transformer_mt.decoding import guards
from transformer_mt.decoding.engine import (
    PATIENCE,
    Hypotheses,
    Hypothesis,
    Rows,
    Sentence,
    length_limits,
    length_penalty,
)
from transformer_mt.export.registry import CTRANSLATE2, EngineSpec
from transformer_mt.utils.errors import UsageError, UserError

# The settings of an exported model, in its folder.
SETTINGS = "config.json"
# Its key that holds the number of positions.
POSITIONS = "transformer_mt_positions"
# The number of hypotheses that a thread works on at once. It does not depend on the number of
# threads, so that this number changes nothing in a result, not even its last bit.
ROWS = 160
# As PATIENCE where outputs reach their greatest length, at which beam_size of them end at once.
# CTranslate2 returns as many hypotheses as must have ended.
PATIENCE_AT_LIMITS = 3


def import_ctranslate2() -> ModuleType:
    """The package `ctranslate2`, which is optional.

    Raises:
        UsageError: it can't be imported.
    """
    try:
        import ctranslate2
    except ImportError as error:
        raise UsageError(
            f"CTranslate2 is needed, and can't be imported ({error}). Install it with: "
            "python -m pip install -r requirements-ctranslate2.txt"
        ) from None
    return ctranslate2


class Ctranslate2Engine:
    """Implements `engine.Engine` on a CPU.

    Beam search is that of Paddle's engine. CTranslate2's own default, to stop when 1 * beam_size
    hypotheses have ended, would change 24 of the 1,000 sentences of Multi30k's test set.

    `decoding.repetition_penalty` divides or multiplies the logit of a subword here, and not its
    log-probability, and scores are the model's. Loops do not end an output.

    With a beam of 1 it is greedy search, as with Paddle's engine.

    Sampling draws other outputs than Paddle's engine. They follow from the seed and the batch, so
    that the same sentence has other outputs in another batch.

    With `decoding.shortlist`, the candidates of a sentence are those of all sentences that
    CTranslate2 has put into a batch with it. The scores of a sentence with a prefix or with limits
    that matter are the model's own; those of the others are relative to the candidates.

    If the CPU can't compute in the type of the model's weights, CTranslate2 chooses the next better
    type, in the end float32.

    Args:
        folder: an export.
        subwords: those of the folder.
        threads: the greatest number of parts of a batch that are searched in parallel.

    Raises:
        UsageError: CTranslate2 is not installed, or the folder is not an export.
        UserError: the model is damaged, or this version of CTranslate2 can't load it.
    """

    def __init__(self, folder: Path, subwords: Subwords, threads: int) -> None:
        self._ctranslate2 = import_ctranslate2()
        self._folder = Path(folder)
        CTRANSLATE2.require_whole(self._folder)
        self._positions = _positions(self._folder)
        self._translator = self._load(threads)
        self._source_pieces = subwords.source.pieces(range(subwords.source.size))
        target = subwords.target
        self._target_pieces = target.pieces(range(target.size))
        self._target_ids = {piece: i for i, piece in enumerate(self._target_pieces)}
        self._eos = target.eos
        self._never = [target.pad, target.bos, target.unk]

    def search(self, sentences: list[Sentence], settings: DecodingConfig) -> Hypotheses:
        """As `Engine.search`. The output of an empty source is empty, because CTranslate2 reads no
        empty source.

        Raises:
            UserError: a source or a prefix is longer than the exported positions.
        """
        self._check_lengths([row for s in sentences for row in (s.source, s.prefix)])
        tasks = [self._task(sentence, settings) for sentence in sentences]
        if settings.sampling:
            self._sample(tasks, settings)
        else:
            # The scores of a search with penalties would have these in them.
            is_free = not guards.are_on(settings)
            free = [task for task in tasks if is_free and not task.prefix and not task.shortest]
            self._search_together(free, settings)
            self._search_by_limits([task for task in tasks if not task.candidates], settings)
        return [task.best(settings) for task in tasks]

    def log_probs(self, sources: Rows, targets: Rows) -> list[float]:
        """As `Engine.log_probs`.

        Raises:
            UserError: a source or a target is longer than the exported positions.
        """
        self._check_lengths(sources + targets)
        if not sources:
            return []
        results = self._translator.score_batch(
            _tokens(sources, self._source_pieces),
            _tokens(targets, self._target_pieces),
            max_batch_size=ROWS,
            max_input_length=0,  # nothing is cut off
        )
        return [float(np.sum(result.log_probs, dtype=np.float64)) for result in results]

    def cross_attention(self, sources: Rows, targets: Rows) -> list[np.ndarray]:
        """As `Engine.cross_attention`. The targets are the prefixes of a greedy search, because
        with a beam, the attention that CTranslate2 4.8.5 gives for the first subword is wrong: in a
        batch, it is that of another sentence.

        Raises:
            UserError: a source or a target is longer than the exported positions.
        """
        self._check_lengths(sources + targets)
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
            # The search continues after the prefix; those rows are left out.
            own = (result.attention or [[]])[0][: len(target)]
            rows.append(np.array(own, np.float32).reshape(len(own), len(source)))
        return rows

    # ---- Searches ----

    def _search_together(self, tasks: list[_Task], settings: DecodingConfig) -> None:
        """Searches all tasks in one call, and gives candidates to those for which the result is
        that of a search of their own.

        The call has one greatest length, that of the longest task. A task gets no candidates here
        if one of them exceeds its own greatest length.

        If ids are suppressed, CTranslate2 distributes their probability among the others. So that
        scores stay those of the model, the ids that are never chosen are declared as further ends
        beside eos instead. They are hardly ever among the best. A task gets no candidates here if
        one of them is.
        """
        if not tasks:
            return
        beam = {**_beam(settings, PATIENCE), "use_vmap": settings.shortlist}
        results = self._translate(
            self._translator,
            tasks,
            settings.beam_size,
            **beam,
            end_token=[self._eos, *self._never],
            min_decoding_length=0,
            max_decoding_length=max(task.longest for task in tasks) + 1,  # with the end
        )
        special = {self._eos, *self._never}
        for task, result in zip(tasks, results, strict=True):
            outputs = self._outputs(result)
            if all(
                len(ids) <= task.longest
                and ids[-1:] == [self._eos]
                and special.isdisjoint(ids[:-1])
                for ids in outputs
            ):
                task.candidates = [ids[:-1] for ids in outputs]
                # CTranslate2 has divided by this power of the length, which counts the end.
                lengths = (len(ids) ** beam["length_penalty"] for ids in outputs)
                task.log_probs = list(map(operator.mul, result.scores, lengths))

    def _search_by_limits(self, tasks: list[_Task], settings: DecodingConfig) -> None:
        """Searches the tasks with equal limits in one call, and gives candidates to all tasks.

        As in Paddle's search, an output of the greatest length gets its eos, however improbable.
        (Here an output that ended one step before may have taken the place of one of these.) The
        search itself uses probabilities in which the ids that are never chosen have no share. The
        log-probabilities are then computed again, and are the model's.
        """
        beam = {**_beam(settings, PATIENCE_AT_LIMITS), "use_vmap": settings.shortlist}
        self._find_by_limits(self._translator, tasks, settings.beam_size, **beam)
        for task in tasks:
            # After a prefix, a beam ends an output at once only if eos is the most probable.
            may_end = len(task.prefix) >= task.shortest
            if task.prefix and may_end and settings.beam_size > 1:
                task.candidates.append(task.prefix)
            task.candidates = list(map(list, dict.fromkeys(map(tuple, task.candidates))))
        self._compute_log_probs(tasks)

    def _sample(self, tasks: list[_Task], settings: DecodingConfig) -> None:
        """Draws outputs from the probabilities of the ids that may be chosen."""
        if not tasks:
            return
        seed = np.random.SeedSequence((settings.seed, tasks[0].sentence.number))
        # CTranslate2 reads 2^32 - 1 as no seed.
        self._ctranslate2.set_random_seed(int(seed.generate_state(1)[0]) % (2**32 - 1))
        # A thread takes the seed when it draws for the first time, so there must be a new thread
        # each time. There must be only one, because otherwise it would be chance which thread draws
        # for which sentence.
        self._find_by_limits(
            self._load(threads=1),
            tasks,
            settings.n_best,
            beam_size=1,
            # With only one id to draw from there is only one output.
            num_hypotheses=1 if settings.top_k == 1 else settings.n_best,
            sampling_topk=min(settings.top_k or 0, len(self._target_pieces)),
            sampling_topp=settings.top_p,
            sampling_temperature=settings.temperature,
            use_vmap=settings.shortlist,
        )
        self._compute_log_probs(tasks)

    # ---- Parts of the searches ----

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

    def _find_by_limits(
        self, translator: Any, tasks: list[_Task], width: int, **options: Any
    ) -> None:
        """Gives candidates to all tasks, still without log-probabilities. Those with equal limits
        are searched in one call. The arguments are those of `_translate`."""
        groups = defaultdict(list)
        for task in tasks:
            # The prefix of one sentence changes how CTranslate2 treats the ends of all others.
            groups[task.shortest, task.longest, bool(task.prefix)].append(task)
        for (shortest, longest, _), group in groups.items():
            results = self._translate(
                translator,
                group,
                width,
                min_decoding_length=shortest,
                # CTranslate2 does not accept 0. An output that is too long is left out below.
                max_decoding_length=max(longest, 1),
                suppress_sequences=_tokens([[i] for i in self._never], self._target_pieces),
                **options,
            )
            for task, result in zip(group, results, strict=True):
                for ids in self._outputs(result):
                    if ids[-1:] == [self._eos]:
                        del ids[-1]
                    if shortest <= len(ids) <= longest:
                        task.candidates.append(ids)
                task.candidates = task.candidates or [task.prefix]

    def _outputs(self, result: Any) -> list[list[int]]:
        return [[self._target_ids[token] for token in tokens] for tokens in result.hypotheses]

    def _translate(
        self, translator: Any, tasks: list[_Task], width: int, **options: Any
    ) -> list[Any]:
        """
        Args:
            width: the number of hypotheses of a sentence that are open at the same time.
        """
        prefixes = [task.prefix for task in tasks]
        return translator.translate_batch(
            _tokens([task.sentence.source for task in tasks], self._source_pieces),
            _tokens(prefixes, self._target_pieces) if any(prefixes) else None,
            max_batch_size=max(1, ROWS // width),
            max_input_length=0,  # nothing is cut off
            return_end_token=True,
            **options,
        )

    def _compute_log_probs(self, tasks: list[_Task]) -> None:
        sources = [task.sentence.source for task in tasks for _ in task.candidates]
        outputs = [ids for task in tasks for ids in task.candidates]
        log_probs = iter(self.log_probs(sources, outputs))
        for task in tasks:
            task.log_probs = [next(log_probs) for _ in task.candidates]

    def _check_lengths(self, rows: Rows) -> None:
        longest = max(map(len, rows), default=0)
        if longest >= self._positions:  # bos or eos takes one
            raise UserError(
                f"a sentence of {longest} subwords: {self._folder} was exported for "
                f"{self._positions - 1} at most, which follows from data.max_length and "
                "decoding.max_length_ratio of its config"
            )


def load(spec: EngineSpec) -> Ctranslate2Engine:
    return Ctranslate2Engine(spec.folder, spec.subwords, spec.threads)


def _positions(folder: Path) -> int:
    """The number of exported positions.

    Raises:
        UserError: the settings don't hold it.
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
class _Task:
    """A sentence, the limits of its outputs (in subwords without eos), and the outputs found: their
    ids without eos, and the log-probabilities of these ids and eos."""

    sentence: Sentence
    shortest: int
    longest: int
    candidates: list[list[int]] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)

    @property
    def prefix(self) -> list[int]:
        return self.sentence.prefix

    def best(self, settings: DecodingConfig) -> list[Hypothesis]:
        hypotheses = [
            Hypothesis(ids, log_prob, log_prob / length_penalty(len(ids) + 1, settings))
            for ids, log_prob in zip(self.candidates, self.log_probs, strict=True)
        ]
        return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)[: settings.n_best]


def _beam(settings: DecodingConfig, patience: int) -> dict[str, Any]:
    beam_size = settings.beam_size
    # CTranslate2's length penalty is length^alpha. Here it decides only which few outputs are left
    # out if more have ended than are returned.
    alpha = settings.length_penalty
    if settings.length_penalty_kind == "gnmt":
        # At a length of 10, both penalties then grow with the length at the same rate.
        alpha *= 10 / (5 + 10)
    return {
        "beam_size": beam_size,
        "patience": patience,
        # A greedy search has one output.
        "num_hypotheses": patience * beam_size if beam_size > 1 else 1,
        # With 0, a search would end with its first hypothesis.
        "length_penalty": max(alpha, 1e-3),
        "return_scores": True,
        "no_repeat_ngram_size": settings.no_repeat_ngram or 0,
        "repetition_penalty": settings.repetition_penalty,
    }


def _tokens(rows: Rows, pieces: list[str]) -> list[list[str]]:
    return [[pieces[i] for i in row] for row in rows]

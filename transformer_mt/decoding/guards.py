"""Guards against repetition in a search: penalties for what an output has already, and the end of
outputs that only repeat themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from transformer_mt.config.decoding import DecodingConfig

if TYPE_CHECKING:
    from transformer_mt.kernels.scores import CandidateLogProbs, DeviceLogProbs, LogProbs

# An output is in a loop if it ends in the same ids again and again: at least this often, and in
# this many ids. A repeated sequence of more ids than LONGEST_PERIOD is not looked for.
LOOP_TIMES, LOOP_LENGTH = 4, 16
LONGEST_PERIOD = 8
# Loops are looked for after this number of ids, and again after each further one.
EVERY = 8


def are_on(settings: DecodingConfig) -> bool:
    """Whether something is penalised."""
    return settings.repetition_penalty > 1 or settings.no_repeat_ngram is not None


def is_time(length: int) -> bool:
    """Whether loops are looked for in outputs of a length."""
    return length >= LOOP_LENGTH and length % EVERY == 0


def in_loop(outputs: np.ndarray) -> np.ndarray:
    """Whether outputs, int64 (..., ids), end in a loop: bool (...)."""
    found = np.zeros(outputs.shape[:-1], bool)
    for period in range(1, LONGEST_PERIOD + 1):
        whole = max(LOOP_TIMES, -(-LOOP_LENGTH // period)) * period
        if whole <= outputs.shape[-1]:
            end = outputs[..., -whole:]
            found |= (end[..., period:] == end[..., :-period]).all(axis=-1)
    return found


def has_loop(ids: Sequence[int]) -> bool:
    """Whether a source repeats something three times in a row. Its translation may do so too."""
    row = np.array(ids, np.int64)
    for period in range(1, LONGEST_PERIOD + 1):
        is_same = row[period:] == row[:-period]
        count = 2 * period  # so many equal ones in a row are three repetitions
        if len(is_same) >= count and np.convolve(is_same, np.ones(count), "valid").max() == count:
            return True
    return False


def penalise(
    log_probs: LogProbs | CandidateLogProbs | DeviceLogProbs,
    outputs: np.ndarray,
    settings: DecodingConfig,
) -> None:
    """Lowers the log-probabilities of ids that would repeat something.

    Args:
        outputs: int64 (sentences, width, length), the ids of the hypotheses.
        settings: with repetition_penalty, each id that an output has already gets its
            log-probability times the penalty (Keskar et al. 2019, arXiv 1909.05858, section 4.1).
            With no_repeat_ngram, no id may follow that would complete a sequence of so many ids a
            second time (Paulus et al. 2018, arXiv 1705.04304, section 2.5).
    """
    length = outputs.shape[2]
    if settings.repetition_penalty > 1 and length:
        places = np.indices(outputs.shape)
        all_ids = np.stack([places[0].ravel(), places[1].ravel(), outputs.ravel()])
        sentences, hypotheses, ids = np.unique(all_ids, axis=1)  # each of an output once
        log_probs.scale(sentences, hypotheses, ids, settings.repetition_penalty)
    size = settings.no_repeat_ngram
    if size is not None and length >= size:
        last = outputs[:, :, length - size + 1 :]
        for start in range(length - size + 1):
            # The sequence from `start` begins as the next one would.
            same = (outputs[:, :, start : start + size - 1] == last).all(axis=2)
            rows, columns = np.nonzero(same)
            log_probs.scale(rows, columns, outputs[rows, columns, start + size - 1], np.inf)

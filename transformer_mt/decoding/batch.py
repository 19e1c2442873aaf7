"""What engines that compute logits step by step share: from a batch of sentences to its hypotheses,
and the arrays that go into a model and come out of it. They may know of Paddle, this does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from transformer_mt.config.schema import DecodingConfig
from transformer_mt.data.batches import encoded_rows
from transformer_mt.data.subword import Vocabulary
from transformer_mt.decoding.engine import Hypothesis, Sentence, length_limits, length_penalty
from transformer_mt.decoding.log_probs import LogProbs
from transformer_mt.decoding.search import Stepper, Task, beam_search, sample

# Numbers: 128 MB in float32.
LOGITS_AT_ONCE = 2**25
# Pairs of hypotheses of a sentence: memory grows with them, for each attends among the positions of
# all (see `AncestorMask`). Of a beam below 23 there are never so many in a batch of 2,048 tokens.
PAIRS_AT_ONCE = 2**20


def search(
    stepper_of: Callable[[list[list[int]]], Stepper],
    sentences: list[Sentence],
    settings: DecodingConfig,
    target: Vocabulary,
) -> list[list[Hypothesis]]:
    """As `Engine.search`, without attention; `stepper_of` gives the stepper of some sources."""
    width = settings.n_best if settings.sampling else settings.beam_size
    count = max(1, PAIRS_AT_ONCE // width**2)
    found: list[list[Hypothesis]] = []
    for start in range(0, len(sentences), count):
        some = sentences[start : start + count]
        found += _search(stepper_of([one.source for one in some]), some, settings, target)
    return found


def _search(
    stepper: Stepper, sentences: list[Sentence], settings: DecodingConfig, target: Vocabulary
) -> list[list[Hypothesis]]:
    task = _task(sentences, settings, target)
    if settings.sampling:
        uniform = _uniform_numbers(sentences, task, settings.seed)
        options = settings.temperature, settings.top_k, settings.top_p
        return sample(stepper, task, uniform, *options)
    return beam_search(stepper, task, settings.beam_size)


def never_put_out(target: Vocabulary) -> tuple[int, ...]:
    """The ids that don't continue an output: eos ends it, the others stand for no text."""
    return (target.pad, target.bos, target.unk, target.eos)


def target_arrays(rows: list[list[int]], target: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """What the decoder reads, beginning with bos, and what it should say, ending with eos: both
    int64 (rows, longest + 1)."""
    wanted = encoded_rows(rows, target.pad, target.eos)
    read = np.concatenate([np.full((len(rows), 1), target.bos), wanted[:, :-1]], axis=1)
    return read, wanted


def sums_of_log_probs(logits: np.ndarray, wanted: np.ndarray, pad: int) -> list[float]:
    """The log-probability (in nats) of each row of `wanted`, int64 (rows, target_len), without its
    padding; `logits` are float32 (rows, target_len, vocabulary)."""
    of_positions = np.where(wanted == pad, 0.0, LogProbs(logits, ()).of(wanted))
    return of_positions.sum(axis=1).tolist()


def without_padding(
    weights: Iterable[np.ndarray], sources: list[list[int]], targets: list[list[int]]
) -> list[np.ndarray]:
    """Of each (target_len, source_len) what is of its target's ids and its source's; eos is not."""
    return [
        own[: len(target), : len(source)]
        for own, source, target in zip(weights, sources, targets, strict=True)
    ]


def _task(sentences: list[Sentence], settings: DecodingConfig, target: Vocabulary) -> Task:
    limits = [length_limits(len(sentence.source), settings) for sentence in sentences]
    shortest, longest = np.array(limits, np.int64).reshape(-1, 2).T
    return Task(
        shortest=shortest,
        longest=longest,
        prefixes=[sentence.prefix for sentence in sentences],
        bos=target.bos,
        eos=target.eos,
        penalty=lambda length: length_penalty(length, settings),
        n_best=settings.n_best,
    )


def _uniform_numbers(sentences: list[Sentence], task: Task, seed: int) -> np.ndarray:
    """What `sample` draws by: (sentences, n_best, steps); each sentence's follow from the seed and
    its own number."""
    steps = int(task.longest.max(initial=0)) + 1
    return np.stack(
        [
            # Step by step, so that they do not depend on how long others of the batch may be.
            np.random.default_rng((seed, sentence.number)).random((steps, task.n_best)).T
            for sentence in sentences
        ]
    )

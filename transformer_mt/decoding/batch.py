"""What the engines that compute logits step by step share: searching a batch of sentences, and the
arrays that go into a model and come out of it. Nothing here depends on Paddle."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.data.batches import encoded_rows
from transformer_mt.data.subword import Vocabulary
from transformer_mt.decoding.engine import Hypotheses, Rows, Sentence, length_limits, length_penalty
from transformer_mt.decoding.search import Stepper, Task, beam_search, sample
from transformer_mt.utils.console import warn
from transformer_mt.utils.errors import is_out_of_memory

# The number of logits that are held at once: 128 MB in float32.
LOGITS_AT_ONCE = 2**25
# The number of pairs of hypotheses of the same sentence in a batch. Memory grows with it, because
# each hypothesis attends among the positions of all of them (see `AncestorMask`). With a beam below
# 23, a batch of 2,048 tokens never has so many.
PAIRS_AT_ONCE = 2**20


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
    count = max(1, PAIRS_AT_ONCE // width(settings) ** 2)
    found: Hypotheses = []
    left = sentences
    while left:
        some = left[:count]
        try:
            found += _search(stepper_of, some, settings, target)
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


def width(settings: DecodingConfig) -> int:
    """The number of hypotheses of a sentence that are open side by side."""
    return settings.n_best if settings.sampling else settings.beam_size


def _search(
    stepper_of: Callable[[list[Sentence]], Stepper],
    sentences: list[Sentence],
    settings: DecodingConfig,
    target: Vocabulary,
) -> Hypotheses:
    stepper = stepper_of(sentences)
    task = _task(sentences, settings, target)
    if not settings.sampling:
        return beam_search(stepper, task, settings.beam_size)
    uniform = _uniform_numbers(sentences, task, settings.seed)
    return sample(stepper, task, uniform, settings.temperature, settings.top_k, settings.top_p)


def sources(sentences: list[Sentence]) -> Rows:
    """The first segmentation of each sentence, then the second one of each sentence, and so on."""
    by_place = zip(*(sentence.segmentations for sentence in sentences), strict=True)
    return [row for rows in by_place for row in rows]


def never_chosen(target: Vocabulary) -> tuple[int, ...]:
    """The ids that never continue an output: eos ends it, the others stand for no text."""
    return (target.pad, target.bos, target.unk, target.eos)


def target_arrays(rows: Rows, target: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """The decoder input, which begins with bos, and the labels, which end with eos: both int64
    (rows, longest + 1)."""
    labels = encoded_rows(rows, target.pad, target.eos)
    decoder_input = np.concatenate([np.full((len(rows), 1), target.bos), labels[:, :-1]], axis=1)
    return decoder_input, labels


def rows_at_once(decoder_input: np.ndarray, target: Vocabulary) -> Iterator[slice]:
    """The rows of a decoder input (rows, target_len), cut so that the logits of a slice fit into
    memory. The logits of all rows would be many times as large as everything else."""
    rows, length = decoder_input.shape
    count = max(1, LOGITS_AT_ONCE // (length * target.size))
    for start in range(0, rows, count):
        yield slice(start, start + count)


def sums_of_log_probs(log_probs: np.ndarray, labels: np.ndarray, pad: int) -> list[float]:
    """The log-probability (in nats) of each row of `labels`, int64 (rows, target_len), without its
    padding; `log_probs`, of the same shape, are those of each label."""
    return np.where(labels == pad, 0.0, log_probs).sum(axis=1).tolist()


def without_padding(
    weights: Iterable[np.ndarray], sources: Rows, targets: Rows
) -> list[np.ndarray]:
    """Crops each (target_len, source_len) map to the real tokens of its pair, without eos."""
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
    """The random numbers of `sample`, float64 (sentences, n_best, steps). Those of a sentence
    depend only on the seed and on its own number."""
    steps = int(task.longest.max(initial=0)) + 1
    return np.stack(
        [
            # They are drawn step by step, so that they do not depend on the number of steps, which
            # follows from the longest sentence of the batch.
            np.random.default_rng((seed, sentence.number)).random((steps, task.n_best)).T
            for sentence in sentences
        ]
    )

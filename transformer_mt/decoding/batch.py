"""What the engines that compute logits step by step share: searching a batch of sentences, and the
arrays that go into a model and come out of it. Nothing here depends on Paddle."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.config.schema import ModelConfig
from transformer_mt.data.batches import encoded_rows
from transformer_mt.data.subword import Vocabulary
from transformer_mt.decoding.engine import Hypotheses, Rows, Sentence, length_limits
from transformer_mt.decoding.search import Stepper, Task, beam_search, sample
from transformer_mt.model.cache import capacity
from transformer_mt.utils import device
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
        return beam_search(stepper, task)
    return sample(stepper, task, _uniform_numbers(sentences, task))


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
        settings=settings,
    )


def _uniform_numbers(sentences: list[Sentence], task: Task) -> np.ndarray:
    """The random numbers of `sample`, float64 (sentences, n_best, steps). Those of a sentence
    depend only on the seed and on its own number."""
    seed, n_best = task.settings.seed, task.settings.n_best
    steps = int(task.longest.max(initial=0)) + 1
    return np.stack(
        [
            # They are drawn step by step, so that they do not depend on the number of steps, which
            # follows from the longest sentence of the batch.
            np.random.default_rng((seed, sentence.number)).random((steps, n_best)).T
            for sentence in sentences
        ]
    )


# ------------------------------------------------------------------ how many sentences fit on a GPU
# The memory that decoding needs besides the weights is counted. It is proportional to the number of
# sentences. Outputs are counted as if they became as long as they may (decoding.max_length_ratio)
# and as if the hypotheses of a sentence had nothing in common, so that no search needs more.

FLOAT32, FLOAT64, INT64 = 4, 8, 8
# The share of the free memory that a batch may need by this count. Paddle's allocator and the
# libraries of the GPU need the rest.
SHARE = 0.8
# The arrays of the size of attention weights that are held while they are computed: scores, the
# same with the mask, the output of the softmax, and the same with the mask.
WEIGHTS = 4


def sentences_in_free_memory(
    models: list[ModelConfig], vocab_size: int, settings: DecodingConfig, length: int
) -> int:
    """The number of sentences of a length in subwords, with eos, that can be decoded at once in the
    free memory of the selected GPU; the other arguments are as in `sentences_that_fit`."""
    return sentences_that_fit(device.free_memory(), models, vocab_size, settings, length)


def sentences_that_fit(
    memory: int,
    models: list[ModelConfig],
    vocab_size: int,
    settings: DecodingConfig,
    source_len: int,
) -> int:
    """The number of sentences that can be decoded at once; at least 1.

    Args:
        memory: the bytes that are free when the models are loaded.
        models: several make an ensemble.
        vocab_size: the number of target ids.
        source_len: in subwords, with eos, of the longest segmentation.
    """
    need = sentence_bytes(models, vocab_size, settings, source_len)
    return max(1, int(SHARE * memory) // need)


def sentence_bytes(
    models: list[ModelConfig], vocab_size: int, settings: DecodingConfig, source_len: int
) -> int:
    """Counts the bytes of one sentence of a batch; the arguments are as in `sentences_that_fit`."""
    if models[0].non_autoregressive is not None:
        return _filled(models[0], settings, source_len)
    longest = length_limits(source_len - 1, settings)[1] + 1
    hypotheses = width(settings)
    positions = capacity(hypotheses * longest)
    # Encoding comes before the first step.
    started = sum(_caches(model, source_len, 0) for model in models)
    encoding = started + max(_layer(model, source_len, source_len) for model in models)
    held = sum(_caches(model, source_len, positions) for model in models)
    moments = []
    for model in models:
        moments += [
            _layer(model, hypotheses, max(positions, source_len)),
            # The keys and values of one layer are copied when their buffers grow, and when
            # sentences are done.
            2 * FLOAT32 * max(positions, source_len) * model.d_model,
        ]
    mask = hypotheses * positions
    # Each segmentation is a row of a batch, and its logits are mixed as those of a model are.
    rows = settings.segmentations
    logits = _logits(rows * len(models), hypotheses * vocab_size, settings)
    return max(rows * encoding, rows * (held + mask) + max(rows * max(moments), logits))


def _caches(model: ModelConfig, source_len: int, positions: int) -> int:
    """Counts keys and values, and what copying keeps of the source."""
    copying = source_len**2 * FLOAT32 + source_len * INT64 if model.copying else 0
    return 2 * FLOAT32 * model.decoder_layers * (source_len + positions) * model.d_model + copying


def _layer(model: ModelConfig, queries: int, keys: int) -> int:
    """Counts what is held at once while a layer computes: its input, its normalised input, and the
    larger of attention (with projections, which are copied when heads are split) and feed-forward
    network."""
    attention = WEIGHTS * model.num_heads * queries * keys + 6 * queries * model.d_model
    feed_forward = 2 * queries * model.d_ff
    return FLOAT32 * (3 * queries * model.d_model + max(attention, feed_forward))


def _logits(models: int, size: int, settings: DecodingConfig) -> int:
    """Counts the logits and what is computed from them, for `size` logits of a model."""
    # An ensemble's logits, their log-probabilities, and these in one array.
    held = size * FLOAT32 * (1 if models == 1 else 3 * models)
    if not settings.sampling:
        return held + size * FLOAT32
    # The logits with temperature and mask, the same relative to the largest, and masks.
    drawing = 4 * FLOAT32 + 2 if settings.top_k is not None else 3 * FLOAT32 + 2
    if settings.top_k is None:  # everything from here on is as wide as the vocabulary
        drawing += 2 * FLOAT64  # the exponentials, and the sums of these
        if settings.top_p < 1:
            # They are sorted with their ids, in buffers of that size, and sums are compared.
            drawing += 2 * (INT64 + FLOAT32) + FLOAT64
    return held + size * drawing


def _filled(model: ModelConfig, settings: DecodingConfig, source_len: int) -> int:
    """Counts the targets of a non-autoregressive model, which are filled in side by side. Few of
    their logits are computed at a time."""
    targets = settings.length_candidates if model.non_autoregressive == "length" else 1
    target_len = length_limits(source_len - 1, settings)[1]
    memory = FLOAT32 * (1 + targets) * source_len * model.d_model
    layer = targets * _layer(model, target_len, max(source_len, target_len))
    return memory + max(_layer(model, source_len, source_len), layer)

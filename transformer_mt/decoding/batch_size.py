"""How many sentences are decoded at once.

The memory that decoding needs on a GPU besides the weights is counted. It is proportional to the
number of sentences. Outputs are counted as if they became as long as they may
(decoding.max_length_ratio) and as if the hypotheses of a sentence had nothing in common, so that no
search needs more.
"""

from collections.abc import Callable

from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.config.schema import ModelConfig
from transformer_mt.decoding.engine import length_limits
from transformer_mt.model.ancestors import capacity
from transformer_mt.utils import device

# The number of sentences of a length in subwords, with eos, that are decoded at once with some
# settings, if `decoding.batch_tokens` is null.
AtOnce = Callable[[DecodingConfig, int], int]
# The number of padded source tokens in a batch, if it is null and memory does not decide.
BATCH_TOKENS = 2_048


def default_at_once(settings: DecodingConfig, length: int) -> int:
    """As many sentences as fit into BATCH_TOKENS; see `AtOnce`."""
    return sentences_in(BATCH_TOKENS, settings, length)


def sentences_in(tokens: int, settings: DecodingConfig, length: int) -> int:
    """The number of sentences whose segmentations, of a length in subwords with eos, have so many
    tokens."""
    return tokens // (length * settings.segmentations)


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
    """As many sentences as fit into the free memory of the selected GPU; at least 1.

    Args:
        models: those that are loaded; several make an ensemble.
        vocab_size: the number of target ids.
        settings, length: as in `AtOnce`.
    """
    need = sentence_bytes(models, vocab_size, settings, length)
    return max(1, int(SHARE * device.free_memory()) // need)


def sentence_bytes(
    models: list[ModelConfig], vocab_size: int, settings: DecodingConfig, source_len: int
) -> int:
    """Counts the bytes of one sentence of a batch, whose longest segmentation has `source_len`
    subwords with eos. The other arguments are those of `sentences_in_free_memory`."""
    if models[0].non_autoregressive is not None:
        return _filled(models[0], settings, source_len)
    longest = length_limits(source_len - 1, settings)[1] + 1
    hypotheses = settings.n_best if settings.sampling else settings.beam_size
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

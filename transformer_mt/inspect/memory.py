"""Counts the bytes of memory that training needs.

Activations are counted at the moment at which the loss has been computed: everything that the
backward pass reads, and the logits with their probabilities. Apart from the gradients of weights,
the backward pass frees more than it allocates. (Afterwards, processes that add up gradients hold
them three times.)

float32 is counted as on a CPU, where the tests measure it; a GPU keeps less for dropout. Half
precision is counted by what paddle.amp (level O1) and the fused attention keep on a GPU. It has not
been measured.
"""

import math

from transformer_mt.config.schema import Config, ModelConfig
from transformer_mt.inspect.parameters import VocabularySizes, parts

FLOAT32 = 4
HALF = 2


def weight_bytes(config: Config, vocabularies: VocabularySizes) -> int:
    """Counts the weights, which are float32 in every precision. Their gradients need as much."""
    return FLOAT32 * sum(part.parameters for part in parts(config.model, vocabularies))


def optimizer_bytes(config: Config, vocabularies: VocabularySizes) -> int:
    """Counts a velocity per weight for sgd; otherwise two moments, and two powers per tensor. Muon
    has one momentum instead for the matrices of layers.

    With `training.sharding`, this is the share of one of `training.devices` processes.
    """
    training = config.training
    processes = (training.devices or 1) if training.sharding else 1
    weights = weight_bytes(config, vocabularies)
    if training.optimizer == "sgd":
        return weights // processes
    tensors = sum(part.count * len(part.tensors) for part in parts(config.model, vocabularies))
    adams = 2 * weights // processes + 2 * FLOAT32 * tensors
    if training.optimizer != "muon":
        return adams
    matrices = [
        FLOAT32 * math.prod(shape)
        for part in parts(config.model, vocabularies)
        if part.name.startswith(("encoder", "decoder"))
        for shape in part.tensors * part.count
        if len(shape) == 2
    ]
    return adams - sum(matrices) - 2 * FLOAT32 * len(matrices)


def half_weight_bytes(config: Config, vocabularies: VocabularySizes) -> int:
    """Counts the copies of weights in half precision that matrix products read."""
    model = config.model
    if config.training.precision == "float32":
        return 0
    matrices = sum(
        part.count * math.prod(shape)
        for part in parts(model, vocabularies)
        for shape in part.tensors
        # Token embeddings are only looked up; length embeddings are a factor of a product.
        if len(shape) == 2 and part.name not in ("source embedding", "target embedding")
    )
    if model.tie_embeddings:
        matrices += vocabularies.target * model.d_model  # the generator's
    return HALF * matrices


def activation_bytes(
    config: Config, target_vocab_size: int, rows: int, source_len: int, target_len: int
) -> int:
    """Counts the activations for a batch of `rows` sentence pairs of equal length.

    Lengths are in tokens, including end-of-sentence. With scheduled sampling, all words are counted
    as replaced. Copies of embeddings of which some are zero (see training/objective.py) are not
    counted.
    """
    model, training = config.model, config.training
    rows *= config.consistency.passes
    source, target = rows * source_len, rows * target_len
    kept = _Kept(model, is_half=training.precision != "float32")
    encoder_layer = (
        kept.attention(source, source, rows * source_len**2)
        + kept.feed_forward(source)
        + 2 * kept.residual(source)
    )
    decoder_layer, read_layer = (
        kept.attention(target, target, rows * target_len**2, is_read)
        + kept.attention(target, source, rows * target_len * source_len, is_read)
        + kept.feed_forward(target)
        + 3 * kept.residual(target)
        for is_read in (False, True)
    )
    # Layers whose attention weights are read by the loss are not recomputed.
    read_layers = len(config.layers_read_by_the_loss)
    other_layers = model.decoder_layers - read_layers
    loss = at_the_end = kept.loss(target, target_vocab_size) + kept.copying(target * source_len)
    if not training.recompute:
        encoder = model.encoder_layers * encoder_layer
        decoder = read_layers * read_layer + other_layers * decoder_layer
    else:
        # The input of each layer and the output of the last; `ends_of_stack` counts the input of
        # the first. In addition either the loss or, in the backward pass, one whole layer with the
        # gradients of its output, of its inner feed-forward layer and of the memory.
        encoder = model.encoder_layers * FLOAT32 * source * model.d_model
        decoder = read_layers * read_layer + other_layers * FLOAT32 * target * model.d_model
        layer = max(
            encoder_layer + FLOAT32 * source * (model.d_model + model.d_ff),
            decoder_layer + FLOAT32 * target * (model.d_model + model.d_ff),
        )
        at_the_end = max(loss, layer + FLOAT32 * source * model.d_model)
    encoder += kept.ends_of_stack(source)
    decoder += kept.ends_of_stack(target) + kept.output_dropout(target)
    sampling, replaced = config.scheduled_sampling, rows * (target_len - 1)
    mixture = 0
    if sampling.decay is not None and sampling.mixing == "top_k":
        mixture = kept.means(replaced, sampling.top_k)
        if sampling.backpropagate:
            one = (
                decoder
                + FLOAT32 * replaced * target_vocab_size
                + kept.copying(replaced * source_len)
            )
            mixture = (sampling.passes - 1) * (mixture + one)
    return encoder + decoder + mixture + at_the_end


class _Kept:
    """Counts the bytes that the backward pass reads of each piece, for numbers of padded tokens."""

    def __init__(self, model: ModelConfig, is_half: bool) -> None:
        self._model = model
        self._is_half = is_half
        # Bytes per element that a matrix product reads or writes. In half precision, it reads a
        # copy, because norms write float32.
        self._product = HALF if is_half else FLOAT32
        self._copy = HALF if is_half else 0
        # Bytes per element that dropout keeps: on a CPU the element and its factor, on a GPU
        # whether it was kept.
        self._dropout = 1 if is_half else 2 * FLOAT32

    def ends_of_stack(self, tokens: int) -> int:
        """Counts the input of the first layer and, with pre-norm, the input of the final norm."""
        model = self._model
        rate = model.dropout if model.embedding_dropout is None else model.embedding_dropout
        size = FLOAT32 * (2 if model.norm == "pre" else 1) + (self._dropout if rate else 0)
        return tokens * model.d_model * size

    def output_dropout(self, tokens: int) -> int:
        """Counts what the dropout before the output layer keeps."""
        return tokens * self._model.d_model * (self._dropout if self._model.output_dropout else 0)

    def residual(self, tokens: int) -> int:
        """Counts what the norm reads and writes, and what dropout keeps."""
        written = 0 if self._is_half else FLOAT32
        dropout = self._dropout if self._model.dropout else 0
        return tokens * self._model.d_model * (FLOAT32 + written + dropout)

    def attention(self, queries: int, keys: int, pairs: int, is_read: bool = False) -> int:
        """Counts the projected queries, keys and values, the output, and the attention weights.

        `pairs` is the number of pairs of a query and a key per head. If the loss reads the weights
        (`is_read`), the fused attention can't be used.
        """
        model = self._model
        size = (2 * queries + 2 * keys) * model.d_model * self._product
        if model.projection_dropout:
            size += (queries + 2 * keys) * model.d_model * self._dropout
        if self._is_half:
            # The inputs of the projections, and the output before its heads are joined.
            copies = (queries + 2 * keys) * self._copy + queries * HALF
            size += copies * model.d_model
            if not is_read:
                return size + pairs * HALF  # the mask that is added to the scores
            # The output of the softmax, the same with the mask, and a copy in half precision.
            return size + pairs * model.num_heads * (2 * FLOAT32 + HALF)
        # The output of the softmax and the same with the mask; with dropout, also its factors and
        # the product.
        weights = 4 if model.attention_dropout else 2
        return size + weights * pairs * model.num_heads * FLOAT32

    def feed_forward(self, tokens: int) -> int:
        """Counts the inner layer."""
        model = self._model
        size = tokens * model.d_model * self._copy + tokens * model.d_ff * self._product
        if model.feed_forward_dropout:
            # The factors of dropout and the product. Its input is counted already.
            factors = 1 if self._is_half else FLOAT32
            size += tokens * model.d_ff * (factors + self._product)
        return size

    def loss(self, tokens: int, vocab_size: int) -> int:
        """Counts logits and probabilities. Logits in half precision have a float32 copy, too."""
        copy = HALF if self._is_half else 0
        return tokens * vocab_size * (2 * FLOAT32 + copy)

    def means(self, tokens: int, top_k: int) -> int:
        """Counts the embeddings of the `top_k` most probable tokens per position, their mean, and
        the means joined with the embeddings of the true tokens."""
        return FLOAT32 * tokens * self._model.d_model * (top_k + 2)

    def copying(self, pairs: int) -> int:
        """Counts copying, for pairs of a target and a source position; 0 without copying.

        A pair has an id of 8 bytes and six numbers: the generated, copied and mixed logits, and the
        mean attention before and after it is summed per id and padding is left out.
        """
        if not self._model.copying:
            return 0
        return pairs * (8 + 6 * FLOAT32)

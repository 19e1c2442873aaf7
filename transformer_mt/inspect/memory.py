"""Bytes that training holds.

The activations are what a step holds when the loss has been computed: all that the backward pass
reads, and the logits with their probabilities. But for the gradients of weights, the backward pass
frees more than it adds. (After it, processes that add up gradients hold them three times.)

float32 is counted as it is on a CPU, which the tests measure; a GPU keeps less of dropout. Half
precision is counted by what paddle.amp (level O1) and the fused attention keep on a GPU, and has
not been measured.
"""

from __future__ import annotations

import math

from transformer_mt.assembly.heads import layers_read_by_the_loss
from transformer_mt.config.schema import Config, ModelConfig, TrainingConfig
from transformer_mt.inspect.parameters import VocabularySizes, parts

FLOAT32 = 4
HALF = 2


def weight_bytes(model: ModelConfig, vocabularies: VocabularySizes) -> int:
    """Of the weights, and as many of their gradients; float32 in every precision."""
    return FLOAT32 * sum(part.parameters for part in parts(model, vocabularies))


def optimizer_bytes(
    model: ModelConfig, training: TrainingConfig, vocabularies: VocabularySizes
) -> int:
    """Of its state: a velocity for sgd, else two moments, and two powers of betas a tensor."""
    weights = weight_bytes(model, vocabularies)
    if training.optimizer == "sgd":
        return weights
    tensors = sum(part.count * len(part.tensors) for part in parts(model, vocabularies))
    return 2 * weights + 2 * FLOAT32 * tensors


def half_weight_bytes(
    model: ModelConfig, training: TrainingConfig, vocabularies: VocabularySizes
) -> int:
    """Of the copies in half precision that the matrix products of a step read, if they do."""
    if training.precision == "float32":
        return 0
    matrices = sum(
        part.count * math.prod(shape)
        for part in parts(model, vocabularies)
        for shape in part.tensors
        # Embeddings are looked up, but for those of lengths, which are compared with too.
        if len(shape) == 2 and part.name not in ("source embedding", "target embedding")
    )
    if model.tie_embeddings:
        matrices += vocabularies.target * model.d_model  # the generator's
    return HALF * matrices


def activation_bytes(
    config: Config, target_vocab_size: int, rows: int, source_len: int, target_len: int
) -> int:
    """Of a batch of `rows` pairs, all as long as this, in tokens with end-of-sentence; with
    scheduled sampling, where all words are replaced."""
    model, training = config.model, config.training
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
    # Those whose attention is read are held in any case.
    read_layers = len(layers_read_by_the_loss(config))
    other_layers = model.decoder_layers - read_layers
    loss = at_the_end = kept.loss(target, target_vocab_size) + kept.copying(target * source_len)
    if not training.recompute:
        encoder = model.encoder_layers * encoder_layer
        decoder = read_layers * read_layer + other_layers * decoder_layer
    else:
        # What enters each layer (the first one's is counted already) and what leaves the last. Then
        # either the loss or, in the backward pass, one whole layer, with the gradients of its
        # output, of its feed-forward network's inner layer and of the memory.
        encoder = model.encoder_layers * FLOAT32 * source * model.d_model
        decoder = read_layers * read_layer + other_layers * FLOAT32 * target * model.d_model
        layer = max(
            encoder_layer + FLOAT32 * source * (model.d_model + model.d_ff),
            decoder_layer + FLOAT32 * target * (model.d_model + model.d_ff),
        )
        at_the_end = max(loss, layer + FLOAT32 * source * model.d_model)
    encoder += kept.ends_of_stack(source)
    decoder += kept.ends_of_stack(target)
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
    """Bytes that the backward pass reads of the model's pieces, by numbers of padded tokens."""

    def __init__(self, model: ModelConfig, is_half: bool) -> None:
        self._model = model
        self._is_half = is_half
        # Of an element that a matrix product reads or writes. In half precision what it reads is a
        # copy of its own, for norms write float32.
        self._product = HALF if is_half else FLOAT32
        self._copy = HALF if is_half else 0
        # Of an element that dropout reads: on a CPU the element, and what it is multiplied with; on
        # a GPU whether it was kept.
        self._dropout = 1 if is_half else 2 * FLOAT32

    def ends_of_stack(self, tokens: int) -> int:
        """What enters the first layer; with pre-norm, what enters the norm after the last too."""
        model = self._model
        rate = model.dropout if model.embedding_dropout is None else model.embedding_dropout
        size = FLOAT32 * (2 if model.norm == "pre" else 1) + (self._dropout if rate else 0)
        return tokens * model.d_model * size

    def residual(self, tokens: int) -> int:
        """What the norm reads and writes, and dropout."""
        written = 0 if self._is_half else FLOAT32
        dropout = self._dropout if self._model.dropout else 0
        return tokens * self._model.d_model * (FLOAT32 + written + dropout)

    def attention(self, queries: int, keys: int, pairs: int, is_read: bool = False) -> int:
        """Projected queries, keys and values, their output, and the weights; `pairs` of a query and
        a key, whatever the heads. If others read the weights, attention is not the fused one."""
        model = self._model
        size = (2 * queries + 2 * keys) * model.d_model * self._product
        if self._is_half:
            # What the projections read; the output before its heads are joined.
            copies = (queries + 2 * keys) * self._copy + queries * HALF
            size += copies * model.d_model
            if not is_read:
                return size + pairs * HALF  # the mask that is added to the scores
            # As the softmax gives them, with the mask, and both in half precision.
            return size + pairs * model.num_heads * (2 * FLOAT32 + HALF)
        # As the softmax gives them and with the mask; then dropout's factors, and their product.
        weights = 4 if model.attention_dropout else 2
        return size + weights * pairs * model.num_heads * FLOAT32

    def feed_forward(self, tokens: int) -> int:
        """The inner layer."""
        model = self._model
        size = tokens * model.d_model * self._copy + tokens * model.d_ff * self._product
        if model.feed_forward_dropout:
            # Its input is there already. What it is multiplied with, and the product.
            factors = 1 if self._is_half else FLOAT32
            size += tokens * model.d_ff * (factors + self._product)
        return size

    def loss(self, tokens: int, vocab_size: int) -> int:
        """Logits and probabilities; of half precision's logits, a copy in float32 too."""
        copy = HALF if self._is_half else 0
        return tokens * vocab_size * (2 * FLOAT32 + copy)

    def means(self, tokens: int, top_k: int) -> int:
        """The embeddings of the most probable ones in a place, their mean, and all of them joined
        with those of true words."""
        return FLOAT32 * tokens * self._model.d_model * (top_k + 2)

    def copying(self, pairs: int) -> int:
        """Of each pair of a target and a source position the id, in 8 bytes, how much of it is
        generated, copied and both, and the mean attention, before and after its places are joined
        and those of padding are left out; if it copies at all."""
        if not self._model.copying:
            return 0
        return pairs * (8 + 6 * FLOAT32)

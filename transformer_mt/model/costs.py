"""What a model and its training cost: parameters, floating point operations (FLOPs), memory.

Everything is counted from the config, without building the model.

FLOPs are those of matrix products: a product of (m, k) and (k, n) takes 2mnk. Softmax, norms,
dropout, embeddings and the optimiser are not counted.

Memory is counted in float32, as it is measured on a CPU; half precision needs less. Activations are
counted at the moment at which the loss has been computed: everything that the backward pass reads,
and the logits with their probabilities. Apart from the gradients of weights, the backward pass
frees more than it allocates. (Afterwards, processes that add up gradients hold them three times.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from transformer_mt.config.decoding import LONGEST_TARGET
from transformer_mt.config.schema import GATED, Config, ModelConfig

if TYPE_CHECKING:
    from transformer_mt.data.subword import Subwords

FLOAT32 = 4  # bytes


# ---- Parameters ----


class VocabularySizes(NamedTuple):
    """The numbers of ids of both sides. joint: both sides have the same ids."""

    source: int
    target: int
    joint: bool

    @classmethod
    def of(cls, subwords: Subwords) -> VocabularySizes:
        """Returns the sizes of these vocabularies."""
        return cls(subwords.source.size, subwords.target.size, subwords.joint)


@dataclass(frozen=True)
class Part:
    """A group of equal pieces of a model.

    count: the number of pieces.
    formula: the number of parameters per piece, in terms of the config.
    tensors: the shapes of the parameters of one piece.
    """

    name: str
    count: int
    formula: str
    tensors: list[tuple[int, ...]]

    @property
    def each(self) -> int:
        """The number of parameters per piece."""
        return sum(math.prod(shape) for shape in self.tensors)

    @property
    def parameters(self) -> int:
        """The number of parameters of all pieces."""
        return self.count * self.each


# What a part has for each piece: the formula and the tensors.
Formula = tuple[str, list[tuple[int, ...]]]


def parts(model: ModelConfig, vocabularies: VocabularySizes) -> list[Part]:
    """Lists the parts of a model of this config. An optional mechanism adds a part.

    A shared matrix (Vaswani et al. 2017, section 3.4) is counted where it is listed first.
    """
    d_model, d_ff = model.d_model, model.d_ff
    encoder_layers, decoder_layers = model.encoder_layers, model.decoder_layers
    square = (d_model, d_model)
    attention: Formula = ("4 x d_model^2", [square] * 4)
    inner = 2 if model.activation in GATED else 1  # the matrices before the activation
    feed_forward: Formula = (
        f"{inner + 1} x d_model x d_ff",
        [*([(d_model, d_ff)] * inner), (d_ff, d_model)],
    )
    if model.bias:
        attention = ("4 x d_model^2 + 4 x d_model", [square, (d_model,)] * 4)
        inner_biases = "d_ff" if inner == 1 else f"{inner} x d_ff"
        feed_forward = (
            f"{feed_forward[0]} + {inner_biases} + d_model",
            [*([(d_model, d_ff), (d_ff,)] * inner), (d_ff, d_model), (d_model,)],
        )
    norm: Formula = ("2 x d_model", [(d_model,)] * 2)
    final_norms = 1 if model.norm == "pre" else 0

    def vocabulary_matrix(name: str, side: str, is_shared: bool = False) -> Part:
        if is_shared:
            return Part(name, 0, "the target embedding's", [])
        vocabulary = "vocabulary" if vocabularies.joint else f"{side} vocabulary"
        shape = (getattr(vocabularies, side), d_model)
        return Part(name, 1, f"{vocabulary} x d_model", [shape])

    found = [
        vocabulary_matrix("target embedding", "target"),
        vocabulary_matrix(
            "source embedding", "source", model.tie_embeddings and vocabularies.joint
        ),
        Part("encoder self-attention", encoder_layers, *attention),
        Part("encoder feed-forward", encoder_layers, *feed_forward),
        Part("encoder norms", 2 * encoder_layers + final_norms, *norm),
        Part("decoder self-attention", decoder_layers, *attention),
        Part("decoder cross-attention", decoder_layers, *attention),
        Part("decoder feed-forward", decoder_layers, *feed_forward),
        Part("decoder norms", 3 * decoder_layers + final_norms, *norm),
        vocabulary_matrix("generator", "target", model.tie_embeddings),
    ]
    if model.output_bias:
        vocabulary = "vocabulary" if vocabularies.joint else "target vocabulary"
        found.append(Part("output bias", 1, vocabulary, [(vocabularies.target,)]))
    if model.copying:
        found.append(Part("copy gate", 1, "d_model + 1", [(d_model, 1), (1,)]))
    if model.non_autoregressive == "length":
        lengths = LONGEST_TARGET + 1
        found.append(Part("length embedding", 1, f"{lengths} x d_model", [(lengths, d_model)]))
    return found


# ---- FLOPs ----


class Flops(NamedTuple):
    """The FLOPs of each part for a sentence pair."""

    encoder: Any
    decoder: Any
    generator: Any

    @property
    def total(self) -> Any:
        return self.encoder + self.decoder + self.generator


@dataclass(frozen=True)
class FlopCounter:
    """Counts what a model computes for a sentence pair.

    Attributes:
        target_vocab_size: the number of target ids.
        source_len: in tokens, including end-of-sentence and without padding; an integer, or a
            float64 array for many pairs.
        target_len: likewise; for a non-autoregressive model the number of target positions.
    """

    model: ModelConfig
    target_vocab_size: int
    source_len: Any
    target_len: Any

    def training(self) -> Flops:
        """Counts the forward and the backward pass of training.

        In the backward pass, a product costs twice as much as forward, for the gradients of both of
        its factors. `recomputed` counts what `training.recompute` adds, and `predictions` what the
        earlier passes of scheduled sampling add.
        """
        flops = Flops(*(3 * part for part in self._forward(self._all_pairs)))
        if not self.model.copying:
            return flops
        # The matrix of the positions of each source id is a factor without a gradient.
        no_gradient = self.target_len * 2 * self.source_len * self.source_len
        return flops._replace(generator=flops.generator - no_gradient)

    def recomputed(self, layers_kept: int = 0) -> Flops:
        """Counts what `training.recompute` adds: a second forward pass of all layers, except
        `layers_kept` layers of the decoder."""
        encoder, decoder, _ = self._forward(self._all_pairs)
        layers = self.model.decoder_layers
        return Flops(encoder, decoder * (layers - layers_kept) // layers, 0)

    def predictions(self, passes: int, backpropagate: bool) -> Flops:
        """Counts what `passes` of scheduled sampling before the last add, if all words are
        replaced."""
        one = self.training() if backpropagate else self._forward(self._all_pairs)
        return Flops(0, passes * one.decoder, passes * one.generator)

    def decoding(self, beam_size: int = 1) -> Flops:
        """Counts incremental decoding of `beam_size` hypotheses for `target_len` steps.

        The source is encoded and projected for cross-attention once for all hypotheses. At each
        step, a hypothesis attends to its own past.
        """
        past = self.target_len * (self.target_len + 1) // 2  # 1 + 2 + ... + target_len
        return self._forward(past, beam_size)

    def mask_prediction(self) -> Flops:
        """Counts training of a non-autoregressive model.

        A random number of positions is masked, (target_len + 1) / 2 on average. Logits are computed
        for the masked positions only.
        """
        forward = self._filling()
        generator = self.model.d_model * self.target_vocab_size * (self.target_len + 1)
        return Flops(3 * forward.encoder, 3 * forward.decoder, 3 * generator)

    def mask_predict(self, iterations: int, candidates: int) -> Flops:
        """Counts decoding with a non-autoregressive model.

        In every iteration, all positions of each candidate pass through the decoder, the source is
        projected again, and logits are computed for the masked positions.
        """
        forward = self._filling()
        masked = [self.target_len * (iterations - done) // iterations for done in range(iterations)]
        masked = [count for count in masked if count]  # short targets need fewer
        return Flops(
            forward.encoder,
            candidates * len(masked) * forward.decoder,
            candidates * sum(masked) * 2 * self.model.d_model * self.target_vocab_size,
        )

    @property
    def _all_pairs(self) -> Any:
        """The pairs of two target positions."""
        return self.target_len * self.target_len

    def _filling(self) -> Flops:
        """Counts a forward pass without the generator, where each position attends to all
        positions."""
        forward = self._forward(self._all_pairs)._replace(generator=0)
        if self.model.non_autoregressive == "end":
            return forward
        # The token LENGTH stands before the source.
        encoder = replace(self, source_len=self.source_len + 1)._forward(0).encoder
        return forward._replace(encoder=encoder + 2 * self.model.d_model * (LONGEST_TARGET + 1))

    def _forward(self, target_pairs: Any, beam_size: int = 1) -> Flops:
        """Counts a forward pass. `target_pairs` is the number of pairs of a query and a key in the
        decoder's self-attention."""
        model, source_len, target_len = self.model, self.source_len, self.target_len
        d_model, d_ff = model.d_model, model.d_ff
        projection = 2 * d_model * d_model  # per token: query, key, value or output
        matrices = 3 if model.activation in GATED else 2
        feed_forward = matrices * 2 * d_model * d_ff
        both_products = 2 * 2 * d_model  # per query and key: the score and the weighted value
        encoder_layer = (
            source_len * (4 * projection + feed_forward) + source_len * source_len * both_products
        )
        decoder_layer = (
            # Four projections of self-attention, and the query and output of cross-attention. Its
            # keys and values are counted below.
            target_len * (6 * projection + feed_forward)
            + (target_pairs + target_len * source_len) * both_products
        )
        memory = source_len * 2 * projection  # once for all hypotheses
        # The gate, and the sum of the attention to all positions of an id.
        copying = 2 * d_model + 2 * source_len * source_len if model.copying else 0
        return Flops(
            model.encoder_layers * encoder_layer,
            model.decoder_layers * (beam_size * decoder_layer + memory),
            beam_size * target_len * (2 * d_model * self.target_vocab_size + copying),
        )


# ---- Memory ----


def weight_bytes(config: Config, vocabularies: VocabularySizes) -> int:
    """Counts the weights. Their gradients need as much."""
    return FLOAT32 * sum(part.parameters for part in parts(config.model, vocabularies))


def optimizer_bytes(config: Config, vocabularies: VocabularySizes) -> int:
    """Counts a velocity per weight for sgd; otherwise two moments, and two powers per tensor. Muon
    has one momentum instead for the matrices of layers.

    With `training.sharding`, this is the share of one of `training.devices` processes.
    """
    training, found = config.training, parts(config.model, vocabularies)
    processes = (training.devices or 1) if training.sharding else 1
    weights = weight_bytes(config, vocabularies)
    if training.optimizer == "sgd":
        return weights // processes
    tensors = sum(part.count * len(part.tensors) for part in found)
    adams = 2 * weights // processes + 2 * FLOAT32 * tensors
    if training.optimizer != "muon":
        return adams
    layers = [part for part in found if part.name.startswith(("encoder", "decoder"))]
    shapes = [shape for part in layers for shape in part.tensors * part.count]
    matrices = [FLOAT32 * math.prod(shape) for shape in shapes if len(shape) == 2]
    return adams - sum(matrices) - 2 * FLOAT32 * len(matrices)


def activation_bytes(
    config: Config, target_vocab_size: int, rows: int, source_len: int, target_len: int
) -> int:
    """Counts what the backward pass reads, for a batch of `rows` sentence pairs of equal length.

    Lengths are in tokens, including end-of-sentence. What scheduled sampling adds is not counted.
    """
    model, training = config.model, config.training
    d_model, d_ff = model.d_model, model.d_ff
    embedding_rate = model.dropout if model.embedding_dropout is None else model.embedding_dropout
    rows *= config.consistency.passes
    source, target = rows * source_len, rows * target_len

    def dropped(rate: float) -> float:
        # Dropout keeps a byte per element, which is a quarter of a number.
        return 0.25 if rate else 0.0

    # Per token, the inner layer, and what dropout makes of it; and what a norm reads and writes,
    # the row's mean and variance, and dropout.
    inner_dropout = dropped(model.feed_forward_dropout)
    inner = 1 + (1 + inner_dropout if inner_dropout else 0)
    if model.activation in GATED:
        inner += 3  # the gate before and after its activation, and the projection
    elif model.activation != "relu":
        inner += 1  # the gradient of the others is computed from what they read
    feed_forward = d_ff * inner
    residual = d_model * (2 + dropped(model.dropout)) + 2

    def attention(queries: int, keys: int, pairs: int, has_weights: bool = False) -> float:
        # The projected queries, keys and values, the output, and the attention weights. If the
        # weights are needed, there are those of the softmax, of the mask, and of dropout.
        projected: float = d_model * (2 * queries + 2 * keys)
        projected += d_model * (queries + 2 * keys) * dropped(model.projection_dropout)
        dropout = dropped(model.attention_dropout)
        weights = (2 + (1 + dropout if dropout else 0)) if has_weights else 1 + dropout
        return projected + weights * pairs * model.num_heads

    def decoder_layer(has_weights: bool = False) -> float:
        attentions = attention(target, target, rows * target_len**2, has_weights)
        attentions += attention(target, source, target * source_len, has_weights)
        return attentions + target * (feed_forward + 3 * residual)

    encoder_layer = attention(source, source, rows * source_len**2)
    encoder_layer += source * (feed_forward + 2 * residual)
    # The layers whose weights are read by the loss.
    read_layers = len(config.layers_read_by_the_loss)
    other_layers = model.decoder_layers - read_layers
    # The input of the first layer and, with pre-norm, the input of the final norm.
    ends = d_model * ((2 if model.norm == "pre" else 1) + dropped(embedding_rate))
    numbers = source * ends + target * (ends + d_model * dropped(model.output_dropout))
    loss = 2 * target * target_vocab_size  # logits and probabilities
    if model.copying:
        # A pair of a target and a source position has an id of 8 bytes and six numbers: the
        # generated, copied and mixed logits, and the mean attention before and after it is summed
        # per id and padding is left out.
        loss += 8 * target * source_len
    read = read_layers * decoder_layer(has_weights=True)
    if not training.recompute:
        layers = model.encoder_layers * encoder_layer + other_layers * decoder_layer() + read
        return round(FLOAT32 * (numbers + layers + loss))
    # The input of each layer and the output of the last; `ends` counts the input of the first.
    # Layers whose attention weights are read by the loss are not recomputed.
    numbers += model.encoder_layers * source * d_model + read
    numbers += other_layers * target * d_model
    # In addition either the loss or, in the backward pass, one whole layer with the gradients of
    # its output, of its inner feed-forward layer and of the memory.
    layer = max(
        encoder_layer + source * (d_model + d_ff), decoder_layer() + target * (d_model + d_ff)
    )
    return round(FLOAT32 * (numbers + max(loss, layer + source * d_model)))

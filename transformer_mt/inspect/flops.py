"""The floating point operations (FLOPs) of a Transformer's matrix products.

A product of (m, k) and (k, n) takes 2mnk FLOPs. Softmax, norms, dropout, embeddings and the
optimiser are not counted. Lengths are in tokens, including end-of-sentence and without padding.
They may be integers or float64 arrays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from transformer_mt.config.schema import ModelConfig
from transformer_mt.mechanisms.mask_predict.config import LONGEST_TARGET


class Flops(NamedTuple):
    """The FLOPs of each part for a sentence pair."""

    encoder: Any
    decoder: Any
    generator: Any

    @property
    def total(self) -> Any:
        return self.encoder + self.decoder + self.generator


def training_flops(
    model: ModelConfig, target_vocab_size: int, source_len: Any, target_len: Any
) -> Flops:
    """Counts the forward and the backward pass of training.

    In the backward pass, a product costs twice as much as forward, for the gradients of both of its
    factors. `recomputed_flops` counts what `training.recompute` adds, and `prediction_flops` what
    the earlier passes of scheduled sampling add.
    """
    pairs = target_len * target_len
    forward = _forward_flops(model, target_vocab_size, source_len, target_len, pairs)
    flops = Flops(*(3 * part for part in forward))
    if not model.copying:
        return flops
    # The matrix of the positions of each source id is a factor without a gradient.
    return flops._replace(generator=flops.generator - target_len * 2 * source_len * source_len)


def recomputed_flops(
    model: ModelConfig, source_len: Any, target_len: Any, layers_kept: int = 0
) -> Flops:
    """Counts what `training.recompute` adds: a second forward pass of all layers, except
    `layers_kept` layers of the decoder."""
    encoder, decoder, _ = _forward_flops(model, 0, source_len, target_len, target_len * target_len)
    again = model.decoder_layers - layers_kept
    return Flops(encoder, decoder * again // model.decoder_layers, 0)


def prediction_flops(
    model: ModelConfig,
    target_vocab_size: int,
    source_len: Any,
    target_len: Any,
    passes: int,
    backpropagate: bool,
) -> Flops:
    """Counts what `passes` of scheduled sampling before the last add, if all words are replaced."""
    if backpropagate:
        one = training_flops(model, target_vocab_size, source_len, target_len)
    else:
        pairs = target_len * target_len
        one = _forward_flops(model, target_vocab_size, source_len, target_len, pairs)
    return Flops(0, passes * one.decoder, passes * one.generator)


def decoding_flops(
    model: ModelConfig, target_vocab_size: int, source_len: Any, target_len: Any, beam_size: int = 1
) -> Flops:
    """Counts incremental decoding of `beam_size` hypotheses for `target_len` steps.

    The source is encoded and projected for cross-attention once for all hypotheses. At each step,
    a hypothesis attends to its own past.
    """
    past = target_len * (target_len + 1) // 2  # 1 + 2 + ... + target_len
    return _forward_flops(model, target_vocab_size, source_len, target_len, past, beam_size)


def mask_prediction_flops(
    model: ModelConfig, target_vocab_size: int, source_len: int, positions: int
) -> Flops:
    """Counts training of a non-autoregressive model on `positions` target positions.

    A random number of positions is masked, (positions + 1) / 2 on average. Logits are computed for
    the masked positions only.
    """
    forward = _filling_flops(model, source_len, positions)
    generator = model.d_model * target_vocab_size * (positions + 1)
    return Flops(3 * forward.encoder, 3 * forward.decoder, 3 * generator)


def mask_predict_flops(
    model: ModelConfig,
    target_vocab_size: int,
    source_len: int,
    positions: int,
    iterations: int,
    candidates: int,
) -> Flops:
    """Counts decoding with a non-autoregressive model.

    In every iteration, all positions of each candidate pass through the decoder, the source is
    projected again, and logits are computed for the masked positions.
    """
    forward = _filling_flops(model, source_len, positions)
    masked = [positions * (iterations - done) // iterations for done in range(iterations)]
    masked = [count for count in masked if count]  # short targets need fewer
    return Flops(
        forward.encoder,
        candidates * len(masked) * forward.decoder,
        candidates * sum(masked) * 2 * model.d_model * target_vocab_size,
    )


def _filling_flops(model: ModelConfig, source_len: int, positions: int) -> Flops:
    """Counts a forward pass without the generator, where each position attends to all positions."""
    pairs = positions * positions
    decoder = _forward_flops(model, 0, source_len, positions, pairs).decoder
    if model.non_autoregressive == "end":
        return Flops(_forward_flops(model, 0, source_len, 0, 0).encoder, decoder, 0)
    # The token LENGTH stands before the source.
    encoder = _forward_flops(model, 0, source_len + 1, 0, 0).encoder
    return Flops(encoder + 2 * model.d_model * (LONGEST_TARGET + 1), decoder, 0)


def _forward_flops(
    model: ModelConfig,
    target_vocab_size: int,
    source_len: Any,
    target_len: Any,
    target_pairs: Any,  # pairs of a query and a key in the decoder's self-attention
    beam_size: int = 1,
) -> Flops:
    d_model, d_ff = model.d_model, model.d_ff
    projection = 2 * d_model * d_model  # per token: query, key, value or output
    feed_forward = 2 * 2 * d_model * d_ff
    both_products = 2 * 2 * d_model  # per query and key: the score and the weighted value
    encoder_layer = (
        source_len * (4 * projection + feed_forward) + source_len * source_len * both_products
    )
    decoder_layer = (
        # Four projections of self-attention, and the query and output of cross-attention. Its keys
        # and values are counted below.
        target_len * (6 * projection + feed_forward)
        + (target_pairs + target_len * source_len) * both_products
    )
    memory = source_len * 2 * projection  # once for all hypotheses
    # The gate, and the sum of the attention to all positions of an id.
    copying = 2 * d_model + 2 * source_len * source_len if model.copying else 0
    return Flops(
        model.encoder_layers * encoder_layer,
        model.decoder_layers * (beam_size * decoder_layer + memory),
        beam_size * target_len * (2 * d_model * target_vocab_size + copying),
    )

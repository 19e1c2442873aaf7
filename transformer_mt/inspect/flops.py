"""Floating point operations of a Transformer's matrix products.

A product of (m, k) and (k, n) is 2mnk. Softmax, norms, dropout, embeddings and the optimiser are
not counted. Lengths are in tokens, those of end-of-sentence among them, without padding; they may
be whole numbers, or float64 arrays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from transformer_mt.config.schema import ModelConfig
from transformer_mt.mechanisms.mask_predict.config import LONGEST_TARGET


class Flops(NamedTuple):
    """FLOPs of each part, for a sentence pair."""

    encoder: Any
    decoder: Any
    generator: Any

    @property
    def total(self) -> Any:
        return self.encoder + self.decoder + self.generator


def training_flops(
    model: ModelConfig, target_vocab_size: int, source_len: Any, target_len: Any
) -> Flops:
    """Forward and backward: a product costs twice as much again backward, for the gradients of both
    its factors. What `training.recompute` computes a second time is in `recomputed_flops`, the
    earlier passes of scheduled sampling in `prediction_flops`."""
    pairs = target_len * target_len
    forward = _forward_flops(model, target_vocab_size, source_len, target_len, pairs)
    flops = Flops(*(3 * part for part in forward))
    if not model.copying:
        return flops
    # Where a word stands in the source is a factor that has no gradient.
    return flops._replace(generator=flops.generator - target_len * 2 * source_len * source_len)


def recomputed_flops(
    model: ModelConfig, source_len: Any, target_len: Any, layers_kept: int = 0
) -> Flops:
    """What `training.recompute` adds: all layers once more, forward, but for `layers_kept` of the
    decoder's."""
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
    """What `passes` of scheduled sampling before the last add, where all words are replaced."""
    if backpropagate:
        one = training_flops(model, target_vocab_size, source_len, target_len)
    else:
        pairs = target_len * target_len
        one = _forward_flops(model, target_vocab_size, source_len, target_len, pairs)
    return Flops(0, passes * one.decoder, passes * one.generator)


def decoding_flops(
    model: ModelConfig, target_vocab_size: int, source_len: Any, target_len: Any, beam_size: int = 1
) -> Flops:
    """Step by step with a cache, each of `beam_size` hypotheses for `target_len` steps.

    The source is encoded, and projected for cross-attention, once for all; at each step a
    hypothesis attends to its own past.
    """
    past = target_len * (target_len + 1) // 2  # 1 + 2 + ... + target_len
    return _forward_flops(model, target_vocab_size, source_len, target_len, past, beam_size)


def mask_prediction_flops(
    model: ModelConfig, target_vocab_size: int, source_len: int, positions: int
) -> Flops:
    """Training a non-autoregressive model on `positions` of the target, of which any number is
    masked: of their mean, (positions + 1) / 2, logits are computed."""
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
    """Decoding with one: the whole of each candidate goes through the decoder in every iteration,
    the source is projected anew each time, and logits are of what is masked then."""
    forward = _filling_flops(model, source_len, positions)
    masked = [positions * (iterations - done) // iterations for done in range(iterations)]
    masked = [count for count in masked if count]  # short targets are done before
    return Flops(
        forward.encoder,
        candidates * len(masked) * forward.decoder,
        candidates * sum(masked) * 2 * model.d_model * target_vocab_size,
    )


def _filling_flops(model: ModelConfig, source_len: int, positions: int) -> Flops:
    """Forward, without the generator: every position of the target sees all of them."""
    pairs = positions * positions
    decoder = _forward_flops(model, 0, source_len, positions, pairs).decoder
    if model.non_autoregressive == "end":
        return Flops(_forward_flops(model, 0, source_len, 0, 0).encoder, decoder, 0)
    # With the token LENGTH before the source.
    encoder = _forward_flops(model, 0, source_len + 1, 0, 0).encoder
    return Flops(encoder + 2 * model.d_model * (LONGEST_TARGET + 1), decoder, 0)


def _forward_flops(
    model: ModelConfig,
    target_vocab_size: int,
    source_len: Any,
    target_len: Any,
    target_pairs: Any,  # of a query and a key in the decoder's self-attention
    beam_size: int = 1,
) -> Flops:
    d_model, d_ff = model.d_model, model.d_ff
    projection = 2 * d_model * d_model  # of a token: query, key, value or output
    feed_forward = 2 * 2 * d_model * d_ff
    both_products = 2 * 2 * d_model  # of a query and a key: their score, and the weighted value
    encoder_layer = (
        source_len * (4 * projection + feed_forward) + source_len * source_len * both_products
    )
    decoder_layer = (
        # All four of self-attention; query and output of cross-attention, key and value below.
        target_len * (6 * projection + feed_forward)
        + (target_pairs + target_len * source_len) * both_products
    )
    memory = source_len * 2 * projection  # once for all hypotheses
    # The gate, and the attention of all places of a word added up.
    copying = 2 * d_model + 2 * source_len * source_len if model.copying else 0
    return Flops(
        model.encoder_layers * encoder_layer,
        model.decoder_layers * (beam_size * decoder_layer + memory),
        beam_size * target_len * (2 * d_model * target_vocab_size + copying),
    )

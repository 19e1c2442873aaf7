"""The floating point operations (FLOPs) of a Transformer's matrix products.

A product of (m, k) and (k, n) takes 2mnk FLOPs. Softmax, norms, dropout, embeddings and the
optimiser are not counted.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from transformer_mt.config.decoding import LONGEST_TARGET
from transformer_mt.config.schema import ModelConfig


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
        feed_forward = 2 * 2 * d_model * d_ff
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

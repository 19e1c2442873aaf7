"""Which of the decoder's attention a config makes use of, besides computing the output."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from transformer_mt.config.schema import Config


class Heads(NamedTuple):
    """The first `heads` heads of the attention to the source in one decoder layer; the first layer
    is 0."""

    layer: int
    heads: int

    @classmethod
    def nearest_to_alignment(cls, num_layers: int, num_heads: int) -> Heads:
        """All heads of the last layer but one. Without guidance, this layer's attention is the
        closest to a word alignment (Garg et al. 2019, arXiv 1909.02074, section 3.2)."""
        return cls(max(num_layers - 2, 0), num_heads)


def alignment_heads(config: Config) -> Heads:
    """The heads whose mean attention shows which words belong together.

    These are the guided heads if they were guided by alignments. (Heads that are guided to the
    diagonal say little where words change places.)
    """
    layers = config.model.decoder_layers
    if config.guided_attention.by == "alignment":
        return config.guided_attention.guided_heads(layers)
    return Heads.nearest_to_alignment(layers, config.model.num_heads)


def layers_read_by_the_loss(config: Config) -> frozenset[int]:
    """The decoder layers, from 0, whose attention weights the loss or the output layer reads. Their
    weights are kept in training, with `recompute` too, and fused attention cannot compute them."""
    model, layers = config.model, set()
    if model.copying:
        layers.add(model.decoder_layers - 1)
    if config.guided_attention.by is not None:
        layers.add(config.guided_attention.guided_heads(model.decoder_layers).layer)
    return frozenset(layers)

"""Heads of the decoder's attention to the source."""

from __future__ import annotations

from typing import NamedTuple


class Heads(NamedTuple):
    """The first `heads` heads of one decoder layer; the first layer is 0."""

    layer: int
    heads: int

    @classmethod
    def nearest_to_alignment(cls, num_layers: int, num_heads: int) -> Heads:
        """All heads of the last layer but one. Without guidance, this layer's attention is the
        closest to a word alignment (Garg et al. 2019, arXiv 1909.02074, section 3.2)."""
        return cls(max(num_layers - 2, 0), num_heads)

"""The parameters of each part of a Transformer, as `assembly.model.build_model` makes them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from transformer_mt.config.decoding import LONGEST_TARGET
from transformer_mt.config.schema import ModelConfig

if TYPE_CHECKING:
    from transformer_mt.data.subword import Subwords


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


def parts(model: ModelConfig, vocabularies: VocabularySizes) -> list[Part]:
    """Lists the parts of a model of this config. An optional mechanism adds a part.

    A shared matrix (Vaswani et al. 2017, section 3.4) is counted where it is listed first.
    """
    d_model, d_ff = model.d_model, model.d_ff
    encoder_layers, decoder_layers = model.encoder_layers, model.decoder_layers
    square = (d_model, d_model)
    attention = ("4 x d_model^2", [square] * 4)
    feed_forward = ("2 x d_model x d_ff", [(d_model, d_ff), (d_ff, d_model)])
    if model.bias:
        attention = ("4 x d_model^2 + 4 x d_model", [square, (d_model,)] * 4)
        feed_forward = (
            "2 x d_model x d_ff + d_ff + d_model",
            [(d_model, d_ff), (d_ff,), (d_ff, d_model), (d_model,)],
        )
    norm = ("2 x d_model", [(d_model,)] * 2)
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
    if model.copying:
        found.append(Part("copy gate", 1, "d_model + 1", [(d_model, 1), (1,)]))
    if model.non_autoregressive == "length":
        lengths = LONGEST_TARGET + 1
        found.append(Part("length embedding", 1, f"{lengths} x d_model", [(lengths, d_model)]))
    return found

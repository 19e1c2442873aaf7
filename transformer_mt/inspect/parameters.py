"""The parameters of a Transformer, part by part, as `assembly.build_model` makes them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from transformer_mt.config.schema import ModelConfig
from transformer_mt.mechanisms.mask_predict.config import LONGEST_TARGET

Shape = tuple[int, ...]
# Instead of a formula.
SHARED = "the target embedding's"


class VocabularySizes(NamedTuple):
    """Numbers of ids; joint: both sides have the same ones."""

    source: int
    target: int
    joint: bool


@dataclass(frozen=True)
class Part:
    """Pieces of a model that are alike.

    count: how many of them there are. formula: the parameters of one, in the config's words.
    tensors: the shapes of one's parameters.
    """

    name: str
    count: int
    formula: str
    tensors: list[Shape]

    @property
    def each(self) -> int:
        """Parameters of one."""
        return sum(math.prod(shape) for shape in self.tensors)

    @property
    def parameters(self) -> int:
        return self.count * self.each


def parts(model: ModelConfig, vocabularies: VocabularySizes) -> list[Part]:
    """All that a model of this config consists of; an optional mechanism adds a line.

    What is shared (Vaswani et al. 2017, section 3.4) is counted where it comes first.
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
    at_the_end = 1 if model.norm == "pre" else 0
    return [
        *_embeddings(model, vocabularies),
        Part("encoder self-attention", encoder_layers, *attention),
        Part("encoder feed-forward", encoder_layers, *feed_forward),
        Part("encoder norms", 2 * encoder_layers + at_the_end, *norm),
        Part("decoder self-attention", decoder_layers, *attention),
        Part("decoder cross-attention", decoder_layers, *attention),
        Part("decoder feed-forward", decoder_layers, *feed_forward),
        Part("decoder norms", 3 * decoder_layers + at_the_end, *norm),
        _generator(model, vocabularies),
        *_optional(model),
    ]


def _optional(model: ModelConfig) -> Iterator[Part]:
    if model.copying:
        yield Part("copy gate", 1, "d_model + 1", [(model.d_model, 1), (1,)])
    if model.non_autoregressive == "length":
        lengths = LONGEST_TARGET + 1
        yield Part("length embedding", 1, f"{lengths} x d_model", [(lengths, model.d_model)])


def _embeddings(model: ModelConfig, vocabularies: VocabularySizes) -> list[Part]:
    target = _vocabulary_matrix("target embedding", vocabularies, "target", model)
    if model.tie_embeddings and vocabularies.joint:
        return [target, Part("source embedding", 0, SHARED, [])]
    return [target, _vocabulary_matrix("source embedding", vocabularies, "source", model)]


def _generator(model: ModelConfig, vocabularies: VocabularySizes) -> Part:
    if model.tie_embeddings:
        return Part("generator", 0, SHARED, [])
    return _vocabulary_matrix("generator", vocabularies, "target", model)


def _vocabulary_matrix(
    name: str, vocabularies: VocabularySizes, side: str, model: ModelConfig
) -> Part:
    size = getattr(vocabularies, side)
    words = "vocabulary" if vocabularies.joint else f"{side} vocabulary"
    return Part(name, 1, f"{words} x d_model", [(size, model.d_model)])

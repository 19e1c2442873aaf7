"""The weights of MarianMT: their names in Marian, in Hugging Face's library and here.

All three have the same architecture. They differ in names, in which dimension of a matrix is the
input, and in the order of the channels of the model: the positions have all sines before all
cosines there, while here a sine and its cosine stand side by side (Vaswani et al. 2017, section
3.5). Because everything else treats all channels alike, taking the channels of every weight in our
order makes an equal model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from transformer_mt.config.schema import ModelConfig


class Weight(NamedTuple):
    """A weight of a layer by its three names."""

    ours: str
    huggingface: str
    marian: str


def of_layers(model: ModelConfig) -> Iterator[Weight]:
    """Yields the weights of all layers of the encoder and the decoder."""
    for stack, count in (("encoder", model.encoder_layers), ("decoder", model.decoder_layers)):
        for number in range(count):
            for ours, huggingface, marian in _of_layer(stack == "decoder"):
                yield Weight(
                    f"{stack}.layers.{number}.{ours}",
                    f"model.{stack}.layers.{number}.{huggingface}",
                    f"{stack}_l{number + 1}_{marian}",
                )


def _of_layer(attends_to_memory: bool) -> Iterator[tuple[str, str, str]]:
    attentions = [("self_attention", "self_attn", "self")]
    if attends_to_memory:
        attentions.append(("cross_attention", "encoder_attn", "context"))
    for ours, huggingface, marian in attentions:
        for projection, short, letter in (
            ("query", "q", "q"),
            ("key", "k", "k"),
            ("value", "v", "v"),
            ("output", "out", "o"),
        ):
            layer = f"{ours}.{projection}_projection", f"{huggingface}.{short}_proj"
            yield f"{layer[0]}.weight", f"{layer[1]}.weight", f"{marian}_W{letter}"
            yield f"{layer[0]}.bias", f"{layer[1]}.bias", f"{marian}_b{letter}"
        yield from _norm(f"{ours}_residual", f"{huggingface}_layer_norm", f"{marian}_Wo_ln")
    for projection, short, number in (("inner", "fc1", "1"), ("output", "fc2", "2")):
        name = f"feed_forward.{projection}_projection"
        yield f"{name}.weight", f"{short}.weight", f"ffn_W{number}"
        yield f"{name}.bias", f"{short}.bias", f"ffn_b{number}"
    yield from _norm("feed_forward_residual", "final_layer_norm", "ffn_ffn_ln")


def _norm(ours: str, huggingface: str, marian: str) -> Iterator[tuple[str, str, str]]:
    yield f"{ours}.norm.weight", f"{huggingface}.weight", f"{marian}_scale"
    yield f"{ours}.norm.bias", f"{huggingface}.bias", f"{marian}_bias"


# Which dimension of a weight of ours has the channels of the model. The others have none.
_CHANNELS = [
    (r"(source_embedding|target_embedding|generator)\.weight", 1),
    (r".*\.(query|key|value|inner)_projection\.weight", 0),
    (r".*\.output_projection\.weight", 1),
    (r".*\.output_projection\.bias", 0),
    (r".*\bnorm\.(weight|bias)", 0),
]


def _in_order(name: str, weight: np.ndarray, order: np.ndarray) -> np.ndarray:
    axis = next((axis for pattern, axis in _CHANNELS if re.fullmatch(pattern, name)), None)
    return weight if axis is None else np.ascontiguousarray(weight.take(order, axis))


def _their_channels(d_model: int) -> np.ndarray:
    """Returns which channel of theirs each channel of ours is, int64 (d_model,)."""
    halves = np.arange(d_model)
    sines = (d_model + 1) // 2
    return np.where(halves % 2 == 0, halves // 2, sines + halves // 2)


def to_ours(name: str, weight: np.ndarray, d_model: int) -> np.ndarray:
    """Takes the channels of one of their weights, whose name here is `name`, in our order."""
    return _in_order(name, weight, _their_channels(d_model))


def to_theirs(name: str, weight: np.ndarray, d_model: int) -> np.ndarray:
    """The inverse of `to_ours`."""
    return _in_order(name, weight, np.argsort(_their_channels(d_model)))

"""The page of the attention maps of a model for a sentence and its translation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from transformer_mt.data.vocabulary import Vocabulary
from transformer_mt.export import registry
from transformer_mt.export.registry import EngineSpec
from transformer_mt.reports.page import render
from transformer_mt.utils.errors import UsageError

if TYPE_CHECKING:
    from transformer_mt.decoding.paddle_engine import PaddleEngine

# Weights are written as integers, in units of 1 / PRECISION. Three digits are more than a reader
# can distinguish by colour, and most weights are then a single character.
PRECISION = 1000
# The names and the captions of the maps of a Transformer.
_ENCODER = (
    "Encoder self-attention",
    "Each row is a subword of the source; the columns are what it attends to.",
)
_DECODER = (
    "Decoder self-attention",
    "Each row is the position at which the decoder predicts this subword; the columns are what the "
    "decoder reads.",
)
_CROSS = (
    "Cross-attention",
    "Each row is the position at which the decoder predicts this subword; the columns are the "
    "source.",
)


class Side(NamedTuple):
    """A source sentence, or a translation.

    Attributes:
        label: what the page calls it.
        ids: its subwords, without bos and eos.
    """

    label: str
    text: str
    ids: list[int]


def find(folder: Path, checkpoint: str | None = None, device: str | None = None) -> EngineSpec:
    """The engine of a model that can give its attention. The arguments are those of
    `registry.find`.

    Raises:
        UsageError: there is no such model, or it is an export or non-autoregressive.
        UserError: the model is damaged.
    """
    if (held := registry.exported(folder)) is not None:
        raise UsageError(
            f"{folder} is an export for --engine {held}, which does not give the weights of every "
            "layer and head. Give the model directory that it was made of"
        )
    spec = registry.find(folder, "paddle", checkpoint, device=device)
    registry.require_possible(spec, spec.config.decoding, ["attention"])
    return spec


def load(spec: EngineSpec) -> PaddleEngine:
    """Loads the engine that `find` has given."""
    return cast("PaddleEngine", spec.load())


def draw(spec: EngineSpec, engine: PaddleEngine, source: Side, target: Side) -> str:
    """Returns the page, as HTML, for a source and its translation by the engine of `spec`. It shows
    the last map first."""
    attention = engine.attention(source.ids, target.ids)
    langs, subwords = (spec.config.data.source_lang, spec.config.data.target_lang), spec.subwords
    source_axis = _axis(attention.source, subwords.source, langs[0])
    decoder_input = _axis(attention.decoder_input, subwords.target, langs[1])
    labels = _axis(attention.labels, subwords.target, langs[1])
    data = {
        "title": f"{spec.folder.resolve().name}, {spec.checkpoints[0].name}",
        "sentences": [
            {"label": side.label, "text": side.text, "lang": lang}
            for side, lang in zip((source, target), langs, strict=True)
        ],
        "maps": [
            map_of(*_ENCODER, source_axis, source_axis, attention.encoder),
            map_of(*_DECODER, labels, decoder_input, attention.decoder),
            map_of(*_CROSS, labels, source_axis, attention.cross),
        ],
    }
    return render("attention.html", data=data)


def map_of(
    name: str, caption: str, queries: dict[str, Any], keys: dict[str, Any], weights: np.ndarray
) -> dict[str, Any]:
    """Returns what the page is given of one kind of attention.

    Args:
        caption: explains its rows and columns.
        queries, keys: the subwords along its sides.
        weights: floating (layers, heads, queries, keys), from 0 to 1.
    """
    whole = np.rint(weights * PRECISION).astype(int).tolist()
    return {"name": name, "caption": caption, "queries": queries, "keys": keys, "weights": whole}


def _axis(ids: list[int], vocabulary: Vocabulary, lang: str) -> dict[str, Any]:
    """Returns the subwords along one side of a map, each with "special" or "unknown" for what is
    not text.

    Args:
        lang: the language code, such as zh, by which a browser chooses the shapes of characters.
    """
    kinds = {vocabulary.unk: "unknown"}
    kinds |= dict.fromkeys((vocabulary.pad, vocabulary.bos, vocabulary.eos), "special")
    pieces = zip(ids, vocabulary.pieces(ids), strict=True)
    return {"lang": lang, "tokens": [(_visible(piece), kinds.get(id, "")) for id, piece in pieces]}


def _visible(piece: str) -> str:
    """A subword; one that would be invisible, such as U+200B, is given by its code points."""
    if any(character.isprintable() for character in piece):
        return piece
    return " ".join(f"U+{ord(character):04X}" for character in piece)

"""The page of the attention maps of a model for a sentence and its translation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from transformer_mt.data.subword import Vocabulary
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


class Token(NamedTuple):
    """A subword on the page. `kind` is "special" or "unknown" for what is not text."""

    text: str
    kind: str = ""


class Axis(NamedTuple):
    """The subwords along one side of a map, in the order of the model.

    Attributes:
        lang: the language code, such as zh, by which a browser chooses the shapes of characters.
    """

    tokens: list[Token]
    lang: str = ""


class Map(NamedTuple):
    """The weights of one kind of attention.

    Attributes:
        name: its name, such as "Cross-attention".
        caption: explains its rows and columns.
        weights: floating (layers, heads, len(queries.tokens), len(keys.tokens)), from 0 to 1.
    """

    name: str
    caption: str
    queries: Axis
    keys: Axis
    weights: np.ndarray


class Sentence(NamedTuple):
    """A sentence that is shown above the maps, with its label and its language."""

    label: str
    text: str
    lang: str = ""


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
    """Returns the page, as HTML, for a source and its translation by the engine of `spec`."""
    attention = engine.attention(source.ids, target.ids)
    data, subwords = spec.config.data, spec.subwords
    source_axis = Axis(_tokens(attention.source, subwords.source), data.source_lang)
    decoder_input = Axis(_tokens(attention.decoder_input, subwords.target), data.target_lang)
    labels = Axis(_tokens(attention.labels, subwords.target), data.target_lang)
    return page(
        f"{spec.folder.resolve().name}, {spec.checkpoints[0].name}",
        [
            Sentence(source.label, source.text, data.source_lang),
            Sentence(target.label, target.text, data.target_lang),
        ],
        [
            Map(*_ENCODER, source_axis, source_axis, attention.encoder),
            Map(*_DECODER, labels, decoder_input, attention.decoder),
            Map(*_CROSS, labels, source_axis, attention.cross),
        ],
    )


def page(title: str, sentences: list[Sentence], maps: list[Map]) -> str:
    """Returns the page, which shows the last map first. Labels and tokens may hold any text."""
    data = {
        "title": title,
        "sentences": [sentence._asdict() for sentence in sentences],
        "maps": [
            shown._asdict()
            | {
                "queries": shown.queries._asdict(),
                "keys": shown.keys._asdict(),
                "weights": np.rint(shown.weights * PRECISION).astype(int).tolist(),
            }
            for shown in maps
        ],
    }
    return render("attention.html", data=data)


def _tokens(ids: list[int], vocabulary: Vocabulary) -> list[Token]:
    kinds = {vocabulary.unk: "unknown"}
    kinds |= dict.fromkeys((vocabulary.pad, vocabulary.bos, vocabulary.eos), "special")
    return [
        Token(_visible(piece), kinds.get(id, ""))
        for id, piece in zip(ids, vocabulary.pieces(ids), strict=True)
    ]


def _visible(piece: str) -> str:
    """A subword; one that would be invisible, such as U+200B, is given by its code points."""
    if any(character.isprintable() for character in piece):
        return piece
    return " ".join(f"U+{ord(character):04X}" for character in piece)

"""The page of the attention maps of a model for a sentence and its translation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from transformer_mt.assembly import backends
from transformer_mt.backends.backend import EngineSpec
from transformer_mt.data.subword import Vocabulary
from transformer_mt.inspect import attention_page
from transformer_mt.inspect.attention_page import Axis, Map, Token
from transformer_mt.utils.errors import UsageError

if TYPE_CHECKING:
    from transformer_mt.decoding.paddle_engine import PaddleEngine


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
    `backends.find`.

    Raises:
        UsageError: there is no such model, or it is an export or non-autoregressive.
        UserError: the model is damaged.
    """
    if (held := backends.exported(folder)) is not None:
        raise UsageError(
            f"{folder} is an export for --engine {held}, which does not give the weights of every "
            "layer and head. Give the model directory that it was made of"
        )
    spec = backends.find(folder, "paddle", checkpoint, device=device)
    backends.require_possible(spec, spec.config.decoding, ["attention"])
    return spec


def draw(spec: EngineSpec, engine: PaddleEngine, source: Side, target: Side) -> str:
    """Returns the page, as HTML, for a source and its translation by the engine of `spec`."""
    attention = engine.attention(source.ids, target.ids)
    data, subwords = spec.config.data, spec.subwords
    source_axis = Axis(_tokens(attention.source, subwords.source), data.source_lang)
    decoder_input = Axis(_tokens(attention.decoder_input, subwords.target), data.target_lang)
    labels = Axis(_tokens(attention.labels, subwords.target), data.target_lang)
    return attention_page.html(
        f"{spec.folder.resolve().name}, {spec.checkpoints[0].name}",
        [
            attention_page.Sentence(source.label, source.text, data.source_lang),
            attention_page.Sentence(target.label, target.text, data.target_lang),
        ],
        [
            Map(*attention_page.ENCODER, source_axis, source_axis, attention.encoder),
            Map(*attention_page.DECODER, labels, decoder_input, attention.decoder),
            Map(*attention_page.CROSS, labels, source_axis, attention.cross),
        ],
    )


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

"""The command `attention`.

The page is one file that any browser can show, without a network. It has a map of encoder
self-attention, decoder self-attention and cross-attention, for every layer and every head, and for
the mean of the heads. Rows and columns are the subwords that the model reads. Point at a cell or at
a subword to see its weights.

examples:
  python -m transformer_mt attention runs/demo --text 'Where is the station?'
  python -m transformer_mt attention runs/demo --text 'Where is the station?' \\
      --target 'Wo ist der Bahnhof?' --output station.html
"""

import argparse
import os
from pathlib import Path

from transformer_mt.assembly import backends
from transformer_mt.commands.arguments import add_checkpoint, add_device, add_model_dir
from transformer_mt.data.subword import Vocabulary
from transformer_mt.decoding.engine import Sentence
from transformer_mt.inspect import attention_page as page
from transformer_mt.inspect.attention_page import Axis, Map, Token
from transformer_mt.runtime.errors import UsageError
from transformer_mt.runtime.files import write_atomically


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_dir(parser)
    parser.add_argument("--text", metavar="TEXT", required=True, help="the source sentence")
    parser.add_argument(
        "--target",
        metavar="TEXT",
        help="its translation (default: the best one that the model finds)",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        default=Path("attention.html"),
        help="the file for the page (default: attention.html)",
    )
    add_checkpoint(parser)
    add_device(parser)


def run(options: argparse.Namespace) -> None:
    """
    Raises:
        UsageError: there is no such model, it is an export or non-autoregressive, or a text is
            empty or too long.
        UserError: the model is damaged, or the page can't be written.
    """
    folder = Path(options.model_dir)
    if (held := backends.exported(folder)) is not None:
        raise UsageError(
            f"{folder} is an export for --engine {held}, which does not give the weights of every "
            "layer and head. Give the model directory that it was made of"
        )
    spec = backends.find(folder, "paddle", options.checkpoint, device=options.device)
    config, subwords = spec.config, spec.subwords
    backends.require_possible(config, config.decoding, ["attention"])
    limit = config.data.max_length
    text, source_ids = _read("--text", options.text, subwords.source, limit)
    if not source_ids:
        raise UsageError("--text: there is no text in it")
    if options.target is not None:
        target, target_ids = _read("--target", options.target, subwords.target, limit)

    engine = spec.load()
    label = "Translation, given"
    if options.target is None:
        label = "Translation, found by the model"
        target_ids = engine.search([Sentence(source_ids)], config.decoding)[0][0].ids
        target = subwords.target.decode(target_ids)
    attention = engine.attention(source_ids, target_ids)

    source_lang, target_lang = config.data.source_lang, config.data.target_lang
    source = Axis(_tokens(attention.source, subwords.source), source_lang)
    decoder_input = Axis(_tokens(attention.decoder_input, subwords.target), target_lang)
    labels = Axis(_tokens(attention.labels, subwords.target), target_lang)
    content = page.html(
        f"{folder.resolve().name}, {spec.checkpoints[0].name}",
        [page.Sentence("Source", text, source_lang), page.Sentence(label, target, target_lang)],
        [
            Map(*page.ENCODER, source, source, attention.encoder),
            Map(*page.DECODER, labels, decoder_input, attention.decoder),
            Map(*page.CROSS, labels, source, attention.cross),
        ],
    )
    write_atomically(options.output, content)
    print(options.output)


def _read(option: str, text: str, vocabulary: Vocabulary, limit: int) -> tuple[str, list[int]]:
    """A line of text as the model reads it, and its ids.

    Raises:
        UsageError: the text is more than a line, or has more than `limit` subwords.
    """
    # Bytes that are not UTF-8 become U+FFFD, as in a file.
    text = os.fsencode(text).decode("utf-8", "replace").strip()
    if "\n" in text:
        raise UsageError(f"{option}: there is an end of line in it; give one line")
    ids = vocabulary.encode(text)
    if len(ids) > limit:
        raise UsageError(
            f"{option}: {len(ids)} subwords, but the model reads at most {limit} at once "
            "(data.max_length; `translate` cuts such a line into parts). Give a shorter one"
        )
    return text, ids


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

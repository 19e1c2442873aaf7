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

from transformer_mt.commands import arguments
from transformer_mt.data.vocabulary import Vocabulary
from transformer_mt.decoding.engine import Sentence
from transformer_mt.model_directory import require_safe_outputs
from transformer_mt.reports import attention
from transformer_mt.utils.console import warn
from transformer_mt.utils.errors import UsageError
from transformer_mt.utils.files import write_atomically
from transformer_mt.utils.languages import sentences


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_model_dir(parser)
    arguments.add_values(
        parser,
        "TEXT",
        required=("text",),
        text="the source sentence",
        target="its translation (default: the best one that the model finds)",
    )
    arguments.add_files(parser, output="the file for the page (default: attention.html)")
    parser.set_defaults(output=Path("attention.html"))
    arguments.add_checkpoint(parser)
    arguments.add_device(parser)


def run(options: argparse.Namespace) -> None:
    """
    Raises:
        UsageError: there is no such model, it is an export or non-autoregressive, a text is
            empty or too long, or the page would replace a file of a model.
        UserError: the model is damaged, or the page can't be written.
    """
    require_safe_outputs({"--output": options.output}, {})
    spec = attention.find(Path(options.model_dir), options.checkpoint, options.device)
    subwords, limit = spec.subwords, spec.config.data.max_length
    text, source_ids = _read("--text", options.text, subwords.source, limit)
    if not source_ids:
        raise UsageError("--text: there is no text in it")
    count = len(sentences(text, spec.config.data.source_lang))
    if count > 1 and spec.config.decoding.split_sentences:
        warn(
            f"--text: {count} sentences. The maps show them read as one text, although `translate` "
            "translates each sentence by itself"
        )
    if options.target is not None:
        target, target_ids = _read("--target", options.target, subwords.target, limit)

    engine = attention.load(spec)
    label = "Translation, given"
    if options.target is None:
        label = "Translation, found by the model"
        target_ids = engine.search([Sentence(source_ids)], spec.config.decoding)[0][0].ids
        target = subwords.target.decode(target_ids)
    source = attention.Side("Source", text, source_ids)
    page = attention.draw(spec, engine, source, attention.Side(label, target, target_ids))
    write_atomically(options.output, page)
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

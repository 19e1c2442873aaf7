"""The command `export`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from transformer_mt.assembly.heads import alignment_heads
from transformer_mt.assembly.model import build_model, load_weights
from transformer_mt.commands.arguments import add_checkpoint, add_model_dir
from transformer_mt.config import file as config_file
from transformer_mt.config.schema import Config
from transformer_mt.data.subword import Subwords
from transformer_mt.model.transformer import Transformer
from transformer_mt.model_directory import (
    CONFIG,
    FORMAT_VERSION,
    MADE_OF,
    VERSION,
    ModelDirectory,
    named,
)
from transformer_mt.runtime.checksums import CHECKSUMS, listed, sealed, write_checksums
from transformer_mt.runtime.console import quoted, say
from transformer_mt.runtime.errors import UsageError, UserError
from transformer_mt.runtime.folders import whole_folder

# The folder of each format under MODEL_DIR/export.
FOLDERS = {"ctranslate2": "ctranslate2", "paddle": "paddle_inference"}

HELP = """\
examples:
  python -m transformer_mt export runs/demo --format ctranslate2
  python -m transformer_mt export runs/demo --format ctranslate2 --quantization int8
  python -m transformer_mt translate runs/demo --engine ctranslate2 < in.txt
  python -m transformer_mt translate runs/demo/export/ctranslate2_int8 < in.txt
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_dir(parser)
    parser.add_argument("--format", required=True, choices=tuple(FOLDERS))
    parser.add_argument(
        "--quantization",
        choices=("int8", "int8_float32", "int16", "float16", "bfloat16"),
        help="of CTranslate2: smaller weights. int8: a quarter of the size, and faster on a CPU",
    )
    add_checkpoint(parser)
    parser.add_argument(
        "--output",
        metavar="FOLDER",
        type=Path,
        help="where it goes (MODEL_DIR/export/FORMAT or .../FORMAT_QUANTIZATION); an earlier "
        "export is replaced, anything else is not",
    )


def run(options: argparse.Namespace) -> None:
    export(
        options.model_dir,
        options.format,
        options.output,
        options.checkpoint,
        options.quantization,
    )


def export(
    model_dir: str,
    format: str,
    output: Path | None = None,
    checkpoint: str | None = None,
    quantization: str | None = None,
) -> None:
    """Writes a model in another format, into a folder that can be moved anywhere.

    Beside the model it holds config, subword model, format version and checksums, as a model
    directory does, and the name and checksum of the checkpoint that it was made of.

    Args:
        format: of FOLDERS.
        output: the folder; None is one of MODEL_DIR/export. An earlier export there is replaced,
            when the new one is whole.
        checkpoint: as in `ModelDirectory.checkpoint`.
        quantization: as in `ctranslate2.write_model`; of no other format.

    Raises:
        UsageError: the folder holds something else than an export, or the arguments don't fit.
        UserError: the model is damaged, the format has no place for it, or it can't be written.
    """
    if quantization and format != "ctranslate2":
        raise UsageError(f"--quantization {quantization}: only --format ctranslate2 has it")
    directory = ModelDirectory(model_dir)
    config = directory.load_config()
    if config.model.non_autoregressive is not None:
        raise UserError(
            f"{directory.path} is non-autoregressive (model.non_autoregressive), and can't be "
            "exported: what is exported predicts one word after another, and it all at once"
        )
    chosen = directory.checkpoint(checkpoint)
    subwords = directory.load_subwords()
    if output is None:
        name = FOLDERS[format] + (f"_{quantization}" if quantization else "")
        output = directory.own("export") / name
        directory.own(f"export/{name}")
    _check_replaceable(output)
    model = build_model(config.model, subwords)
    load_weights(chosen, model)
    try:
        with whole_folder(output) as folder:
            _write_model(folder, format, model, config, subwords, quantization)
            subwords.save(folder)
            (folder / CONFIG).write_text(sealed(config_file.dump(config)), encoding="utf-8")
            (folder / VERSION).write_text(f"{FORMAT_VERSION}\n")
            (folder / MADE_OF).write_text(named(chosen))
            write_checksums(folder)
    except OSError as error:
        raise UserError(f"{output}: can't be written: {error.strerror or error}") from None
    print(output)
    say(f"{chosen.name}, to translate with: python -m transformer_mt translate {quoted(output)}")


def _write_model(
    folder: Path,
    format: str,
    model: Transformer,
    config: Config,
    subwords: Subwords,
    quantization: str | None,
) -> None:
    """Each format's own part: checks all of the model, then writes it."""
    if format == "ctranslate2":
        from transformer_mt.backends.ctranslate2 import export as ctranslate2

        ctranslate2.write_model(folder, model, config, subwords, quantization)
    else:
        from transformer_mt.backends.paddle_inference import export as paddle_inference

        paddle_inference.write_model(folder, model, alignment_heads(config))


def _check_replaceable(folder: Path) -> None:
    if not os.path.lexists(folder) or (folder.is_dir() and not any(folder.iterdir())):
        return
    held = ModelDirectory(folder)
    # What training has written has checkpoints; what was exported has none.
    if not held.holds_run or held.checkpoints.exists():
        raise UsageError(
            f"{folder} is there, and is not an export: it is left as it is. Give another --output"
        )
    foreign = sorted({path.name for path in folder.iterdir()} - listed(folder) - {CHECKSUMS})
    if foreign:
        raise UsageError(
            f"{folder} is an export with something else in it ({', '.join(foreign[:3])}): it is "
            "left as it is. Take that out, or give another --output"
        )

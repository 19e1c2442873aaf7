"""The command `export`.

The commands `translate`, `evaluate`, `score` and `align` read an export like a model directory. If
something in the model cannot be exported, all of it is listed, and nothing is written.

examples:
  python -m transformer_mt export runs/demo --format ctranslate2
  python -m transformer_mt export runs/demo --format ctranslate2 --quantization int8
  python -m transformer_mt translate runs/demo --engine ctranslate2 < in.txt
  python -m transformer_mt translate runs/demo/export/ctranslate2_int8 < in.txt
"""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformer_mt.commands import arguments
from transformer_mt.config import file as config_file
from transformer_mt.config.schema import Config
from transformer_mt.data.subword import Subwords
from transformer_mt.export.registry import BACKENDS, Backend
from transformer_mt.model_directory import (
    CONFIG,
    FORMAT_VERSION,
    MADE_OF,
    MODEL_CARD,
    SHORTLIST,
    VERSION,
    ModelDirectory,
    named,
    require_safe_outputs,
)
from transformer_mt.reports import card
from transformer_mt.reports.card import card_of
from transformer_mt.utils import signals
from transformer_mt.utils.console import quoted, say
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.folders import CHECKSUMS, listed, published, sealed
from transformer_mt.weights import Adapters, load_weights, read_weights, write_pdparams

# The backend of each format.
FORMATS = {backend.export_format: backend for backend in BACKENDS.values() if backend.export_format}
PDPARAMS, ADAPTER, HUGGING_FACE = "pdparams", "adapter", "huggingface"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_model_dir(parser)
    parser.add_argument(
        "--format",
        required=True,
        choices=(*FORMATS, HUGGING_FACE, ADAPTER, PDPARAMS),
        help="the library that will run the model: Paddle Inference or CTranslate2, or Hugging "
        "Face's transformers, as MarianMT; or adapter, which is the adapters alone, for people who "
        "have the model that they were trained for; or pdparams, which is the weights alone as "
        "Paddle's own file, for tools that do not read safetensors",
    )
    parser.add_argument(
        "--quantization",
        choices=[kind for backend in FORMATS.values() for kind in backend.quantizations],
        help="stores the weights with fewer bits, for --format ctranslate2. int8 has a quarter of "
        "the size, and is faster on a CPU (default: float32)",
    )
    arguments.add_checkpoint(parser)
    arguments.add_values(
        parser,
        "PATH",
        Path,
        output="the folder to write (with --format pdparams, the file). An earlier export in it is "
        "replaced, but a folder with anything else is refused (default: in MODEL_DIR/export, a "
        "folder named after the engine and the quantization, or CHECKPOINT.pdparams)",
    )


def run(options: argparse.Namespace) -> None:
    """Writes a model in another format, into a folder that can be moved anywhere.

    Beside the model it holds config, subword model, format version and checksums, as a model
    directory does, and the name and checksum of the checkpoint that it was made of. An earlier
    export in its place is replaced, when the new one is whole.

    Raises:
        UsageError: the folder holds something else than an export, or the arguments don't fit.
        UserError: the model is damaged, the format has no place for it, or it can't be written.
    """
    backend, quantization = FORMATS.get(options.format), options.quantization
    if quantization and (backend is None or quantization not in backend.quantizations):
        able = [name for name, other in FORMATS.items() if quantization in other.quantizations]
        raise UsageError(f"--quantization {quantization}: only --format {', '.join(able)} has it")
    directory = ModelDirectory(options.model_dir)
    config = directory.load_config()
    if backend is not None:
        backend.require_exportable(backend.unsupported(config.model))  # before seconds of work
    chosen, output = directory.checkpoint(options.checkpoint), options.output
    require_safe_outputs({"--output": output}, {})
    if options.format == PDPARAMS:
        if output is None:
            directory.own("export").mkdir(exist_ok=True)
            output = directory.own(f"export/{chosen.name}.{PDPARAMS}")
        write_pdparams(chosen, output)
        print(output)
        return
    if output is None:
        name = options.format if backend is None else backend.name
        output = directory.own(f"export/{name}{f'_{quantization}' if quantization else ''}")
    _check_replaceable(output)
    if options.format == HUGGING_FACE:
        _export_to_huggingface(directory, config, chosen, output)
    elif backend is None:
        _export_adapters(directory, config, chosen, output)
    else:
        _export_to_backend(backend, quantization, directory, config, chosen, output)


def _export_to_backend(
    backend: Backend,
    quantization: str | None,
    directory: ModelDirectory,
    config: Config,
    chosen: Path,
    output: Path,
) -> None:
    """Writes a checkpoint in the format of a backend."""
    backend.require_utf8(output)
    subwords, shortlist = directory.load_subwords(), None
    if backend.shortlist_file and directory.own(SHORTLIST).is_file():
        shortlist = directory.load_shortlist(subwords)

    from transformer_mt.model.variants import build_model  # It imports Paddle, which takes seconds.

    model = build_model(config.model, subwords)
    load_weights(chosen, model)
    with _writing(output) as folder:
        # An exception of Python in the middle of Paddle's export can crash it.
        with signals.held_back():
            backend.write_model(folder, model, config, subwords, quantization)
        if shortlist is not None:
            (folder / backend.shortlist_file).write_text(shortlist.text(subwords), "utf-8")
        _write_own_files(folder, directory, config, subwords, chosen)
        (folder / MODEL_CARD).write_text(card_of(directory, chosen.name), encoding="utf-8")
    print(output)
    say(f"exported {chosen.name}; to translate: bash scripts/translate.sh {quoted(output)} FILE")


def _export_adapters(directory: ModelDirectory, config: Config, chosen: Path, output: Path) -> None:
    """Writes the adapters of a checkpoint, without the weights that they are added to."""
    adapters = Adapters.read(chosen)
    if adapters is None:
        raise UsageError(f"{chosen} has no adapters: it was trained without adapter.rank")
    with _writing(output) as folder:
        adapters.write(folder)
        _write_own_files(folder, directory, config, directory.load_subwords(), chosen)
        text = card_of(directory, chosen.name, base_name=adapters.base_name)
        (folder / MODEL_CARD).write_text(text, encoding="utf-8")
    print(output)
    say(f"exported the adapters of {chosen.name}, without the weights of {adapters.base_name}")


def _write_own_files(
    folder: Path, directory: ModelDirectory, config: Config, subwords: Subwords, chosen: Path
) -> None:
    """Writes what an export that this program reads has besides the model and its card."""
    subwords.save(folder)
    (folder / CONFIG).write_text(sealed(config_file.dump(config)), encoding="utf-8")
    (folder / VERSION).write_text(f"{FORMAT_VERSION}\n")
    (folder / MADE_OF).write_text(named(chosen), "utf-8")
    training = card.of_training(directory.path, chosen.name)
    (folder / card.CARD).write_text(training.model_dump_json() + "\n", encoding="utf-8")


def _export_to_huggingface(
    directory: ModelDirectory, config: Config, chosen: Path, output: Path
) -> None:
    """Writes a checkpoint as a folder of Hugging Face's MarianMT, which holds nothing of ours but
    the name of the checkpoint and the checksums."""
    from transformer_mt.pretrained import huggingface

    with _writing(output) as folder:
        huggingface.write(folder, read_weights(chosen), config, directory.load_subwords())
        (folder / MADE_OF).write_text(named(chosen), "utf-8")
        text = card_of(directory, chosen.name, for_transformers=True)
        (folder / MODEL_CARD).write_text(text, encoding="utf-8")
    print(output)
    say(
        f"exported {chosen.name}; in Python, load it with MarianMTModel.from_pretrained and "
        "MarianTokenizer.from_pretrained of transformers"
    )


@contextmanager
def _writing(output: Path) -> Iterator[Path]:
    """As `published`, with an error that names the folder."""
    try:
        with published(output) as folder:
            yield folder
    except OSError as error:
        raise UserError(f"{output}: can't be written: {error.strerror or error}") from None


def _check_replaceable(folder: Path) -> None:
    if not os.path.lexists(folder) or (folder.is_dir() and not any(folder.iterdir())):
        return
    # What training has written has no such file; it has checkpoints.
    if not (folder / MADE_OF).is_file():
        raise UsageError(
            f"{folder} is there, and is not an export: it is left as it is. Give another --output"
        )
    foreign = sorted({path.name for path in folder.iterdir()} - listed(folder) - {CHECKSUMS})
    if foreign:
        raise UsageError(
            f"{folder} is an export with something else in it ({', '.join(foreign[:3])}): it is "
            "left as it is. Take that out, or give another --output"
        )

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
from pathlib import Path

from transformer_mt.commands import arguments
from transformer_mt.config import file as config_file
from transformer_mt.export.registry import BACKENDS
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
from transformer_mt.weights import Adapters, load_weights, write_pdparams

# The backend of each format.
FORMATS = {backend.export_format: backend for backend in BACKENDS.values() if backend.export_format}
PDPARAMS, ADAPTER = "pdparams", "adapter"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_model_dir(parser)
    parser.add_argument(
        "--format",
        required=True,
        choices=(*FORMATS, PDPARAMS, ADAPTER),
        help="the library that will run the model: Paddle Inference or CTranslate2; or pdparams, "
        "which is the weights alone as Paddle's own file, for tools that do not read safetensors; "
        "or adapter, which is the adapters alone, for people who have the model that they were "
        "trained for",
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
    adapters = None
    if options.format == ADAPTER:
        adapters = Adapters.read(chosen)
        if adapters is None:
            raise UsageError(f"{chosen} has no adapters: it was trained without adapter.rank")
    elif backend is None:
        if output is None:
            directory.own("export").mkdir(exist_ok=True)
            output = directory.own(f"export/{chosen.name}.{PDPARAMS}")
        write_pdparams(chosen, output)
        print(output)
        return
    subwords, shortlist = directory.load_subwords(), None
    if backend is not None and backend.shortlist_file and directory.own(SHORTLIST).is_file():
        shortlist = directory.load_shortlist(subwords)
    if output is None:
        name = options.format if backend is None else backend.name
        output = directory.own(f"export/{name}{f'_{quantization}' if quantization else ''}")
    if backend is not None:
        backend.require_utf8(output)
    _check_replaceable(output)
    model = None
    if backend is not None:
        from transformer_mt.model.variants import build_model  # Paddle takes seconds to import.

        model = build_model(config.model, subwords)
        load_weights(chosen, model)
    try:
        with published(output) as folder:
            if adapters is not None:
                adapters.write(folder)
            else:
                # An exception of Python in the middle of Paddle's export can crash it.
                with signals.held_back():
                    backend.write_model(folder, model, config, subwords, quantization)
            if shortlist is not None:
                (folder / backend.shortlist_file).write_text(shortlist.text(subwords), "utf-8")
            subwords.save(folder)
            (folder / CONFIG).write_text(sealed(config_file.dump(config)), encoding="utf-8")
            (folder / VERSION).write_text(f"{FORMAT_VERSION}\n")
            (folder / MADE_OF).write_text(named(chosen), "utf-8")
            training = card.of_training(directory.path, chosen.name)
            text = card_of(directory, chosen.name, adapters.base_name if adapters else None)
            (folder / MODEL_CARD).write_text(text, encoding="utf-8")
            (folder / card.CARD).write_text(training.model_dump_json() + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{output}: can't be written: {error.strerror or error}") from None
    print(output)
    if adapters is not None:
        say(f"exported the adapters of {chosen.name}, without the weights of {adapters.base_name}")
        return
    say(f"exported {chosen.name}; to translate: bash scripts/translate.sh {quoted(output)} FILE")


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

"""The command `convert`: model directories of the format before this one, and Paddle's own files.

Weights were pickles then. A pickle is a program that can call whatever it names, so the reader here
lets it name the three things that an array is made of, and refuses everything else.
"""

from __future__ import annotations

import argparse
import io
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from transformer_mt.commands.arguments import add_checkpoint, add_files, add_model_dir
from transformer_mt.model_directory import (
    CONFIG,
    FORMAT_VERSION,
    PICKLE_FORMAT_VERSION,
    SUBWORDS,
    VERSION,
    ModelDirectory,
)
from transformer_mt.runtime import tensors
from transformer_mt.runtime.checksums import CHECKSUMS, damage, is_sealed, sealed, write_checksums
from transformer_mt.runtime.console import say, warn
from transformer_mt.runtime.errors import UsageError, UserError
from transformer_mt.runtime.files import atomic
from transformer_mt.runtime.folders import published
from transformer_mt.training.run_directory import RunDirectory
from transformer_mt.weights import WEIGHTS, read_weights

# A table that Paddle saves beside the arrays; it tells nothing that their names do not.
PADDLE_NAMES = "StructuredToParameterName@@"

HELP = """\
In the previous format (format_version 1), weights and optimiser were pickles, which can run any
code when they are read. They are converted by a reader that only knows arrays, so a directory from
somewhere else can be converted safely. Nothing is lost: translations stay the same, and training
can be resumed.

examples:
  python -m transformer_mt convert runs/demo
  python -m transformer_mt convert runs/demo --to pdparams --output demo.pdparams
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_dir(parser, "an earlier `train` or `export` has written")
    parser.add_argument("--to", choices=("pdparams",), help="what to write (this version's format)")
    add_checkpoint(parser)
    add_files(parser, output="of --to pdparams: the file (MODEL_DIR/export/CHECKPOINT.pdparams)")


def run(options: argparse.Namespace) -> None:
    if options.to is not None:
        write_pdparams(options.model_dir, options.checkpoint, options.output)
    elif options.checkpoint or options.output:
        raise UsageError("convert: --checkpoint and --output go together with --to pdparams")
    else:
        convert(options.model_dir)


class ArraysOnly(pickle.Unpickler):
    """Reads pickles of NumPy arrays, and no others."""

    ADMITTED = frozenset(
        [
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
        ]
    )

    def find_class(self, module: str, name: str) -> Any:
        """Called for whatever the pickle names."""
        if (module, name) not in self.ADMITTED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no array is made of")
        return super().find_class(module, name)


def convert(model_dir: str) -> None:
    """Brings a model directory, or an export, of the format before to this one.

    Every checkpoint is replaced at one moment and the version is written last, so that a conversion
    that was stopped is gone on with by the same command. Weights, optimiser and state stay the same
    to the last bit.

    Raises:
        UsageError: it is no model directory, or of another version.
        UserError: a file is damaged or holds something else than arrays, or can't be written.
    """
    directory = RunDirectory(model_dir)
    if not directory.holds_run:
        raise UsageError(f"{directory.path} is not a model directory, nor an export")
    if _is_of(directory.path, FORMAT_VERSION):
        say(f"{directory.path} is of format version {FORMAT_VERSION} already")
        return
    if not _is_of(directory.path, PICKLE_FORMAT_VERSION):
        raise UsageError(
            f"{directory.path}: only format version {PICKLE_FORMAT_VERSION} can be converted"
        )
    if not directory.checkpoints.exists():
        _convert_export(directory.path)
    else:
        directory.lock()
        try:
            _convert_run(directory)
        finally:
            directory.release()
    say(f"{directory.path} is of format version {FORMAT_VERSION} now")


def write_pdparams(model_dir: str, checkpoint: str | None, output: Path | None) -> None:
    """Writes the weights of a checkpoint as Paddle's own file, for tools that read no other.

    Args:
        checkpoint: as in `ModelDirectory.checkpoint`.
        output: the file; None: MODEL_DIR/export/CHECKPOINT.pdparams.

    Raises:
        UserError: the checkpoint is damaged, or the file can't be written.
    """
    import paddle

    directory = ModelDirectory(model_dir)
    directory.load_config()
    chosen = directory.checkpoint(checkpoint)
    weights = {name: paddle.to_tensor(array) for name, array in read_weights(chosen).items()}
    for name, weight in weights.items():
        weight.name = name  # Paddle saves it; its own is a running number of the process
    if output is None:
        directory.own("export").mkdir(exist_ok=True)
        output = directory.own(f"export/{chosen.name}.pdparams")
    content = io.BytesIO()
    paddle.save(weights, content)
    with atomic(output, "wb") as file:
        file.write(content.getbuffer())
    print(output)


def _is_of(folder: Path, version: int) -> bool:
    return (folder / VERSION).read_bytes().strip() == str(version).encode()


def _convert_run(directory: RunDirectory) -> None:
    folder = directory.path
    directory.require_inside()
    best = (folder / "best").read_bytes().strip() if (folder / "best").is_file() else None
    for path in directory.named_checkpoints():
        _convert_checkpoint(path)
        if best == path.name.encode():
            directory.set_best(path)
    for path in sorted((folder / "export").glob("[!.]*")):
        if (path / VERSION).is_file() and _is_of(path, PICKLE_FORMAT_VERSION):
            _convert_export(path)
    if directory.held_out.is_dir():
        write_checksums(directory.held_out)
    write_checksums(folder, SUBWORDS)
    content = (folder / CONFIG).read_bytes()
    if not is_sealed(content):
        with atomic(folder / CONFIG) as file:
            file.write(sealed(content.decode("utf-8")))
    with atomic(folder / VERSION) as file:
        file.write(f"{FORMAT_VERSION}\n")


def _convert_checkpoint(path: Path) -> None:
    from transformer_mt.training.checkpoint import OPTIMIZER, write_checkpoint

    # The files of a checkpoint that were pickles, and what each becomes.
    pickles = {"model.pdparams": WEIGHTS, "optimizer.pdopt": OPTIMIZER}
    if not (path / "model.pdparams").is_file() and (path / WEIGHTS).is_file():
        return  # converted, before the conversion was stopped
    if problem := damage(path):
        aside = path.with_name(f"{path.name}.damaged")
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)
        warn(f"{path} is damaged ({problem}); it is left out, and renamed {aside.name}")
        return

    def write(folder: Path) -> None:
        for file in path.iterdir():
            if file.name in pickles:
                tensors.write(folder / pickles[file.name], read_pickle(file))
            elif file.name != CHECKSUMS:
                shutil.copyfile(file, folder / file.name)

    write_checkpoint(path, write)
    say(f"{path}: converted")


def _convert_export(path: Path) -> None:
    """An export has no pickle in it: config and version change, and the checksums with them."""
    if problem := damage(path):
        warn(f"{path} is damaged ({problem}); it is left as it is. Export the model again")
        return
    try:
        with published(path) as folder:
            for file in path.iterdir():
                if file.name not in (CONFIG, VERSION, CHECKSUMS):
                    shutil.copyfile(file, folder / file.name)
            config = (path / CONFIG).read_text(encoding="utf-8")
            (folder / CONFIG).write_text(sealed(config), encoding="utf-8")
            (folder / VERSION).write_text(f"{FORMAT_VERSION}\n")
    except OSError as error:
        raise UserError(f"{path}: can't be written: {error.strerror or error}") from None
    say(f"{path}: converted")


def read_pickle(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file that `paddle.save` has written, by their names.

    Raises:
        UserError: it is damaged, or holds something else.
    """
    try:
        with open(path, "rb") as file:
            values = ArraysOnly(file).load()
        if not isinstance(values, dict):
            raise ValueError("it holds no table of names")
        return dict(_arrays(values))
    except Exception as error:  # reading what is damaged, or made up, can raise nearly anything
        reason = str(error).split("\n")[0] or type(error).__name__
        raise UserError(
            f"{path}: it holds something else than arrays ({reason}), and was not read any "
            "further. Delete its checkpoint, or do without this model"
        ) from None


def _arrays(values: dict[Any, Any]) -> Iterator[tuple[str, np.ndarray]]:
    for name, value in values.items():
        if name == PADDLE_NAMES:
            continue
        if (
            not isinstance(name, str)
            or type(value) is not np.ndarray
            or value.dtype.kind not in "fiu"
        ):
            raise ValueError("not each of its values is an array of numbers with a name")
        yield name, value
